"""Data files: whatever is wrong is named with its line before a model is loaded, and nothing of it is trained on."""

import json
import sys

import pytest

from trimtab import cli
from trimtab.data import judged, rows
from trimtab.data.preferences import LABELLED, PAIR
from trimtab.data.prompts import Limits
from trimtab.errors import DataError
from trimtab.models import builtin

GOOD = b'{"prompt": "1+1=", "answer": "2"}\n'


@pytest.fixture
def train(monkeypatch, capsys, tmp_path):
    """Starts a run over a file, with no way to load a model: (exit code, errors)."""

    def run(data):
        (tmp_path / "a.jsonl").write_bytes(data)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("trimtab.models.loading.load", lambda *_, **__: pytest.fail("a model was loaded"))
        (tmp_path / "c.yaml").write_text("algorithm: grpo\ndata: {train: a.jsonl}\nrewards: [exact_match]\n")
        monkeypatch.setattr(sys, "argv", ["trimtab", "train", "c.yaml", "--run-dir", "run"])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, capsys.readouterr().err.splitlines()

    return run


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            GOOD * 2 + '{"prompt": "你"}'.encode("gbk"),
            "a.jsonl:3: not UTF-8: byte 0xc4 at offset 12 of the line; convert it",
        ),
        (GOOD * 899 + GOOD.strip() * 2, "a.jsonl:900:34: more than one value on the line"),
        (GOOD * 396 + b'{"prompt": "a", "prompt": "b"}', "a.jsonl:397: key 'prompt' stands twice in one object"),
        (
            b'{"question": "1+1=", "answer": "2"}',
            "a.jsonl:1: no column `prompt`, found 'question', 'answer'; name the column that holds it: data.columns",
        ),
    ],
    ids=["bytes of another encoding", "two objects on a line", "a key twice", "a column of another name"],
)
def test_a_faulty_file_ends_a_run_before_a_model_is_loaded(train, data, expected):
    code, errors = train(data)
    assert code == 2
    assert [error.startswith(f"error: {expected}") for error in errors] == [True]


def parse(records, required):
    return rows.parse("\n".join(map(json.dumps, records)).encode(), "a.jsonl", {}, required)


def test_a_label_is_read_by_its_meaning_and_each_is_counted():
    given = [True, "false", "True", 0, "FALSE", 1]
    found = parse([{"prompt": "a", "completion": "b", "label": label} for label in given], LABELLED)
    assert [row.values["label"] for row in found] == [True, False, True, False, False, True]
    limits = Limits(max_prompt_length=8, max_length=16, long_prompts="drop")
    made, _ = judged.labelled(found, judged.Encoder(tokenizer=builtin.tokenizer(), limits=limits))
    assert judged.counts(made) == "3 desirable, 3 undesirable"


@pytest.mark.parametrize("label", ["no", "", 2, None, [True]])
def test_a_label_that_means_nothing_is_refused(label):
    with pytest.raises(DataError, match=r"a\.jsonl:1: `label` is .*, expected true or false"):
        parse([{"prompt": "a", "completion": "b", "label": label}], LABELLED)


def test_a_pair_with_one_answer_names_the_line_what_is_wanted_and_an_example():
    with pytest.raises(DataError) as error:
        parse([{"prompt": "a", "chosen": "b", "rejected": "c"}, {"prompt": "a", "responses": ["b"]}], PAIR)
    said = str(error.value)
    assert said.startswith(
        "a.jsonl:2: a pair has `prompt`, `chosen` and `rejected`; no `chosen` and no `rejected`, found"
    )
    assert '{"prompt": "2+2=", "chosen": "4", "rejected": "5"}' in said


@pytest.mark.parametrize("what", ["drop", "truncate"])
def test_a_pair_that_does_not_fit_keeps_answer_tokens_on_both_sides_or_is_left_out_and_counted(what):
    sizes = [(prompt, chosen, rejected) for prompt in (1, 9, 30) for chosen in (1, 13, 20) for rejected in (2, 14, 30)]
    made = [{"prompt": "1" * p, "chosen": "2" * c, "rejected": "3" * r} for p, c, r in sizes]
    limits = Limits(max_prompt_length=12, max_length=16, long_prompts=what)
    found, left = judged.pairs(parse(made, PAIR), judged.Encoder(tokenizer=builtin.tokenizer(), limits=limits))
    assert len(found) + left.dropped == len(sizes)
    assert 0 < len(found) < len(sizes)
    for pair in found:
        _, chosen, rejected = sizes[pair.chosen.prompt.id]
        assert (len(pair.chosen.completion), len(pair.rejected.completion)) == (chosen + 1, rejected + 1)  # and its end
        assert pair.chosen.prompt.tokens == pair.rejected.prompt.tokens
        assert len(pair.chosen.prompt.tokens) + max(chosen, rejected) + 1 <= 16
