"""The language of a sentence, of the few whose text is given: naive Bayes over characters, learnt on the spot.

Reference: Cavnar and Trenkle 1994, "N-Gram-Based Text Categorization", for the features; multinomial naive Bayes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hf_mlnmt.errors import UserError


class LanguageGuesser:
    """Learns from lines of each language; runs of one to four characters within words, without case.

    Meant for telling a few known languages apart (the source's, the target's, a multilingual model's others), where a
    sentence of a language that was not given is put under the nearest that was. Beside numbers that come from it
    belongs its accuracy on sentences that it has not learnt from. Needs scikit-learn.
    """

    def __init__(self, texts: Mapping[str, Sequence[str]]):
        """Fits to {language: lines}. Raises: UserError for fewer than two languages, or a language without text."""
        try:
            from sklearn.feature_extraction.text import CountVectorizer
            from sklearn.naive_bayes import MultinomialNB
        except ImportError as error:
            raise UserError("telling languages apart needs scikit-learn: pip install 'hf-mlnmt[analysis]'") from error
        if len(texts) < 2:
            raise UserError(f"languages {', '.join(texts) or 'none'}: expected text of at least two.")
        if empty := [language for language, some in texts.items() if not any(line.strip() for line in some)]:
            raise UserError(f"language '{empty[0]}': there is no sentence to learn it from.")
        lines = [line for some in texts.values() for line in some]
        labels = [language for language, some in texts.items() for _ in some]
        self._vectorizer = CountVectorizer(analyzer="char_wb", ngram_range=(1, 4))
        # All languages are as likely as each other, however much text each has.
        self._classifier = MultinomialNB(fit_prior=False).fit(self._vectorizer.fit_transform(lines), labels)

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """Returns the language of each text."""
        if not texts:
            return []
        return [str(language) for language in self._classifier.predict(self._vectorizer.transform(texts))]

    def others(self, texts: Sequence[str], language: str) -> set[str]:
        """Returns those of the texts that are in another language than this; an empty text is in none."""
        lines = [text for text in texts if text.strip()]
        return {line for line, guess in zip(lines, self(lines), strict=True) if guess != language}

    def accuracy(self, texts: Mapping[str, Sequence[str]]) -> float:
        """Returns the share of sentences whose language it finds, empty ones left out. Raises: UserError for none."""
        pairs = [(line, language) for language, lines in texts.items() for line in lines if line.strip()]
        if not pairs:
            raise UserError("there is no sentence to measure the accuracy on.")
        guesses = self([line for line, _ in pairs])
        return sum(guess == language for guess, (_, language) in zip(guesses, pairs, strict=True)) / len(pairs)
