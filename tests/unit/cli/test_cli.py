"""The program: exit codes, messages without tracebacks, and no torch where none is needed."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from trimtab import __version__, algorithms, cli
from trimtab.errors import (
    GuardError,
    MissingExtraError,
    Preempted,
    RewardUnavailableError,
    StorageError,
    TrimtabError,
    UserError,
    WorkerError,
)
from trimtab.store.recorder import RunRecorder
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Samples
from trimtab.types import StepReport

CONFIG = "algorithm: grpo\nrewards: [exact_match]\ntrain: {max_steps: 7}\nvalue: {coef: 0.5}\n"


@pytest.fixture
def trimtab(monkeypatch, capsys, tmp_path):
    """Runs the program in this process: (exit code, output, errors)."""
    monkeypatch.delenv("TRIMTAB_DEBUG", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["trimtab", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        shown = capsys.readouterr()
        return end.value.code, shown.out, shown.err

    return run


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def a_run(tmp_path):
    """A run of two steps, as its files say."""
    directory = RunDirectory(tmp_path / "runs" / "a")
    directory.create()
    directory.add_config({"algorithm": "grpo"}, {"algorithm": "grpo", "train": {"max_steps": 7}}, why="started")
    directory.describe(id="x", algorithm="grpo", ended=None)
    recorder = RunRecorder(directory, Samples())
    recorder.event("started", step=0)
    recorder.record(StepReport(step=0, metrics={"eval/reward/mean": 0.25}, phase="eval"))
    for step in (1, 2):
        recorder.record(StepReport(step=step, metrics={"reward/mean": step / 4, "time/step": 1.0}))
    (directory.checkpoints / "0").mkdir()
    return directory


# ------------------------------------------------------------------------------------------------------- the program
def test_help_lists_every_command(trimtab):
    code, out, _ = trimtab("--help")
    assert code == 0
    assert all(name in out for name in ("train", "smoke", "check", "eval", "status", "algorithms", "config"))


@pytest.mark.parametrize("command", ["train", "smoke", "check", "eval", "status", "algorithms", "config"])
def test_every_command_explains_itself(trimtab, command):
    code, out, _ = trimtab(command, "-h")
    assert code == 0
    assert f"trimtab {command}" in out


def test_without_a_command_the_help_is_shown_and_nothing_is_called_an_error(trimtab):
    code, out, err = trimtab()
    assert (code, "Usage" in out + err, "error" in err) == (2, True, False)


def test_the_version_is_that_of_the_package(trimtab):
    assert trimtab("--version") == (0, f"trimtab {__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nope"], "error: No such command 'nope'; see `trimtab --help`"),
        (["config", "show"], "error: Missing argument 'CONFIG'; see `trimtab config show --help`"),
        (["status", "x", "--jsn"], "error: No such option: --jsn"),
        (["status", "none"], "error: none: no run was started here (there is no run.json)"),
        (["algorithms", "grop"], "error: algorithm: no algorithm is called `grop`; did you mean `grpo`?"),
        (["config", "show", "none.yaml"], "error: none.yaml: no such file"),
        (["train", "none.yaml"], "error: none.yaml: no such file"),
        (["check", "none.yaml"], "error: none.yaml: no such file"),
        (["eval", "none.yaml"], "error: none.yaml: no such file"),
    ],
)
def test_a_user_s_mistake_is_one_line_and_exit_code_2(trimtab, monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = trimtab(*words)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_every_fault_of_a_configuration_is_a_line(trimtab, file):
    file.write_text(CONFIG + "polcy: {}\noptim: {learning_rate: fast}\n")
    code, _, err = trimtab("config", "show", file, "train.max_stps=3")
    assert code == 2
    assert err.splitlines() == [
        "error: command line: unknown key `train.max_stps`; did you mean `max_steps`?",
        f"error: {file}:5: unknown key `polcy`; did you mean `policy`?",
        f"error: {file}:6: optim.learning_rate: 'fast'; expected a number",
    ]


def test_an_internal_fault_names_the_saved_traceback_and_shows_none(trimtab, monkeypatch):
    def fails():
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(algorithms, "names", fails)
    code, out, err = trimtab("algorithms")
    assert (code, out) == (1, "")
    assert "Traceback" not in err
    assert err.startswith("internal fault: ZeroDivisionError: a fault of ours\n")
    saved = re.search(r"the traceback is in (\S+); please report it", err).group(1)
    assert "Traceback (most recent call last)" in Path(saved).read_text()
    assert "in fails" in Path(saved).read_text()


def test_with_debug_the_traceback_is_shown(trimtab, monkeypatch):
    monkeypatch.setenv("TRIMTAB_DEBUG", "1")
    code, _, err = trimtab("status", "none")
    assert code == 2
    assert "Traceback" in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TrimtabError, 1), (UserError, 2), (MissingExtraError, 2), (GuardError, 3), (StorageError, 4), (WorkerError, 5),
        (RewardUnavailableError, 6), (Preempted, 75), (KeyboardInterrupt, 130),
    ],
)  # fmt: skip
def test_the_exit_code_is_that_of_the_error(trimtab, monkeypatch, error, code):
    def fails():
        raise error("so it is")

    monkeypatch.setattr(algorithms, "names", fails)
    found, _, err = trimtab("algorithms")
    assert found == code
    quiet = {KeyboardInterrupt: "", Preempted: "so it is\n"}
    assert err == quiet.get(error, "error: so it is\n")


# ------------------------------------------------------------------------------------------------------------- config
def test_show_prints_the_resolved_configuration_and_what_is_unused(trimtab, file):
    code, out, _ = trimtab("config", "show", file, "policy.clip_ratio=0.3", "--optim.learning_rate", "1e-5")
    assert code == 0
    found = yaml.safe_load(out)
    assert (found["policy"]["clip_low"], found["optim"]["learning_rate"]) == (0.3, 1e-5)
    assert out.splitlines()[-1] == "# unused by grpo: value.coef"


def test_show_gives_programs_the_same_values(trimtab, file):
    code, out, _ = trimtab("config", "show", file, "--json")
    assert code == 0
    assert json.loads(out) == yaml.safe_load(trimtab("config", "show", file)[1])


def test_the_schema_is_json(trimtab):
    code, out, _ = trimtab("config", "schema")
    assert code == 0
    assert json.loads(out)["properties"]["algorithm"]["enum"][: len(algorithms.MODULES)] == list(algorithms.MODULES)


def test_diff_shows_what_resolves_differently(trimtab, file, tmp_path):
    other = tmp_path / "b.yaml"
    other.write_text(CONFIG.replace("7", "9") + "policy: {clip_ratio: 0.2}\n")
    code, out, _ = trimtab("config", "diff", file, other)
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [["train.max_steps", "7", "->", "9"], ["1", "differences"]]
    assert json.loads(trimtab("config", "diff", file, other, "--json")[1]) == [
        {"key": "train.max_steps", "a": 7, "b": 9}
    ]


# --------------------------------------------------------------------------------------------------------- algorithms
def test_every_algorithm_is_listed_with_a_line(trimtab):
    code, out, _ = trimtab("algorithms")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == algorithms.names()
    assert [a["name"] for a in json.loads(trimtab("algorithms", "--json")[1])] == [
        line.split()[0] for line in out.splitlines()
    ]


@pytest.mark.parametrize("name", list(algorithms.MODULES))
def test_an_algorithm_shows_what_it_records_which_terms_its_loss_has_and_what_it_refuses(trimtab, name):
    from trimtab.testing import cases
    from trimtab.testing.algorithms import rich_config, with_value

    out = trimtab("algorithms", name)[1]
    described = json.loads(trimtab("algorithms", name, "--json")[1])
    algorithm = algorithms.load(name)
    config = rich_config(algorithm)
    for key in (("kl", "where", "loss"), ("preference", "nll_coef", 0.1), ("preference", "center", 0.1)):
        config = with_value(config, *key) or config
    terms = cases.evaluate(algorithm, config, cases.make(need=algorithm.needs(config))).terms
    names = [row["name"] for row in described["metrics"]]
    assert {n for n in names if n.startswith("loss/")} == {f"loss/{term}" for term in terms}
    assert set(algorithm.reports) <= set(names)
    assert all(row["help"] and row["name"] in out for row in described["metrics"])
    assert described["refuses"] == dict(algorithm.refuses)
    assert all(why.split()[0] in out for why in algorithm.refuses.values())


def test_dapo_shows_what_it_means_by_auto(trimtab):
    out = trimtab("algorithms", "dapo")[1]
    assert "sampling.dynamic.enabled  true" in out
    assert "sampling.overlong.buffer  sampling.max_length / 5" in out
    assert "what `auto` is" not in trimtab("algorithms", "grpo")[1]


def test_nested_settings_are_shown_one_by_one(trimtab):
    described = json.loads(trimtab("algorithms", "gspo_segment", "--json")[1])
    keys = {row["key"]: row["default"] for row in described["settings"]}
    assert (keys["policy.segment.length"], keys["kl.limit.warn"]) == (None, 0.03)
    assert "policy.segment" not in keys


@pytest.mark.parametrize("name", list(algorithms.MODULES))
def test_an_algorithm_shows_its_formula_its_needs_and_an_explained_default_of_every_key(trimtab, name):
    code, out, _ = trimtab("algorithms", name)
    assert code == 0
    algorithm = algorithms.load(name)
    assert algorithm.formula in out
    described = json.loads(trimtab("algorithms", name, "--json")[1])
    assert described["needs"]
    assert all(row["help"] for row in described["settings"])
    assert all(row["key"] in out for row in described["settings"])


def test_grpo_needs_groups_of_sampled_completions(trimtab):
    assert json.loads(trimtab("algorithms", "grpo", "--json")[1])["needs"] == ["rollouts", "groups", "old_log_probs"]


# ------------------------------------------------------------------------------------------------------------- status
def test_status_says_how_far_a_run_is(trimtab, a_run):
    code, out, _ = trimtab("status", a_run.root)
    assert code == 0
    assert out.splitlines()[0] == "a  grpo  step 2/7  interrupted; the same command goes on"
    assert re.search(r"reward/mean +0\.5\n", out)
    assert re.search(r"eval/reward/mean +0\.25\n", out)
    assert re.search(r"checkpoints +0\n", out)
    assert "started  step 0" in out


def test_status_tells_programs_the_same(trimtab, a_run):
    found = json.loads(trimtab("status", a_run.root, "--json")[1])
    assert (found["step"], found["max_steps"], found["checkpoints"]) == (2, 7, [0])
    assert found["metrics"] == {"eval/reward/mean": 0.25, "reward/mean": 0.5}


def test_status_names_damaged_lines_of_the_journal(trimtab, a_run):
    with a_run.journal.open("ab") as journal:
        journal.write(b'{"length": 3\n')
    assert "journal: 1 damaged lines, first 5" in trimtab("status", a_run.root)[1]


def test_status_knows_a_running_a_failed_and_a_finished_run(trimtab, a_run):
    def state():
        return json.loads(trimtab("status", a_run.root, "--json")[1])["state"]

    with a_run.locked():
        assert state() == "running"
    a_run.failure.write_text(json.dumps({"code": 4, "cause": "StorageError: full"}))
    assert state() == "ended with exit code 4: StorageError: full"
    a_run.describe(ended="2026-01-01", outcome="all steps done")
    assert state() == "all steps done"


# -------------------------------------------------------------------------------------------------------------- train
@pytest.mark.parametrize("flags", [[], ["--fresh"]], ids=["continue", "fresh"])
def test_a_run_that_another_process_trains_is_left_alone(trimtab, a_run, file, flags):
    """Even its `failure.json`: otherwise the run would look as if it had failed."""
    with a_run.locked():
        code, _, err = trimtab("train", file, "--run-dir", a_run.root, *flags)
    assert code == 2
    assert err.startswith(f"error: {a_run.root}: another process trains here: pid {os.getpid()} on ")
    assert not a_run.failure.exists()
    assert [p.name for p in a_run.root.parent.iterdir()] == ["a"]


def test_a_run_goes_on_only_with_the_configuration_that_it_was_started_with(trimtab, a_run, file):
    code, _, err = trimtab("train", file, "--run-dir", a_run.root)
    assert code == 2
    lines = err.splitlines()
    assert lines[0] == (
        f"error: {a_run.root}: this run was started with another configuration; "
        "use another --run-dir, or --fresh to start over"
    )
    assert "error: rewards: the run has its default, asked for is ['exact_match']" in lines
    assert not any("max_steps" in line for line in lines)


def test_a_failed_run_says_why_in_failure_json(trimtab, file, tmp_path):
    code, _, err = trimtab("train", file, "--run-dir", tmp_path / "run", "data.train=none.jsonl")
    assert code == 2
    assert err == "error: none.jsonl: no such file; give a JSONL file, or builtin:addition\n"
    failure = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert failure["code"] == 2
    assert "none.jsonl: no such file" in failure["cause"]


# ------------------------------------------------------------------------------------------------------------ imports
WITHOUT = """
import sys
from trimtab.cli import main
try:
    main()
except SystemExit as end:
    loaded = [name for name in ("torch", "transformers") if name in sys.modules]
    print("loaded", loaded, "code", end.code, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words", ["--help", "config show FILE", "config schema", "algorithms", "algorithms grpo", "status RUN"]
)
def test_a_command_that_only_reads_loads_neither_torch_nor_transformers(a_run, file, words):
    words = words.replace("FILE", str(file)).replace("RUN", str(a_run.root)).split()
    found = subprocess.run([sys.executable, "-c", WITHOUT, *words], capture_output=True, text=True, check=False)
    assert found.stderr.splitlines()[-1] == "loaded [] code 0"


def test_the_module_is_the_program_too():
    found = subprocess.run([sys.executable, "-m", "trimtab", "--version"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, f"trimtab {__version__}\n")
