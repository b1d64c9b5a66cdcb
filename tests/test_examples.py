"""Programs in examples/, at their smallest."""

import gzip
import runpy
import sys


def test_the_speedrun_goes_from_files_to_a_score(tmp_path, monkeypatch, capsys):
    words = {"en": ["a dog", "two cats", "the red ball", "plays", "sleep", "rolls"], "de": ["ein Hund", "zwei Katzen"]}
    words["de"] += ["der rote Ball", "spielt", "schlafen", "rollt"]
    for name, count in (("train", 60), ("val", 3), ("test_2016_flickr", 3)):
        for code, some in words.items():
            lines = (f"{some[i % 3]} {some[3 + i // 3 % 3]} {i} .\n" for i in range(count))
            (tmp_path / f"{name}.{code}.gz").write_bytes(gzip.compress("".join(lines).encode()))
    arguments = ["speedrun", str(tmp_path), "--steps", "12", "--threads", "1", "--output", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path("examples/speedrun.py", run_name="__main__")
    said = capsys.readouterr().out
    assert "seed 1, 12 steps" in said
    assert "test_2016_flickr: " in said
    assert "case:lc" in said
    assert len((tmp_path / "out" / "test_2016_flickr.de").read_text().splitlines()) == 3
