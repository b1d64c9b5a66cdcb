"""Compares language codes, and finds the codes in a file's name or of a model folder.

In file names the codes of ISO 639-1, their three-letter forms, and further ones of FLORES-200 and WMT are recognized.
The 7,900 of ISO 639-3 (valid to langcodes) are not: tsv, txt, raw and bpe are among them. Where a user gives a language
(`--from`, `languages:`), any code is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import yaml

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import read_json, write_json
from hf_mlnmt.common.keys import YAMLLoader
from hf_mlnmt.common.model_folder import CONFIG, RESULTS, RESULTS_SCHEMA, fetch_small_files

# Two-letter codes, each joined to a three-letter code: ISO 639's, libraries', or the usual member of a macrolanguage.
_TWO_AND_THREE = (
    "aaaar ababk aeave afafr akaka amamh anarg arara asasm avava ayaym azaze babak bebel bgbul bibis bmbam bnben "
    "bobod brbre bsbos cacat ceche chcha cocos crcre csces cuchu cvchv cycym dadan dedeu dvdiv dzdzo eeewe elell "
    "eneng eoepo esspa etest eueus fafas ffful fifin fjfij fofao frfra fyfry gagle gdgla glglg gngrn guguj gvglv "
    "hahau heheb hihin hohmo hrhrv hthat huhun hyhye hzher iaina idind ieile igibo iiiii ikipk ioido isisl itita "
    "iuiku jajpn jvjav kakat kgkon kikik kjkua kkkaz klkal kmkhm knkan kokor krkau kskas kukur kvkom kwcor kykir "
    "lalat lbltz lglug lilim lnlin lolao ltlit lulub lvlav mgmlg mhmah mimri mkmkd mlmal mnmon mrmar msmsa mtmlt "
    "mymya nanau nbnob ndnde nenep ngndo nlnld nnnno nonor nrnbl nvnav nynya ococi ojoji omorm orori ososs papan "
    "pipli plpol pspus ptpor quque rmroh rnrun roron rurus rwkin sasan scsrd sdsnd sesme sgsag sisin skslk slslv "
    "smsmo snsna sosom sqsqi srsrp ssssw stsot susun svswe swswa tatam tetel tgtgk ththa titir tktuk tltgl tntsn "
    "toton trtur tstso tttat twtwi tytah uguig ukukr ururd uzuzb veven vivie vovol wawln wowol xhxho yiyid yoyor "
    "zazha zhzho zuzul "
    "botib cscze cywel deger elgre eubaq faper frfre hyarm isice kageo mimao mkmac msmay mybur nldut rorum skslo "
    "sqalb zhchi ararb zhcmn fapes lvlvs etekk swswh mszsm azazj uzuzn mnkhk nenpi orory sqals yiydd mgplt omgaz "
    "pspbt kukmr ayayr ququy krknc fffuv nonob tlfil"
)
# Three-letter codes in FLORES-200 and WMT whose languages have no two-letter code.
_THREE = (
    "ace acm acq aeb ajp apc ars ary arz ast awa azb ban bem bho bjn brx bug ceb cjk ckb crh csb dik doi dsb dyu fil "
    "fon frr fur gom gsw hak haw hne hsb ilo kab kac kam kbp kea kmb kok lij lmo ltg lua luo lus lzh mag mai min mni "
    "mos nan nds nso nus pag pap prs sat scn shn szl taq tpi tum tzm umb vec war wuu yue"
)
_TWO_OF = {word[2:]: word[:2] for word in _TWO_AND_THREE.split()}
_CODES = {*_TWO_OF, *_TWO_OF.values(), *_THREE.split(), "nb"}
_TWO_OF["nb"] = "no"
# Parts of file names that look like codes, but are not: parts of `split` (aa), backups, months, versions.
_OTHERWISE = {"aa", "bak", "bis", "ice", "may", "min", "per", "run"}
_WITHIN = {"nn": "no", "prs": "fa", "ckb": "ku", "azb": "az"} | dict.fromkeys(("lzh", "nan", "wuu", "yue"), "zh")
_WITHIN |= dict.fromkeys(("acm", "acq", "aeb", "ajp", "apc", "ars", "ary", "arz"), "ar")
_CODE = re.compile(r"([a-z]{2,3})(?:[-_](?:[A-Z][a-z]{3}|[A-Za-z]{2}|\d{3}))*")
Direction = tuple[str, str]


def base_language(code: str) -> str:
    """Returns the language of a code, by its two-letter code if it has one: de for deu_Latn and de-AT."""
    language = re.split("[-_]", code)[0].lower()
    return _TWO_OF.get(language, language)


def same_language(code: str | None, other: str | None) -> bool:
    """Returns whether two codes name one language, in any script and region; True if one is None (unknown)."""
    return code is None or other is None or base_language(code) == base_language(other)


def is_within(code: str, other: str) -> bool:
    """Returns whether two codes name one language, or one names a variety of the other's language, as nn of no."""
    one, two = base_language(code), base_language(other)
    return one in (two, _WITHIN.get(two)) or _WITHIN.get(one) == two


def language_tag(code: str) -> str:
    """Converts a code to a full BCP 47 tag: deu_Latn to de, sr_Latn to sr-Latn, zho_Hant to zh-Hant; unknown: und."""
    import langcodes  # imported here, as reading its tables takes a tenth of a second

    with suppress(langcodes.LanguageTagError):
        tag = langcodes.standardize_tag(re.sub("[-_]XX$", "", code))  # as in mBART's en_XX
        language, *others = tag.split("-")
        two = language if len(language) == 2 else base_language(language)  # ar for arb
        return langcodes.standardize_tag("-".join([two, *others]))
    return "und"  # the BCP 47 tag for an undetermined language


def language_in(path: str | Path) -> str | None:
    """Returns the last part of a file's name that is a language code: en for train.en.gz, en.txt and corpus.en-de.en,
    zho_Hans for zho_Hans.devtest; None if there is none."""
    return next(reversed(_codes_in(path)), None)


def _codes_in(path: str | Path) -> list[str]:
    parts = Path(path).name.split(".")
    return [part for part in parts if len(parts) > 1 and part not in _OTHERWISE and _is_code(part)]


def pair_of_name(path: str | Path) -> Direction | None:
    """Returns the two languages of a part of a file's name: en and de for corpus.en-de.tsv; None if there is none."""
    pairs = re.findall(r"(?<=\.)([a-z]{2,3})-([a-z]{2,3})(?=\.)", f".{Path(path).name}.")
    return next((pair for pair in pairs if _CODES.issuperset(pair) and "-".join(pair) not in _REGIONS), None)


def pair_in(path: str | Path) -> Direction | None:
    """Returns source and target by the file name of a Firefox model, as model.ende.intgemm.alphas.bin; else None."""
    name = re.fullmatch(r"model\.([a-z]{4,6})\.intgemm.*\.bin", Path(path).name)
    pairs = [(name[1][:size], name[1][size:]) for size in (2, 3)] if name else []
    return next((pair for pair in pairs if _CODES.issuperset(pair)), None)


def _is_code(part: str) -> bool:
    """Returns whether a part of a name is a language code; pairs as en-de are not, but pt-br and zh-tw are."""
    language, *others = re.split("[-_]", part)
    pair = bool(others) and others[0] in _CODES and f"{language}-{others[0]}" not in _REGIONS
    return language in _CODES and _CODE.fullmatch(part) is not None and not pair


_REGIONS = {"pt-br", "zh-tw"}  # a language and a region; br and tw are language codes too


def lower(text: str, language: str | None) -> str:
    """Returns a text in lower case, by its language's rules: in Turkish and Azerbaijani İ becomes i, and I ı."""
    if language and base_language(language) in ("tr", "az"):
        text = text.replace("İ", "i").replace("I", "ı")
    return text.lower()


def upper(text: str, language: str | None) -> str:
    """Returns a text in upper case, by its language's rules: in Turkish and Azerbaijani i becomes İ."""
    if language and base_language(language) in ("tr", "az"):
        text = text.replace("i", "İ")
    return text.upper()


def title(text: str, language: str | None) -> str:
    """Returns a text with the first letter of each word in upper case; other letters stay as they are."""
    return re.sub(r"(?<!\w)(?<!\w['’])[^\W\d_]", lambda letter: upper(letter[0], language), text)


def direction_of(folder: str | Path) -> Direction | None:
    """Returns source and target language of the model in a folder, from its results, its run's recipe (a checkpoint) or
    its tokenizer (Marian); None if none of these names both, and for a model of several directions."""
    folder = Path(folder)
    content = read_json(folder / RESULTS, {"languages?": (None, dict), "recipe?": (None, {"tokenizer?": (None, dict)})})
    recipe = folder.absolute().parent.parent / "recipe.yaml"
    if folder.name.startswith("checkpoint-") and recipe.is_file():
        with suppress(yaml.YAMLError, AttributeError):
            content["languages"] = yaml.load(recipe.read_text(encoding="utf-8"), YAMLLoader).get("languages")
    tokens = ((content.get("recipe") or {}).get("tokenizer") or {}).get("languages")
    if tokens or "source_languages" in read_json(folder / CONFIG):
        return None
    languages, marian = content.get("languages") or {}, read_json(folder / "tokenizer_config.json")
    source, target = (languages.get(side) or marian.get(f"{side}_lang") for side in ("source", "target"))
    known = all(isinstance(code, str) and base_language(code) in _CODES for code in (source, target))
    return (str(source), str(target)) if known else None  # Marian's "mul" is no language


def keep_direction(folders: Sequence[str | Path], new: Path, name: str, made_of: Sequence[str] = ()) -> None:
    """Writes results.json of `new`, a model made of the models in `folders`: languages and data of the first one whose
    direction is known, and the names `made_of` (default: the folders). Writes nothing if no direction is known."""
    known = ((Path(folder), pair) for folder in folders if (pair := direction_of(folder)))
    for folder, (source, target) in islice(known, 1):
        content = {"schema": RESULTS_SCHEMA, "system": name, "data": read_json(folder / RESULTS).get("data")}
        content["made_of"] = list(made_of) or [str(each) for each in folders]
        write_json(new / RESULTS, {**content, "languages": {"source": source, "target": target}})


def check_same_direction(folders: Sequence[str | Path], remedy: str) -> None:
    """Raises UserError if a model in `folders` has another direction than the first; skips unknown directions."""
    known = [(folder, pair) for folder in folders if (pair := direction_of(folder))]
    for folder, pair in known[1:]:
        if not all(map(same_language, pair, known[0][1])):
            raise UserError(
                f"{folder}: translates {' to '.join(pair)}, but {known[0][0]} {' to '.join(known[0][1])}. {remedy}"
            )


def check_direction(
    model: str | Path, wanted: Sequence[str | None], what: str, remedy: str = "Give one of that direction."
) -> None:
    """Raises UserError for a model with another direction than `wanted` (source, target; None: any language)."""
    there = direction_of(fetch_small_files(model))
    if there and not all(map(same_language, there, wanted)):
        asked = " to ".join(code or "any" for code in wanted)
        raise UserError(f"{what}: translates {' to '.join(there)}, and a model of {asked} is needed. {remedy}")


def check_language(path: str | Path, language: str | None, what: str, remedy: str) -> None:
    """Raises UserError for a file whose name has language codes, but none of `language`.

    what: the text before `language` in the message, such as "it is read as".
    """
    said = _codes_in(path) or pair_of_name(path) or ()
    if language is not None and said and not any(is_within(code, language) for code in said):
        raise UserError(f"{path}: its name says {said[-1]}, but {what} {language}. {remedy}")


def check_files(
    model: str | Path,
    sources: Sequence[str | Path] = (),
    targets: Sequence[str | Path] = (),
    told: Sequence[str | None] = (None, None),
) -> None:
    """Raises UserError for a file whose name has another language than the model's source or target language; `told`,
    --from and --to, replaces the model's languages."""
    check_direction(model, told, str(model), "Leave --from and --to out, or exchange them.")
    pair, remedy = direction_of(fetch_small_files(model)) or (None, None), "Give files of the model's direction."
    for files, code, own, how in zip((sources, targets), told, pair, ("from", "into")):
        for file in files:
            check_language(file, code or own, f"{model} translates {how}", remedy)
