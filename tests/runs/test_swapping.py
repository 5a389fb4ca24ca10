"""Other algorithms and coefficients for a run that trains, and the way back: bit for bit what a restart would give."""

import json
import os
import shutil

import pytest

from tests.runs import small
from trimtab import config as configs
from trimtab.errors import ConfigError, StorageError, UserError
from trimtab.operate import asking, steering
from trimtab.store import branches, disk, journal, requests
from trimtab.store.requests import Request
from trimtab.train import loop

CHAIN = {
    2: {"algorithm": "gspo", "policy.clip_low": 3e-4, "policy.clip_high": 4e-4},
    4: {"algorithm": "ppo", "value.warmup_steps": 1},
    6: {"algorithm": "dapo"},
}
"""What is asked for behind a step."""


def swap(changes):
    return Request(kind="swap", changes=changes)


def ask_behind(monkeypatch, directory, wishes):
    """Ask a run for something while it trains, behind the saves of its steps."""
    save, asked = loop._save, dict(wishes)

    def saved(run, report, *, last):
        save(run, report, last=last)
        if report.step in asked:
            requests.ask(directory, asked.pop(report.step))

    monkeypatch.setattr(loop, "_save", saved)


def events(directory, *names):
    return journal.read(directory.journal).events(*names)


def answers(directory):
    return [json.loads(p.read_text()) for p in sorted((directory.root / "requests").glob("*.answer.json"))]


@pytest.fixture(scope="module")
def swapped_live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    path = small.write(folder, steps=8)
    with pytest.MonkeyPatch.context() as patch:
        directory = small.RunDirectory(folder / "run")
        ask_behind(patch, directory, {step: swap(changes) for step, changes in CHAIN.items()})
        small.train(path, folder / "run")
    return directory


def test_four_algorithms_in_one_run_are_those_of_four_restarts(swapped_live, tmp_path):
    path, directory = small.write(tmp_path, steps=8), small.RunDirectory(tmp_path / "run")
    for step, changes in CHAIN.items():
        with pytest.MonkeyPatch.context() as patch:
            small.interrupt_after(patch, step)
            with pytest.raises(small.Interrupted):
                small.train(path, tmp_path / "run")
        asking.ask(directory, swap(changes), timeout=0.1)
    small.train(path, tmp_path / "run")
    assert small.evidence(directory) == small.evidence(swapped_live)
    assert [s["step"] for s in small.steps(directory)] == list(range(1, 9))


def test_a_swap_is_recorded_with_who_when_why_and_a_configuration_of_its_own(swapped_live):
    found = [(e["step"], e["version"], e["changes"]) for e in events(swapped_live, "swapped")]
    assert found == [(step, number, changes) for number, (step, changes) in enumerate(CHAIN.items(), 2)]
    algorithms = [swapped_live.config_of(n)["resolved"]["algorithm"] for n in range(1, 5)]
    assert algorithms == ["grpo", "gspo", "ppo", "dapo"]
    versions = [s["metrics"]["config/version"] for s in small.steps(swapped_live)]
    assert versions == [1, 1, 2, 2, 3, 3, 4, 4]
    assert all(answer["done"] for answer in answers(swapped_live))
    assert swapped_live.facts()["algorithm"] == "dapo"
    assert swapped_live.config_of(3)["why"] == "swap at step 4: algorithm=ppo, value.warmup_steps=1"


def test_a_critic_that_comes_in_is_warmed_up_first_and_goes_with_its_algorithm(swapped_live):
    losses = [sorted(n for n in s["metrics"] if n.startswith("loss/")) for s in small.steps(swapped_live)]
    assert ["loss/value" in found for found in losses] == [False] * 4 + [True, True] + [False] * 2
    assert "kl/update" not in small.steps(swapped_live)[4]["metrics"] or (
        small.steps(swapped_live)[4]["metrics"]["kl/update"] == 0.0
    )
    assert (swapped_live.checkpoints / "6" / "value").is_dir()
    assert not (swapped_live.checkpoints / "8" / "value").exists()


def test_settings_of_the_algorithm_before_are_not_taken_along(swapped_live):
    clips = [swapped_live.config_of(n)["resolved"]["policy"].get("clip_high") for n in range(1, 5)]
    assert clips == [0.2, 4e-4, 0.2, 0.28]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algoritm": "ppo"}, "did you mean `algorithm`?"),
        ({"algorithm": "dpo"}, "algorithm: dpo reads pairs, but this run samples completions"),
        ({"algorithm": "sft"}, "reads demonstrations, but this run samples completions"),
        ({"data.train": "other.jsonl"}, "data.train: it makes the run the one that it is; start another run with it"),
        ({"policy.model": "other"}, "policy.model: it makes the run the one that it is"),
        ({"value.coef": 0.3}, "`value.coef` is not read by grpo"),
        ({"optim.learning_rate": -1.0}, "expected at least 0"),
        ({"observe.prometheus_port": 9464}, "observe.prometheus_port: it is read when a run starts"),
        ({"observe.trackers": ["wandb"]}, "observe.trackers: it is read when a run starts; stop the run, and go on"),
    ],
)
def test_a_swap_that_does_not_fit_is_refused_and_changes_nothing(tmp_path, monkeypatch, changes, message):
    path, directory = small.write(tmp_path, steps=3), small.RunDirectory(tmp_path / "run")
    ask_behind(monkeypatch, directory, {1: swap(changes)})
    small.train(path, tmp_path / "run")
    (answer,) = answers(directory)
    assert not answer["done"]
    assert message in answer["message"]
    assert len(directory.config_versions()) == 1
    assert events(directory, "refused")[0]["step"] == 1
    with pytest.raises(ConfigError, match=r"."):  # and without a process that trains
        asking.ask(directory, swap(changes), timeout=0.1)
    undisturbed = small.train(path, tmp_path / "undisturbed")
    assert small.evidence(directory) == small.evidence(undisturbed)


def test_a_swap_that_cannot_be_built_leaves_the_run_as_it_was(tmp_path, monkeypatch):
    path, directory = small.write(tmp_path, steps=4), small.RunDirectory(tmp_path / "run")
    ask_behind(monkeypatch, directory, {2: swap({"algorithm": "ppo", "value.model": str(tmp_path / "nowhere")})})
    small.train(path, tmp_path / "run")
    (answer,) = answers(directory)
    assert not answer["done"]
    assert "nowhere" in answer["message"]
    assert directory.newest_config()["resolved"]["algorithm"] == "grpo"
    assert small.evidence(directory) == small.evidence(small.train(path, tmp_path / "undisturbed"))


@pytest.mark.parametrize("kind", ["swap", "rollback"])
def test_whatever_keeps_a_change_from_being_built_the_next_start_does_not_meet_it(tmp_path, monkeypatch, kind):
    path, directory = small.write(tmp_path, steps=2), small.RunDirectory(tmp_path / "run")
    wish = swap({"kl.coef": 0.1}) if kind == "swap" else back(version=1)
    build = steering.Steering._rebuilt

    def broken(self, config, changes):
        if len(directory.config_versions()) == 2:
            raise RuntimeError("a fault of ours")
        return build(self, config, changes)

    with monkeypatch.context() as patch:
        ask_behind(patch, directory, {1: wish})
        patch.setattr(steering.Steering, "_rebuilt", broken)
        with pytest.raises(RuntimeError, match="a fault of ours"):
            small.train(path, tmp_path / "run")
    small.train(path, tmp_path / "run")
    assert directory.newest_config()["why"].startswith("undone, since it could not be: ")
    assert small.evidence(directory) == small.evidence(small.train(path, tmp_path / "undisturbed"))


class Died(BaseException):
    """Stands for the end of the process, which nothing catches."""


@pytest.mark.parametrize("at", ["before the configuration", "behind the configuration", "behind the rebuild"])
def test_a_swap_survives_a_crash(swapped_live, tmp_path, at):
    path, directory = small.write(tmp_path, steps=4), small.RunDirectory(tmp_path / "run")

    waiting, dead = requests.waiting, []

    def dies(*_args, **_more):
        dead.append(True)  # and does not live to answer
        raise Died

    with pytest.MonkeyPatch.context() as patch:
        ask_behind(patch, directory, {2: swap(CHAIN[2])})
        patch.setattr(requests, "waiting", lambda directory: [] if dead else waiting(directory))
        if at == "before the configuration":
            patch.setattr(steering, "write_version", dies)
        elif at == "behind the configuration":
            patch.setattr(steering.Steering, "_rebuilt", dies)
        else:
            patch.setattr(steering.Steering, "_answer", dies)
        with pytest.raises(Died):
            small.train(path, tmp_path / "run")
    small.train(path, tmp_path / "run")
    assert small.evidence(directory) == small.evidence(swapped_live)[:4]
    assert len(directory.config_versions()) == 2
    assert [answer["done"] for answer in answers(directory)] == [True]


def test_a_run_that_ends_answers_what_it_was_asked_too_late(tmp_path, monkeypatch):
    path, directory = small.write(tmp_path, steps=2), small.RunDirectory(tmp_path / "run")
    ask_behind(monkeypatch, directory, {2: swap({"optim.learning_rate": 1e-5})})
    small.train(path, tmp_path / "run")
    assert [(a["done"], a["message"]) for a in answers(directory)] == [(False, "the run has ended")]


def test_nobody_who_answers_in_time_leaves_nothing_behind(tmp_path):
    directory = small.train(small.write(tmp_path, steps=1), tmp_path / "run")
    with directory.locked(), pytest.raises(UserError, match=r"no step has ended within 0 s, and nothing is changed"):
        asking.ask(directory, swap({"optim.learning_rate": 1e-5}), timeout=0.3)
    assert requests.waiting(directory) == []


def test_a_run_goes_on_with_what_was_changed_by_the_command_that_started_it(tmp_path):
    path = small.write(tmp_path, steps=4)
    directory = small.train(path, tmp_path / "run", "train.max_steps=2")
    asking.ask(directory, swap({"optim.learning_rate": 0.0}), timeout=0.1)
    small.train(path, tmp_path / "run")
    rates = [s["metrics"]["learning_rate"] for s in small.steps(directory)]
    assert rates == [1e-3, 1e-3, 0.0, 0.0]
    with pytest.raises(ConfigError, match=r"optim\.learning_rate"):  # it is still the run that it was started as
        small.train(path, tmp_path / "run", "optim.learning_rate=2e-3")


# ------------------------------------------------------------------------------------------------------------ the way back
def back(to=None, version=None, **changes):
    return Request(kind="rollback", to=to, version=version, changes=changes)


@pytest.fixture(scope="module")
def six_steps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("six")
    return small.train(small.write(folder, steps=6), folder / "run")


def copy(old, new):
    """A run once more. What is never changed in place, which is all but two files, is the same file."""

    def copied(source, target):
        return (shutil.copy if source.endswith(("journal.jsonl", "audit.jsonl")) else os.link)(source, target)

    shutil.copytree(old, new, copy_function=copied)


@pytest.fixture
def copied(six_steps, tmp_path):
    """The run of six steps, in a directory of its own, and its configuration."""
    copy(six_steps.root, tmp_path / "run")
    shutil.copy(six_steps.root.parent / "grpo.yaml", tmp_path)
    return small.RunDirectory(tmp_path / "run"), tmp_path / "grpo.yaml"


def moments(directory, step):
    place = directory.checkpoints / str(step)
    return {
        p.name: p.read_bytes() for p in [place / "optimizer.safetensors", *(place / "policy").glob("*.safetensors")]
    }


def test_going_back_is_bit_for_bit_a_resume_from_there(six_steps, copied):
    directory, _ = copied
    asking.ask(directory, back(to=3), timeout=0.1)
    small.train(six_steps.root.parent / "grpo.yaml", directory.root)
    assert small.evidence(directory) == small.evidence(six_steps)
    assert moments(directory, 6) == moments(six_steps, 6)


def test_the_line_that_was_left_is_kept_and_labelled(six_steps, copied):
    directory, path = copied
    asking.ask(directory, back(to=3), timeout=0.1)
    branch = branches.folder(directory) / "0001"
    assert sorted(p.name for p in (branch / "checkpoints").iterdir()) == ["4", "5", "6"]
    small.train(path, directory.root)
    assert sorted(p.name for p in (branch / "checkpoints").iterdir()) == ["3", "4", "5", "6"]
    label = json.loads((branch / "branch.json").read_text())
    assert (label["to"], label["was"], label["rule"]) == (3, 6, "")
    for step in "3456":
        left = {p.name: p.read_bytes() for p in (branch / "checkpoints" / step).rglob("*") if p.is_file()}
        was = {p.name: p.read_bytes() for p in (six_steps.checkpoints / step).rglob("*") if p.is_file()}
        assert left == was
    assert [(e["step"], e["was"], e["branch"]) for e in events(directory, "rolled back")] == [(3, 6, "0001")]
    assert branches.pending(directory) is None


def test_going_back_while_it_trains_is_the_same(six_steps, tmp_path, monkeypatch):
    path, directory = small.write(tmp_path, steps=6), small.RunDirectory(tmp_path / "run")
    ask_behind(monkeypatch, directory, {5: back(to=2)})
    small.train(path, tmp_path / "run")
    assert small.evidence(directory) == small.evidence(six_steps)
    assert sorted(p.name for p in (branches.folder(directory) / "0001" / "checkpoints").iterdir()) == list("2345")


def test_going_back_brings_the_configuration_of_its_time(tmp_path):
    path = small.write(tmp_path, steps=6)
    directory = small.train(path, tmp_path / "run", "train.max_steps=2")
    asking.ask(directory, swap({"optim.learning_rate": 1e-5}), timeout=0.1)
    small.train(path, tmp_path / "run", "train.max_steps=4")
    asking.ask(directory, back(to=1, **{"kl.coef": 0.1}), timeout=0.1)
    small.train(path, tmp_path / "run")
    found = [s["metrics"]["learning_rate"] for s in small.steps(directory)]
    assert found == [1e-3] * 6
    assert directory.newest_config()["resolved"]["kl"]["coef"] == 0.1
    asking.ask(directory, back(version=3), timeout=0.1)
    assert directory.newest_config()["resolved"]["optim"]["learning_rate"] == 1e-5
    assert directory.newest_config()["resolved"]["kl"]["coef"] == 0.0


def test_what_is_not_there_cannot_be_gone_back_to(copied):
    directory, _ = copied
    with pytest.raises(StorageError, match=r"there is no checkpoint of step 9; there are 0, 1, 2, 3, 4, 5, 6"):
        asking.ask(directory, back(to=9), timeout=0.1)
    with pytest.raises(UserError, match=r"there is no configuration 7; there are 1"):
        asking.ask(directory, back(version=7), timeout=0.1)
    weights = next((directory.checkpoints / "3" / "policy").glob("*.safetensors"))
    whole = weights.read_bytes()
    weights.unlink()  # it is the other run's file, too
    weights.write_bytes(whole[:-1])
    with pytest.raises(StorageError, match=r"checkpoint 3 is not used"):
        asking.ask(directory, back(to=3), timeout=0.1)
    assert not branches.folder(directory).exists()


def operations(monkeypatch, dies_at):
    """Let the process die before the n-th change of the disk."""
    count = 0

    def counted(name):
        real = getattr(disk, name)

        def operation(*args):
            nonlocal count
            if count == dies_at:
                raise small.Interrupted
            count += 1
            return real(*args)

        return operation

    for name in disk.OPERATIONS:
        monkeypatch.setattr(disk, name, counted(name))
    return lambda: count


def test_no_crash_leaves_a_run_between_two_lines(six_steps, copied, tmp_path):
    """The process dies before each change of the disk that a rollback makes; the next start gives the same run."""
    directory, path = copied
    with pytest.MonkeyPatch.context() as patch:
        count = operations(patch, -1)
        asking.ask(directory, back(to=3), timeout=0.1)
        total = count()
    assert total > 20
    wanted = sorted(p.name for p in directory.checkpoints.iterdir())
    for k in range(total):
        shutil.rmtree(directory.root)
        copy(six_steps.root, directory.root)
        with pytest.MonkeyPatch.context() as patch:
            operations(patch, k)
            with pytest.raises(small.Interrupted):
                asking.ask(directory, back(to=3), timeout=0.1)
        decided = branches.pending(directory)
        if decided is None:  # it never was: nothing has changed
            assert sorted(p.name for p in directory.checkpoints.iterdir()) == list("0123456")
            continue
        steering.carry_on(configs.load(path), directory, decided)
        assert sorted(p.name for p in directory.checkpoints.iterdir()) == wanted
        assert len(directory.config_versions()) == 2
    small.train(path, directory.root)
    assert small.evidence(directory) == small.evidence(six_steps)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.75, 0.98])
def test_a_crash_while_the_checkpoint_is_renewed_loses_nothing(six_steps, copied, share):
    """Between the move of the old checkpoint into the branch and the last word of the rollback."""
    directory, path = copied
    asking.ask(directory, back(to=3), timeout=0.1)
    with pytest.MonkeyPatch.context() as patch:
        complete = steering.Steering._complete

        def dies(self, run):
            with pytest.MonkeyPatch.context() as inner:
                operations(inner, int(share * 60))
                complete(self, run)
            raise small.Interrupted

        patch.setattr(steering.Steering, "_complete", dies)
        with pytest.raises(small.Interrupted):
            small.train(path, directory.root)
    small.train(path, directory.root)
    assert small.evidence(directory) == small.evidence(six_steps)
    assert branches.pending(directory) is None


def test_a_run_that_was_configured_with_the_names_of_the_guides_can_be_changed(tmp_path):
    path = small.write(tmp_path, "ppo", steps=2)
    path.write_text(path.read_text() + "kl_coef: 0.01\nclip_epsilon: 0.3\nepoch_num: 2\n")
    directory = small.train(path, tmp_path / "run")
    answer = asking.ask(directory, swap({"kl.coef": 0.02, "policy.clip_high": 0.25}), timeout=1)
    assert answer.done
    resolved = directory.newest_config()["resolved"]
    assert resolved["kl"]["coef"] == 0.02
    assert resolved["policy"]["clip_high"] == 0.25
    assert resolved["train"]["epochs_per_batch"] == 2
