"""`hf-mlnmt translate` on files and pipes, and reading them."""

import gzip
import io
import json
import lzma
import os
import re
import shutil
import signal
import sys
import threading
import zipfile

import pytest
import torch
import typer
from helpers import fresh
from helpers.toy_translators import SENTENCES, bpe, our_model
from lxml import etree
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.cli import app as whole
from hf_mlnmt.cli.translate import translate
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.tokenizer import save_tokenizers
from hf_mlnmt.generation import Hypothesis, TranslationPipeline
from hf_mlnmt.generation.translating.call import TranslationCall
from hf_mlnmt.generation.translating.journal import Journal
from hf_mlnmt.generation.translating.lines import file_groups, pipe_groups, text_groups
from hf_mlnmt.generation.translating.searching import Pending

app = typer.Typer()
app.command()(translate)
TEXTS = [*SENTENCES[:5], "", *SENTENCES[5:9]]


def run(*arguments, **options):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], **options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def expected(ours):
    return TranslationPipeline.from_pretrained(ours, device="cpu")(TEXTS)


def test_files_plain_and_gz_in_order(ours, expected, tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(TEXTS[:4]) + "\n")
    (tmp_path / "b.gz").write_bytes(gzip.compress("\n".join(TEXTS[4:]).encode()))
    result = run(ours, tmp_path / "a.txt", tmp_path / "b.gz", "--window", 3)
    assert result.stdout.split("\n") == [*expected, ""]


def test_standard_input(ours, expected):
    assert run(ours, input="\r\n".join(TEXTS)).stdout.split("\n") == [*expected, ""]
    assert run(ours, "-", input="\ufeff" + TEXTS[0]).stdout == expected[0] + "\n"
    assert run(ours, input="").stdout == ""


@pytest.mark.parametrize("name", ["none.txt", "none.gz"])
def test_a_text_of_no_lines_has_a_translation_of_none(ours, tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(b"") if name.endswith(".gz") else b"")
    assert run(ours, tmp_path / name, "-o", tmp_path / "out.txt").stdout == ""
    assert (tmp_path / "out.txt").read_bytes() == b""


@pytest.mark.parametrize("name", ["out.txt", "out.txt.gz"])
def test_output_file_appears_whole_or_not_at_all(ours, expected, tmp_path, name):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    output = tmp_path / name
    output.write_text("before")
    (tmp_path / "bad.txt").write_bytes(b"A man.\n" * 5 + b"\xff\n")
    with pytest.raises(UserError, match=r"bad.txt, line 6: invalid UTF-8"):
        run(ours, tmp_path / "bad.txt", "-o", output, "--window", 2)
    assert output.read_text() == "before"
    run(ours, tmp_path / "in.txt", "-o", output)
    opener = gzip.open if name.endswith("gz") else open
    with opener(output, "rt") as stream:
        assert stream.read().split("\n") == [*expected, ""]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["bad.txt", "in.txt", name])


def test_jsonl(ours, expected):
    records = [json.loads(line) for line in run(ours, "--jsonl", input="\n".join(TEXTS)).stdout.splitlines()]
    assert records == [{"source": s, "translation": t} for s, t in zip(TEXTS, expected, strict=True)]
    options = ["--jsonl", "--scores", "--beams", 3, "--n-best", 2]
    (record,) = [json.loads(line) for line in run(ours, *options, input=TEXTS[0]).stdout.splitlines()]
    assert set(record) == {"source", "translation", "score", "log_probability", "length", "n_best"}
    assert record["n_best"][0]["translation"] == record["translation"]
    assert record["n_best"][0]["score"] >= record["n_best"][1]["score"]


def test_every_sentence_of_a_line_is_translated(ours):
    first, second = "The cat sees a bird.", "The dog sleeps."
    alone = TranslationPipeline.from_pretrained(ours, device="cpu")([first, second])
    assert run(ours, input=f"{first} {second}\n").stdout == " ".join(alone) + "\n"
    assert run(ours, "--split", "long", input=f"{first} {second}\n").stdout != " ".join(alone) + "\n"


def test_search_and_sampling_options_reach_generate(ours, monkeypatch):
    seen = {}

    def searched(self, inputs, **more):
        seen.update(vars(self.options))
        return Pending(lambda: [[Hypothesis(piece.text, 0.0, 0.0, 1)] for piece in inputs])

    monkeypatch.setattr(TranslationCall, "search", searched)
    arguments = ["-b", 7, "--length-penalty", 0.6, "--length-normalization", "gnmt", "--early-stopping", "never"]
    run(ours, *arguments, "--sample", "--top-k", 5, "--temperature", 0.5, "--seed", 3, "--no-split-long", input="A.")
    wanted = {
        "num_beams": 7, "length_penalty": 0.6, "length_normalization": "gnmt", "early_stopping": "never",
        "do_sample": True, "top_k": 5, "temperature": 0.5, "seed": 3, "split_long": False, "progress": True,
    }  # fmt: skip
    assert {key: seen[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere/at/all"], "Hub name"),
        (["MODEL", "missing.txt"], "missing.txt: no such file"),
        (["MODEL", "--scores"], "needs --jsonl"),
        (["MODEL", "--early-stopping", "perhaps"], "true, false or never"),
        (["MODEL", "--to", "de"], "no language codes"),
        (["MODEL", "--temperature", "2"], "--sample"),
        (["nowhere", "--length-penalty", "-20"], "length_penalty: -20.0 is not a number from -10 to 10"),
        (["nowhere", "--length-normalization", "gnm"], "did you mean 'gnmt'"),
        (["nowhere", "--sample", "--top-p", "0"], "top_p"),
        (["nowhere", "-o", "/"], "/: is a folder"),
    ],
)
def test_mistakes(ours, arguments, message):
    with pytest.raises(UserError, match=message):
        run(*[ours if argument == "MODEL" else argument for argument in arguments], input="A man.\n")


@pytest.mark.parametrize("option", ["--beams", "--n-best", "--window", "--batch-tokens", "--threads"])
def test_numbers_out_of_range_are_refused_by_name(option):
    result = run("nowhere", option, "0", env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.stderr
    assert "greater than or equal to 1" in result.stderr


def test_a_text_is_not_replaced_by_its_translation(ours, tmp_path):
    (tmp_path / "in.txt").write_text("A man.\n")
    (tmp_path / "link").symlink_to("in.txt")
    for name in ("in.txt", "link"):
        with pytest.raises(UserError, match="is one of the inputs"):
            call = ["translate", str(ours), str(tmp_path / "in.txt"), "-o", str(tmp_path / name)]
            CliRunner().invoke(whole, call, catch_exceptions=False)
    assert (tmp_path / "in.txt").read_text() == "A man.\n"


def test_no_more_threads_than_cores(ours, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    for threads in (3, 100_000):
        run(ours, "--threads", threads, input="A man.\n")
    assert asked == [3, 4]


def test_a_pipe_as_output_stays_a_pipe(ours, expected, tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    run(ours, tmp_path / "in.txt", "-o", pipe)
    reader.join(timeout=200)
    assert read[0].split("\n") == [*expected, ""]
    assert pipe.is_fifo()


def test_files_are_read_as_strictly_as_pipes_and_remedies_are_those_of_translate(tmp_path):
    (tmp_path / "a").write_bytes(b"a\x0cb\n" + b"c" * 30_000)
    assert list(file_groups(tmp_path / "a", 5)) == [["a\x0cb", "c" * 30_000]]
    for content, message in (
        (b"ok\n\xff\n", r"line 2: invalid UTF-8 \(byte 0xff at column 1\)"),
        (b"\0", "line 1: contains a NUL"),
    ):
        (tmp_path / "b").write_bytes(content)
        with pytest.raises(UserError, match=message) as caught:
            list(file_groups(tmp_path / "b", 5))
        assert "bad_lines" not in str(caught.value)


def test_bad_standard_input_names_the_line():
    with pytest.raises(UserError, match="standard input, line 3: invalid UTF-8"):
        list(pipe_groups(io.BytesIO(b"a\nb\n\xe4\n")))
    with pytest.raises(UserError, match="line 2: contains a NUL"):
        list(pipe_groups(io.BytesIO(b"a\nb\0\n")))


def test_a_pipe_gives_lines_when_they_arrive():
    reading, writing = os.pipe()
    groups = pipe_groups(os.fdopen(reading, "rb"))
    os.write(writing, b"first\nsecond\nthi")
    assert next(groups) == ["first", "second"]
    os.write(writing, "rd ä".encode()[:-1])
    threading.Timer(0.2, lambda: (os.write(writing, "ä".encode()[-1:] + b"\n"), os.close(writing))).start()
    assert next(groups) == ["third ä"]
    assert next(groups, None) is None


def test_a_conversation_through_the_command(ours):
    """Each line is answered before the next is sent: nothing waits in a buffer."""
    code = "import typer; from hf_mlnmt.cli.translate import translate; typer.run(translate)"
    process = fresh.Popen(
        [sys.executable, "-c", code, ours, "--no-watch"], stdin=fresh.PIPE, stdout=fresh.PIPE, level="package"
    )
    pipeline = TranslationPipeline.from_pretrained(ours)
    for text in [TEXTS[0], "", TEXTS[1]]:
        process.stdin.write(text + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == pipeline(text) + "\n"
    process.stdin.close()
    assert process.wait(timeout=200) == 0


def test_two_tokenizers_and_text_processing(tmp_path):
    """A Moses model with its own target vocabulary: the source is tokenised, the translation detokenised."""
    source, target = bpe(), bpe(codes=("<2xx>",))
    processing = {side: TextProcessing("en", moses=True, lowercase=side == "source") for side in ("source", "target")}
    save_tokenizers(tmp_path, source, target, processing)
    sizes = {"decoder_vocab_size": len(target), "share_encoder_decoder_embeddings": False}
    our_model(len(source), **sizes).save_pretrained(tmp_path)
    pipeline = TranslationPipeline.from_pretrained(tmp_path, device="cpu")
    seen = []
    generate, decode = pipeline.model.generate, pipeline.parts.target.decode
    pipeline.model.generate = lambda **a: seen.append(a["input_ids"]) or generate(**a)
    pipeline.parts.target.decode = lambda ids, **options: decode(ids, **options) and "A dog , isn 't it ?"
    assert pipeline(["The Man."]) == ["A dog, isn't it?"]
    assert source.decode(seen[0][0], skip_special_tokens=True).strip() == "the man ."


@pytest.fixture
def many(tmp_path):
    """A file of 200 lines, in windows of 64 and 136."""
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in (SENTENCES * 9)[:200]))
    return tmp_path / "in.txt"


def stopped(arguments):
    """Run the command; Ctrl-C comes when the first window is written."""
    append = Journal.append
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "append", lambda *given: append(*given) or signal.raise_signal(signal.SIGINT))
        assert run(*arguments).exit_code


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("out", []),
        ("out.gz", ["--beams", 2, "--n-best", 2]),
        ("out.xz", ["--jsonl", "--scores"]),
        ("out.txt.gz", ["--sample", "--draws", "text"]),
        ("out.tmx.gz", []),
    ],
)
def test_stopped_it_goes_on_to_the_same_bytes(ours, pipeline, many, tmp_path, monkeypatch, name, options):
    monkeypatch.setattr(TranslationPipeline, "from_pretrained", classmethod(lambda *_, **__: pipeline))
    command = [ours, many, "--max-new-tokens", 4, "--window", 50, *options, "-o"]
    whole = tmp_path / f"whole.{name}"
    run(*command, whole)
    output, texts = tmp_path / name, []
    cut = TranslationCall.cut
    stopped([*command, output])
    assert not output.exists()
    (part,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    with (part / f"{name}.part").open("ab") as file:
        file.write(b"half a line")
    monkeypatch.setattr(
        TranslationCall, "cut", lambda self, lines, *more: texts.extend(lines) or cut(self, lines, *more)
    )
    result = run(*command, output)
    assert len(texts) == 150
    assert "going on at line 51 of 200" in result.stderr
    assert output.read_bytes() == whole.read_bytes()
    assert not part.exists()
    assert list(read_lines(output, keep_controls=True, max_characters=10**6, form="any"))


def test_what_was_begun_from_something_else_is_refused_and_kept(ours, many, tmp_path):
    output, part = tmp_path / "out", tmp_path / "out.part"
    output.write_text("before")
    command = [ours, many, "--max-new-tokens", 4, "-o", output]
    stopped(command)
    before = {path.name: path.read_bytes() for path in part.iterdir()}
    for changed, message in (
        ([*command, "--beams", 2], "num_beams: None -> 2"),
        ([*command, "--jsonl"], "jsonl: False -> True"),
        ([ours, many, many, "-o", output], r"text: 1 file\(s\) -> 2"),
        ([ours, "-o", output], r"text: 1 file\(s\) -> 0"),
    ):
        with pytest.raises(UserError, match=rf"out.part: holds the beginning of something else:[^$]*{message}"):
            run(*changed, input="A man.\n")
        assert before == {path.name: path.read_bytes() for path in part.iterdir()}
    many.write_text("A man.\n" * 200)
    with pytest.raises(UserError, match=r"in\.txt: its content changed"):
        run(*command)
    assert output.read_text() == "before"


@pytest.mark.parametrize("draws", [[], ["--sample", "--seed", 1]], ids=["pipe", "draws of batches"])
def test_what_cannot_go_on_leaves_nothing(ours, many, tmp_path, draws):
    """Text of a pipe, and draws that follow from all before, begin anew, also where a process was killed."""
    command = [ours, *([many] if draws else []), "--max-new-tokens", 4, *draws, "-o", tmp_path / "out"]
    given = {} if draws else {"input": many.read_text()}
    run(*command, **given)
    expected = (tmp_path / "out").read_bytes()
    for killed in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if killed:
                patch.setattr(shutil, "rmtree", lambda *_, **__: None)
            patch.setattr(Journal, "finish", lambda self: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                run(*command, **given)
        assert (tmp_path / "out.part").exists() == killed
    run(*command, **given)
    assert (tmp_path / "out").read_bytes() == expected
    assert not (tmp_path / "out.part").exists()


@pytest.mark.skipif(os.name == "nt", reason="no such signals")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_process_that_is_ended_goes_on(ours, many, tmp_path, number):
    command = ["translate", *map(str, (ours, many)), "--max-new-tokens", "4", "-o"]
    code = (
        "import os; from hf_mlnmt.__main__ import main; from hf_mlnmt.generation.translating.journal import Journal\n"
        "append = Journal.append\n"
        f"Journal.append = lambda self, *a: (append(self, *a), os.kill(os.getpid(), {int(number)}))\n"
        "main()"
    )
    ended = fresh.package("-c", code, *command, str(tmp_path / "out"))
    assert ended.returncode in (-number, 128 + number), ended.stderr
    assert ("stopped after 64 lines; kept" in ended.stderr) == (number != signal.SIGKILL)
    assert not (tmp_path / "out").exists()
    assert "going on at line 65 of 200" in CliRunner().invoke(whole, [*command, str(tmp_path / "out")]).stderr
    CliRunner().invoke(whole, [*command, str(tmp_path / "whole")])
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


def test_the_first_lines_come_before_a_whole_window(tmp_path):
    (tmp_path / "a").write_text("a\n" * 5000)
    (tmp_path / "b").write_text("b\n" * 100)
    groups = list(text_groups([str(tmp_path / "a"), str(tmp_path / "b")], 2048))
    assert [len(group) for group in groups] == [64, 128, 256, 512, 1088, 2048, 904, 100]


def test_without_a_terminal_a_line_says_how_far_it_is(ours, many, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_mlnmt.cli.terminal.EVERY", 0.0)
    shown = run(ours, many, "--max-new-tokens", 2, "--batch-tokens", 500, "-o", tmp_path / "out").stderr
    assert re.search(r"\d+ of 200 lines, [\d,]+ lines/s, \d+ minutes left", shown)
    monkeypatch.setattr("hf_mlnmt.cli.terminal.EVERY", 60.0)
    assert "lines/s" not in run(ours, many, "--max-new-tokens", 2, "-o", tmp_path / "out").stderr


@pytest.mark.parametrize("suffix", [".zip", ".7z", ".tar", ".ZIP"])
def test_a_name_of_a_packer_that_is_not_written_is_refused(tmp_path, suffix):
    with pytest.raises(UserError, match=f"nothing is packed as {suffix.lower()} here. Choose .gz, .bz2, .xz"):
        run("nowhere", "-o", tmp_path / f"out{suffix}", input="A man.\n")


SUBTITLES = "1\n00:00:01,000 --> 00:00:02,000\n- A man.\n- <i>A dog.</i>\n\n"


def test_subtitles_and_html_are_read_as_documents(ours, tmp_path):
    (tmp_path / "in.srt").write_text(SUBTITLES)
    (tmp_path / "in.htm.gz").write_bytes(gzip.compress(b"<p>A <b>man</b></p><script>x</script>"))
    first, second = TranslationPipeline.from_pretrained(ours, device="cpu")(["A man.", "A dog."])
    run(ours, tmp_path / "in.srt", "-o", tmp_path / "out.srt.xz")
    written = lzma.decompress((tmp_path / "out.srt.xz").read_bytes()).decode()
    assert written == SUBTITLES.replace("A man.", first).replace("A dog.", second)
    assert re.fullmatch(r"<p>.*<b>.*</p><script>x</script>", run(ours, tmp_path / "in.htm.gz").stdout)
    for refused in (["--jsonl"], ["--n-best", 1], [tmp_path / "in.srt"]):
        with pytest.raises(UserError, match=r"in\.srt is translated as one document"):
            run("nowhere", tmp_path / "in.srt", *refused)
    (tmp_path / "in.srt").write_text("A man.\n")
    with pytest.raises(UserError, match=r"in\.srt: no line gives the times"):
        run("nowhere", tmp_path / "in.srt")
    with pytest.raises(UserError, match=r"out\.pdf: .*in\.srt is written in its own format. Name it \.srt"):
        run("nowhere", tmp_path / "in.srt", "-o", tmp_path / "out.pdf")
    (tmp_path / "in.pdf").write_bytes(b"%PDF-1.7")
    with pytest.raises(UserError, match=r"in\.pdf: pdf says where each letter stands on a page"):
        run("nowhere", tmp_path / "in.pdf", "-o", tmp_path / "out.pdf")


def test_a_format_that_is_lines_for_those_who_mean_it(ours, tmp_path):
    (tmp_path / "in.toml").write_text("A man.\n")
    with pytest.raises(UserError, match=r"in\.toml: toml holds a program's texts .*translate --format text"):
        run("nowhere", tmp_path / "in.toml")
    first = TranslationPipeline.from_pretrained(ours, device="cpu")("A man.")
    for name in ("in.toml", "in.srt"):
        (tmp_path / name).write_text("A man.\n")
        assert run(ours, tmp_path / name, "--format", "text").stdout == f"{first}\n"
    run(ours, tmp_path / "in.toml", "--format", "text", "-o", tmp_path / "out.toml")
    assert (tmp_path / "out.toml").read_text() == f"{first}\n"
    (tmp_path / "in.txt").write_text("A man.\n")
    for text in (tmp_path / "in.txt", "-"):
        with pytest.raises(UserError, match=r"out\.docx: what is written are lines of text"):
            run("nowhere", text, "-o", tmp_path / "out.docx", input="A man.\n")


@pytest.mark.parametrize("ending", [".docx", ".html", ".srt", ".md", ".txt", ".en"])
def test_fuzzy_is_of_what_can_be_marked(tmp_path, ending):
    with zipfile.ZipFile(tmp_path / f"in{ending}", "w") as archive:
        archive.writestr("word/document.xml", "<p>A man.</p>")
    with pytest.raises(UserError, match=r"--fuzzy.* is of .*Leave it out"):
        run("nowhere", tmp_path / f"in{ending}", "--fuzzy")


def test_a_document_of_word_and_a_catalogue(ours, tmp_path):
    w = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    with zipfile.ZipFile(tmp_path / "in.docx", "w") as archive:
        archive.writestr("word/document.xml", f"<w:body {w}><w:p><w:r><w:t>A man.</w:t></w:r></w:p></w:body>")
        archive.writestr("other.xml", "A man.")
    first = TranslationPipeline.from_pretrained(ours, device="cpu")("A man.")
    run(ours, tmp_path / "in.docx", "-o", tmp_path / "out.docx")
    with zipfile.ZipFile(tmp_path / "out.docx") as archive:
        assert f">{first}</w:t>" in archive.read("word/document.xml").decode()
        assert archive.read("other.xml") == b"A man."
    (tmp_path / "in.po").write_text('msgid "A man."\nmsgstr ""\n')
    assert run(ours, tmp_path / "in.po", "--fuzzy").stdout == f'#, fuzzy\nmsgid "A man."\nmsgstr "{first}"\n'


@pytest.mark.skipif(os.name == "nt", reason="needs a shell")
@pytest.mark.parametrize(
    ("stream", "arguments", "message"),
    [
        ("<&-", ["translate", "MODEL"], "standard input is closed"),
        (">&-", ["translate", "MODEL", "FILE"], "standard output is closed"),
        (">&-", ["describe", "MODEL"], "standard output is closed"),
    ],
)
def test_closed_standard_streams_have_one_message(ours, many, stream, arguments, message):
    given = [{"MODEL": str(ours), "FILE": str(many)}.get(argument, argument) for argument in arguments]
    number = 0 if stream == "<&-" else 1
    code = f"import os, sys; os.close({number}); sys.{('stdin', 'stdout')[number]} = None\n"
    done = fresh.package("-c", code + "from hf_mlnmt.cli import main; main()", *given)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"error: {message}" in done.stderr.replace("\n", " ")


LANG = "{http://www.w3.org/XML/1998/namespace}lang"
TMX = """<!ELEMENT tmx (header, body)><!ATTLIST tmx version CDATA #FIXED "1.4">
<!ELEMENT header EMPTY><!ATTLIST header creationtool CDATA #REQUIRED creationtoolversion CDATA #REQUIRED
 segtype (block|paragraph|sentence|phrase) #REQUIRED o-tmf CDATA #REQUIRED adminlang CDATA #REQUIRED
 srclang CDATA #REQUIRED datatype CDATA "unknown">
<!ELEMENT body (tu*)><!ELEMENT tu (tuv+)><!ELEMENT tuv (seg)><!ATTLIST tuv xml:lang CDATA #REQUIRED>
<!ELEMENT seg (#PCDATA)>"""


def test_a_memory_is_written(ours_multilingual, tmp_path):
    """Valid by the elements of TMX 1.4, of lines, a pipe, a table's first column and nothing; and read again."""
    texts = [*TEXTS[:4], "a < b & \x0bc", *TEXTS[4:]]
    (tmp_path / "in.en").write_text("".join(f"{text}\n" for text in texts))
    (tmp_path / "in.tsv").write_text("source\ttarget\n" + "".join(f"{text}\tx\n" for text in texts[:4]))
    (tmp_path / "none.en").write_text("")
    how, pipeline = ["--to", "de", "--window", 2], TranslationPipeline.from_pretrained(ours_multilingual, device="cpu")
    for name, expected in (("in.en", texts), ("in.tsv", texts[:4]), ("none.en", []), ("-", texts)):
        output = tmp_path / f"{name}.tmx"
        run(ours_multilingual, name if name == "-" else tmp_path / name, *how, "-o", output, input="\n".join(texts))
        tree = etree.parse(output)
        assert etree.DTD(io.StringIO(TMX)).validate(tree), output.read_text()
        sides = [[each.text or "" for each in tree.iterfind(f"body/tu/tuv[{side}]/seg")] for side in (1, 2)]
        codes = {tuple(each.get(LANG) for each in unit) for unit in tree.iter("tu")}
        assert codes == ({("und", "de")} if expected else set())
        kept = [text for text in expected if text.strip()]
        assert sides[0] == [text.replace("\v", "") for text in kept]
        translated = pipeline(kept, split="sentences", target_language="de") if kept else []
        assert sides[1] == [text.replace("\v", "") for text in translated]
    with pytest.raises(UserError, match=r"--n-best: .*again\.tmx has a translation of each text and no more"):
        run(ours_multilingual, tmp_path / "in.en", *how, "--beams", 2, "--n-best", 2, "-o", tmp_path / "again.tmx")
