"""Names and paths that people give to `trimtab runs` lead to a run under the root, or nowhere: nothing else is opened."""

import contextlib
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.security.commands import command
from tests.unit.store import registry_runs as runs
from trimtab.errors import UserError
from trimtab.operate import registry as operate
from trimtab.store import registry_names

CANARY = "canary-5b1f6c02"
OUT = [
    "..",
    "../",
    "../outside",
    "../outside/",
    "./../outside",
    "../../outside",
    "../runs/../outside",
    "a/../../outside",
    "a/../../outside/run.json",
    "a/./../../outside",
    "a//..//..//outside",
    "a/..",
    "a/../a/../..",
    ".",
    "./",
    "",
    " ",
    " ../outside",
    "../outside ",
    "/",
    "//",
    "///outside",
    "/etc",
    "/etc/passwd",
    "//etc/passwd",
    "/proc/self/cwd",
    "/proc/self/root",
    "/proc/self/fd/0",
    "/dev/zero",
    "{outside}",
    "{outside}/run.json",
    "/{outside}",
    "{root}/../outside",
    "{root}/a/../../outside",
    "{root}-evil",
    "{root}",
    "{root}/",
    "{root}/registry.sqlite",
    "a/run.json",
    "a/config",
    "a/config/0001.yaml",
    "escape",
    "escape/",
    "escape/outside",
    "up",
    "up/outside",
    "loop",
    "loop/loop",
    "a/inner-escape",
    "dangling",
    "%2e%2e/outside",
    "%2e%2e%2foutside",
    "..%2foutside",
    "..%252foutside",
    "%252e%252e%252foutside",
    "..%c0%afoutside",
    "..%5coutside",
    "..%00/outside",
    "..\\outside",
    "..\\..\\outside",
    "a\\..\\..\\outside",
    "\\\\server\\share",
    "\\\\?\\C:\\outside",
    "//server/share/outside",
    "C:\\outside",
    "C:/outside",
    "file:///etc/passwd",
    "file://{outside}",
    "http://127.0.0.1/outside",
    "~",
    "~/outside",
    "~root/outside",
    "$HOME/outside",
    "${{env:HOME}}/outside",
    "`id`",
    "$(id)",
    "; id",
    "| id",
    "a;id",
    "a\x00",
    "a\x00/../../outside",
    "\x00../outside",
    "../outside\x00.json",
    "a\n",
    "../outside\n",
    "a\r",
    "a\x1b[2J",
    "a\x7f",
    "\uff0e\uff0e/outside",
    "\uff0e\uff0e\uff0foutside",
    "..\u2215outside",
    "..\u2044outside",
    "..\u29f8outside",
    "\u2025/outside",
    "\u2024\u2024/outside",
    "\u202e../outside",
    "\u200b../outside",
    "\ufeffa",
    "\u0430",  # looks like `a`
    "a\u0301",
    "\udcff../outside",
    "\ud800",
    ".../outside",
    "..../outside",
    "....//....//outside",
    "..;/outside",
    ".. /outside",
    "..%20/outside",
    "a:../outside",
    "a:10/../../outside",
    "a:-1",
    "a:1e9",
    "a#/../../outside",
    "a?/../../outside",
    "-rf",
    "--",
    "*",
    "a*",
    "[a]",
    "'; DROP TABLE runs; --",
    "a' OR '1'='1",
    "a" * 101,
    "a" * 256,
    "a" * 5000,
    "../" * 1000 + "outside",
    "a/" * 1000,
    "a/b/c/d/e",
    "/".join(["a"] * 300),
]
"""`{root}` and `{outside}` stand for their paths; `outside` is a run beside the root."""
NOT_NAMES = [
    *(text for text in OUT if text not in ("escape", "up", "loop", "dangling")),
    "a/b",
    "\u00e4",
    "a b",
    "_a",
    "-a",
    ".a",
    "a\t",
]


class Watch:
    """Every file and directory that this process opens, lists, changes or removes while it is on."""

    def __init__(self):
        self.is_on = False
        self.seen = []

    def __call__(self, event, words):
        if self.is_on and (event.startswith(("os.", "shutil.", "sqlite3.connect")) or event == "open"):
            paths = [os.fsdecode(w) for w in words if isinstance(w, str | bytes | os.PathLike)]
            self.seen += [(event, str(Path.cwd() / path)) for path in paths if path not in (":memory:", "")]

    @contextlib.contextmanager
    def on(self):
        self.seen, self.is_on = [], True
        try:
            yield
        finally:
            self.is_on = False


WATCH = Watch()
sys.addaudithook(WATCH)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A root with a run and links that lead out of it, and a run outside."""
    above = tmp_path_factory.mktemp("names")
    root, outside = above / "runs", above / "outside"
    root.mkdir()
    (root / "compare").mkdir()
    runs.make(root, "a", steps=(0, 10), rewards=(0.1, 0.2))
    for name in ("outside", "runs-evil", "secret"):
        shutil.copytree(root / "a", above / name)
        (above / name / "canary").write_text(CANARY)
    (root / "escape").symlink_to(outside)
    (root / "up").symlink_to(above)
    (root / "loop").symlink_to(root / "loop")
    (root / "dangling").symlink_to(above / "nothing")
    (root / "a" / "inner-escape").symlink_to(outside)
    registry = runs.opened(root)
    registry.refresh()
    registry.close()
    return root


def filled(payload, root):
    return payload.replace("{root}", str(root)).replace("{outside}", str(root.parent / "outside"))


def everything_outside(root):
    """What stands outside, and when it was changed last."""
    return {
        str(p): (p.lstat().st_mtime_ns, p.read_bytes() if p.is_file() and not p.is_symlink() else b"")
        for p in sorted(root.parent.rglob("*"))
        if not p.is_relative_to(root)
    }


def opened_outside(root):
    """What was opened that belongs neither to the root nor to Python itself."""
    ours = (str(root), *{p for p in (sys.prefix, sys.base_prefix, str(Path(__file__).parents[2])) if p})
    return [(event, path) for event, path in WATCH.seen if not path.startswith(tuple(f"{o}/" for o in ours) + ours)]


def test_a_run_may_be_named_from_within(place, monkeypatch):
    for here, words in (("a", "."), ("a/config", ".."), ("compare", "../a")):
        monkeypatch.chdir(place / here)
        assert registry_names.Root(place).name_of(words) == "a"


def test_there_are_enough_of_them():
    assert len(set(OUT)) >= 60


@pytest.mark.parametrize("payload", OUT, ids=[f"{n}-{ascii(p)[1:25]}" for n, p in enumerate(OUT)])
@pytest.mark.parametrize("here", ["above", "root"])
def test_no_name_leads_out_of_the_root_and_nothing_there_is_opened(place, payload, here, monkeypatch):
    monkeypatch.chdir({"above": place.parent, "root": place}[here])
    words = filled(payload, place)
    registry = runs.opened(place)
    asked = {
        "show": lambda name: operate.described(registry, name),
        "tag": lambda name: operate.tag(registry, name, "x"),
        "promote": lambda name: operate.promote(registry, name, None, "prod", ""),
    }
    before = everything_outside(place)
    for ask in asked.values():
        with WATCH.on(), pytest.raises(UserError, match="is no run under") as refused:
            ask(registry.root.name_of(words))
        assert opened_outside(place) == []
        assert CANARY not in str(refused.value)
        assert len(str(refused.value).splitlines()) == 1
        assert str(refused.value).isprintable()
    assert everything_outside(place) == before
    registry.close()


@pytest.mark.parametrize("payload", [*NOT_NAMES], ids=[f"{n}-{ascii(p)[1:25]}" for n, p in enumerate(NOT_NAMES)])
def test_no_tag_and_no_label_is_anything_but_a_name(payload, tmp_path):
    with WATCH.on(), pytest.raises(UserError, match="is no name; expected up to 100 letters"):
        registry_names.checked(filled(payload, tmp_path), "--as")
    assert WATCH.seen == []


@pytest.mark.parametrize("name", ["a", "prod", "v1.2-rc_3", "A" * 100, "0"])
def test_what_is_a_name_is_taken(name):
    assert registry_names.checked(name, "NAME") == name


@pytest.mark.parametrize(
    "words",
    [
        ("show", "../outside"),
        ("show", "escape"),
        ("diff", "a", "../outside"),
        ("diff", "/etc/passwd", "a"),
        ("tag", "../outside", "x"),
        ("tag", "a", "../x"),
        ("promote", "../outside:10"),
        ("promote", "../outside"),
        ("promote", "a", "--as", "../prod"),
        ("promote", "--undo", "--as", "/etc/passwd"),
        ("list", "--tag", "../x"),
    ],
)
def test_the_command_says_it_in_one_line_and_ends_with_2(place, words, monkeypatch, capfd):
    monkeypatch.chdir(place.parent)
    before = everything_outside(place)
    code, shown = command(monkeypatch, capfd, "runs", *words, "--root", place)
    assert code == 2
    assert len([line for line in shown.splitlines() if line.startswith("error: ")]) == 1
    assert CANARY not in shown
    assert everything_outside(place) == before


@pytest.mark.parametrize("name", registry_names.OWN)
def test_nothing_of_a_run_is_read_or_changed_through_a_link(place, name, tmp_path):
    root, secret = tmp_path / "runs", place.parent / "secret"
    root.mkdir()
    runs.make(root, "a", steps=(0, 10, 20, 30), rewards=(0.1, 0.2))
    runs.make(root, "other")
    moved = root / "a" / name
    if moved.is_dir():
        shutil.rmtree(moved)
    else:
        moved.unlink(missing_ok=True)
    moved.symlink_to(secret / name if (secret / name).exists() else secret / "canary")
    before = everything_outside(place)
    registry = runs.opened(root)
    with WATCH.on():
        registry.refresh()
        for brief in registry.briefs():
            brief.state(registry.root.directory(brief.name))
        for ask in (
            lambda: operate.described(registry, "a"),
            lambda: operate.tag(registry, "a", "x"),
            lambda: operate.promote(registry, "a", None, "prod", ""),
        ):
            with contextlib.suppress(UserError):
                ask()
        from trimtab.operate import housekeeping

        rule = housekeeping.Rule(samples_days=0.0, keep=frozenset())
        housekeeping.collect(registry, housekeeping.plan(registry, rule), rule)
    assert [found for found in WATCH.seen if str(secret) in os.path.realpath(found[1])] == []
    assert everything_outside(place) == before
    assert registry.marks() == []
    with pytest.raises(UserError, match="is a link"):
        operate.tag(registry, "a", "x")


def test_a_checkpoint_that_is_a_link_is_none(tmp_path):
    (tmp_path / "runs").mkdir()
    elsewhere = runs.make(tmp_path, "elsewhere", steps=(50,), rewards=(0.1,))
    directory = runs.make(tmp_path / "runs", "a", steps=(0, 10), rewards=(0.1, 0.2))
    (directory.checkpoints / "50").symlink_to(elsewhere.checkpoints / "50")
    (directory.checkpoints / "60").mkdir()
    (directory.checkpoints / "60" / "manifest.json").symlink_to(elsewhere.checkpoints / "50" / "manifest.json")
    registry = runs.opened(tmp_path / "runs")
    assert list(operate.checkpoints_of(directory)) == [0, 10]
    with pytest.raises(UserError, match="has no checkpoint of step 50; there are: 0, 10"):
        operate.promote(registry, "a", 50, "prod", "")


def test_what_a_file_says_does_not_steer_the_terminal(tmp_path, monkeypatch, capfd):
    directory = runs.make(tmp_path, "a")
    directory.describe(model="x\x1b]0;owned\x07\x1b[2J", algorithm="gr\x1b[31mpo", outcome="all\x1b[2J done")
    for words in (("list",), ("show", "a"), ("diff", "a", "a")):
        code, shown = command(monkeypatch, capfd, "runs", *words, "--root", tmp_path)
        assert code == 0
        assert "\x1b" not in shown
        assert "\x07" not in shown
