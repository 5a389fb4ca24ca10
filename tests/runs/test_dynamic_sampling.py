"""Whole runs with dynamic sampling and the treatment of overlong completions."""

import json

import pytest

from tests.runs import small
from tests.runs.small import Interrupted, interrupt_after
from trimtab import config as configs
from trimtab.assemble.shaping import with_max_length
from trimtab.errors import ConfigError, UserError
from trimtab.operate import finish

DYNAMIC = [
    "sampling.group_size=3",
    "sampling.dynamic={enabled: true, max_refills: 3}",
    "sampling.overlong={buffer: 4, factor: 0.5}",
    "rewards=[{name: length, options: {max_tokens: 4}}]",
    "optim.learning_rate=1e-4",
]


@pytest.fixture(autouse=True)
def without_report(monkeypatch):
    """Not what is tested, and slow to import."""
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])


def metrics(directory, name):
    return [step["metrics"][name] for step in small.steps(directory)]


def test_a_continued_run_is_the_uninterrupted_one_though_groups_were_waiting(tmp_path, monkeypatch):
    path = small.write(tmp_path, steps=4)
    whole = small.train(path, tmp_path / "whole", *DYNAMIC)
    assert all(metrics(whole, "sampling/surplus")[:3]), "no group waits where the run is cut"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(Interrupted):
            small.train(path, tmp_path / "cut", *DYNAMIC)
    cut = small.train(path, tmp_path / "cut", *DYNAMIC)
    assert small.evidence(cut) == small.evidence(whole)
    for name in ("sampling/kept", "sampling/surplus", "data/prompts", "staleness"):
        assert metrics(cut, name) == metrics(whole, name), name
    assert max(metrics(whole, "staleness")) == 1
    assert min(metrics(whole, "sampling/accepted")) < 1


def test_a_reward_that_says_nothing_ends_no_run_and_is_seen(tmp_path):
    path = small.write(tmp_path, steps=2)
    words = ["sampling.dynamic={enabled: true, max_refills: 1}", "rewards=[{name: exact_match}]"]
    directory = small.train(path, tmp_path / "run", *words, "eval.every=9")
    assert metrics(directory, "sampling/kept") == metrics(directory, "sampling/accepted") == [0, 0]
    assert metrics(directory, "sampling/refills") == [1, 1]
    assert metrics(directory, "data/prompts") == [8, 16]
    assert [len(s["prompt_ids"]) for s in small.steps(directory)] == [16, 16]
    assert metrics(directory, "advantage/std") == [0, 0]


def test_the_punishment_for_length_is_in_the_reward_and_beside_it(tmp_path):
    path = small.write(tmp_path, steps=1)
    words = ["rewards=[{name: length, weight: 2.0, options: {max_tokens: 4}}]", "observe.samples.every=1"]
    words += ["sampling.overlong={buffer: 4, factor: 0.5}"]
    directory = small.train(path, tmp_path / "run", *words)
    (step,) = small.steps(directory)
    (file,) = directory.samples.glob("step-*.jsonl")
    for sample in map(json.loads, file.read_text().splitlines()):
        parts = sample["reward_parts"]
        assert sample["reward"] == pytest.approx(2.0 * parts["length"] + parts["overlong"])
    shown = step["metrics"]
    assert -0.5 <= shown["reward/overlong"] < 0
    assert shown["reward/mean"] == pytest.approx(2.0 * shown["reward/length"] + shown["reward/overlong"])
    assert all("reward/overlong" not in r["metrics"] for r in small.journal.read(directory.journal).evaluations())


def test_filtered_completions_leave_the_loss_and_not_the_figures_of_length(tmp_path):
    path = small.write(tmp_path, steps=1)
    plain = small.train(path, tmp_path / "plain")
    filtered = small.train(path, tmp_path / "filtered", "sampling.overlong.filter=true")
    (a,), (b,) = small.steps(plain), small.steps(filtered)
    assert 0 < a["metrics"]["length/truncated"] < 1
    for name in [n for n in a["metrics"] if n.startswith(("length/", "reward/"))]:
        assert a["metrics"][name] == b["metrics"][name], name
    assert a["metrics"]["loss/policy"] != b["metrics"]["loss/policy"]
    assert a["weights"] != b["weights"]


def test_where_every_completion_is_filtered_no_update_is_made(tmp_path):
    path = small.write(tmp_path, steps=1)
    directory = small.train(path, tmp_path / "run", "sampling.max_length=7", "sampling.overlong.filter=true")
    (step,) = small.steps(directory)
    assert step["metrics"]["length/truncated"] == 1
    assert (step["metrics"]["updates/count"], step["metrics"]["updates/skipped"]) == (0, 2)


def test_dapo_samples_dynamically_and_punishes_by_a_fifth_of_the_length_unless_it_is_told_not_to(tmp_path):
    path = small.write(tmp_path, "dapo", steps=1)
    (step,) = small.steps(small.train(path, tmp_path / "dapo", "sampling.max_length=20"))
    assert {"sampling/kept", "reward/overlong"} <= set(step["metrics"])
    resolved = configs.load(path, ["sampling.max_length=20"]).resolved["sampling"]
    assert (resolved["dynamic"]["enabled"], resolved["overlong"]["buffer"]) == (True, 4)
    words = ["sampling.dynamic.enabled=false", "sampling.overlong.buffer=0"]
    (step,) = small.steps(small.train(path, tmp_path / "told", *words))
    assert not {"sampling/kept", "reward/overlong"} & set(step["metrics"])


def test_a_buffer_chosen_from_the_limit_shrinks_with_it_and_one_that_was_set_is_kept(tmp_path):
    path = small.write(tmp_path, "dapo")
    chosen = configs.load(path, ["sampling.max_length=1000"])
    assert (chosen.sampling.overlong.buffer, with_max_length(chosen, 100).overlong.buffer) == (200, 20)
    given = configs.load(path, ["sampling.max_length=1000", "sampling.overlong.buffer=30"])
    assert with_max_length(given, 100).overlong.buffer == 30


def test_settings_that_leave_no_group_or_no_completion_unpunished_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"sampling\.dynamic\.enabled: true, but sampling\.group_size is 1"):
        configs.load(small.write(tmp_path, "ppo"), ["sampling.group_size=1", "sampling.dynamic.enabled=true"])
    with pytest.raises(UserError, match=r"sampling\.overlong\.buffer: 14, but sampling\.max_length is 14"):
        small.train(small.write(tmp_path, steps=1), tmp_path / "run", "sampling.overlong.buffer=14")
