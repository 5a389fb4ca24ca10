"""What is installed is what is locked, few packages are asked for, and a database that is silent is no clean one."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _script():
    spec = importlib.util.spec_from_file_location("supply_chain", ROOT / "scripts" / "audit.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


audit = _script()
TEXT = (ROOT / "requirements.lock").read_text()


def test_the_lock_is_that_of_the_project_and_every_file_has_a_hash():
    assert audit.check() == []
    assert len(audit.locked(TEXT)) > 30
    assert all(len(package.hashes) >= 1 for package in audit.locked(TEXT))


def test_an_installation_without_extras_asks_for_twelve_packages_at_most():
    assert len(audit.direct()) <= 12 == audit.MAX_DIRECT
    assert {"torch", "transformers", "safetensors"} <= set(audit.direct())


CHANGES = {
    "another version": (
        lambda t: t.replace("safetensors==0.8.0", "safetensors==0.7.0"),
        "safetensors: locked 0.7.0, pinned",
    ),
    "no hash": (lambda t: "rich==15.0.0\n" + t, "rich: no hash"),
    "a weak hash": (lambda t: t.replace("--hash=sha256:", "--hash=md5:", 1), "is no SHA-256"),
    "one that is left out": (lambda t: t.replace("psutil==", "psutil-other=="), "psutil: is asked for and not locked"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_lock_that_is_not_the_projects_is_found(change):
    alter, message = CHANGES[change]
    assert message in "\n".join(audit.check(alter(TEXT)))


def answer(**changed):
    entries = [{"name": p.name, "version": p.version, "vulns": []} for p in audit.locked(TEXT)]
    return json.dumps({"dependencies": [{**e, **changed.get(e["name"], {})} for e in entries], "fixes": []})


def test_known_faults_and_missing_answers_are_findings_and_only_a_whole_clean_answer_is_none():
    assert audit.faults(answer()) == []
    known = {"rich": {"vulns": [{"id": "GHSA-1", "fix_versions": ["16.0"]}]}}
    assert [f.split(": ", 1)[1] for f in audit.faults(answer(**known))] == ["GHSA-1, mended in 16.0"]
    silent = {"torch": {"skip_reason": "not found"}}
    assert audit.faults(answer(**silent)) == [
        f"the advisory database gave no answer about 1 of {len(audit.locked(TEXT))} packages: torch"
    ]
    assert "gave no answer" in audit.faults('{"dependencies": []}')[0]


def test_a_database_that_cannot_be_reached_is_a_finding(monkeypatch):
    class Done:
        stdout, stderr, returncode = "", "ERROR: connection refused\n", 1

    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: Done)
    assert audit.faults() == ["the advisory database was not asked: ERROR: connection refused"]
    assert audit.main(["faults"]) == 1
