"""Clauses of the demo corpus: phrases and clauses as small objects, spoken in English and in German."""

from __future__ import annotations

from dataclasses import dataclass

from hf_mlnmt.demo import lexicon as lex
from hf_mlnmt.demo.lexicon import Adjective, Case, Noun, Pronoun, Verb


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
