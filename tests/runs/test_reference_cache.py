"""What is kept of the reference saves passes and changes no figure: with it, without it, from an earlier run, damaged."""

import json

import pytest

from tests.runs import small
from trimtab import config as configs
from trimtab.data import preferences, rows
from trimtab.errors import UserError
from trimtab.models.reference import Reference
from trimtab.operate import finish
from trimtab.store import journal, writer

PAIRS, STEPS = 8, 5
WORDS = [
    "train.minibatches=2",
    "observe.term_norms_every=null",
    "checkpoint.rolling_every=1",
    "preference.beta=0.5",
]
MIX = """
mix: [{{algorithm: dpo, data: {pairs}, weight: 0.5, rows_per_step: 4}}]
"""


@pytest.fixture(autouse=True)
def without_report(monkeypatch):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])


@pytest.fixture(autouse=True)
def passes(monkeypatch):
    """Rows of each pass of a reference."""
    seen, computed = [], Reference._computed

    def counted(self, batch, *rest):
        seen.append(len(batch))
        return computed(self, batch, *rest)

    monkeypatch.setattr(Reference, "_computed", counted)
    return seen


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    made = rows.read("builtin:addition", {}, preferences.PAIR, first=PAIRS)
    path.write_text("\n".join(json.dumps({k: v for k, v in r.values.items() if v is not None}) for r in made))
    return path


def figures(directory):
    evaluations = [e["metrics"] for e in journal.read(directory.journal).evaluations()]
    return small.evidence(directory), [{n: v for n, v in e.items() if not n.startswith("time/")} for e in evaluations]


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_a_run_is_the_same_with_a_cache_without_one_and_with_an_earlier_runs(tmp_path, pairs, passes, name):
    place = tmp_path / "kept"
    words = [*WORDS, *([f"data.train={pairs}"] if name == "dpo" else [])]  # the built-in task has labelled rows
    path = small.write(tmp_path, name, steps=STEPS)
    found, counts = {}, {}
    for run, cache in (("without", "false"), ("fresh", place), ("again", place)):
        passes.clear()
        found[run] = figures(small.train(path, tmp_path / run, *words, f"reference.cache={cache}"))
        counts[run] = sum(passes)
    assert found["fresh"] == found["without"]
    assert found["again"] == found["without"]
    assert counts["again"] == 0
    assert counts["fresh"] < counts["without"]
    if name == "dpo":  # each row of each pair once; of the evaluation once, whether at step 0, 2, 4 or 5
        assert counts["fresh"] == 2 * PAIRS + 12
        assert counts["without"] == 2 * 4 * STEPS + 12 * 4
    assert not list((tmp_path / "fresh" / "checkpoints").glob("*/reference"))


@pytest.mark.parametrize("cache", ["true", "false"])
def test_while_the_policy_is_the_reference_an_evaluation_finds_a_margin_of_exactly_0(tmp_path, cache):
    data = tmp_path / "long.jsonl"
    made = [
        {"prompt": "7+" * (n % 9 + 1), "chosen": "ab" * (3 * n % 31 + 1), "rejected": "c" * (n % 23 + 1)}
        for n in range(24)
    ]
    data.write_text("\n".join(map(json.dumps, made)))
    words = [
        f"data.train={data}",
        f"data.validation={data}",
        "sampling.max_length=128",
        "eval.prompts=24",
        "train.minibatches=1",
    ]
    path = small.write(tmp_path, "dpo", steps=1)
    directory = small.train(path, tmp_path / "run", *WORDS, *words, f"reference.cache={cache}")
    first = journal.read(directory.journal).evaluations()[0]["metrics"]
    assert (first["eval/preference/margin"], first["eval/preference/accuracy"]) == (0.0, 0.0)
    assert abs(small.steps(directory)[0]["metrics"]["preference/margin"]) < 1e-5


def test_a_run_that_samples_beside_pairs_is_the_same_with_what_an_earlier_one_has_kept(tmp_path, pairs, passes):
    path = small.write(tmp_path, steps=4, more=MIX.format(pairs=pairs))
    found = []
    for run in ("first", "second"):
        passes.clear()
        found.append(figures(small.train(path, tmp_path / run, f"reference.cache={tmp_path / 'kept'}", "kl.coef=0")))
    assert found[0] == found[1]
    assert sum(passes) == 0
    assert "loss/mix/dpo/preference" in small.steps(small.RunDirectory(tmp_path / "second"))[0]["metrics"]


@pytest.mark.parametrize("loss", ["the cache is gone", "a file is cut", "nothing"])
def test_an_interrupted_run_goes_on_bit_by_bit_whatever_became_of_the_cache(
    tmp_path, pairs, passes, monkeypatch, capsys, loss
):
    path, place = small.write(tmp_path, "dpo", steps=STEPS), tmp_path / "kept"
    words = [*WORDS, f"data.train={pairs}"]
    whole = small.train(path, tmp_path / "whole", *words, "reference.cache=false")
    small.interrupt_after(monkeypatch, 3)
    with pytest.raises(small.Interrupted):
        small.train(path, tmp_path / "cut", *words, f"reference.cache={place}")
    monkeypatch.undo()
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])
    (kept,) = place.glob("*/*.safetensors")
    if loss == "the cache is gone":
        writer.remove_tree(place)
    elif loss == "a file is cut":
        kept.write_bytes(kept.read_bytes()[:-9])
    capsys.readouterr()
    cut = small.train(path, tmp_path / "cut", *words, f"reference.cache={place}")
    assert figures(cut) == figures(whole)
    said = capsys.readouterr().out
    assert ("is not as it was written; its rows are computed again" in said) == (loss == "a file is cut")
    assert ("rows are known" in said) == (loss == "nothing")


def test_what_has_changed_is_named_and_the_figures_are_computed_anew(tmp_path, pairs, passes, capsys):
    path = small.write(tmp_path, "dpo", steps=1)
    words = [*WORDS, f"data.train={pairs}", f"reference.cache={tmp_path / 'kept'}"]
    small.train(path, tmp_path / "first", *words)
    passes.clear(), capsys.readouterr()
    small.train(path, tmp_path / "second", *words, "sampling.max_length=15", "reference.dtype=bfloat16")
    assert sum(passes) > 0
    said = _sorted_facts(capsys.readouterr().out)
    assert "are of another precision, sampling.max_length, sampling.max_prompt_length, weights" in said


def _sorted_facts(said):
    line = next(line for line in said.splitlines() if "are computed anew" in line)
    head, _, names = line.partition("are of another ")
    return f"{head}are of another {', '.join(sorted(names.split(', ')))}"


def test_a_row_that_is_new_in_the_file_is_the_only_one_that_is_computed(tmp_path, pairs, passes):
    path = small.write(tmp_path, "dpo", steps=2)
    words = [*WORDS, f"data.train={pairs}", "data.validation=null", f"reference.cache={tmp_path / 'kept'}"]
    small.train(path, tmp_path / "first", *words)
    lines = pairs.read_text().splitlines()
    changed = json.loads(lines[0])
    changed["chosen"] = changed["chosen"] + "1"
    pairs.write_text("\n".join([json.dumps(changed), *lines[1:]]))
    passes.clear()
    small.train(path, tmp_path / "second", *words)
    assert passes == [1]


def test_a_continued_run_may_keep_its_figures_elsewhere(tmp_path, pairs):
    path = small.write(tmp_path, "dpo", steps=1)
    words = [*WORDS, f"data.train={pairs}"]
    small.train(path, tmp_path / "run", *words)
    more = small.train(path, tmp_path / "run", *words, f"reference.cache={tmp_path / 'elsewhere'}", "train.max_steps=2")
    assert len(small.steps(more)) == 2
    assert list((tmp_path / "elsewhere").glob("*/*.safetensors"))


def test_where_the_users_cache_cannot_be_the_run_has_its_own(tmp_path, pairs, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRIMTAB_CACHE", str(tmp_path / "file"))
    words = [*WORDS, f"data.train={pairs}"]
    directory = small.train(small.write(tmp_path, "dpo", steps=1), tmp_path / "run", *words)
    assert f"the user's cache cannot be used ({tmp_path / 'file' / 'reference'}: " in capsys.readouterr().out
    assert list((directory.root / "reference").glob("*/*.safetensors"))


def test_a_directory_that_is_named_and_cannot_be_made_is_refused(tmp_path, pairs):
    (tmp_path / "file").write_text("")
    words = [*WORDS, f"data.train={pairs}", f"reference.cache={tmp_path / 'file' / 'x'}"]
    with pytest.raises(UserError, match=r"reference\.cache: no directory can be made there: .*Not a directory"):
        small.train(small.write(tmp_path, "dpo", steps=1), tmp_path / "run", *words)


def test_a_checkpoint_of_an_earlier_version_is_gone_on_with_and_the_difference_is_said(tmp_path, pairs, capsys):
    path = small.write(tmp_path, "dpo", steps=1)
    words = [*WORDS, f"data.train={pairs}"]
    directory = small.train(path, tmp_path / "run", *words)
    old = directory.checkpoints / "1" / "reference"
    old.mkdir()
    (old / "log_probs.safetensors").write_bytes(b"")
    capsys.readouterr()
    small.train(path, tmp_path / "run", *words, "train.max_steps=2")
    assert "checkpoint 1 was written by an earlier version and holds log-probs" in capsys.readouterr().out


def test_a_run_without_rows_that_are_read_keeps_nothing(tmp_path):
    place = tmp_path / "kept"
    small.train(small.write(tmp_path, steps=1), tmp_path / "run", "kl.coef=0.1", f"reference.cache={place}")
    assert not place.exists()


def test_an_empty_name_is_refused(tmp_path):
    with pytest.raises(configs.ConfigError, match=r"reference\.cache"):
        configs.load(small.write(tmp_path, "dpo"), ["reference.cache=''"])
