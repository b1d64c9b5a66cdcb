"""What is given to generate() for each text reaches that text, though the pipeline sorts texts by length."""

import pytest
import torch
from helpers.toy_translators import SENTENCES, best_of_lines

from hf_mlnmt import UserError
from hf_mlnmt.generation import TranslationPipeline

TEXTS = ["A dog.", "", *SENTENCES[:3], "A man.\nThe red street sees two balls under a house.", *SENTENCES[3:5]]
STARTS = [6 + i for i in range(len(TEXTS))]
PROMPTS = torch.tensor([[3, start, start + 20] for start in STARTS])


def only(i, tokens=2):
    """Text i (None: each by its number) may consist of these tokens alone."""
    return lambda number, ids: range(first := STARTS[number if i is None else i], first + tokens)


def texts_of(translations):
    return [row if isinstance(row, str) else [one.text for one in row] for row in translations]


ROWS = {  # for all texts; for text i alone
    "decoder_input_ids": (PROMPTS, lambda i: PROMPTS[i : i + 1]),
    "decoder_start_token_id": (STARTS, lambda i: STARTS[i : i + 1]),
    "prefix_allowed_tokens_fn": (only(None), only),
}


SEARCHES = [{"num_beams": 3}, {"num_beams": 1, "batch_tokens": 30}, {"num_beams": 2, "num_return_sequences": 2}]


@pytest.mark.parametrize(("name", "search"), [*zip(ROWS, SEARCHES), *zip(ROWS, SEARCHES[1:])])
def test_each_text_gets_its_own(pipeline, name, search):
    of_all, of_one = ROWS[name]
    expected = texts_of(pipeline([text], **{name: of_one(i)}, **search)[0] for i, text in enumerate(TEXTS))
    assert len({str(one) for one in expected}) > 5
    assert texts_of(pipeline(TEXTS, **{name: of_all}, **search)) == expected
    assert texts_of(pipeline.stream(TEXTS, window=3, **{name: of_all}, **search)) == expected
    if "num_return_sequences" not in search:
        lines = best_of_lines(pipeline, TEXTS, first_line=7, **{name: of_all}, **search)
        assert [line.text for line in lines] == expected


def test_of_a_text_that_is_sampled_several_times(pipeline):
    translations = pipeline(TEXTS, prefix_allowed_tokens_fn=only(None, 1), do_sample=True, num_return_sequences=2)
    assert texts_of(translations) == [[text] * 2 for text in pipeline(TEXTS, prefix_allowed_tokens_fn=only(None, 1))]


def test_texts_between_several_languages(foreign):
    nllb = TranslationPipeline.from_pretrained(foreign["nllb"], device="cpu")
    codes = ["eng_Latn", "deu_Latn"] * 4
    for name in ("decoder_input_ids", "prefix_allowed_tokens_fn"):
        of_all, of_one = ROWS[name]
        expected = [
            nllb([text], source_language=code, target_language="fra_Latn", **{name: of_one(i)})[0]
            for i, (text, code) in enumerate(zip(TEXTS, codes))
        ]
        assert nllb(TEXTS, source_language=codes, target_language="fra_Latn", **{name: of_all}) == expected


def test_another_number_of_rows_is_refused(pipeline):
    for rows in (PROMPTS[:3], torch.cat([PROMPTS, PROMPTS])):
        with pytest.raises(UserError, match=rf"decoder_input_ids: {len(rows)} rows for 8 texts: give one row for each"):
            pipeline(TEXTS, decoder_input_ids=rows)
    with pytest.raises(UserError, match="decoder_start_token_id: 3 rows, but there is a text 4"):
        list(pipeline.stream(TEXTS, window=4, decoder_start_token_id=STARTS[:3]))
