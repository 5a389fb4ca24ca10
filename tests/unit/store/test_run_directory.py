"""A run's directory: private, used by one process at a time, its configurations numbered."""

import os
import stat
import subprocess
import sys

import pytest
import yaml

from trimtab.errors import UserError
from trimtab.store.run_directory import RunDirectory

HOLDER = """
import sys
from pathlib import Path
from trimtab.store.run_directory import RunDirectory
with RunDirectory(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path / "runs" / "a")
    run.create()
    return run


@pytest.fixture
def holder(run):
    """Another process that trains here."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(run.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


def test_nobody_else_may_look_into_a_run_and_it_has_its_folders(run):
    assert stat.S_IMODE(run.root.stat().st_mode) == 0o700
    assert all(folder.is_dir() for folder in (run.checkpoints, run.samples, run.config))
    run.create()
    assert not run.exists, "a run is there once something is known of it"


def test_a_second_process_is_refused_and_told_which_one_trains_here(run, holder):
    with pytest.raises(UserError) as error, run.locked():
        pass
    assert error.value.exit_code == 2
    assert str(error.value).startswith(f"{run.root}: another process trains here: pid {holder.pid} on ")
    assert run.is_locked()


def test_the_lock_of_a_killed_process_is_free(run, holder):
    holder.kill()
    holder.wait()
    assert not run.is_locked()
    with run.locked():
        assert run.is_locked()
        assert (run.root / "lock").read_text().startswith(f"pid {os.getpid()} on ")


def test_the_lock_is_freed_when_the_training_fails(run):
    with pytest.raises(RuntimeError), run.locked():
        raise RuntimeError
    assert not run.is_locked()


def test_a_run_without_a_lock_file_is_not_locked(tmp_path):
    assert not RunDirectory(tmp_path).is_locked()


def test_facts_are_put_beside_those_that_are_there(run):
    run.describe(id="x", algorithm="grpo")
    run.describe(algorithm="ppo", 名="值")
    assert run.facts() == {"id": "x", "algorithm": "ppo", "名": "值"}
    assert run.exists


def test_every_version_of_the_configuration_is_kept(run):
    assert run.add_config({"algorithm": "grpo"}, {"algorithm": "grpo", "kl": {"coef": 0.0}}, why="started") == 1
    assert run.add_config({"algorithm": "ppo", "模": "型"}, {}, why="swapped") == 2
    assert [p.name for p in run.config_versions()] == ["0001.yaml", "0002.yaml"]
    newest = run.newest_config()
    assert (newest["version"], newest["why"], newest["requested"]) == (2, "swapped", {"algorithm": "ppo", "模": "型"})
    assert yaml.safe_load(run.config_versions()[0].read_text())["resolved"]["kl"] == {"coef": 0.0}


def test_other_files_beside_the_configurations_are_no_versions(run):
    (run.config / "notes.yaml").write_text("a: 1")
    assert run.add_config({}, {}, why="started") == 1


def test_a_run_is_moved_aside_whole_under_a_name_that_is_free(run):
    run.describe(id="first")
    first = run.move_aside()
    run.create()
    run.describe(id="second")
    second = run.move_aside()
    assert (first.name, second.name) == ("a.old-1", "a.old-2")
    assert [RunDirectory(p).facts()["id"] for p in (first, second)] == ["first", "second"]
    assert not run.root.exists()
