"""Every row that a sick machine would show, and the command on this one."""

import json

import pytest
from typer.testing import CliRunner

from trimtab.cli import app, doctor
from trimtab.operate.versions import Library


def library(installed, *, is_fitting):
    return Library(name="torch", wanted=">=2.9,<2.16", installed=installed, is_fitting=is_fitting, extra="")


def test_an_old_python_fails_with_the_way_out():
    assert doctor.python((3, 10, 2)).status == "FAIL"
    assert "3.11" in doctor.python((3, 10, 2)).remedy
    assert doctor.python((3, 11, 0)).status == "ok"


@pytest.mark.parametrize(("installed", "is_fitting"), [(None, False), ("2.2", False)])
def test_a_missing_or_unfitting_library_fails_with_the_pip_line(installed, is_fitting):
    row = doctor.judged(library(installed, is_fitting=is_fitting))
    assert (row.status, row.remedy) == ("FAIL", "pip install 'torch>=2.9,<2.16'")
    assert doctor.judged(library("2.10", is_fitting=True)).status == "ok"


@pytest.mark.parametrize(
    ("chosen", "cores", "quota", "status"),
    [(2, 4, None, "ok"), (4, 4, None, "ok"), (8, 4, None, "warn"), (4, 8, 2.0, "warn"), (1, 8, 0.5, "ok")],
)
def test_more_threads_than_cores_are_warned_of(chosen, cores, quota, status):
    row = doctor.threads(chosen, cores, quota, "8")
    assert row.status == status
    assert bool(row.remedy) == (status == "warn")


def test_a_container_s_share_is_read(tmp_path):
    file = tmp_path / "cpu.max"
    assert doctor.cpu_quota(file) is None
    file.write_text("max 100000\n")
    assert doctor.cpu_quota(file) is None
    file.write_text("150000 100000\n")
    assert doctor.cpu_quota(file) == 1.5


def test_known_conflicts_are_named_with_their_remedy(monkeypatch):
    from trimtab.operate import versions

    monkeypatch.setattr(versions, "version", lambda name: "0.9")
    monkeypatch.setattr(doctor, "_import_fault", lambda name: "RuntimeError: no operator")
    rows = {row.name: row for row in doctor._conflicts()}
    assert (rows["torchao"].status, rows["torchao"].remedy) == ("warn", "pip uninstall torchao")
    assert rows["torchvision"].status == "warn"
    assert rows["transformers"].status == "FAIL"


def test_the_value_of_a_token_is_never_shown(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    text = " ".join(f"{row.value} {row.remedy}" for row in doctor._environment())
    assert "verysecret" not in text
    assert "offline (HF_HUB_OFFLINE)" in text
    assert "HF_TOKEN" in text


def test_the_command_ends_with_0_here_and_with_1_where_something_fails(monkeypatch):
    result = CliRunner().invoke(app, ["doctor", "--json"])
    found = json.loads(result.output)
    assert (result.exit_code, found["ok"]) == (0, True)
    names = {row["name"] for row in found["rows"]}
    assert {"python", "torch", "transformers", "cores", "threads", "memory", "disk"} <= names
    monkeypatch.setattr(doctor, "python", lambda version: doctor.Row(status="FAIL", name="python", value="2.7"))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert result.output.splitlines()[-1].endswith("1 FAIL")
