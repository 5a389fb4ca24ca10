"""Looking at runs from outside: accept, watch, status of one that failed or is running."""

import json

import pytest
from typer.testing import CliRunner

from tests.runs import small
from trimtab.cli import app
from trimtab.errors import GuardError, UserError


def call(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def test_accept_prints_the_list_with_figures_and_its_exit_code(tmp_path):
    directory = small.train(small.write(tmp_path, steps=6), tmp_path / "run")
    result = call("accept", directory.root)
    found = json.loads(call("accept", directory.root, "--json").output)
    assert [check["name"] for check in found][:2] == [
        "all steps done, or stopped early",
        "every stage without an error",
    ]
    assert "6/6, all steps done" in result.output
    failed = sum(check["state"] == "FAIL" for check in found)
    assert result.exit_code == (1 if failed else 0)
    assert f"{failed} of 15 fail" in result.output


def test_accept_fails_a_run_that_ended_with_an_error(tmp_path):
    with pytest.raises(GuardError):
        small.train(small.write(tmp_path, steps=6), tmp_path / "run", "optim.learning_rate=1e30")
    result = call("accept", tmp_path / "run")
    assert result.exit_code == 1
    assert "exit code 3" in result.output
    assert "not accepted" in result.output
    assert "ended with exit code 3" in call("status", tmp_path / "run").output


def test_watch_shows_every_step_of_a_finished_run_and_ends(tmp_path):
    directory = small.train(small.write(tmp_path, steps=3), tmp_path / "run")
    output = call("watch", directory.root).output
    for step in (1, 2, 3):
        assert f"step  {step}/3" in output
    assert "eval  step 2" in output


def test_watch_follows_a_running_run_until_it_lets_go_of_its_lock(tmp_path, monkeypatch):
    from trimtab.cli import watch
    from trimtab.store.journal import Journal

    directory = small.train(small.write(tmp_path, steps=2), tmp_path / "run")
    answers = iter([True, True, False])
    monkeypatch.setattr(type(directory), "is_locked", lambda self: next(answers))
    written = []

    def slept(_):
        written.append(1)
        Journal(directory.journal).append("step", step=2 + len(written), metrics={"reward/mean": 0.5})

    monkeypatch.setattr(watch.time, "sleep", slept)
    records = list(watch.follow(directory, once=False))
    assert [r["step"] for r in records if r["kind"] == "step"] == [1, 2, 3, 4]


@pytest.mark.parametrize("command", ["accept", "watch", "status"])
def test_a_directory_without_a_run_is_a_user_error(tmp_path, command):
    result = call(command, tmp_path)
    assert isinstance(result.exception, UserError)
    assert "no run was started here" in str(result.exception)
