"""docs/start: one page for each reader, five commands in order, each typed on small settings."""

import re

import pytest

from tests.runs import pages

FOLDER = pages.ROOT / "docs" / "start"
READERS = ("algorithm-engineer", "platform-engineer", "ml-operator", "planner")
ELSEWHERE = {c.text for c in pages.commands(pages.ROOT / "docs" / "deploy.md") if c.text.startswith("torchrun")}
"""Commands that take long and are run by the test of another page."""


@pytest.mark.parametrize("name", READERS)
def test_the_five_commands_of_a_reader_do_what_they_say(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    pages.shorten(monkeypatch)
    reader = pages.Reader(FOLDER / f"{name}.md", tmp_path, but=ELSEWHERE)
    assert len(reader.commands) == 5
    reader.read_on_to(reader.commands[-1].part)
    assert set(reader.said) | ELSEWHERE >= {command.text for command in reader.commands}
    assert all(said.strip() for said in reader.said.values()), "each shows something"


@pytest.mark.parametrize("name", READERS)
def test_a_page_says_what_is_seen_of_each_command_and_where_to_go_next(name):
    english, chinese = FOLDER / f"{name}.md", FOLDER / f"{name}.zh.md"
    assert pages.bare(chinese) == pages.bare(english)
    for page in (english, chinese):
        assert re.findall(r"^(\d)\. ", page.read_text(), re.MULTILINE) == list("12345"), page.name
        assert "(../deploy" in page.read_text()
