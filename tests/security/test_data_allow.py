"""`data.allow`: no file outside of its folders is read as data, by whatever key, link or command; each decision is kept."""

import json
import shutil

import pytest

from tests.runs import small
from tests.security.commands import command
from trimtab import assemble
from trimtab import config as configs
from trimtab.operate import finish, verify
from trimtab.store import audit
from trimtab.store.run_directory import RunDirectory

ROWS = [{"prompt": f"{n}+1=", "completion": str(n + 1), "label": True, "answer": str(n + 1)} for n in range(6)]
PAIRS = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": "x"} for n in range(6)]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """`inside` is allowed, `outside` is not."""
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n")
        (tmp_path / name / "pairs.jsonl").write_text("\n".join(map(json.dumps, PAIRS)) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(place, *words, algorithm="grpo"):
    return configs.load(small.write(place, algorithm, steps=1), [f"data.allow=[{place / 'inside'}]", *words])


def read(config):
    told = []
    try:
        assemble.read_rows(config, tell=told.append)
    finally:
        read.told = {found.key: found.is_allowed for found in told}


ESCAPES = {
    "another folder": lambda p: str(p / "outside/rows.jsonl"),
    "a relative path": lambda p: "outside/rows.jsonl",
    "..": lambda p: str(p / "inside/../outside/rows.jsonl"),
    "a link to the file": lambda p: linked(p / "inside/link.jsonl", p / "outside/rows.jsonl"),
    "a link to its folder": lambda p: f"{linked(p / 'inside/folder', p / 'outside')}/rows.jsonl",
    "a link to a link": lambda p: linked(p / "inside/two", linked(p / "inside/one", p / "outside/rows.jsonl")),
    "a relative link": lambda p: linked(p / "inside/up.jsonl", "../outside/rows.jsonl"),
    "a folder with a longer name": lambda p: copied(p / "inside", p / "inside-too") + "/rows.jsonl",
    "a file of the system": lambda p: "/etc/passwd",
    "a process's own files": lambda p: "/proc/self/environ",
    "a data set of the hub": lambda p: "hf:someone/rows",
    "a data set of the hub with a split": lambda p: "hf:someone/rows:train",
    "a directory of a data set": lambda p: f"hf:{p / 'outside'}",
    "a relative directory of a data set": lambda p: "hf:outside",
    "a directory of a data set beside": lambda p: f"hf:{p / 'inside'}/../outside:train",
    "a directory with a link in it": lambda p: f"hf:{p / 'inside'}" + linked(p / "inside/a.jsonl", "/etc/passwd")[:0],
}


def linked(path, to):
    path.symlink_to(to)
    return str(path)


def copied(old, new):
    shutil.copytree(old, new)
    return str(new)


@pytest.mark.parametrize("escape", ESCAPES)
@pytest.mark.parametrize("key", ["data.train", "data.validation", "mix[0].data"])
def test_no_key_leads_out_of_the_allowed_folders(place, key, escape):
    name = ESCAPES[escape](place)
    inside = place / "inside/rows.jsonl"
    words = {
        "data.train": [f"data.train={name}", f"data.validation={inside}"],
        "data.validation": [f"data.train={inside}", f"data.validation={name}"],
        "mix[0].data": [f"data.train={inside}", "data.validation=null", f"mix=[{{algorithm: sft, data: '{name}'}}]"],
    }[key]
    config = load(place, *words)
    with pytest.raises(configs.ConfigError) as caught:
        read(config)
    (finding,) = caught.value.findings
    assert finding.place == key
    assert "data.allow" in finding.what
    assert finding.hint == f"allowed: {place / 'inside'}"
    assert read.told[key] is False
    assert all(allowed for other, allowed in read.told.items() if other != key)


INSIDE = {
    "by its whole path": lambda p: str(p / "inside/rows.jsonl"),
    "by a relative path": lambda p: "inside/rows.jsonl",
    "over ..": lambda p: str(p / "outside/../inside/rows.jsonl"),
    "by a link from outside": lambda p: linked(p / "outside/link.jsonl", p / "inside/rows.jsonl"),
    "the built-in rows": lambda p: "builtin:addition",
}


@pytest.mark.parametrize("way", INSIDE)
def test_what_lies_inside_is_read_however_it_is_named(place, way):
    read(load(place, f"data.train={INSIDE[way](place)}", "data.validation=null"))
    assert read.told == {"data.train": True}


def test_every_file_that_may_not_be_read_is_named_at_once(place):
    words = [
        "data.train=outside/rows.jsonl",
        "data.validation=/etc/passwd",
        "mix=[{algorithm: dpo, data: outside/pairs.jsonl}]",
    ]
    with pytest.raises(configs.ConfigError) as caught:
        read(load(place, *words))
    assert [f.place for f in caught.value.findings] == ["data.train", "data.validation", "mix[0].data"]


def test_without_allow_any_file_may_be_read_and_with_none_in_it_no_file(place):
    read(load(place, "data.train=outside/rows.jsonl", "data.validation=null", "data.allow=null"))
    with pytest.raises(configs.ConfigError, match="allowed: none"):
        read(load(place, "data.train=inside/rows.jsonl", "data.validation=null", "data.allow=[]"))


def test_every_command_that_reads_through_a_configuration_refuses(place, monkeypatch, capfd):
    path = small.write(place, "grpo", steps=1)
    words = [f"data.allow=[{place / 'inside'}]", "data.train=outside/rows.jsonl", "data.validation=outside/rows.jsonl"]
    found = {
        "train": command(monkeypatch, capfd, "train", path, *words, "--run-dir", "run"),
        "check": command(monkeypatch, capfd, "check", path, *words),
        "smoke": command(monkeypatch, capfd, "smoke", path, *words),
        "eval": command(monkeypatch, capfd, "eval", path, *words),
        "reward check": command(monkeypatch, capfd, "reward", "check", path, "outside/rows.jsonl", *words),
        "data preview": command(monkeypatch, capfd, "data", "preview", "outside/rows.jsonl", path, *words),
    }
    for name, (code, text) in found.items():
        assert code == 2, f"{name}: {text}"
        assert "outside/rows.jsonl lies outside of the folders of data.allow" in text or "is /" in text, name
    lines = audit.read(place / "run/audit.jsonl").lines
    assert [(entry["action"], entry["details"]["key"], entry["details"]["allowed"]) for entry in lines] == [
        ("data", "data.train", False),
        ("data", "data.validation", False),
    ]


def test_a_run_has_every_decision_in_its_audit_log_and_verify_holds_to_it(place, monkeypatch, capfd):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])
    path = small.write(place, "sft", steps=1)
    rows = f"data.train={place / 'inside/rows.jsonl'}"
    words = [f"data.allow=[{place / 'inside'}]", rows, "data.validation=inside/rows.jsonl"]
    for _ in range(2):
        assert command(monkeypatch, capfd, "train", path, *words, "--run-dir", "run")[0] == 0
    assert command(monkeypatch, capfd, "eval", "run")[0] == 0
    assert command(monkeypatch, capfd, "export", "run", "--to", "exported")[0] == 0
    assert command(monkeypatch, capfd, "drill", "run")[0] == 0
    run = RunDirectory(place / "run")
    reading = audit.read(run.audit)
    assert not reading.faults
    assert [(e["action"], e["details"].get("key")) for e in reading.lines] == [
        *[("data", "data.train"), ("data", "data.validation"), ("train", None)] * 2,
        *[("eval", "data.train"), ("eval", "data.validation"), ("export", None)],
        *[("drill", "data.train"), ("drill", "data.validation")],
    ]
    resolved = run.newest_config()["resolved"]
    assert {e["config"] for e in reading.lines if e["action"] != "eval"} == {audit.fingerprint(resolved)}
    verdict = verify.verify(run.root)
    assert (verdict.exit_code, reading.newest in dict(verdict.lines)["audit"]) == (0, True)
    whole = run.audit.read_bytes()
    for changed in (
        whole.replace(b'"allowed": true', b'"allowed": null', 1),
        b"\n".join(whole.split(b"\n")[:5]) + b"\n",
        b"",
    ):
        run.audit.write_bytes(changed)
        verdict = verify.verify(run.root)
        assert (verdict.exit_code, list(verdict.findings)) == (1, ["audit"])
    run.audit.write_bytes(whole.replace(b'"allowed": true', b'"allowed": null', 1))
    code, text = command(monkeypatch, capfd, "train", path, *words, "--run-dir", "run")
    assert code == 4
    assert "audit.jsonl:1: its hash is not that of what it says; see `trimtab verify" in text
