"""The words of the demo corpus: small tables, English beside German, read by grammar.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Gender = Literal["m", "f", "n"]
Case = Literal["nom", "acc", "dat"]


@dataclass(frozen=True)
class Noun:
    """A noun. `kind`: p person, a animal, t thing, o thing that opens. `weak`: Junge, den Jungen."""

    en: str
    en_plural: str
    de: str
    gender: Gender
    de_plural: str
    kind: str
    weak: bool = False

    def german(self, case: Case, plural: bool) -> str:
        """Returns the form in a case; the dative plural ends in -n, except after -n and -s."""
        if plural:
            return self.de_plural + ("n" if case == "dat" and self.de_plural[-1] not in "ns" else "")
        return self.de + ("n" if self.weak and case != "nom" else "")


@dataclass(frozen=True)
class Verb:
    """A verb. `frame`: what it governs: intransitive, acc, dat, auf (auf + accusative), give (dative and accusative).

    `en` may carry a preposition ("look for"). `prefix` is the separable one: rufen ... an, anrufen, angerufen.
    `subjects` and `objects` are the noun kinds that make sense.
    """

    en: str
    en_singular: str
    en_participle: str
    de_singular: str
    de_plural: str
    de_participle: str
    prefix: str
    frame: str
    subjects: str
    objects: str


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun; `en` and `de` map a case to its form."""

    en: dict[str, str]
    de: dict[str, str]
    plural: bool


@dataclass(frozen=True)
class Adjective:
    """An adjective: predicative form, stem of the declined forms, noun kinds that it suits."""

    en: str
    de: str
    stem: str
    kinds: str


def _table(text: str) -> list[list[str]]:
    return [[cell.strip().replace("-", "") for cell in line.split("|")] for line in text.strip().splitlines()]


_NOUNS = """
man | men | Mann | m | Männer | p
woman | women | Frau | f | Frauen | p
child | children | Kind | n | Kinder | p
boy | boys | Junge | m | Jungen | p
girl | girls | Mädchen | n | Mädchen | p
teacher | teachers | Lehrer | m | Lehrer | p
doctor | doctors | Arzt | m | Ärzte | p
mother | mothers | Mutter | f | Mütter | p
father | fathers | Vater | m | Väter | p
friend | friends | Freund | m | Freunde | p
queen | queens | Königin | f | Königinnen | p
dog | dogs | Hund | m | Hunde | a
cat | cats | Katze | f | Katzen | a
horse | horses | Pferd | n | Pferde | a
bird | birds | Vogel | m | Vögel | a
book | books | Buch | n | Bücher | to
letter | letters | Brief | m | Briefe | to
apple | apples | Apfel | m | Äpfel | t
bag | bags | Tasche | f | Taschen | to
picture | pictures | Bild | n | Bilder | t
flower | flowers | Blume | f | Blumen | t
cup | cups | Tasse | f | Tassen | t
car | cars | Auto | n | Autos | t
"""

_VERBS = """
see | sees | seen | sieht | sehen | gesehen | - | acc | pa | pat
find | finds | found | findet | finden | gefunden | - | acc | pa | pat
look for | looks for | looked for | sucht | suchen | gesucht | - | acc | pa | pat
love | loves | loved | liebt | lieben | geliebt | - | acc | pa | pat
buy | buys | bought | kauft | kaufen | gekauft | - | acc | p | at
carry | carries | carried | trägt | tragen | getragen | - | acc | p | t
ask | asks | asked | fragt | fragen | gefragt | - | acc | p | p
visit | visits | visited | besucht | besuchen | besucht | - | acc | p | p
help | helps | helped | hilft | helfen | geholfen | - | dat | pa | pa
thank | thanks | thanked | dankt | danken | gedankt | - | dat | p | p
wait for | waits for | waited for | wartet | warten | gewartet | - | auf | pa | pa
call | calls | called | ruft | rufen | angerufen | an | acc | p | p
invite | invites | invited | lädt | laden | eingeladen | ein | acc | p | p
look at | looks at | looked at | sieht | sehen | angesehen | an | acc | pa | pat
open | opens | opened | macht | machen | aufgemacht | auf | acc | p | o
listen to | listens to | listened to | hört | hören | zugehört | zu | dat | pa | p
give | gives | given | gibt | geben | gegeben | - | give | p | at
show | shows | shown | zeigt | zeigen | gezeigt | - | give | p | at
sleep | sleeps | slept | schläft | schlafen | geschlafen | - | intransitive | pa | -
laugh | laughs | laughed | lacht | lachen | gelacht | - | intransitive | p | -
sing | sings | sung | singt | singen | gesungen | - | intransitive | p | -
work | works | worked | arbeitet | arbeiten | gearbeitet | - | intransitive | p | -
dance | dances | danced | tanzt | tanzen | getanzt | - | intransitive | p | -
"""

_ADJECTIVES = """
small | klein | klein | pat
big | groß | groß | pat
old | alt | alt | pat
young | jung | jung | pa
friendly | freundlich | freundlich | pa
tired | müde | müd | pa
red | rot | rot | t
"""


def _noun(cells: list[str]) -> Noun:
    en, en_plural, de, gender, de_plural, kind = cells
    return Noun(en, en_plural, de, gender, de_plural, kind, weak=de == "Junge")  # type: ignore[arg-type]


NOUNS = [_noun(cells) for cells in _table(_NOUNS)]
VERBS = [Verb(*cells) for cells in _table(_VERBS)]
ADJECTIVES = [Adjective(*cells) for cells in _table(_ADJECTIVES)]


def _pronoun(text: str, plural: bool) -> Pronoun:
    en_nom, en_obj, de_nom, de_acc, de_dat = text.split()
    return Pronoun({"nom": en_nom, "acc": en_obj, "dat": en_obj}, {"nom": de_nom, "acc": de_acc, "dat": de_dat}, plural)


PRONOUNS = [
    _pronoun("he him er ihn ihm", False),
    _pronoun("she her sie sie ihr", False),
    _pronoun("we us wir uns uns", True),
    _pronoun("they them sie sie ihnen", True),
]

# Verbs with a that-clause: English singular, plural; German singular, plural.
THAT_VERBS = [
    ("says", "say", "sagt", "sagen"),
    ("knows", "know", "weiß", "wissen"),
    ("believes", "believe", "glaubt", "glauben"),
]
# Tense: English singular, plural; German singular, plural.
AUXILIARIES = {
    "perfect": ("has", "have", "hat", "haben"),
    "can": ("can", "can", "kann", "können"),
    "must": ("must", "must", "muss", "müssen"),
    "want": ("wants to", "want to", "will", "wollen"),
}
FRONT_TIMES = [("now", "jetzt"), ("today", "heute"), ("sometimes", "manchmal"), ("every day", "jeden Tag")]
END_TIMES = [("today", "heute"), ("every day", "jeden Tag"), ("in the evening", "am Abend")]
PLACES = [
    ("in the garden", "im Garten"),
    ("in the city", "in der Stadt"),
    ("in the kitchen", "in der Küche"),
    ("in the forest", "im Wald"),
    ("at the market", "auf dem Markt"),
    ("behind the house", "hinter dem Haus"),
    ("in front of the school", "vor der Schule"),
]
COMPANY = [("with", "mit", "dat"), ("without", "ohne", "acc")]
CONJUNCTIONS = [("because", "weil"), ("although", "obwohl"), ("when", "wenn")]

# Endings by case: masculine, feminine, neuter, plural.
DEFINITE = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den"}
DIES = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en"}
EIN = {"nom": "- e - e", "acc": "en e - e", "dat": "em er em en"}
AFTER_DEFINITE = {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en"}
AFTER_EIN = {"nom": "er e es en", "acc": "en e es en", "dat": "en en en en"}
STRONG_PLURAL = {"nom": "e", "acc": "e", "dat": "en"}
RELATIVE = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem denen"}
