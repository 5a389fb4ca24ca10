"""`trimtab data check`, `split` and `convert`: what a person and a program see of them, and what is on the disk after."""

import gzip
import json
import os
import re
import sys

import pytest

from trimtab import cli
from trimtab.cli import data_files

PAIRS = [
    {"prompt": "2+2=", "chosen": "4", "rejected": "5", "scene": "sum"},
    {"prompt": "2+2=", "chosen": "5", "rejected": "4", "scene": "sum"},
    {"prompt": "2+3=", "chosen": "5", "rejected": "5", "scene": "sum"},
    {"prompt": "<b>bold</b>", "chosen": "roses", "rejected": "", "scene": "write"},
]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs a command in an empty folder: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["trimtab", "data", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        shown = capsys.readouterr()
        return end.value.code, shown.out, shown.err

    return command


def write(name, records):
    with open(name, "w") as file:  # noqa: PTH123 - in the folder of the test
        file.writelines(json.dumps(record) + "\n" for record in records)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# ------------------------------------------------------------------------------------------------------------- check
def test_the_summary_names_what_is_wrong_with_its_places(run):
    write("a.jsonl", PAIRS)
    code, out, _ = run("check", "a.jsonl")
    assert code == 0
    assert out.splitlines()[0] == "a.jsonl: 4 rows of pairs, 3 different prompts, about 8 tokens"
    assert "format: 4 prompt/chosen/rejected" in out
    assert re.search(r"contradictions +1 \(25 %\)\n +a\.jsonl:2 against a\.jsonl:1\n", out)
    assert re.search(r"equal sides +1 \(25 %\)\n +a\.jsonl:3\n", out)
    assert re.search(r"empty sides +1 \(25 %\)\n +a\.jsonl:4 rejected\n", out)
    assert "scene            sum 75 %, write 25 %" in out


def test_control_characters_of_a_column_do_not_reach_the_terminal(run):
    write("a.jsonl", [{"prompt": "a", "scene": "\x1b[2Jgone\ud83d"}])
    code, out, _ = run("check", "a.jsonl")
    assert (code, "\x1b" in out, "gone?" in out) == (0, False, True)


def test_every_fault_is_shown_and_ends_with_2(run):
    write("a.jsonl", [PAIRS[0], {"prompt": "a", "chosen": "b"}, {"prompt": "a", "chosen": "b", "rejected": 3}])
    code, out, err = run("check", "a.jsonl")
    assert (code, out) == (2, "")
    assert err.splitlines()[0].startswith(
        "error: a.jsonl:2: a pair has `prompt`, `chosen` and `rejected`; no `rejected`"
    )
    assert err.splitlines()[1] == "error: a.jsonl:3: `rejected` is a number, expected text or messages"
    code, out, _ = run("check", "a.jsonl", "--json")
    assert (code, [fault["place"] for fault in json.loads(out)["faults"]]) == (2, ["a.jsonl:2", "a.jsonl:3"])


def test_programs_get_the_same_and_the_other_file(run):
    write("a.jsonl", PAIRS)
    write("b.jsonl", PAIRS[2:3])
    code, out, _ = run("check", "a.jsonl", "--against", "b.jsonl", "--json", "--near")
    found = json.loads(out)
    assert (code, found["rows"], found["kind"], found["formats"]) == (0, 4, "pairs", {"prompt/chosen/rejected": 4})
    assert found["findings"]["leaked prompts"] == {"rows": 1, "share": 0.25, "examples": ["a.jsonl:3"]}
    assert found["findings"]["near duplicates"]["rows"] == 0
    assert found["length_bias"] == {"chosen_longer": 1.0, "mean_difference": 1.25}
    assert found["characters"]["chosen"] == {"mean": 2.0, "median": 1, "p95": 5, "max": 5}


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        ({"prompt": "a"}, "prompts"),
        ({"question": "a", "answer": "b"}, "prompts"),
        ({"prompt": "a", "completion": "b"}, "demonstrations"),
        ({"prompt": "a", "completion": "b", "label": 1}, "labels"),
    ],
)
def test_the_kind_is_the_first_rows(run, record, kind):
    write("a.jsonl", [record])
    columns = ("--column", "prompt=question") if "question" in record else ()
    code, out, _ = run("check", "a.jsonl", "--json", *columns)
    assert (code, json.loads(out)["kind"]) == (0, kind)


def test_a_kind_that_is_asked_for_is_taken(run):
    write("a.jsonl", [{"prompt": "a", "completion": "b", "label": "sport"}])
    assert run("check", "a.jsonl", "--kind", "demonstrations")[0] == 0
    code, _, err = run("check", "a.jsonl", "--kind", "labels")
    assert (code, "`label` is 'sport', expected true or false" in err) == (2, True)
    assert "--kind: 'pair', expected auto, prompts" in run("check", "a.jsonl", "--kind", "pair")[2]


def test_the_page_stands_alone_and_escapes_what_it_shows(run, tmp_path):
    write("<i>.jsonl", [{**pair, "prompt": pair["prompt"] * 30} for pair in PAIRS])
    code, out, _ = run("check", "<i>.jsonl", "--html", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert (code, out.splitlines()[-1]) == (0, "page: page.html")
    assert "http" not in page.replace("http-equiv", "")
    assert "default-src 'none'" in page
    assert "<i>" not in page
    assert "&lt;i&gt;.jsonl:2 against &lt;i&gt;.jsonl:1" in page
    assert page.count("<svg") == 4  # prompt, chosen, rejected, their difference
    heights = [float(height) for height in re.findall(r'<rect[^>]* height="([\d.]+)"', page)]
    assert max(heights) == 180.0


def test_a_page_that_cannot_be_written_is_said(run):
    write("a.jsonl", PAIRS)
    code, _, err = run("check", "a.jsonl", "--html", "nowhere/page.html")
    assert (code, err) == (4, "error: nowhere/page.html: cannot be written: No such file or directory\n")


def test_a_reward_model_is_asked_only_about_pairs(run):
    write("a.jsonl", [{"prompt": "a"}])
    code, _, err = run("check", "a.jsonl", "--reward-model", "builtin:tiny")
    assert (code, err) == (2, "error: --reward-model: the rows are prompts, expected pairs\n")


def test_a_reward_model_is_asked_which_side_it_prefers(run, tmp_path):
    from trimtab.models import scoring

    made = scoring.load("builtin:tiny", seed=0)
    made.model.save_pretrained(tmp_path / "judge")
    made.tokenizer.save_pretrained(tmp_path / "judge")
    write("a.jsonl", PAIRS)
    code, out, _ = run("check", "a.jsonl", "--reward-model", "judge", "--json")
    found = json.loads(out)["reward_model"]
    # of the two that are left (one has equal sides, one is empty) the second is the first the other way round
    assert (code, found["pairs"], found["chosen_preferred"]) == (0, 2, 0.5)
    assert found["mean_margin"] == pytest.approx(0, abs=1e-6)


# ------------------------------------------------------------------------------------------------------------- split
def test_a_split_keeps_every_line_as_it_stands_and_counts_scenes(run, tmp_path):
    records = [{"prompt": f"q{n}", "n": 1.50, "scene": "ab"[n % 2]} for n in range(40)]
    write("a.jsonl", records)
    before = (tmp_path / "a.jsonl").read_text().splitlines()
    code, out, _ = run("split", "a.jsonl", "--to", "parts", "--by", "scene")
    parts = {
        name: (tmp_path / "parts" / f"{name}.jsonl").read_text().splitlines()
        for name in ("train", "validation", "test")
    }
    assert code == 0
    assert sorted(line for part in parts.values() for line in part) == sorted(before)
    assert [len(part) for part in parts.values()] == [32, 4, 4]
    assert out.splitlines()[:4] == [
        "scene       train  validation        test",
        "a              16           2           2",
        "b              16           2           2",
        "all            32           4           4",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "parts"]


def test_a_scene_that_is_too_small_is_named(run):
    write("a.jsonl", [*({"prompt": f"q{n}", "scene": "big"} for n in range(10)), {"prompt": "x", "scene": "small"}])
    out = run("split", "a.jsonl", "--to", "parts", "--by", "scene")[1]
    assert "too small: small has 1 prompt for 3 parts, and is not in every part" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--parts", "8:a"), "--parts: '8:a', expected two or three whole numbers, such as 8:1:1 or 9:1:0"),
        (("--parts", "0:0:0"), "--parts: '0:0:0', expected two or three whole numbers, such as 8:1:1 or 9:1:0"),
        (("--by", "topic"), "--by: no row has a column `topic`, found 'prompt'"),
        (("--to", "."), "--to: . exists and is not empty; name a new folder"),
    ],
)
def test_a_split_that_cannot_be_is_refused(run, tmp_path, words, expected):
    write("a.jsonl", [{"prompt": "a"}])
    code, _, err = run("split", "a.jsonl", "--to", "parts", *words)
    assert (code, err) == (2, f"error: {expected}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_nothing_is_left_of_a_split_that_fails_half_way(run, tmp_path, monkeypatch):
    def full(out):
        raise OSError(28, "No space left on device")

    write("a.jsonl", [{"prompt": "a"}])
    monkeypatch.setattr(data_files, "_flush", full)
    code, _, err = run("split", "a.jsonl", "--to", "parts")
    assert (code, err) == (4, "error: parts: cannot be written: No space left on device\n")
    code, _, err = run("convert", "a.jsonl", "--to", "b.jsonl")
    assert (code, err) == (4, "error: b.jsonl: cannot be written: No space left on device\n")
    assert os.listdir(tmp_path) == ["a.jsonl"]  # noqa: PTH208


# ----------------------------------------------------------------------------------------------------------- convert
def test_a_conversion_says_what_was_read_and_written(run, tmp_path):
    write("a.jsonl", PAIRS[:2])
    code, out, _ = run("convert", "a.jsonl", "--to", "b.jsonl.gz", "--schema", "seed")
    assert (code, out) == (0, "a.jsonl: 2 rows of pairs (2 prompt/chosen/rejected)\nwrote b.jsonl.gz: 2 rows, seed\n")
    found = [json.loads(line) for line in gzip.decompress((tmp_path / "b.jsonl.gz").read_bytes()).splitlines()]
    assert found[0] == {"prompt": "2+2=", "preferred_response": "4", "dispreferred_response": "5", "scene": "sum"}


def test_a_row_that_the_form_cannot_say_is_refused_and_no_file_is_left(run, tmp_path):
    write("a.jsonl", [PAIRS[0], {**PAIRS[1], "margin": 2}])
    code, _, err = run("convert", "a.jsonl", "--to", "b.jsonl", "--schema", "kto")
    assert (code, err.startswith("error: a.jsonl:2: the pair has a `margin`")) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_an_existing_file_is_not_written_over(run, tmp_path):
    write("a.jsonl", PAIRS)
    assert run("convert", "a.jsonl", "--to", "a.jsonl")[0] == 2
    assert lines(tmp_path / "a.jsonl") == PAIRS
