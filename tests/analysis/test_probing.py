"""Probing: tasks from raw text and from SentEval's files, vectors, classifiers, intervals."""

from __future__ import annotations

import gzip
import re
from collections import Counter

import pytest
import torch

from hf_mlnmt.analysis import probing as module
from hf_mlnmt.analysis.probing import (
    FILES,
    PARTS,
    PRESETS,
    MlpSettings,
    bigram_shift_task,
    language_task,
    length_task,
    logistic_regression,
    mean_states,
    predict,
    probe,
    senteval_tasks,
    split,
    standardized,
    swap,
    swappable,
    train_mlp,
    vectors_of,
    word_content_task,
)
from hf_mlnmt.analysis.reading import encode_sources
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation.translating.loading import load

TEXTS = ["A dog sees the red house.", "Two women ride.", "A man."]


@pytest.fixture(scope="module")
def lines(demo):
    return [pair[0] for pair in demo["train"]]


def test_split():
    found = split([f" line {i % 100}" for i in range(300)], seed=1)
    assert [len(found[part]) for part in PARTS] == [80, 10, 10]
    assert len({line for part in found.values() for line in part}) == 100
    assert found == split([f"line {i}" for i in range(100)], seed=1) != split([f"line {i}" for i in range(100)], seed=2)
    assert [len(part) for part in split([f"line {i}" for i in range(100)], 1, (20, 5, 5)).values()] == [20, 5, 5]


def test_length(lines):
    task = length_task(lines)
    for part in PARTS:
        for text, label in zip(task.texts[part], task.labels[part], strict=True):
            name, length = task.classes[label], len(re.findall(r"[A-Za-z]+", text))
            bound = int(re.search(r"\d+", name)[0])
            assert length < bound if name.startswith("under") else length >= bound
    assert 2 < len(task.classes) <= 6
    assert set(task.labels["train"]) == set(range(len(task.classes)))
    with pytest.raises(UserError, match="every training sentence has the label"):
        length_task([f"a word{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(100)])


def test_word_content(lines):
    fillers = [f"common{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(100)]
    text = [f"{' '.join(fillers)} {word} {chr(97 + i)}x" for word in ("tree", "river") for i in range(25)]
    task = word_content_task([*text, "tree river both"], count=2)
    assert task.classes == ["river", "tree"]
    assert sum(map(len, task.texts.values())) == 50  # not the one with both
    for part in PARTS:
        for sentence, label in zip(task.texts[part], task.labels[part], strict=True):
            assert task.classes[label] in sentence.split()
    with pytest.raises(UserError, match="0 words beyond the 100 most frequent"):
        word_content_task(["a b c"] * 50)


def test_bigram_shift(lines):
    assert swappable("A man rides the bike, now") == [(2, 5, 6, 11), (6, 11, 12, 15), (12, 15, 16, 20)]
    assert swappable("A very very man") == [(7, 11, 12, 15)]
    assert swap("A man rides the bike", (6, 11, 12, 15)) == "A man the rides bike"
    task = bigram_shift_task(lines)
    original = set(lines)
    for part in PARTS:
        counts = Counter(task.labels[part])
        assert abs(counts[0] - counts[1]) <= 1
        for text, label in zip(task.texts[part], task.labels[part], strict=True):
            if task.classes[label] == "original":
                assert text in original
            else:
                restored = [swap(text, place) for place in swappable(text)]
                assert original & set(restored)


def test_languages(demo):
    english, german = ([pair[side] for pair in demo["train"]] for side in (0, 1))
    task = language_task({"en": english, "de": german[:500]})
    assert task.classes == ["de", "en"]
    for part in PARTS:
        assert len(set(Counter(task.labels[part]).values())) == 1
        for text, label in zip(task.texts[part], task.labels[part], strict=True):
            assert text in ((german, english)[label])
    with pytest.raises(UserError, match="at least two languages"):
        language_task({"en": english})


def test_senteval_files(tmp_path):
    content = "tr\t10\tA dog .\ntr\t9\tTwo men .\nva\t9\tA cat .\nte\t10\tA bird .\nte\t10\tA cow .\nte\t9\tNo ."
    (tmp_path / "sentence_length.txt").write_text(content)
    (tmp_path / "tree_depth.txt.gz").write_bytes(gzip.compress(content.encode()))
    (tmp_path / "readme.md").write_text("x")
    task, packed = senteval_tasks([tmp_path])
    assert (task.name, task.classes, packed.name) == ("SentLen", ["9", "10"], "TreeDepth")
    assert task.texts["train"] == ["A dog .", "Two men ."]
    assert (task.labels["train"], task.labels["dev"], task.labels["test"]) == ([1, 0], [0], [1, 1, 0])
    assert task.majority == pytest.approx(2 / 3)
    assert len(FILES) == 10
    broken = [f"{content}\n{line}\n" for line in ("tr\t9", "xx\t9\tA dog .", "te\t\tA dog .", "te\t9\tA\tdog .")]
    for text, said in (
        *((text, r"given.txt, line 7: expected tr, va or te") for text in broken),
        (content.replace("\t9\t", "\t10\t"), "given: every training sentence has the label '10'"),
        (content.replace("va\t", "tr\t"), "given: no sentences for dev"),
        (content.replace("va\t9", "va\tx"), "label 'x' is in dev and never in train"),
    ):
        (tmp_path / "given.txt").write_text(text)
        with pytest.raises(UserError, match=said):
            senteval_tasks([tmp_path / "given.txt"])
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="none of SentEval's probing files"):
        senteval_tasks([tmp_path / "none"])


def test_vectors_of_a_model_padding_changes_nothing(folders):
    parts = load(str(folders("s-agg")))
    sources = encode_sources(parts, TEXTS)
    together = [mean_states(parts, sources, layer) for layer in (0, 1, 2)]
    for index, ids in enumerate(sources):
        with torch.no_grad():
            states = parts.model.get_encoder()(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
        for layer in (0, 1, 2):
            expected = torch.stack(list(states[layer][0])).sum(0) / len(ids)
            torch.testing.assert_close(together[layer][index], expected, rtol=1e-4, atol=1e-5)


def toy_vectors(count=300):
    """A quarter plane has one class, the rest another: no line tells them apart well."""
    points = torch.randn(3 * count, 2, generator=torch.Generator().manual_seed(1))
    labels = (points.prod(1) > 0).long()
    parts = {part: slice(i * count, (i + 1) * count) for i, part in enumerate(PARTS)}
    return {part: points[rows] * 50 + 7 for part, rows in parts.items()}, {p: labels[rows] for p, rows in parts.items()}


def test_classifiers():
    vectors, labels = toy_vectors()
    vectors = standardized(vectors)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    model, accuracy, _ = train_mlp(vectors, labels, 2, PRESETS["dual-context"])
    assert torch.equal(torch.get_rng_state(), before)
    found = predict(model, vectors["test"])
    assert (found == labels["test"]).double().mean() > 0.85  # a line gets 0.5
    assert accuracy > 0.85
    again, *_ = train_mlp(vectors, labels, 2, PRESETS["dual-context"])
    assert torch.equal(found, predict(again, vectors["test"]))
    assert train_mlp(vectors, labels, 2, MlpSettings(1e-9, 64, patience=2))[2] <= 2  # nothing improves
    pytest.importorskip("sklearn")
    assert logistic_regression(vectors, labels)[1] < 0.7
    easy = {part: torch.stack([x[:, 0], x[:, 0]], 1) for part, x in vectors.items()}
    right = {part: (x[:, 0] > 0).long() for part, x in easy.items()}
    assert (logistic_regression(easy, right)[0] == right["test"]).double().mean() > 0.97


def test_training_stops_and_goes_back_to_the_best_epoch(monkeypatch):
    vectors, labels = toy_vectors(50)
    seen, accuracies = [], [0.5, 0.7, 0.6, 0.7, 0.9]
    monkeypatch.setattr(module, "predict", lambda model, rows: seen.append(model[0].weight.detach().clone()))
    monkeypatch.setattr(module, "_share", lambda *given: accuracies[len(seen) - 1])
    model, accuracy, epoch = train_mlp(vectors, labels, 2, MlpSettings(0.01, 16, patience=2))
    assert (len(seen), accuracy, epoch) == (4, 0.7, 2)
    assert torch.equal(model[0].weight, seen[1])
    assert not torch.equal(seen[1], seen[3])


def test_the_penalty_is_on_the_hidden_layer():
    vectors, labels = toy_vectors(100)
    norms = {}
    for penalty in (0.0, 10.0):
        settings = MlpSettings(0.01, 1, penalty=penalty, epochs=1)
        model, _, _ = train_mlp(standardized(vectors), labels, 2, settings)
        norms[penalty] = [model[index].weight.square().sum().item() for index in (0, 2)]
    assert norms[10.0][0] < 0.1 * norms[0.0][0]
    assert norms[10.0][1] > 0.1 * norms[0.0][1]


def test_standardized_by_the_training_part():
    found = standardized({"train": torch.tensor([[1.0, 5.0], [3.0, 5.0]]), "dev": torch.tensor([[4.0, 6.0]])})
    assert found["train"].tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    assert found["dev"].tolist() == [[2.0, 1.0]]


def test_probe_of_a_model(folders, lines):
    parts = load(str(folders("transformer")))
    short = [line for line in lines if len(line) < 60]
    task = length_task(short, sizes=(1000, 100, 100), groups=3)
    row = probe(task, vectors_of(parts, task, 0), 0, "mlp", PRESETS["multi-level"])
    share, z = row["accuracy"] / 100, 1.959964  # Wilson's interval
    middle, width = share + z * z / 200, z * (share * (1 - share) / 100 + z * z / 40000) ** 0.5
    expected = [100 * (middle + side * width) / (1 + z * z / 100) for side in (-1, 1)]
    assert [row["low"], row["high"]] == pytest.approx(expected, abs=1e-4)
    assert row["low"] > row["majority"]  # the mean of the positions says how many they are
    assert [row[name] for name in ("train", "dev", "test", "classes")] == [1000, 100, 100, len(task.classes)]
