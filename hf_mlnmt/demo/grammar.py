"""The demo corpus: English sentences from a small grammar of our own, each with its one German translation.

The German side needs gender, number and case, adjective endings, separable verbs, and the verb in second place (also
after a fronted time), in first place (questions) and in last place (subordinate clauses). The held-out sets hold
combinations of subject, verb and object that training never shows, made of words that it does show.
"""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hf_mlnmt.common.files import atomic_path

Pair = tuple[str, str]
MIN_WORDS, MAX_WORDS = 3, 16
SIZES = {"train": 40_000, "val": 500, "test": 1_000}
_HELD_OUT_PERCENT = {"val": 4, "test": 8}


class Noun(NamedTuple):
    """A noun, English and German; `gender`: m, f or n; `kind`: p for a person, a for an animal, t for a thing."""

    en: str
    en_plural: str
    de: str
    de_plural: str
    gender: str
    kind: str


class Verb(NamedTuple):
    """A verb, English and German. prefix: separable part (ruft ... an). case: of its German object. subjects, objects:
    the kinds of nouns that may be its subject or object (`Noun.kind`)."""

    en: str
    en_singular: str
    en_participle: str
    de_singular: str
    de_plural: str
    de_participle: str
    prefix: str
    case: str
    subjects: str
    objects: str


def _table(text: str) -> list[list[str]]:
    """Returns the cells of each line of a table; "_" in a cell stands for a blank, "-" for an empty cell."""
    return [[cell.replace("_", " ").replace("-", "") for cell in line.split()] for line in text.strip().splitlines()]


NOUNS = [
    Noun(*cells)
    for cells in _table("""
man men Mann Männer m p
woman women Frau Frauen f p
child children Kind Kinder n p
girl girls Mädchen Mädchen n p
teacher teachers Lehrer Lehrer m p
doctor doctors Arzt Ärzte m p
mother mothers Mutter Mütter f p
friend friends Freund Freunde m p
queen queens Königin Königinnen f p
dog dogs Hund Hunde m a
cat cats Katze Katzen f a
horse horses Pferd Pferde n a
bird birds Vogel Vögel m a
book books Buch Bücher n t
letter letters Brief Briefe m t
apple apples Apfel Äpfel m t
bag bags Tasche Taschen f t
picture pictures Bild Bilder n t
flower flowers Blume Blumen f t
car cars Auto Autos n t
""")
]
VERBS = [
    Verb(*cells)
    for cells in _table("""
see sees seen sieht sehen gesehen - acc pa pat
find finds found findet finden gefunden - acc pa pat
look_for looks_for looked_for sucht suchen gesucht - acc pa pat
love loves loved liebt lieben geliebt - acc pa pat
buy buys bought kauft kaufen gekauft - acc p at
carry carries carried trägt tragen getragen - acc p t
ask asks asked fragt fragen gefragt - acc p p
visit visits visited besucht besuchen besucht - acc p p
help helps helped hilft helfen geholfen - dat pa pa
thank thanks thanked dankt danken gedankt - dat p p
call calls called ruft rufen angerufen an acc p p
invite invites invited lädt laden eingeladen ein acc p p
look_at looks_at looked_at sieht sehen angesehen an acc pa pat
listen_to listens_to listened_to hört hören zugehört zu dat pa p
sleep sleeps slept schläft schlafen geschlafen - - pa -
laugh laughs laughed lacht lachen gelacht - - p -
work works worked arbeitet arbeiten gearbeitet - - p -
""")
]
# English, German, and the kinds of nouns that the adjective suits.
ADJECTIVES = [("small", "klein", "pat"), ("big", "groß", "pat"), ("old", "alt", "pat")]
ADJECTIVES += [("young", "jung", "pa"), ("red", "rot", "t")]
# Each pronoun: English as subject and as object; German nominative, accusative and dative; 1 for a plural.
PRONOUNS = [("he", "him", "er", "ihn", "ihm", 0), ("she", "her", "sie", "sie", "ihr", 0)]
PRONOUNS += [("we", "us", "wir", "uns", "uns", 1), ("they", "them", "sie", "sie", "ihnen", 1)]
# The finite verb of each tense: English singular and plural, German singular and plural.
TENSES = {"perfect": ("has", "have", "hat", "haben"), "can": ("can", "can", "kann", "können")}
TENSES["must"] = ("must", "must", "muss", "müssen")
TIMES = [("today", "heute"), ("every day", "jeden Tag"), ("in the evening", "am Abend"), ("now", "jetzt")]
PLACES = [("in the garden", "im Garten"), ("in the city", "in der Stadt"), ("in the kitchen", "in der Küche")]
PLACES += [("at the market", "auf dem Markt"), ("behind the house", "hinter dem Haus")]
CONJUNCTIONS = [("because", "weil"), ("although", "obwohl"), ("when", "wenn")]
# German determiners, a text for each of CASES: masculine, feminine, neuter and plural. _WEAK...: endings of adjectives.
DETERMINERS = {
    "the": ("der die das die", "den die das die", "dem der dem den"),
    "this": ("dieser diese dieses diese", "diesen diese dieses diese", "diesem dieser diesem diesen"),
    "a": ("ein eine ein -", "einen eine ein -", "einem einer einem -"),
    "my": ("mein meine mein meine", "meinen meine mein meine", "meinem meiner meinem meinen"),
    "two": ("- - - zwei", "- - - zwei", "- - - zwei"),
}
_WEAK, _MIXED = ("e e e en", "en e e en", "en en en en"), ("er e es en", "en e es en", "en en en en")
ENDINGS = {"the": _WEAK, "this": _WEAK, "a": _MIXED, "my": _MIXED, "two": ("- - - e", "- - - e", "- - - en")}
CASES = ("nom", "acc", "dat")


class Phrase(NamedTuple):
    """A noun phrase or pronoun: English as subject and as object, German by case. name: its English noun or pronoun."""

    subject: str
    object: str
    german: dict[str, str]
    plural: bool
    name: str


def noun_phrase(noun: Noun, determiner: str, adjective: Sequence[str] = (), plural: bool = False) -> Phrase:
    """Returns a phrase such as "the old man" or "these dogs"; "a" has no plural and "two" no singular."""
    words = [*adjective[:1], noun.en_plural if plural else noun.en]
    article = "an" if determiner == "a" and words[0][0] in "aeiou" else determiner
    english = " ".join(["these" if plural and determiner == "this" else article, *words])
    column, german = 3 if plural else "mfn".index(noun.gender), {}
    for number, case in enumerate(CASES):
        pick = [table[determiner][number].split()[column] for table in (DETERMINERS, ENDINGS)]
        ending = "n" if plural and case == "dat" and noun.de_plural[-1] not in "ns" else ""
        inner = [adjective[1] + pick[1]] if adjective else []
        german[case] = " ".join([pick[0], *inner, noun.de_plural + ending if plural else noun.de])
    return Phrase(english, english, german, plural, noun.en)


def pronoun(number: int) -> Phrase:
    """Returns the pronoun in line `number` of PRONOUNS, as a phrase."""
    subject, receiver, *german, plural = PRONOUNS[number]
    return Phrase(str(subject), str(receiver), dict(zip(CASES, map(str, german))), bool(plural), str(subject))


class Clause(NamedTuple):
    """A clause: verb, subject, object, tense, and at most one of `time`, `place` and `front`, a time that begins it."""

    subject: Phrase
    verb: Verb
    object: Phrase | None = None
    tense: str = "present"
    time: Pair | None = None
    place: Pair | None = None
    front: Pair | None = None

    @property
    def combination(self) -> str:
        """Returns subject, verb and object in English as a text, without number, determiner and adjective."""
        return f"{self.subject.name} {self.verb.en} {self.object.name if self.object else ''}"

    def english(self, question: bool = False) -> str:
        """Returns the clause in English; as a question the finite verb, or "do", comes first."""
        verb, plural = self.verb, self.subject.plural
        if self.tense == "present":
            finite = [("do" if plural else "does")] if question else []
            rest = verb.en if question or plural else verb.en_singular
        else:
            finite = [TENSES[self.tense][plural]]
            rest = verb.en_participle if self.tense == "perfect" else verb.en
        first = [*finite, self.subject.subject] if question else [self.subject.subject, *finite]
        tail = [pair[0] for pair in (self.place, self.time) if pair]
        words = [*([self.front[0]] if self.front else []), *first, rest]
        return " ".join([*words, *([self.object.object] if self.object else []), *tail])

    def german(self, order: str = "second") -> str:
        """Returns the clause in German with the verb in `second`, `first` or `last` place."""
        verb, plural = self.verb, self.subject.plural
        if self.tense == "present":
            finite, closing = verb.de_plural if plural else verb.de_singular, verb.prefix
            last = closing + finite
        else:
            finite = TENSES[self.tense][2 + plural]
            closing = verb.de_participle if self.tense == "perfect" else verb.prefix + verb.de_plural
            last = f"{closing} {finite}"
        time, place = ([pair[1]] if pair else [] for pair in (self.time, self.place))
        thing = [self.object.german[verb.case]] if self.object else []
        is_pronoun = self.object is not None and self.object.object != self.object.subject
        field = [*thing, *time, *place] if is_pronoun else [*time, *thing, *place]
        subject = self.subject.german["nom"]
        front = [self.front[1], finite, subject] if self.front else [subject, finite]
        words = {"second": [*front, *field, closing], "first": [finite, subject, *field, closing]}
        return " ".join(filter(None, words.get(order, [subject, *field, last])))


class Sampler:
    """Draws random sentence pairs; the same seed draws the same pairs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def phrase(self, kinds: str, avoid: str = "") -> Phrase:
        """Returns a random noun phrase, with a noun of one of `kinds` (`Noun.kind`) other than `avoid`; or in 15 % of
        draws a pronoun, if persons ("p") are among the kinds."""
        choice, chance = self.random.choice, self.random.random
        if "p" in kinds and chance() < 0.15:
            return pronoun(choice([number for number, line in enumerate(PRONOUNS) if line[0] != avoid]))
        noun, plural = choice([noun for noun in NOUNS if noun.kind in kinds and noun.en != avoid]), chance() < 0.33
        determiner = choice(["the", "the", "this", "my", "two" if plural else "a"])
        suited = [adjective for adjective in ADJECTIVES if noun.kind in adjective[2]]
        return noun_phrase(noun, determiner, choice(suited) if chance() < 0.35 else (), plural)

    def clause(self) -> Clause:
        """Returns a random clause with at most one of time and place."""
        verb = self.random.choice(VERBS)
        subject = self.phrase(verb.subjects)
        tense = self.random.choices(["present", *TENSES], [5, 2, 2, 1])[0]
        thing = self.phrase(verb.objects, subject.name) if verb.objects else None
        draw, clause = self.random.random(), Clause(subject, verb, thing, tense)
        if draw < 0.3:
            return clause._replace(time=self.random.choice(TIMES))
        return clause._replace(place=self.random.choice(PLACES)) if draw < 0.5 else clause

    def sentence(self) -> tuple[Pair, list[str]]:
        """Returns a random sentence pair, and the combinations of subject, verb and object in it."""
        kind = self.random.choices(["main", "front", "question", "behind", "before"], [45, 15, 12, 16, 12])[0]
        first, second = self.clause(), self.clause()
        if kind == "question":
            pair, mark = (first.english(question=True), first.german("first")), "?"
        elif kind in ("behind", "before"):
            (en, de), mark = self.random.choice(CONJUNCTIONS), "."
            if kind == "behind":
                pair = f"{first.english()} {en} {second.english()}", f"{first.german()}, {de} {second.german('last')}"
            else:
                pair = f"{en} {second.english()}, {first.english()}", f"{de} {second.german('last')}, "
                pair = pair[0], pair[1] + first.german("first")
            return self._whole(pair, mark), [first.combination, second.combination]
        else:
            if kind == "front" and not first.place:
                first = first._replace(front=first.time or self.random.choice(TIMES), time=None)
            pair, mark = (first.english(), first.german()), "."
        return self._whole(pair, mark), [first.combination]

    def _whole(self, pair: Pair, mark: str) -> Pair:
        english, german = (text[0].upper() + text[1:] + mark for text in pair)
        return english, german


def _part(combination: str) -> str:
    """Returns the part of the corpus that a combination is reserved for, by a fixed hash, the same for every seed."""
    percent = zlib.crc32(combination.encode()) % 100
    if percent < _HELD_OUT_PERCENT["val"]:
        return "val"
    return "test" if percent < sum(_HELD_OUT_PERCENT.values()) else "train"


def sample_demo_corpus(seed: int = 1, sizes: dict[str, int] | None = None) -> dict[str, list[Pair]]:
    """Samples distinct pairs for "train", "val" and "test".

    A sentence belongs to test when at least one of its combinations is reserved for test and none for val, and the
    other way round; training has the sentences without any such combination. Every word form of val and test, on both
    sides, occurs in train.
    """
    sizes, sampler = {**SIZES, **(sizes or {})}, Sampler(seed)
    parts: dict[str, list[Pair]] = {part: [] for part in sizes}
    seen: set[str] = set()
    forms: set[str] = set()
    while any(len(parts[part]) < size for part, size in sizes.items()):
        pair, combinations = sampler.sentence()
        of = set(map(_part, combinations)) - {"train"} or {"train"}
        part, words = min(of), {*pair[0].split(), *pair[1].split()}
        if len(of) > 1 or pair[0] in seen or len(parts[part]) >= sizes[part]:
            continue
        if not MIN_WORDS <= len(pair[0].split()) <= MAX_WORDS or not (part == "train" or words <= forms):
            continue  # val and test get no word forms that train lacks
        forms |= words if part == "train" else set()
        seen.add(pair[0])
        parts[part].append(pair)
    return parts


def write_demo_corpus(folder: str | Path, seed: int = 1, sizes: dict[str, int] | None = None) -> Path:
    """Writes the parts as `<part>.en.gz` and `<part>.de.gz`, the same bytes for the same seed. Returns `folder`.

    Sizes: 40,000, 500 and 1,000 distinct pairs unless told otherwise. See `sample_demo_corpus` for what is held out.
    """
    for part, pairs in sample_demo_corpus(seed, sizes).items():
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            with atomic_path(Path(folder) / f"{part}.{language}.gz") as temporary:
                temporary.write_bytes(gzip.compress(text.encode(), mtime=0))
    return Path(folder)
