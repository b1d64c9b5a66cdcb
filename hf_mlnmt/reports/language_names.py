"""Names of languages in English, and sentences to try a model with."""

_NAMES = """ar Arabic|bg Bulgarian|cs Czech|da Danish|de German|el Greek|en English|es Spanish|et Estonian|fi Finnish|
fr French|gl Galician|he Hebrew|hi Hindi|hr Croatian|hu Hungarian|id Indonesian|it Italian|ja Japanese|ko Korean|
lt Lithuanian|lv Latvian|nl Dutch|no Norwegian|pl Polish|pt Portuguese|ro Romanian|ru Russian|sk Slovak|sl Slovenian|
sr Serbian|sv Swedish|th Thai|tr Turkish|uk Ukrainian|vi Vietnamese|zh Chinese"""
NAMES: dict[str, str] = dict(entry.strip().split(" ", 1) for entry in _NAMES.split("|"))  # type: ignore[misc]
_EXAMPLES = {
    "cs": "Muž jede na kole.",
    "de": "Ein Mann fährt Fahrrad.",
    "en": "A man rides a bicycle.",
    "es": "Un hombre monta en bicicleta.",
    "fr": "Un homme fait du vélo.",
    "it": "Un uomo va in bicicletta.",
    "ro": "Un bărbat merge pe bicicletă.",
    "vi": "Một người đàn ông đi xe đạp.",
}


def language_name(code: str) -> str:
    """Returns German for de, Chinese (Hant) for zh-Hant; a code without a name here stays as it is."""
    language, _, variety = code.partition("-")
    return f"{NAMES[language]} ({variety})" if variety and language in NAMES else NAMES.get(code, code)


def example(code: str | None) -> str:
    """Returns a sentence in that language (English when there is none)."""
    return _EXAMPLES.get(code or "en", _EXAMPLES["en"])
