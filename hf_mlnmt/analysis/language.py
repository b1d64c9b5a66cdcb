"""Which language a sentence is in, of the few whose text is given: naive Bayes over characters, learnt on the spot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_mlnmt.errors import UserError


class LanguageGuesser:
    """Learns from lines of each language; runs of one to four characters within words, without case.

    Meant for telling a few known languages apart (the source's, the target's, a multilingual model's others), where a
    sentence of a language that was not given is put under the nearest that was. Needs scikit-learn.
    """

    def __init__(self, texts: Mapping[str, Sequence[str]]):
        """texts: {language: lines}. Raises: UserError with fewer than two languages, or a language without text."""
        vectorizer, classifier = _tools()
        if len(texts) < 2 or not all(any(line.strip() for line in lines) for lines in texts.values()):
            raise UserError(f"languages {', '.join(texts) or 'none'}: expected text of at least two.")
        lines = [line for some in texts.values() for line in some]
        labels = [language for language, some in texts.items() for _ in some]
        self._vectorizer = vectorizer
        self._classifier = classifier.fit(vectorizer.fit_transform(lines), labels)

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """The language of each text."""
        return [str(language) for language in self._classifier.predict(self._vectorizer.transform(texts))]


def _tools() -> tuple[Any, Any]:
    try:
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.naive_bayes import MultinomialNB
    except ImportError as error:
        raise UserError("telling languages apart needs scikit-learn: pip install 'hf-mlnmt[analysis]'") from error
    # All languages are as likely as each other, however much text each has.
    return CountVectorizer(analyzer="char_wb", ngram_range=(1, 4)), MultinomialNB(fit_prior=False)
