"""The example of a plug-in, installed as its reader would install it, and the page that shows it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import small

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin"
PAGE = (ROOT / "docs" / "plugins.md").read_text()
CONFIG = """
algorithm: topr
policy: {model: builtin:tiny}
data: {train: builtin:addition}
rewards: [{name: length, options: {max_tokens: 4}}]
sampling: {group_size: 2, max_length: 10}
train: {max_steps: 2, prompts_per_step: 2}
"""
SCRIPT = """
import json, sys
import pytest
from trimtab.cli import main
for words in json.loads(sys.argv[1]):
    print("==", words[0], flush=True)
    if words[0] == "pytest":
        code = pytest.main(words[1:])
    else:
        sys.argv = ["trimtab", *words]
        try:
            main()
        except SystemExit as end:
            code = end.code
    print("== exit code", int(code or 0), flush=True)
"""


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What the commands of the page print, in a process that finds the package by its entry point."""
    folder = tmp_path_factory.mktemp("plugin")
    target = folder / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    install += ["--no-build-isolation", "--no-index", "--target", str(target), str(EXAMPLE)]
    subprocess.run(install, check=True, capture_output=True, text=True)
    config = folder / "topr.yaml"
    config.write_text(CONFIG)
    commands = [
        ["algorithms", "topr", "--test"],
        ["train", str(config), "policy.cap=0.5", "--run-dir", str(folder / "run")],
        ["pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder), str(EXAMPLE)],
    ]
    environment = {**os.environ, "PYTHONPATH": str(target), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(commands)],
        env=environment, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    parts = re.split(r"^== (?!exit)\w+\n", done.stdout, flags=re.MULTILINE)[1:]
    assert len(parts) == len(commands), done.stdout + done.stderr
    return folder, parts, done.stderr


def test_the_contract_suite_finds_it_by_name_and_prints_what_the_page_shows(said):
    _, parts, errors = said
    assert parts[0].endswith("== exit code 0\n"), parts[0] + errors
    shown = next(b for b in blocks("console") if "--test" in b)
    assert parts[0].removesuffix("== exit code 0\n") == "".join(
        line for line in shown.splitlines(keepends=True) if not line.startswith("$")
    )


def test_it_trains_and_its_own_key_is_read(said):
    folder, parts, errors = said
    assert parts[1].endswith("== exit code 0\n"), parts[1] + errors
    run = small.RunDirectory.existing(folder / "run")
    assert [s["step"] for s in small.steps(run)] == [1, 2]
    assert run.newest_config()["resolved"]["policy"]["cap"] == 0.5


def test_its_own_test_passes(said):
    _, parts, errors = said
    assert parts[2].endswith("== exit code 0\n"), parts[2] + errors
    assert re.search(r"^\d+ passed", parts[2], re.MULTILINE)


def test_the_page_shows_the_files_of_the_example():
    shown = [*blocks("toml"), *blocks("python")]
    for name in ("pyproject.toml", "trimtab_topr.py", "test_topr.py"):
        assert (EXAMPLE / name).read_text() in shown, f"docs/plugins.md does not show examples/plugin/{name} as it is"


def test_the_other_blocks_of_the_page_are_right(said, tmp_path):
    from trimtab import config as configs

    scope = {}
    exec(next(b for b in blocks("python") if "def digits" in b), scope)
    assert scope["digits"](["1", "2"], ["42", "7"], answer=["43", "7"]) == [0.5, 1.0]
    rewards = next(b for b in blocks("yaml") if "rewards:" in b)
    (tmp_path / "digits.py").write_text(next(b for b in blocks("python") if "def digits" in b))
    path = tmp_path / "grpo.yaml"
    overrides = next(b for b in blocks("yaml") if "overrides:" in b)
    path.write_text(f"algorithm: grpo\n{rewards}{overrides.replace('topr', 'ppo').replace('cap', 'clip_low')}")
    assert configs.load(path).rewards[1].weight == 0.5


def test_the_example_stays_short():
    code = "".join(path.read_text() for path in EXAMPLE.glob("*.py")).splitlines()
    assert sum(bool(line.strip()) for line in code) <= 60
