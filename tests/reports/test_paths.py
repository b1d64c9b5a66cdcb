"""Paths are hidden in what we write and found in what others wrote; addresses and fractions are left alone."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_mlnmt.reports.paths import find_paths, hide_paths, machine_roots


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("train --data /srv/corpora/multi30k --seed 1", "train --data multi30k --seed 1"),
        ("--data=/srv/corpora/multi30k/", "--data=multi30k"),
        ("'/srv/a b/c'", None),
        ("~/runs/first", "first"),
        (r"C:\Users\anna\runs\first", "first"),
        ("https://huggingface.co/anna/toy", "https://huggingface.co/anna/toy"),
        ("3/4 and/or a/b/c ./x/y ../x/y", "3/4 and/or a/b/c ./x/y ../x/y"),
        ("runs/first/average", "runs/first/average"),
        ("token hf_" + "a" * 34, "token hf_***"),
    ],
)
def test_hide(text, hidden):
    if hidden is None:
        assert "/srv" not in hide_paths(text)
    else:
        assert hide_paths(text) == hidden


def test_hide_reaches_keys_and_all_depths_and_leaves_numbers():
    value = {"/srv/corpora/x": [{"a": "/srv/corpora/y"}, 1.5, None, True]}
    assert hide_paths(value) == {"x": [{"a": "y"}, 1.5, None, True]}


def test_roots_with_spaces_are_hidden(monkeypatch, tmp_path):
    folder = tmp_path / "my runs"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert hide_paths(f"train --output '{folder}/first'") == "train --output 'first'"
    assert find_paths(f"see {folder}/first", machine_roots()) != []


def test_find_reports_anyones_home_and_this_machine(tmp_path):
    assert find_paths("at /home/anna/x", []) == ["/home/anna"]
    assert find_paths("at /Users/anna", []) == ["/Users/anna"]
    assert find_paths("at /root/runs/1", []) == ["/root/runs"]
    assert find_paths(f"at {tmp_path}/x", machine_roots(tmp_path)) != []
    assert find_paths("https://example.org/home/anna", []) == []


def test_short_roots_are_not_looked_for():
    assert all(len(Path(root).parts) > 2 for root in machine_roots("/work", tempfile.gettempdir()))


part = st.text(alphabet="abcXYZ019_-.", min_size=1, max_size=8).filter(lambda text: text.strip("."))


@given(st.lists(part, min_size=2, max_size=5), st.sampled_from(["", "--data ", "--data=", '"', "("]))
def test_hidden_text_holds_no_absolute_path(parts, before):
    text = hide_paths(f"{before}/{'/'.join(parts)} end")
    assert "/" not in text
    assert parts[-1] in text
