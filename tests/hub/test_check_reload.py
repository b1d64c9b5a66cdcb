"""The check in fresh processes refuses a folder that computes something else or does not load."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_mlnmt import UserError
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.hub.check_reload import check_loading


@pytest.fixture
def copy(published, tmp_path, forks):
    return shutil.copytree(published, tmp_path / "copy")


def test_other_weights_are_noticed(copy, published):
    tensors = load_file(copy / "model.safetensors")
    last = [name for name in tensors if "decoder" in name and "feed_forward_sublayer.layer_norm" in name][-2:]
    for name in last:  # all logits are then a hundredth larger, and the same words the best
        tensors[name] *= 1.01
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(published).eval(), AutoTokenizer.from_pretrained(published)
    with pytest.raises(UserError, match="logits differ by"):
        check_loading(copy, model, Tokenizers(tokenizer, tokenizer), ("package",))


def test_code_that_needs_the_package_is_noticed(copy, published):
    source = copy / "layers.py"
    source.write_text(source.read_text() + "\nimport hf_mlnmt\n")
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(published).eval(), AutoTokenizer.from_pretrained(published)
    with pytest.raises(UserError, match=r"(?s)does not load again \(remote-code\).*hf_mlnmt"):
        check_loading(copy, model, Tokenizers(tokenizer, tokenizer), ("remote-code",))


def test_no_process_is_left_behind_when_one_refuses(published, monkeypatch, tmp_path):
    """Nor after a signal to us."""
    started = []

    def sleeping(folder, scratch, way, probe):
        code = "import sys; sys.exit('no')" if way == "first" else "import time; time.sleep(60)"
        process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    monkeypatch.setattr("hf_mlnmt.hub.check_reload._start", sleeping)
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(published).eval(), AutoTokenizer.from_pretrained(published)
    with pytest.raises(UserError, match=r"does not load again \(first\)"):
        check_loading(published, model, Tokenizers(tokenizer, tokenizer), ("first", "second"))
    assert [process.poll() is not None for process in started] == [True, True]
