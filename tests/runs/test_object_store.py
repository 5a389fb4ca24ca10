"""A run whose machine is lost goes on from its object store, and is the run that was never interrupted."""

import shutil

import pytest
from typer.testing import CliRunner

from tests.runs import small
from trimtab import cli
from trimtab.cli import status
from trimtab.errors import ConfigError, StorageError, UserError
from trimtab.operate import finish, storing
from trimtab.operate.verify import verify
from trimtab.store.remote import Remote, StoreError


@pytest.fixture(autouse=True)
def no_report(monkeypatch):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])


def files(folder):
    """A directory's files but what a clock writes into."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.safetensors"))}


def test_a_run_on_a_new_machine_is_bit_for_bit_the_undisturbed_one(tmp_path, capsys):
    path = small.write(tmp_path)
    store = f"checkpoint.store=file://{tmp_path}/store"
    whole = small.train(path, tmp_path / "whole")
    small.train(path, tmp_path / "lost", store, "train.max_steps=2")
    before = (tmp_path / "lost/journal.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "lost")
    capsys.readouterr()
    again = small.train(path, tmp_path / "lost", store)
    assert "checkpoint 2 comes from file://" in capsys.readouterr().out
    assert small.evidence(again) == small.evidence(whole)
    assert len(small.evidence(again)) == 4
    assert before.startswith(again.journal.read_bytes()[:2000])
    assert files(again.final) == files(whole.final)
    for step in range(5):
        assert files(again.checkpoints / str(step)) == files(whole.checkpoints / str(step)), step
    assert sorted(u.step for u in Remote(f"file://{tmp_path}/store").contents().uploads) == [0, 1, 2, 3, 4]
    verdict = verify(again.root)
    assert verdict.findings == {}
    assert any(part == "store" and "0, 1, 2, 3, 4" in text for part, text in verdict.lines)
    assert status.describe(again.root)["store"]["step"] == 4
    figures = small.steps(again)[-1]["metrics"]
    assert figures["checkpoint/store_failed"] == 0
    assert figures["checkpoint/store_age"] > 0
    with pytest.raises(ConfigError, match="the run that is kept here was started with another configuration"):
        small.train(path, tmp_path / "other", store, "optim.learning_rate=1e-4")
    assert not (tmp_path / "other" / "run.json").exists()
    with pytest.raises(UserError, match="one place is for one run"):
        small.train(path, tmp_path / "lost", store, fresh=True)
    with pytest.raises(UserError, match="one place is for one run"):
        small.train(path, tmp_path / "whole", store)


def test_a_store_that_fails_does_not_end_training_but_the_end_says_so(tmp_path, monkeypatch, capsys):
    path, store = small.write(tmp_path, steps=2), f"checkpoint.store=file://{tmp_path}/store"
    real = Remote.put

    def put(self, file, name):
        if not name.startswith(("0/", "run/0/")):
            raise StoreError(f"{self.url}/{name}: the store is away")
        real(self, file, name)

    monkeypatch.setattr(Remote, "put", put)
    monkeypatch.setattr("trimtab.store.remote_mirror.PAUSE", 0.0)
    with pytest.raises(StorageError, match="the newest checkpoint is not in file://") as caught:
        small.train(path, tmp_path / "run", store)
    assert caught.value.exit_code == 4
    directory = small.RunDirectory(tmp_path / "run")
    assert [s["step"] for s in small.steps(directory)] == [1, 2]
    assert small.failure(directory)["code"] == 4
    assert directory.final.is_dir()
    assert capsys.readouterr().out.count("the store is away") == 1
    monkeypatch.setattr(Remote, "put", real)
    small.train(path, tmp_path / "run", store)
    assert "already finished" in capsys.readouterr().out
    assert 2 in {u.step for u in Remote(f"file://{tmp_path}/store").contents().uploads}
    assert not directory.failure.exists()


def test_a_store_that_cannot_be_looked_at_is_no_reason_to_begin_anew(tmp_path, monkeypatch):
    def contents(_):
        raise StoreError("s3://bucket/a: cannot be reached")

    monkeypatch.setattr(Remote, "contents", contents)
    with pytest.raises(StorageError, match="cannot be reached"):
        small.train(small.write(tmp_path), tmp_path / "run", f"checkpoint.store=file://{tmp_path}/store")
    directory = small.RunDirectory(tmp_path / "run")
    assert not directory.exists
    assert small.failure(directory)["code"] == 4


def test_a_directory_that_the_store_has_left_behind_is_not_gone_on_from(tmp_path):
    path, store = small.write(tmp_path, steps=2), f"checkpoint.store=file://{tmp_path}/store"
    small.train(path, tmp_path / "old", store, "train.max_steps=1")
    small.train(path, tmp_path / "new", store)
    with pytest.raises(UserError, match="has step 2 of this run"):
        small.train(path, tmp_path / "old", store)


def test_check_writes_to_the_store_and_takes_it_away(tmp_path):
    path = small.write(tmp_path)
    done = CliRunner().invoke(cli.app, ["check", str(path), f"checkpoint.store=file://{tmp_path}/store"])
    assert f"file://{tmp_path}/store can be written to; no run is there" in done.output
    assert [p for p in (tmp_path / "store").rglob("*") if p.is_file()] == []
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(cli.app, ["check", str(path), f"checkpoint.store=file://{tmp_path}/file/a"])
    assert done.exit_code != 0
    assert "checkpoint.store: file://" in f"{done.output}{done.exception}"


def test_the_wait_is_short_where_the_process_was_told_to_end(monkeypatch, tmp_path):
    from trimtab.errors import GuardError, Preempted
    from trimtab.operate.start import COMMAND

    waited = []

    class Mirror:
        stored = 3

        def finish(self, seconds):
            waited.append(seconds)
            return False

    from trimtab import config as configs

    config = configs.load(small.write(tmp_path), [f"checkpoint.store=file://{tmp_path}/store"])
    for error in (Preempted("x"), KeyboardInterrupt(), GuardError("x")):
        run_store = storing.RunStore(config, small.RunDirectory(tmp_path / "run"), COMMAND)
        run_store.mirror = Mirror()
        run_store.close(error)
    assert waited == [20.0, 20.0, 600.0]
