"""Diverse beam search against its definition, over a vocabulary of 5; and what is refused."""

from __future__ import annotations

import pytest
import torch
from helpers.searching import decode, sources, tiny, toy

VOCABULARY, END, START, LONGEST = 5, 1, 3, 6


@torch.no_grad()
def by_definition(model, source, beams, groups, penalty, unlike=1.0):
    """(score, ids) of all groups' hypotheses, the best first: each group in turn a beam search of its own.

    unlike: the factor of `repetition_penalty`, which acts on what the groups before have left of log P.
    """
    size = beams // groups
    running = [[(0.0, (START,))] for _ in range(groups)]
    finished, open_ = [[] for _ in range(groups)], [True] * groups
    for length in range(1, LONGEST + 1):
        chosen = []  # by the groups before, in this step
        for group in range(groups):
            candidates = []
            for total, ids in running[group]:
                logits = model(**source, decoder_input_ids=torch.tensor([ids])).logits[0, -1].float()
                for token, log_prob in enumerate(logits.log_softmax(-1).tolist()):
                    score = log_prob - penalty * chosen.count(token)
                    candidates.append((total + score * (unlike if token in ids else 1.0), (*ids, token)))
            candidates.sort(key=lambda candidate: -candidate[0])
            last = [length == LONGEST or ids[-1] == END for _, ids in candidates]
            if open_[group]:
                over = [(total / length, ids) for (total, ids), is_last in zip(candidates[:size], last) if is_last]
                finished[group] = sorted([*finished[group], *over], reverse=True)[:size]
            running[group] = [(total, ids) for total, ids in candidates if ids[-1] != END][:size]
            chosen += [ids[-1] for _, ids in running[group]] if open_[group] else []
            full = len(finished[group]) == size
            if full and running[group][0][0] / length <= finished[group][-1][0]:
                open_[group] = False
        if not any(open_):
            break
    return sorted((one for group in finished for one in group), reverse=True)


@pytest.mark.parametrize(
    ("system", "beams", "groups", "penalty", "unlike"),
    [
        ("transformer", 4, 2, 0.3, 1.0),
        ("transformer", 6, 2, 2.0, 1.5),
        ("transformer", 4, 4, 0.3, 1.5),
        ("transformer", 3, 3, 2.0, 1.0),
        ("rnn", 4, 2, 2.0, 1.5),
        ("rnn", 3, 3, 0.3, 1.0),
    ],
)
def test_it_is_its_definition(system, beams, groups, penalty, unlike):
    """Two sentences in a batch: all hypotheses, their order and scores."""
    model, inputs = tiny(system, VOCABULARY, seed=4), sources((3, 2), VOCABULARY)
    options = {"num_beams": beams, "num_beam_groups": groups, "diversity_penalty": penalty, "max_new_tokens": LONGEST}
    output = decode(model, **inputs, **options, num_return_sequences=beams, repetition_penalty=unlike)
    ends = 0
    for sentence in range(2):
        source = {name: value[sentence : sentence + 1] for name, value in inputs.items()}
        expected = by_definition(model, source, beams, groups, penalty, unlike)
        rows = range(beams * sentence, beams * (sentence + 1))
        assert output.sequences_scores[rows].tolist() == pytest.approx([score for score, _ in expected], abs=1e-5)
        for row, (_, ids) in zip(rows, expected, strict=True):
            assert output.sequences[row, : len(ids)].tolist() == list(ids)
            ends += ids[-1] == END
    assert ends


ENDING = {"exponential_decay_length_penalty": (2, 1.2), "max_new_tokens": 30}


def test_sentences_leave_and_groups_differ(monkeypatch):
    model, inputs = toy(), sources((6, 1, 4, 9, 3))
    options = {**ENDING, "num_beams": 6, "num_return_sequences": 6}
    diverse = {"num_beam_groups": 3, "diversity_penalty": 1.0}
    found, plain = decode(model, **inputs, **options, **diverse), decode(model, **inputs, **options)
    firsts = [rows[:, 1].unique().numel() for output in (found, plain) for rows in output.sequences.split(6)]
    assert sum(firsts[:5]) > sum(firsts[5:])
    for sentence in range(5):
        alone = {name: value[sentence : sentence + 1] for name, value in inputs.items()}
        expected = decode(model, **alone, **options, **diverse)
        rows = slice(6 * sentence, 6 * sentence + 6)
        assert found.sequences[rows, : expected.sequences.shape[1]].tolist() == expected.sequences.tolist()
        torch.testing.assert_close(found.sequences_scores[rows], expected.sequences_scores)
    for output in (found, plain):  # the beams that every token came from lead back to the prompt
        assert (output.beam_indices[:, 0] // 6 == torch.arange(30) // 6).all()
    again = decode(model, **inputs, **options, **diverse)  # with options that were prepared before
    assert again.sequences.tolist() == found.sequences.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beam_groups": 3, "diversity_penalty": 1.0}, "divides num_beams=4"),
        ({"num_beam_groups": 2}, "must be more than 0"),
        ({"diversity_penalty": 1.0}, "give num_beam_groups too"),
        ({"num_beam_groups": 2, "diversity_penalty": 1.0, "recombine": 1}, "leave do_sample and recombine out"),
        ({"num_beam_groups": 2, "diversity_penalty": 1.0, "do_sample": True}, "leave do_sample and recombine out"),
        ({"num_beam_groups": 2, "diversity_penalty": 1.0, "output_scores": True}, "Transformers' loop does not know"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        decode(toy(), **sources((3, 2)), num_beams=4, **options)
