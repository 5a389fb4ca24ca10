"""docs/deploy.md: each command, in order, on small settings; the steps of the guides with their numbers."""

import re

import pytest

from tests.runs import pages
from trimtab.operate import supervise
from trimtab.store.run_directory import RunDirectory

PAGE = pages.ROOT / "docs" / "deploy.md"
CHINESE = PAGE.with_suffix(".zh.md")
PARTS = {
    "Deployment, step by step": 1,
    "1. Environment": 2,
    "2. Losses are plug-ins": 3,
    "3. Configuration": 3,
    "4. Smoke test": 1,
    "5. The run": 4,
    "6. Evaluation and comparison": 5,
    "7. The way back": 6,
    "PPO": 3,
    "GRPO": 2,
    "DPO": 4,
}
"""Commands that are run, by part."""


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    return pages.Reader(PAGE, tmp_path_factory.mktemp("deploy"))


@pytest.fixture
def typed(reader, monkeypatch):
    """Ask for a part: its commands have been typed, and all before them."""
    monkeypatch.chdir(reader.folder)
    pages.shorten(monkeypatch)
    return reader.read_on_to


@pytest.mark.parametrize("part", PARTS)
def test_the_commands_of_each_part_do_what_they_say(typed, reader, part):
    run = [command for command in typed(part) if not command.needs]
    assert len(run) == PARTS[part]
    assert all(reader.said[command.text].strip() for command in run), "each shows something"


def test_the_runs_of_the_page_are_what_it_says_of_them(typed, reader):
    typed("DPO")
    runs = reader.folder / "runs"
    assert RunDirectory(runs / "guide").facts()["algorithm"] == "ppo"
    assert RunDirectory(runs / "guide-grpo").facts()["algorithm"] == "grpo"
    assert list((runs / "guide" / "branches").iterdir()), "what came after the rollback's step is kept"
    assert supervise.restarts(RunDirectory(runs / "guide")) == []
    said = "\n".join(reader.said.values())
    for wanted in (
        "2 processes on 1 host(s) see each other",
        "0 failed",
        "every stage passed",
        "the run can be recovered",
    ):
        assert wanted in said
        assert wanted in PAGE.read_text() or wanted.startswith("0")


@pytest.mark.parametrize("command", [c for c in pages.commands(PAGE) if c.needs], ids=lambda c: c.text[:40])
def test_what_needs_a_server_names_programs_files_options_and_keys_that_there_are(command):
    assert command.needs in pages.NEEDS
    pages.hold(command)


def test_the_steps_of_the_guides_stand_in_their_order_with_their_numbers():
    for page in (PAGE, CHINESE):
        heads = re.findall(r"^##? (.*)$", page.read_text(), re.MULTILINE)
        assert [int(h.split(".")[0]) for h in heads if h[0].isdigit()] == list(range(1, 8)), page.name
        assert heads[-3:] == ["PPO", "GRPO", "DPO"], page.name
        for number in (
            "256",
            "epoch_num: 4",
            "0.2",
            "0.01",
            "0.99",
            "0.95",
            "0.03",
            "1.5",
            "512",
            "0.9",
            "0.85",
            "0.05",
        ):
            assert number in page.read_text(), f"{page.name}: {number}"


def test_the_chinese_page_has_the_same_commands():
    assert pages.bare(CHINESE) == pages.bare(PAGE)
