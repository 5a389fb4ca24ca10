"""Every malformed input is told in full, in words that say what to do, before a model is loaded; nothing is lost by it."""

import json
import subprocess
import sys

import pytest

from tests.malformed.cases import differing
from tests.malformed.models_table import MODELS
from tests.malformed.rows_table import ROWS
from tests.malformed.settings_table import SETTINGS
from tests.malformed.words_table import WORDS
from trimtab import cli


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs a case's command where its files are, with no way to load a model: (exit code, lines on stderr)."""

    def command(case):
        case.put(tmp_path)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("trimtab.models.loading.load", lambda *_, **__: pytest.fail("a model was loaded"))
        monkeypatch.setattr(sys, "argv", ["trimtab", *case.argv])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, capsys.readouterr().err.splitlines()

    return command


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("case", ROWS, ids=lambda case: case.name)
def test_a_spoilt_file_of_rows_ends_a_run_before_it_begins(case, run, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    code, lines = run(case)
    assert differing(case, lines) == []
    assert code == 2
    there = {path.name for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert there == {"notes.txt", "failure.json", "lock", "audit.jsonl"}
    failure = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert (failure["code"], failure["place"]) == (2, lines[0].removeprefix("error: ").split(": ")[0])


@pytest.mark.parametrize("case", SETTINGS, ids=lambda case: case.name)
def test_a_spoilt_configuration_is_told_in_full_and_leaves_nothing_behind(case, run, tmp_path):
    code, lines = run(case)
    assert differing(case, lines) == []
    assert code == 2
    assert set(contents(tmp_path)) == set(case.files)


@pytest.mark.parametrize("case", WORDS, ids=lambda case: case.name)
def test_a_spoilt_command_line_is_told_in_full_and_leaves_nothing_behind(case, run, tmp_path):
    code, lines = run(case)
    assert differing(case, lines) == []
    assert code == 2
    assert set(contents(tmp_path)) == set(case.files)


# ------------------------------------------------------------------------------------------------------------ models
FORBIDDEN = """
import contextlib, importlib.machinery, io, json, os, sys

class Refused(importlib.machinery.SourceFileLoader):
    def exec_module(self, module):
        raise AssertionError("transformers was loaded")

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "transformers":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader = Refused(name, spec.origin)
        return spec

sys.meta_path.insert(0, Finder())
from trimtab import cli

for line in sys.stdin:
    folder, argv = json.loads(line)
    os.chdir(folder)
    sys.argv = ["trimtab", *argv]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            cli.main()
    except SystemExit as end:
        print(json.dumps([end.code, said.getvalue().splitlines()]))
"""


@pytest.fixture(scope="module")
def without_transformers(tmp_path_factory):
    """What each case of a model comes to, in one process in which transformers cannot be loaded."""
    folder = tmp_path_factory.mktemp("models")
    lines = []
    for number, case in enumerate(MODELS):
        place = folder / str(number)
        place.mkdir()
        case.put(place)
        lines.append(json.dumps([str(place), case.argv]))
    done = subprocess.run(
        [sys.executable, "-c", FORBIDDEN], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip([case.name for case in MODELS], found, strict=True))


@pytest.mark.parametrize("case", MODELS, ids=lambda case: case.name)
def test_a_spoilt_model_is_told_in_full_by_headers_alone(case, without_transformers):
    code, lines = without_transformers[case.name]
    assert differing(case, lines) == []
    assert code == 2


def test_every_case_has_a_name_of_its_own_and_there_are_as_many_as_are_promised():
    for table, least in ((ROWS, 60), (SETTINGS, 50), (WORDS, 20), (MODELS, 20)):
        assert len({case.name for case in table}) == len(table) >= least
