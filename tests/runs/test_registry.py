"""`trimtab runs`: over runs that were trained, and over many that look so."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.runs import small
from tests.unit.store import registry_runs as runs
from trimtab import config as configs
from trimtab.cli import app
from trimtab.errors import StorageError, UserError
from trimtab.operate import housekeeping, registering
from trimtab.operate import registry as operate
from trimtab.operate.start import Front, train_in
from trimtab.operate.verify import verify
from trimtab.store import audit, disk, registry_tags
from trimtab.store.registry_names import Root

ALL = housekeeping.Rule(samples_days=30.0, keep=frozenset())
"""The most that may go."""


def call(root, *words):
    return CliRunner().invoke(app, ["runs", *map(str, words), "--root", str(root)])


def told(root, *words):
    result = call(root, *words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def registry_of(root):
    registry = runs.opened(root)
    registry.refresh()
    return registry


@pytest.fixture
def root(tmp_path):
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


# ------------------------------------------------------------------------------------------------------------- real runs
@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A stage of demonstrations and one that starts from it, in `runs/`, as the command leaves them."""
    above = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(above)
        patch.delenv("TRIMTAB_RUNS", raising=False)
        path = small.write(above, steps=2)
        first = small.train(path, "runs/stage/first")
        second = small.train(path, "runs/second", "policy.model=runs/stage/first", "train.max_steps=1")
    return above / "runs", above / first.root, above / second.root


def test_training_registers_its_run_where_runs_lie(trained):
    root, _, _ = trained
    registry = runs.opened(root)
    names = {b.name: b.state(registry.root.directory(b.name)) for b in registry.briefs()}
    assert names == {"second": "finished", "stage/first": "finished"}
    assert registry.refresh().read == ()


def test_a_stage_is_linked_with_the_one_that_it_came_from(trained):
    root, _, _ = trained
    second, first = told(root, "show", "second"), told(root, "show", "stage/first")
    assert second["parents"] == [{"run": "stage/first", "key": "policy.model", "part": ""}]
    assert first["children"] == [{"run": "second", "key": "policy.model", "part": ""}]
    assert [kept["step"] for kept in first["checkpoints"]] == [0, 1, 2]
    assert first["config"]["sampling.group_size"] == 4
    assert first["versions"]["trimtab"]
    assert first["data_fingerprints"]["train"]
    assert {end: found["step"] for end, found in first["evaluations"].items()}.keys() == {"first", "best", "last"}
    shown = call(root, "show", "second").output
    assert "from stage/first  (policy.model)" in shown
    assert "went into second  (policy.model)" in call(root, "show", "stage/first").output


def test_two_stages_are_compared(trained):
    root, _, _ = trained
    found = told(root, "diff", "stage/first", "second")
    changed = {d["key"]: (d["a"], d["b"]) for d in found["config"]}
    assert changed["policy.model"] == ("builtin:tiny", "runs/stage/first")
    assert changed["train.max_steps"] == (2, 1)
    assert (found["data_fingerprints"], found["versions"], found["seeds"]) == ([], [], [])
    first, second = found["results"]["last"]["metrics"]["eval/reward/mean"]
    assert [first, second] == [
        told(root, "show", name)["evaluations"]["last"]["metrics"]["eval/reward/mean"]
        for name in ("stage/first", "second")
    ]
    assert "data: no difference" in call(root, "diff", "stage/first", "second").output


def test_a_promoted_model_can_be_used_and_survives_all_that_happens_to_its_run(trained):
    from trimtab.models import loading

    root, _, second = trained
    found = told(root, "promote", "second:1", "--as", "prod", "--why", "passed")
    assert found["path"] == str(second / "promoted" / "1")
    before = {p.name: p.read_bytes() for p in sorted((second / "promoted" / "1").iterdir())}
    assert loading.load(found["path"], seed=0, key="policy.model").model.num_parameters() > 0

    assert [item["path"] for item in told(root, "gc", "--keep-checkpoints", "last")["items"]] == []
    shutil.rmtree(second / "checkpoints" / "1")  # as retention or a rollback would
    assert {p.name: p.read_bytes() for p in sorted((second / "promoted" / "1").iterdir())} == before
    registry = registry_of(root)
    assert operate.fault_of(registry, operate.bearer(registry, "prod")) is None
    assert verify(second).exit_code == 0


def test_a_registry_that_fails_never_stops_training_and_is_said_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def broken(*_, **__):
        raise OSError("no such luck")

    monkeypatch.setattr("trimtab.store.registry.Registry.__init__", broken)
    said = []
    directory = runs.RunDirectory(tmp_path / "runs" / "a")
    train_in(configs.load(small.write(tmp_path, steps=1), []), directory, front=Front(say=said.append, is_shown=False))
    assert directory.facts()["outcome"] == "all steps done"
    warnings = [line for line in said if "registry" in line]
    assert len(warnings) == 1
    assert "is not in the registry (no such luck)" in warnings[0]


def test_a_run_is_registered_only_where_there_is_a_registry_or_runs_lie(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRIMTAB_RUNS", raising=False)
    said = []
    assert registering.register(runs.make(root, "a"), said.append)
    assert not registering.register(runs.make(tmp_path / "other", "b"), said.append)
    monkeypatch.setenv("TRIMTAB_RUNS", str(tmp_path / "other"))
    assert registering.register(runs.make(tmp_path / "other", "x/y/b"), said.append)
    assert not registering.register(runs.RunDirectory(tmp_path / "other" / "never-begun"), said.append)
    assert [b.name for b in runs.opened(tmp_path / "other").briefs()] == ["x/y/b"]
    assert said == []
    assert not registering.register(runs.make(root, "odd name"), said.append)
    assert len(said) == 1
    assert "its path has more than letters" in said[0]


def test_no_command_of_the_registry_loads_torch(root):
    runs.make(root, "a", steps=(0, 10, 20), rewards=(0.1, 0.4, 0.2))
    runs.make(root, "b", steps=(0, 10, 20), rewards=(0.1, 0.3, 0.2))
    script = """
import sys
from typer.testing import CliRunner
from trimtab.cli import app
for words in sys.argv[2:]:
    result = CliRunner().invoke(app, ["runs", *words.split(), "--root", sys.argv[1]])
    assert result.exit_code == 0, (words, result.output)
assert not {"torch", "transformers", "numpy"} & set(sys.modules), "loaded"
"""
    words = [
        "list",
        "show a",
        "diff a b",
        "tag b keep",
        "promote a",
        "promote --show",
        "promote --undo",
        "gc --dry-run",
        "gc",
    ]
    subprocess.run([sys.executable, "-c", script, str(root), *words], check=True)


# ------------------------------------------------------------------------------------------------------------- list, show
def test_the_list_is_filtered_and_sorted(root):
    runs.make(root, "old", rewards=(0.1, 0.5), started="2026-01-01T00:00:00+0000")
    runs.make(root, "new", rewards=(0.1, 0.2), started="2026-03-01T00:00:00+0000", config={"algorithm": "ppo"})
    runs.make(root, "none", started="2026-02-01T00:00:00+0000", ended=None)
    call(root, "tag", "old", "paper")
    names = lambda *words: [found["name"] for found in told(root, "list", *words)]  # noqa: E731
    assert names() == ["new", "none", "old"]
    assert names("--sort", "eval/reward/mean") == ["old", "new", "none"]
    assert names("--sort", "loss/total") == ["new", "old", "none"]
    assert names("--sort", "name") == ["new", "none", "old"]
    assert names("--tag", "paper") == ["old"]
    assert names("--algorithm", "ppo") == ["new"]
    assert names("--where", "algorithm=grpo", "--where", "optim.learning_rate<1e-4") == ["none", "old"]
    assert names("--where", "algorithm=dpo") == []
    output = call(root, "list").output
    assert output.splitlines()[0].split() == [
        "NAME",
        "ALGORITHM",
        "MODEL",
        "STATE",
        "STEP",
        "RESULT",
        "TAGS",
        "STARTED",
        "SIZE",
    ]
    assert "eval/reward/mean 0.5" in output
    assert "10/40" in output
    assert output.splitlines()[-1] == "3 runs"
    result = call(root, "list", "--sort", "eval/reward/maen")
    assert "did you mean eval/reward/mean?" in str(result.exception)
    assert "no run has a key optim.lr" in call(root, "list", "--where", "optim.lr<1").stderr


def test_a_run_that_cannot_be_read_is_in_the_list_and_said(root):
    (runs.make(root, "bad").root / "run.json").write_text("{")
    result = call(root, "list")
    assert result.exit_code == 0
    assert "unreadable" in result.stdout
    assert "see `trimtab verify" in result.stderr


# ------------------------------------------------------------------------------------------------------------- promotions
def test_one_checkpoint_bears_a_label_and_each_undo_gives_it_back(root):
    for name in ("a", "b"):
        runs.make(root, name, steps=(0, 10, 20), rewards=(0.1, 0.5, 0.3))
    assert told(root, "promote", "a")["step"] == 10  # the best
    assert told(root, "promote", "b:20", "--why", "calmer")["run"] == "b"
    told(root, "promote", "a:0", "--as", "baseline")
    assert [(r["name"], r["labels"]) for r in told(root, "list", "--sort", "name")] == [
        ("a", ["baseline"]),
        ("b", ["prod"]),
    ]
    assert "prod: b:20, as before" in call(root, "promote", "b:20").output
    history = told(root, "promote", "--show")
    assert [(p["number"], p["run"], p["step"], p["why"]) for p in history] == [(1, "a", 10, ""), (2, "b", 20, "calmer")]
    assert history[0]["who"]
    assert "prod: a:10 (was b:20)" in call(root, "promote", "--undo", "--why", "regression").output
    assert "prod: nothing (was a:10)" in call(root, "promote", "--undo").output
    undone = told(root, "promote", "--show")
    assert [bool(p["undone"]) for p in undone] == [True, True]
    assert undone[1]["undone"]["why"] == "regression"
    assert "nothing under" in str(call(root, "promote", "--undo").exception)
    assert "baseline 1  a:0" in call(root, "promote", "--as", "baseline", "--show").output
    assert [line["action"] for line in audit.read(root / "a" / "audit.jsonl").lines] == [
        "promote",
        "promote",
        "undo promotion",
    ]


def test_a_damaged_checkpoint_is_never_promoted(root):
    directory = runs.make(root, "a", steps=(0, 10, 20), rewards=(0.1, 0.5, 0.3))
    weights = directory.checkpoints / "10" / "policy" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    registry = registry_of(root)
    with pytest.raises(StorageError, match=r"checkpoint 10 is damaged: .* has SHA-256"):
        operate.promote(registry, "a", 10, "prod", "")
    assert registry_tags.read(directory) == []
    assert not (directory.root / "promoted").exists()
    assert operate.promote(registry, "a", None, "prod", "")[0].step == 20  # the best that is whole
    with pytest.raises(UserError, match="has no checkpoint of step 15; there are: 0, 10, 20"):
        operate.promote(registry, "a", 15, "prod", "")


def test_an_encrypted_checkpoint_is_not_promoted_and_it_is_said_what_to_do(root):
    directory = runs.make(root, "a", steps=(0,), rewards=(0.1,))
    store = operate.store_of(directory)
    manifest = dict(store._manifest(0))
    del manifest["checksum"], manifest["files"]
    scratch = directory.checkpoints / ".0.new"
    shutil.copytree(directory.checkpoints / "0", scratch)
    (scratch / "manifest.json").unlink()
    store._name(scratch, 0, {**manifest, "encryption": {"key_id": "00"}})
    with pytest.raises(
        UserError, match="is encrypted, and what is promoted is a plain model directory; `trimtab export"
    ):
        operate.promote(registry_of(root), "a", 0, "prod", "")


def test_the_same_step_with_other_weights_is_another_model(root):
    directory = runs.make(root, "a", steps=(0, 10), rewards=(0.1, 0.5))
    registry = registry_of(root)
    first, _ = operate.promote(registry, "a", 10, "prod", "")
    shutil.rmtree(directory.checkpoints / "10")
    runs.checkpoint(directory, 10, {"eval/reward/mean": 0.6}, weight=77)  # after a rollback
    second, is_new = operate.promote(registry, "a", 10, "prod", "")
    assert (first.folder, second.folder, is_new) == ("promoted/10", "promoted/10-2", True)
    assert operate.fault_of(registry, first) is None
    assert operate.undo(registry, "prod", "")[1].folder == "promoted/10"


def test_a_run_that_was_moved_keeps_its_promotion_and_a_copy_has_none(root):
    runs.make(root, "a", steps=(0, 10), rewards=(0.1, 0.5))
    call(root, "promote", "a:10")
    shutil.copytree(root / "a", root / "z")
    registry = registry_of(root)
    assert [(p.run, p.step) for p in registry.promotions()] == [("a", 10)]
    operate.undo(registry, "prod", "")
    assert operate.bearer(registry, "prod") is None
    (root / "a").rename(root / "moved")
    operate.promote(registry_of(root), "moved", 10, "prod", "")
    (root / "moved").rename(root / "again")
    again = registry_of(root)
    assert operate.bearer(again, "prod").run == "again"
    assert operate.fault_of(again, operate.bearer(again, "prod")) is None


def test_an_undo_never_gives_a_label_to_a_damaged_model(root):
    directory = runs.make(root, "a", steps=(0, 10, 20), rewards=(0.1, 0.5, 0.3))
    registry = registry_of(root)
    operate.promote(registry, "a", 10, "prod", "")
    operate.promote(registry, "a", 20, "prod", "")
    (directory.root / "promoted" / "10" / "config.json").write_text("[]")
    with pytest.raises(
        StorageError, match=r"prod would stand for a:10 again, but .*config.json is not as it was promoted"
    ):
        operate.undo(registry, "prod", "")
    assert operate.bearer(registry, "prod").step == 20


def test_where_files_have_no_second_name_a_promotion_copies_them(root, monkeypatch):
    def refused(*_):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refused)
    directory = runs.make(root, "a", steps=(0, 10), rewards=(0.1, 0.5))
    registry = registry_of(root)
    promotion, _ = operate.promote(registry, "a", 10, "prod", "")
    assert operate.fault_of(registry, promotion) is None
    assert (directory.root / "promoted/10/model.safetensors").stat().st_nlink == 1


@pytest.mark.parametrize("number", range(1, 22))
def test_a_promotion_that_fails_at_any_write_moves_the_label_whole_or_not_at_all(root, number, monkeypatch):
    runs.make(root, "a", steps=(0, 10), rewards=(0.1, 0.5))
    runs.make(root, "b", steps=(0, 10), rewards=(0.1, 0.5))
    registry = registry_of(root)
    operate.promote(registry, "a", 10, "prod", "")
    with _failing_at(monkeypatch, number) as count:
        try:
            operate.promote(registry, "b", 10, "prod", "")
        except StorageError:
            assert count["operations"] >= number
        else:
            assert count["operations"] < number
            assert operate.bearer(registry, "prod").run == "b"
    again = registry_of(root)
    bearer = operate.bearer(again, "prod")
    assert bearer.run in ("a", "b")
    assert operate.fault_of(again, bearer) is None
    assert operate.promote(again, "b", 10, "prod", "")[0].run == "b"


class _failing_at:
    """The n-th operation on the disk fails, and so does every one behind it."""

    def __init__(self, monkeypatch, number):
        self.patch, self.number, self.count = monkeypatch, number, {"operations": 0}

    def __enter__(self):
        self.before = {name: getattr(disk, name) for name in disk.OPERATIONS}
        for name, operation in self.before.items():
            self.patch.setattr(disk, name, self._counted(operation))
        return self.count

    def _counted(self, operation):
        def counted(*words):
            self.count["operations"] += 1
            if self.count["operations"] >= self.number:
                raise OSError(28, "No space left on device")
            return operation(*words)

        return counted

    def __exit__(self, *_):
        for name, operation in self.before.items():
            self.patch.setattr(disk, name, operation)


# --------------------------------------------------------------------------------------------------------------------- gc
def swept(root, rule=ALL):
    """What goes, by path from the root."""
    registry = registry_of(root)
    return {str(item.path.relative_to(root)): item.tier for item in housekeeping.plan(registry, rule).items}


def everything(root):
    return {str(p.relative_to(root)) for p in root.rglob("*") if not p.name.startswith("registry.sqlite")}


def test_the_tiers_are_what_they_say(root):
    directory = runs.make(root, "a", steps=(0, 10, 20, 30, 40, 50, 60), rewards=(0.1, 0.5, 0.3, 0.3))
    runs.checkpoint(directory, 55, policy_only=True)
    runs.samples(directory, "step-0000010.jsonl", days=31)
    runs.samples(directory, "step-0000020.jsonl", days=29)
    (directory.checkpoints / ".5.gone").mkdir()
    expected = {
        "a/checkpoints/.5.gone": "leftover",
        "a/samples/step-0000010.jsonl": "samples",
        "a/checkpoints/30": "rolling",
        "a/checkpoints/50": "rolling",
    }
    assert swept(root, housekeeping.Rule()) == expected  # 0 the first, 10 the best, 60 the last, 20 and 40 kept
    more = {"a/checkpoints/20": "kept", "a/checkpoints/40": "kept", "a/checkpoints/55": "kept"}
    assert swept(root) == expected | more
    order = [item.tier for item in housekeeping.plan(registry_of(root), ALL).items]
    assert order == sorted(order, key=housekeeping.TIERS.index)


def test_a_dry_run_removes_nothing_and_says_what_the_real_one_removes(root):
    directory = runs.make(root, "a", steps=(0, 10, 20, 30), rewards=(0.1, 0.2, 0.3))
    runs.samples(directory, "step-0000010.jsonl", days=90)
    words = ("gc", "--keep-checkpoints", "best,last,tagged")
    told(root, "list")
    before = everything(root)
    dry = told(root, *words, "--dry-run")
    assert everything(root) == before
    real = told(root, *words)
    assert (dry["items"], dry["bytes"]) == (real["items"], real["bytes"])
    assert dry["bytes"] > 0
    gone = {item["path"] for item in dry["items"]}
    assert gone == {"a/checkpoints/10", "a/samples/step-0000010.jsonl"}
    assert before - everything(root) == {p for p in before if any(p == g or p.startswith(f"{g}/") for g in gone)}
    assert everything(root) - before == {"a/audit.jsonl", "a/lock"}
    assert told(root, *words)["items"] == []
    assert [line["action"] for line in audit.read(directory.audit).lines] == ["gc"]
    assert told(root, "show", "a")["bytes"] == sum(p.stat().st_size for p in directory.root.rglob("*") if p.is_file())


def test_the_bytes_of_a_file_with_two_names_count_when_the_last_goes(root):
    runs.make(root, "a", steps=(0, 10, 20, 30), rewards=(0.1, 0.2, 0.3))
    call(root, "promote", "a:10")
    call(root, "promote", "--undo")
    weights = (root / "a/checkpoints/10/policy/model.safetensors").stat().st_size
    plan = housekeeping.plan(registry_of(root), ALL)
    sizes = {str(item.path.relative_to(root)): item.bytes for item in plan.items}
    alone = sum(
        p.stat().st_size for p in (root / "a/checkpoints/10").rglob("*") if p.is_file() and p.stat().st_nlink == 1
    )
    assert sizes["a/checkpoints/10"] == alone
    assert sizes["a/promoted/10"] >= weights


def test_nothing_goes_of_what_is_tagged_promoted_an_ancestor_or_training(root):
    steps, rewards = (0, 10, 20, 30), (0.1, 0.2, 0.3)
    for name, model in (
        ("base", "builtin:tiny"),
        ("sft", str(root / "base")),
        ("best", str(root / "sft" / "final")),
        ("tagged", "builtin:tiny"),
        ("training", "builtin:tiny"),
        ("unfinished", "builtin:tiny"),
        ("plain", "builtin:tiny"),
        ("named", "builtin:tiny"),
        ("reader", str(root / "named" / "checkpoints" / "10" / "policy")),
    ):
        directory = runs.make(
            root,
            name,
            steps=steps,
            rewards=rewards,
            config={"policy.model": model},
            ended=None if name == "unfinished" else "x",
        )
        runs.samples(directory, "step-0000010.jsonl", days=99)
    call(root, "tag", "tagged", "keep")
    call(root, "promote", "best")
    with Root(root).directory("training").locked():
        found = told(root, "gc", "--keep-checkpoints", "last")
    assert {item["path"] for item in found["items"]} == {
        "plain/checkpoints/10",
        "plain/samples/step-0000010.jsonl",
        "reader/checkpoints/10",
        "reader/samples/step-0000010.jsonl",
        "named/samples/step-0000010.jsonl",
        "unfinished/samples/step-0000010.jsonl",
    }
    assert {found["run"]: found["why"] for found in found["stays"]} == {
        "base": "its model went into best, which bears prod",
        "sft": "its model went into best, which bears prod",
        "best": "bears prod",
        "tagged": "tagged keep",
        "training": "a process trains there",
    }
    for name in ("base", "sft", "best", "tagged", "training", "unfinished", "named"):
        assert sorted(int(p.name) for p in (root / name / "checkpoints").iterdir()) == list(steps)


def test_what_an_undo_would_give_back_stays(root):
    runs.make(root, "a", steps=(0, 10, 20, 30), rewards=(0.1, 0.2, 0.3))
    runs.make(root, "b", steps=(0, 10, 20, 30), rewards=(0.1, 0.2, 0.3))
    call(root, "promote", "a:10")
    call(root, "promote", "b:10")
    assert swept(root) == {}
    assert "prod: a:10" in call(root, "promote", "--undo").output
    assert swept(root) == {"b/checkpoints/10": "rolling", "b/promoted/10": "kept"}


def test_a_run_without_a_whole_newest_checkpoint_loses_none(root):
    directory = runs.make(root, "a", steps=(10, 20, 30), rewards=(0.1, 0.2, 0.3))
    for step in (20, 30):
        (directory.checkpoints / str(step) / "state.json").write_text("[]")
    assert swept(root) == {}  # 10 is the newest whole one
    (directory.checkpoints / "10" / "state.json").write_text("[]")
    plan = housekeeping.plan(registry_of(root), ALL)
    assert plan.items == ()
    assert plan.spared == (("a", "none of its checkpoints is whole; see `trimtab verify`"),)


def test_no_checkpoint_goes_while_it_is_not_known_what_a_promotion_needs(root):
    runs.make(root, "base", steps=(0, 10, 20, 30), rewards=(0.1, 0.2, 0.3))
    runs.make(root, "best", steps=(0, 10), rewards=(0.1, 0.2), config={"policy.model": str(root / "base")})
    call(root, "promote", "best")
    (root / "best" / "config" / "0001.yaml").write_text("torn: [")
    plan = housekeeping.plan(registry_of(root), ALL)
    assert plan.items == ()
    assert "may be needed by best, whose promotions cannot be read" in dict(plan.spared)["base"]


def test_it_stops_when_there_is_enough(root):
    runs.make(root, "a", steps=(0, *range(10, 100, 10)), rewards=(0.1,))
    plan = housekeeping.plan(registry_of(root), ALL)
    one = plan.items[0].bytes
    found = told(root, "gc", "--dry-run", "--keep-checkpoints", "last", "--free", str(one + 1))
    assert [item["path"] for item in found["items"]] == [str(i.path.relative_to(root)) for i in plan.items[:2]]
    assert "is no size" in str(call(root, "gc", "--free", "much").exception)
    assert "is no such word" in str(call(root, "gc", "--keep-checkpoints", "some").exception)


def test_what_is_tagged_after_it_was_planned_stays(root):
    runs.make(root, "a", steps=(0, 10, 20, 30), rewards=(0.1, 0.2, 0.3))
    registry = registry_of(root)
    plan = housekeeping.plan(registry, ALL)
    assert plan.items
    operate.tag(runs.opened(root), "a", "keep")
    assert housekeeping.collect(registry, plan, ALL).items == ()
    assert (root / "a/checkpoints/10").is_dir()


@pytest.mark.parametrize("number", range(1, 27, 2))
def test_a_removal_that_is_interrupted_leaves_no_part_of_a_checkpoint_under_its_name(root, number, monkeypatch):
    directory = runs.make(root, "a", steps=(0, 10, 20, 30, 40), rewards=(0.1, 0.2, 0.3))
    runs.samples(directory, "step-0000010.jsonl", days=99)
    stay = {"a/checkpoints/0", "a/checkpoints/40"}
    registry = registry_of(root)
    plan = housekeeping.plan(registry, ALL)
    with _failing_at(monkeypatch, number):
        failures = housekeeping.collect(registry, plan, ALL).failures
    assert all("No space left" in line for line in failures)
    store = operate.store_of(directory)
    assert [store.fault(step) for step in store.steps()] == [None] * len(store.steps())
    call(root, "gc", "--keep-checkpoints", "last")
    assert {f"a/checkpoints/{p.name}" for p in directory.checkpoints.iterdir()} - {"a/checkpoints/20"} == stay
    assert verify_of(directory) == []


def verify_of(directory):
    """Faults of the checkpoints."""
    return verify(directory.root).findings.get("checkpoints", [])
