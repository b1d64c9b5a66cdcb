"""The demo corpus: English sentences from a small grammar of our own, each with its one German translation.

The German side needs agreement, three cases, weak, mixed and strong adjective endings, plurals, separable verbs, and
the verb in second place (also after a fronted adverb or clause), first place (questions) and last place (subordinate
and relative clauses). The held-out sets hold combinations of subject, verb and object that training never shows, made
of words that it does show.
"""

from __future__ import annotations

import gzip
import random
import zlib
from dataclasses import dataclass
from pathlib import Path

from hf_mlnmt.demo import lexicon as lex
from hf_mlnmt.demo.lexicon import Adjective, Case, Noun, Pronoun, Verb
from hf_mlnmt.files import atomic_path


@dataclass
class NounPhrase:
    """Determiner, adjective, noun: "the", "a", "this", "my", "two" or "many"; `second` is joined by "and"."""

    noun: Noun
    determiner: str
    adjective: Adjective | None = None
    plural: bool = False
    company: tuple[tuple[str, str, str], NounPhrase] | None = None
    relative: Clause | None = None
    second: NounPhrase | None = None

    @property
    def many(self) -> bool:
        """Returns whether the verb is plural."""
        return self.plural or self.second is not None

    @property
    def names(self) -> list[str]:
        return [self.noun.en] + (self.second.names if self.second else [])


Argument = NounPhrase | Pronoun


@dataclass
class Clause:
    """A verb with what it governs. `tense`: present, perfect, can, must, want. Times and places: (English, German)."""

    subject: Argument
    verb: Verb | Adjective
    object: Argument | None = None
    receiver: Argument | None = None
    tense: str = "present"
    negated: bool = False
    often: bool = False
    front: tuple[str, str] | None = None
    time: tuple[str, str] | None = None
    place: tuple[str, str] | None = None
    to_receiver: bool = False


# English


def english_phrase(phrase: Argument, case: Case) -> str:
    if isinstance(phrase, Pronoun):
        return phrase.en[case]
    determiner = {"this": "these"}.get(phrase.determiner, phrase.determiner) if phrase.plural else phrase.determiner
    words = [phrase.adjective.en] if phrase.adjective else []
    words.append(phrase.noun.en_plural if phrase.plural else phrase.noun.en)
    if determiner == "a" and words[0][0] in "aeiou":
        determiner = "an"
    text = " ".join([determiner, *words])
    if phrase.company:
        text += f" {phrase.company[0][0]} {english_phrase(phrase.company[1], 'acc')}"
    if phrase.relative:
        text += " " + english_relative(phrase, phrase.relative)
    return text + (f" and {english_phrase(phrase.second, case)}" if phrase.second else "")


def english_verb(clause: Clause) -> tuple[str, str]:
    """Returns the finite part and the rest: ("has", "seen"), ("does", "not see"), ("", "sees")."""
    plural = is_plural(clause.subject)
    often = "often " if clause.often else ""
    negation = "not " if clause.negated else ""
    if isinstance(clause.verb, Adjective):
        return ("are" if plural else "is"), negation + often + clause.verb.en
    if clause.tense == "present":
        if clause.negated:
            return ("do" if plural else "does"), "not " + often + clause.verb.en
        return "", often + (clause.verb.en if plural else clause.verb.en_singular)
    finite = lex.AUXILIARIES[clause.tense][1 if plural else 0]
    return finite, negation + often + (clause.verb.en_participle if clause.tense == "perfect" else clause.verb.en)


def english_tail(clause: Clause, without_object: bool = False) -> list[str]:
    """Returns what follows the verb: objects, place, time."""
    parts = []
    if clause.object is not None and not without_object:
        parts.append(english_phrase(clause.object, "acc"))
    if clause.receiver is not None:
        receiver = english_phrase(clause.receiver, "dat")
        parts = [*parts, "to " + receiver] if clause.to_receiver else [receiver, *parts]
    return parts + [pair[0] for pair in (clause.place, clause.time) if pair]


def english_clause(clause: Clause) -> str:
    finite, rest = english_verb(clause)
    if finite == "can" and rest.startswith("not "):
        finite, rest = "cannot", rest[4:]
    front = [clause.front[0]] if clause.front else []
    words = [*front, english_phrase(clause.subject, "nom"), finite, rest, *english_tail(clause)]
    return " ".join(word for word in words if word)


def english_question(clause: Clause) -> str:
    finite, rest = english_verb(clause)
    if isinstance(clause.verb, Verb) and clause.tense in ("present", "want"):
        finite = "do" if is_plural(clause.subject) else "does"
        rest = ("want to " if clause.tense == "want" else "") + clause.verb.en
    return " ".join([finite, english_phrase(clause.subject, "nom"), rest, *english_tail(clause)])


def english_relative(head: NounPhrase, clause: Clause) -> str:
    """Says "who sees the dog", "that barks", or with the head as object "that the man sees"."""
    finite, rest = english_verb(clause)
    if clause.object is head:
        words = ["that", english_phrase(clause.subject, "nom"), finite, rest, *english_tail(clause, True)]
    else:
        words = ["who" if "p" in head.noun.kind else "that", finite, rest, *english_tail(clause)]
    return " ".join(word for word in words if word)


# German


def is_plural(phrase: Argument) -> bool:
    return phrase.plural if isinstance(phrase, Pronoun) else phrase.many


def _column(phrase: NounPhrase) -> int:
    return 3 if phrase.plural else "mfn".index(phrase.noun.gender)


def german_determiner(phrase: NounPhrase, case: Case) -> tuple[str, str]:
    """Returns the determiner and the adjective ending that it asks for."""
    column = _column(phrase)

    def pick(table: dict[str, str]) -> str:
        return table[case].split()[column].replace("-", "")

    if phrase.determiner == "the":
        return pick(lex.DEFINITE), pick(lex.AFTER_DEFINITE)
    if phrase.determiner == "this":
        return "dies" + pick(lex.DIES), pick(lex.AFTER_DEFINITE)
    if phrase.determiner in ("a", "my"):
        return {"a": "ein", "my": "mein"}[phrase.determiner] + pick(lex.EIN), pick(lex.AFTER_EIN)
    strong = lex.STRONG_PLURAL[case]
    return ("viel" + strong if phrase.determiner == "many" else "zwei"), strong


def german_phrase(phrase: Argument, case: Case) -> str:
    if isinstance(phrase, Pronoun):
        return phrase.de[case]
    determiner, ending = german_determiner(phrase, case)
    words = [determiner] + ([phrase.adjective.stem + ending] if phrase.adjective else [])
    words.append(phrase.noun.german(case, phrase.plural))
    if phrase.company:
        (_, preposition, governed), companion = phrase.company
        words += [preposition, german_phrase(companion, governed)]  # type: ignore[arg-type]
    return " ".join(words) + (f" und {german_phrase(phrase.second, case)}" if phrase.second else "")


def german_verb(clause: Clause) -> tuple[str, str]:
    """Returns the finite verb and what closes the clause: ("ruft", "an"), ("hat", "angerufen"), ("kann", "anrufen")."""
    plural = is_plural(clause.subject)
    if isinstance(clause.verb, Adjective):
        return ("sind" if plural else "ist"), clause.verb.de
    verb = clause.verb
    if clause.tense == "present":
        return (verb.de_plural if plural else verb.de_singular), verb.prefix
    finite = lex.AUXILIARIES[clause.tense][3 if plural else 2]
    return finite, verb.de_participle if clause.tense == "perfect" else verb.prefix + verb.de_plural


def german_verb_last(clause: Clause) -> str:
    finite, closing = german_verb(clause)
    if isinstance(clause.verb, Verb) and clause.tense == "present":
        return closing + finite  # the separable prefix rejoins: anruft
    return f"{closing} {finite}"


def german_field(clause: Clause, without_object: bool = False) -> list[str]:
    """Returns the middle field: pronouns, time, receiver, object, negation, place, prepositional object."""
    pronouns: list[str] = []
    nouns: list[str] = []
    after: list[str] = []
    if clause.receiver is not None:
        (pronouns if isinstance(clause.receiver, Pronoun) else nouns).append(german_phrase(clause.receiver, "dat"))
    if clause.object is not None and not without_object:
        assert isinstance(clause.verb, Verb)
        text = german_phrase(clause.object, "dat" if clause.verb.frame == "dat" else "acc")
        if clause.verb.frame == "auf":
            after.append("auf " + text)
        else:
            (pronouns if isinstance(clause.object, Pronoun) else nouns).append(text)
    time = [clause.time[1]] if clause.time else ["oft"] if clause.often else []
    negation = ["nicht"] if clause.negated else []
    return [*pronouns, *time, *nouns, *negation, *([clause.place[1]] if clause.place else []), *after]


def german_clause(clause: Clause, order: str = "second") -> str:
    """Says a clause with the verb `second`, `first` (questions, after a fronted clause) or `last` (subordinate)."""
    finite, closing = german_verb(clause)
    middle = german_field(clause)
    subject = german_phrase(clause.subject, "nom")
    subject += f"{relative}," if (relative := german_relative_of(clause.subject)) else ""
    if order == "last":
        words = [subject, *middle, german_verb_last(clause)]
    elif order == "first":
        words = [finite, subject, *middle, closing]
    elif clause.front:
        words = [clause.front[1], finite, subject, *middle, closing]
    else:
        words = [subject, finite, *middle, closing]
    # A relative clause on the object stands after the closing verb: "hat den Hund gesucht, den die Frau liebt".
    return " ".join(word for word in words if word) + german_relative_of(clause.object)


def german_relative_of(phrase: Argument | None) -> str:
    if not isinstance(phrase, NounPhrase) or phrase.relative is None:
        return ""
    return f", {german_relative(phrase, phrase.relative)}"


def german_relative(head: NounPhrase, clause: Clause) -> str:
    """Says "die den Hund sieht", or with the head as object "den die Frau sieht"."""
    assert isinstance(clause.verb, Verb)
    case: Case = "nom"
    if clause.object is head:
        case = "dat" if clause.verb.frame == "dat" else "acc"
    pronoun = lex.RELATIVE[case].split()[_column(head)]
    subject = [german_phrase(clause.subject, "nom")] if clause.object is head else []
    return " ".join([pronoun, *subject, *german_field(clause, clause.object is head), german_verb_last(clause)])


# Sampling

MIN_WORDS, MAX_WORDS = 4, 14
SIZES = {"train": 40_000, "val": 500, "test": 1_000}
_HELD_OUT_PERCENT = {"val": 4, "test": 8}

Pair = tuple[str, str]


class Sampler:
    """Draws sentences; `clauses` collects the clauses of the sentence being made: they hold its combinations."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clauses: list[Clause] = []

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def phrase(self, kinds: str, avoid: Argument | None = None, adjective: float = 0.35) -> NounPhrase:
        """Draws a noun phrase of one of the kinds, not with the noun of `avoid`."""
        taken = avoid.names if isinstance(avoid, NounPhrase) else []
        noun = self.random.choice([n for n in lex.NOUNS if set(n.kind) & set(kinds) and n.en not in taken])
        plural = self.chance(0.33)
        determiners = ["the", "the", "the", "this", "my", *(["two", "many"] if plural else ["a", "a"])]
        suited = [a for a in lex.ADJECTIVES if set(a.kinds) & set(noun.kind)]
        chosen = self.random.choice(suited) if self.chance(adjective) else None
        return NounPhrase(noun, self.random.choice(determiners), chosen, plural)

    def subject(self, kinds: str) -> Argument:
        if self.chance(0.2):
            return self.random.choice(lex.PRONOUNS)
        subject = self.phrase(kinds)
        if self.chance(0.06):
            subject.second = self.phrase(kinds, avoid=subject, adjective=0.1)
        elif self.chance(0.08):
            subject.company = (self.random.choice(lex.COMPANY), self.phrase("pa", avoid=subject, adjective=0.2))
        return subject

    def object(self, kinds: str, subject: Argument) -> Argument:
        free = [p for p in lex.PRONOUNS if p is not subject]
        return self.random.choice(free) if self.chance(0.12) else self.phrase(kinds, avoid=subject)

    def clause(self, subject: Argument | None = None, plain: bool = False) -> Clause:
        """Draws a clause with a verb that suits its subject; `plain` leaves out most adverbials (longer sentences)."""
        verbs = lex.VERBS
        if isinstance(subject, NounPhrase):
            verbs = [v for v in verbs if set(subject.noun.kind) & set(v.subjects)]
        verb = self.random.choice(verbs)
        subject = subject or self.subject(verb.subjects)
        clause = Clause(subject, verb, tense=self.tense())
        if verb.frame == "give":
            clause.object = self.phrase(verb.objects, avoid=subject)
            clause.receiver = self.object("p", subject)
            clause.to_receiver = self.chance(0.3)
        elif verb.frame != "intransitive":
            clause.object = self.object(verb.objects, subject)
        return self.adverbials(clause, 0.4 if plain else 1.0)

    def tense(self) -> str:
        return self.random.choices(["present", "perfect", "can", "must", "want"], [50, 20, 10, 8, 8])[0]

    def adverbials(self, clause: Clause, share: float) -> Clause:
        """Adds negation, "often", a place or a time; no two of them, so that their German order is never in doubt."""
        draw = self.random.random() / share
        if draw < 0.14 and clause.tense in ("present", "perfect", "can") and _definite(clause.object):
            clause.negated = True
        elif 0.14 <= draw < 0.28 and clause.tense in ("present", "perfect"):
            clause.often = True
        elif 0.28 <= draw < 0.48:
            clause.place = self.random.choice(lex.PLACES)
        elif 0.48 <= draw < 0.6:
            clause.time = self.random.choice(lex.END_TIMES)
        self.clauses.append(clause)
        return clause

    def copula(self) -> Clause:
        adjective = self.random.choice(lex.ADJECTIVES)
        subject: Argument = self.phrase(adjective.kinds, adjective=0.2)
        if "p" in adjective.kinds and self.chance(0.2):
            subject = self.random.choice(lex.PRONOUNS)
        return self.adverbials(Clause(subject, adjective), share=0.28)  # negation and "often" only

    # Sentences

    def main(self) -> Pair:
        clause = self.clause()
        if not clause.often and not clause.time and self.chance(0.3):
            fronts = lex.FRONT_TIMES[1:3] if clause.tense == "perfect" else lex.FRONT_TIMES
            clause.front = self.random.choice(fronts + ([] if clause.place or clause.negated else lex.PLACES))
        return _end(english_clause(clause), "."), _end(german_clause(clause), ".")

    def question(self) -> Pair:
        clause = self.clause()
        clause.negated = clause.often = False
        return _end(english_question(clause), "?"), _end(german_clause(clause, "first"), "?")

    def statement(self) -> Pair:
        clause = self.copula()
        return _end(english_clause(clause), "."), _end(german_clause(clause), ".")

    def subordinate(self) -> Pair:
        """Draws "... because ...", or the subordinate clause first, then the main clause's verb before its subject."""
        en, de = self.random.choice(lex.CONJUNCTIONS)
        first = self.clause(plain=True)
        second = self.copula() if self.chance(0.3) else self.clause(plain=True)
        if self.chance(0.4):
            english = f"{en} {english_clause(second)}, {english_clause(first)}"
            german = f"{de} {german_clause(second, 'last')}, {german_clause(first, 'first')}"
        else:
            english = f"{english_clause(first)} {en} {english_clause(second)}"
            german = f"{german_clause(first)}, {de} {german_clause(second, 'last')}"
        return _end(english, "."), _end(german, ".")

    def report(self) -> Pair:
        """Draws a sentence like "The man knows that ..."."""
        subject, inner = self.subject("p"), self.copula() if self.chance(0.25) else self.clause(plain=True)
        en_singular, en_plural, de_singular, de_plural = self.random.choice(lex.THAT_VERBS)
        english_verb, german_verb = (en_plural, de_plural) if is_plural(subject) else (en_singular, de_singular)
        english = f"{english_phrase(subject, 'nom')} {english_verb} that {english_clause(inner)}"
        german = f"{german_phrase(subject, 'nom')} {german_verb}, dass {german_clause(inner, 'last')}"
        return _end(english, "."), _end(german, ".")

    def relative(self) -> Pair:
        """Draws a relative clause on the subject or, after the closing verb, on the object."""
        clause = self.clause(plain=True)
        on_object = isinstance(clause.object, NounPhrase) and self.chance(0.6)
        if on_object:
            clause.place = clause.time = None
            clause.to_receiver = False
        head = clause.object if on_object else clause.subject
        if isinstance(head, Pronoun) or head is None or head.second or head.company:
            raise _Unsaid
        head.determiner = "the" if head.determiner == "my" else head.determiner
        head.relative = self.inside(head)
        return _end(english_clause(clause), "."), _end(german_clause(clause), ".")

    def inside(self, head: NounPhrase) -> Clause:
        """Draws the relative clause: its head is the subject, or the object of another subject's verb."""
        if set(head.noun.kind) & set("pa") and self.chance(0.5):
            return self.clause(subject=head, plain=True)
        frames = [v for v in lex.VERBS if v.frame in ("acc", "dat") and set(v.objects) & set(head.noun.kind)]
        verb = self.random.choice(frames)
        subject = self.phrase(verb.subjects, avoid=head, adjective=0.15)
        inner = Clause(subject, verb, object=head, tense=self.tense())
        self.clauses.append(inner)
        return inner

    def sentence(self) -> tuple[Pair, set[str]]:
        """Draws one sentence pair and the parts of the corpus that its combinations belong to."""
        kinds = [self.main, self.question, self.statement, self.subordinate, self.report, self.relative]
        while True:
            self.clauses = []
            try:
                pair = self.random.choices(kinds, [46, 9, 6, 16, 9, 14])[0]()
            except _Unsaid:
                continue
            if MIN_WORDS <= len(pair[0].split()) <= MAX_WORDS:
                return pair, {_part(combination) for clause in self.clauses for combination in combinations(clause)}


class _Unsaid(Exception):
    """The sentence that was drawn cannot be said: another is drawn."""


def _definite(phrase: Argument | None) -> bool:
    """Returns whether negation is "nicht" after it (German says "kein" before what is indefinite: left out)."""
    return not isinstance(phrase, NounPhrase) or phrase.determiner in ("the", "this", "my")


def _end(text: str, mark: str) -> str:
    return text[0].upper() + text[1:] + mark


def _name(phrase: Argument | None) -> list[str]:
    if isinstance(phrase, NounPhrase):
        return phrase.names
    return [phrase.en["nom"]] if phrase else [""]


def combinations(clause: Clause) -> list[str]:
    """Returns the (subject, verb, object) combinations of a clause as text, by lemma."""
    return [f"{s} {clause.verb.en} {o}" for s in _name(clause.subject) for o in _name(clause.object)]


def _part(combination: str) -> str:
    """Returns the part of the corpus that a combination is kept for: the same for every seed, by a fixed hash."""
    percent, limit = zlib.crc32(combination.encode()) % 100, 0
    for part, share in _HELD_OUT_PERCENT.items():
        limit += share
        if percent < limit:
            return part
    return "train"


def sample_demo_corpus(seed: int = 1, sizes: dict[str, int] | None = None) -> dict[str, list[Pair]]:
    """Samples distinct pairs for "train", "val" and "test".

    A sentence belongs to test when at least one of its combinations is kept for test and none for val, and the other
    way round; training holds the sentences without any such combination. Every word form of val and test, on both
    sides, occurs in train.
    """
    sizes = {**SIZES, **(sizes or {})}
    sampler = Sampler(seed)
    seen: set[str] = set()
    parts: dict[str, list[Pair]] = {part: [] for part in sizes}
    forms: set[str] = set()
    while any(len(parts[part]) < size for part, size in sizes.items()):
        pair, of = sampler.sentence()
        held_out = of - {"train"}
        part = held_out.pop() if held_out else "train"
        if held_out or pair[0] in seen or len(parts[part]) >= sizes[part]:
            continue
        words = {*pair[0].split(), *pair[1].split()}
        if part == "train":
            forms |= words
        # The training set grows fastest; a held-out sentence waits until its word forms have been seen.
        elif not words <= forms:
            continue
        seen.add(pair[0])
        parts[part].append(pair)
    return parts


def write_demo_corpus(folder: str | Path, seed: int = 1, sizes: dict[str, int] | None = None) -> Path:
    """Write train, val and test as `<part>.en.gz` and `<part>.de.gz`; one seed, the same bytes. Returns the folder.

    Sizes: 40,000, 500 and 1,000 distinct pairs unless told otherwise. See `sample_demo_corpus` for what is held out.
    """
    folder = Path(folder)
    for part, pairs in sample_demo_corpus(seed, sizes).items():
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            with atomic_path(folder / f"{part}.{language}.gz") as temporary:
                temporary.write_bytes(gzip.compress(text.encode(), mtime=0))
    return folder
