"""The registry: what the run directories say, found fast; a cache that may be lost, never the truth."""

import dataclasses
import json
import multiprocessing
import os
import shutil
import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.store import registry_runs as runs
from trimtab.errors import StorageError, UserError
from trimtab.operate import registry as operate
from trimtab.store import journal, registry_index, registry_schema, registry_search, registry_tags
from trimtab.store.registry_names import Root
from trimtab.store.registry_schema import UnwritableError

WRITERS = 20


def write(root, number, barrier, failures):
    """A process of the test below."""
    said = []
    try:
        barrier.wait(60)
        for turn in range(3):
            registry = runs.opened(root, said)
            operate.tag(registry, "shared", f"tag-{number}-{turn}")
            operate.tag(registry, f"own-{number}", f"turn-{turn}")
            registry.refresh()
            registry.close()
    except BaseException as error:
        said.append(repr(error))
    failures.put(said)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def facts_of(registry):
    """Everything that is known, comparable."""
    return [dataclasses.asdict(registry.entry(brief.name)) for brief in registry.briefs()]


# ------------------------------------------------------------------------------------------------------------ finding runs
def test_runs_are_found_four_levels_down_and_neither_in_a_run_nor_through_a_link_nor_hidden(root, tmp_path):
    for name in ("a", "compare-x/arms/grpo/seed-0", "compare-x/arms/grpo/seed-1"):
        runs.make(root, name)
    runs.make(root, "a/branches/inner")
    runs.make(root, "one/two/three/four/five")
    runs.make(root, ".hidden/run")
    runs.make(tmp_path, "elsewhere")
    (root / "link").symlink_to(tmp_path / "elsewhere")
    assert Root(root).find() == (["a", "compare-x/arms/grpo/seed-0", "compare-x/arms/grpo/seed-1"], [])


def test_a_run_whose_path_is_no_name_is_left_out_and_said(root):
    runs.make(root, "a (copy)")
    names, problems = Root(root).find()
    assert names == []
    assert "'a (copy)': is left out" in problems[0]
    assert "rename it" in problems[0]


def test_a_root_that_is_a_run_or_not_there_is_refused_with_what_to_give(root):
    runs.make(root, "a")
    with pytest.raises(UserError, match=r"is a run, expected a directory of runs; give .* --root DIR or TRIMTAB_RUNS"):
        Root(root / "a")
    with pytest.raises(UserError, match="is no directory"):
        Root(root / "nothing")


def test_a_run_is_asked_for_by_name_path_or_a_link_within(root, monkeypatch):
    runs.make(root, "compare/a")
    (root / "short").symlink_to(root / "compare" / "a")
    monkeypatch.chdir(root.parent)
    asked = ("compare/a", "compare/a/", "runs/compare/a", str(root / "compare/a"), "short", "runs/../runs/compare/a")
    assert {Root(root).name_of(words) for words in asked} == {"compare/a"}
    with pytest.raises(UserError, match=r"'compare/b' is no run under .*; did you mean compare/a\?"):
        Root(root).name_of("compare/b")


# -------------------------------------------------------------------------------------------------------------- up to date
def test_only_what_has_changed_is_read_again(root):
    for name in ("a", "b", "c"):
        runs.make(root, name, rewards=(0.1,))
    registry = runs.opened(root)
    assert registry.refresh().read == ("a", "b", "c")
    assert registry.refresh().read == ()
    journal.Journal(root / "b" / "journal.jsonl").append("eval", step=10, metrics={"eval/reward/mean": 0.7})
    shutil.rmtree(root / "c")
    found = registry.refresh()
    assert (found.read, found.gone) == (("b",), ("c",))
    assert [(b.name, b.value) for b in registry.briefs()] == [("a", 0.1), ("b", 0.7)]
    assert registry.marks() == []
    assert registry.figures("eval/reward/mean") == {"a": 0.1, "b": 0.7}
    again = runs.opened(root)
    assert again.refresh().read == ()
    assert facts_of(again) == facts_of(registry)


def test_an_entry_says_what_the_files_say(root):
    directory = runs.make(root, "a", steps=(0, 10), rewards=(0.1, 0.9, 0.4), config={"optim.learning_rate": 3e-4})
    resolved = runs.merged(runs.RESOLVED, {"optim.learning_rate": 1e-4})
    directory.add_config({}, resolved, why="swapped", changes={"optim": {"learning_rate": 1e-4}}, who="bo")
    registry = runs.opened(root)
    registry.refresh()
    entry = registry.entry("a")
    assert entry.settings["optim.learning_rate"] == 1e-4
    assert entry.settings["rewards[0].name"] == "length"
    assert {end: found["step"] for end, found in entry.facts["evaluations"].items()} == {
        "first": 0,
        "best": 10,
        "last": 20,
    }
    assert [(v["version"], v["who"], v["why"], v["changes"]) for v in entry.facts["config_versions"]] == [
        ("1", "ada", "started", {}),
        ("2", "bo", "swapped", {"optim.learning_rate": 1e-4}),
    ]
    assert (entry.brief.step, entry.brief.max_steps, entry.brief.value) == (20, 40, 0.4)
    assert entry.brief.bytes == sum(p.stat().st_size for p in directory.root.rglob("*") if p.is_file())
    assert entry.facts["data_fingerprints"] == {"train": "ab" * 32}
    assert entry.facts["versions"] == {"trimtab": "0.1.0"}


def test_the_state_is_that_of_the_moment(root):
    found = {}
    for name, ended, code in (
        ("done", "all steps done", None),
        ("early", "stopped early", None),
        ("numbers", None, 3),
        ("preempted", None, 75),
        ("lost", None, None),
    ):
        directory = runs.make(root, name, ended=ended)
        if code is not None:
            runs.fail(directory, code)
    registry = runs.opened(root)
    registry.refresh()
    found = {b.name: b.state(registry.root.directory(b.name)) for b in registry.briefs()}
    assert found == {
        "done": "finished",
        "early": "stopped early",
        "numbers": "failed (3)",
        "preempted": "interrupted (75)",
        "lost": "interrupted",
    }
    brief = next(b for b in registry.briefs() if b.name == "lost")
    with registry.root.directory("lost").locked():
        assert brief.state(registry.root.directory("lost")) == "running"


SPOILT = {
    "run.json": lambda d: (d.root / "run.json").write_text("{"),
    "run.json is a list": lambda d: (d.root / "run.json").write_text("[]"),
    "deep run.json": lambda d: (d.root / "run.json").write_text("[" * 100_000),
    "no configuration": lambda d: shutil.rmtree(d.config),
    "torn configuration": lambda d: (d.config / "0001.yaml").write_text("resolved: ["),
    "a list for a configuration": lambda d: (d.config / "0001.yaml").write_text("[1]"),
    "an object of Python": lambda d: (d.config / "0001.yaml").write_text(
        "folder: x\nresolved: !!python/object/apply:os.getcwd []"
    ),
    "failure.json": lambda d: d.failure.write_text("{"),
    "tags.jsonl": lambda d: (d.root / "tags.jsonl").write_text('{"length": 2, "crc": "00000000", "record": {}}\n'),
    "a link": lambda d: ((d.root / "journal.jsonl").unlink(), (d.root / "journal.jsonl").symlink_to("/etc/passwd")),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_run_that_cannot_be_read_is_listed_as_that_and_hides_no_other(root, what):
    SPOILT[what](runs.make(root, "bad", rewards=(0.2,)))
    runs.make(root, "good", rewards=(0.5,))
    registry = runs.opened(root)
    registry.refresh()
    bad, good = registry.briefs()
    assert bad.problem
    assert bad.state(registry.root.directory("bad")) == "unreadable"
    assert (good.problem, good.value) == ("", 0.5)
    with pytest.raises(UserError, match="see `trimtab verify"):
        operate.described(registry, "bad")
    with pytest.raises(UserError):
        operate.tag(registry, "bad", "keep")


def test_a_configuration_that_repeats_itself_without_end_is_no_configuration(root):
    lines = ["folder: x", "resolved:", "  a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]"]
    lines += [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    directory = runs.make(root, "bomb")
    (directory.config / "0001.yaml").write_text("\n".join(lines))
    registry = runs.opened(root)
    registry.refresh()
    assert "more than 20,000 values" in registry.briefs()[0].problem


# ---------------------------------------------------------------------------------------------------------------- a cache
def _lost(path):
    for file in path.parent.glob("registry.sqlite*"):
        file.unlink()


def _of_another(path):
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE runs (name TEXT)")


def _of_another_version(path):
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")


def _without_a_table(path):
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE marks")


def _overwritten(path):
    data = bytearray(path.read_bytes())
    data[4096 : 8 * 4096] = b"\xa5" * (7 * 4096)
    path.write_bytes(bytes(data))


def _linked(path):
    shutil.move(path, path.parent.parent / "elsewhere.sqlite")
    path.symlink_to(path.parent.parent / "elsewhere.sqlite")


LOSSES = {
    "lost": (_lost, None),
    "empty": (lambda path: path.write_bytes(b""), None),
    "noise": (lambda path: path.write_bytes(os.urandom(8192)), "is no database"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:3000]), "is"),
    "overwritten": (_overwritten, "is damaged"),
    "without a table": (_without_a_table, "is damaged"),
    "of another program": (_of_another, "is of another program"),
    "of another version": (_of_another_version, "has format 99, this version reads format 1"),
    "a directory": (lambda path: (path.unlink(), path.mkdir()), "is no file"),
    "a link": (_linked, "is a link"),
}


@pytest.mark.parametrize("what", LOSSES)
def test_a_database_that_is_lost_or_damaged_is_made_anew_and_nothing_that_was_known_is_missing(root, what):
    for name in ("a", "b"):
        runs.make(root, name, steps=(0, 10, 20), rewards=(0.1, 0.5, 0.3))
    registry = runs.opened(root)
    registry.refresh()
    operate.tag(registry, "a", "paper", why="figure 3")
    operate.promote(registry, "a", None, "prod", "first")
    operate.promote(registry, "b", 20, "prod", "second")
    operate.undo(registry, "prod", "worse")
    before, promotions = facts_of(registry), registry.promotions()
    registry.close()
    spoil, word = LOSSES[what]
    spoil(runs.database(root))

    said = []
    again = runs.opened(root, said)
    again.refresh()
    assert facts_of(again) == before
    assert again.promotions() == promotions
    assert [(b.name, b.tags, b.labels) for b in again.briefs()] == [("a", ("paper",), ("prod",)), ("b", (), ())]
    asides = sorted(p.name for p in root.glob("registry.sqlite.aside-?"))
    if word is None:
        assert (said, asides) == ([], [])
    else:
        assert len(said) == len(asides) == 1
        assert word in said[0]
        assert asides[0] in said[0]
    again.close()
    silent = []
    assert runs.opened(root, silent).refresh().read == ()
    assert silent == []


def test_a_database_that_cannot_be_written_costs_the_memory_of_it_and_nothing_else(root, monkeypatch):
    runs.make(root, "a", rewards=(0.4,))

    def refused(self):
        raise UnwritableError("attempt to write a readonly database")

    monkeypatch.setattr(registry_schema.Database, "_open", refused)
    said = []
    registry = runs.opened(root, said)
    registry.refresh()
    assert [b.value for b in registry.briefs()] == [0.4]
    assert not runs.database(root).exists()
    assert len(said) == 1
    assert "cannot be written (attempt to write a readonly database)" in said[0]


def test_it_is_private_and_in_wal_mode_with_a_version(root):
    registry = runs.opened(root)
    registry.refresh()
    with sqlite3.connect(runs.database(root)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA user_version").fetchone() == (registry_schema.SCHEMA,)
    assert runs.database(root).stat().st_mode & 0o777 == 0o600


def test_twenty_processes_write_at_once_and_no_write_is_lost(root):
    runs.make(root, "shared")
    for number in range(WRITERS):
        runs.make(root, f"own-{number}")
    context = multiprocessing.get_context("fork")
    barrier, failures = context.Barrier(WRITERS), context.Queue()  # all start from no database at the same moment
    processes = [context.Process(target=write, args=(root, n, barrier, failures)) for n in range(WRITERS)]
    for process in processes:
        process.start()
    assert [failures.get(timeout=120) for _ in processes] == [[]] * WRITERS
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * WRITERS

    wanted = sorted(f"tag-{number}-{turn}" for number in range(WRITERS) for turn in range(3))
    with sqlite3.connect(runs.database(root)) as connection:  # what they wrote, before anybody looks again
        found = {name: json.loads(brief)["tags"] for name, brief in connection.execute("SELECT name, brief FROM runs")}
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert found.pop("shared") == wanted
    assert found == {f"own-{number}": ["turn-0", "turn-1", "turn-2"] for number in range(WRITERS)}
    marks = registry_tags.read(Root(root).directory("shared"))
    assert sorted(mark["name"] for mark in marks) == wanted
    assert sorted(p.name for p in root.glob("registry.sqlite.aside*")) == []


def test_an_older_reading_never_replaces_a_newer_one(root):
    directory = runs.make(root, "a", rewards=(0.1,))
    registry = runs.opened(root)
    old = registry._read("a")
    journal.Journal(directory.journal).append("eval", step=10, metrics={"eval/reward/mean": 0.9})
    runs.opened(root).refresh()
    registry._put([old])
    assert registry.briefs()[0].value == 0.9


# ------------------------------------------------------------------------------------------------------------------ search
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("optim.learning_rate<1e-4", {"slow"}),
        ("optim.learning_rate<=1e-5", {"slow"}),
        ("optim.learning_rate>1e-5", {"fast"}),
        ("optim.learning_rate>=0.00001", {"slow", "fast"}),
        ("optim.learning_rate=0.001", {"fast"}),
        ("optim.learning_rate!=1e-3", {"slow"}),
        ("algorithm=ppo", {"fast"}),
        (" algorithm != ppo ", {"slow"}),
        ("policy.model~SFT", {"fast"}),
        ("policy.lora=null", {"slow", "fast"}),
        ("train.cautious=false", {"slow", "fast"}),
        ("train.cautious=0", set()),
        ("rewards[0].name=length", {"slow", "fast"}),
        ("rewards~length", {"slow", "fast"}),
        ("value.coef=1", {"fast"}),
        ("value.coef!=1", set()),
        ("algorithm<1", set()),
    ],
)
def test_runs_are_found_by_any_key_of_their_configuration(root, words, found):
    runs.make(root, "slow")
    runs.make(
        root,
        "fast",
        config={
            "algorithm": "ppo",
            "optim.learning_rate": 1e-3,
            "policy.model": "runs/demo-sft",
            "value.coef": 1.0,
        },
    )
    registry = runs.opened(root)
    registry.refresh()
    assert registry.matching(registry_search.parsed(words)) == (found, "")


def test_a_key_that_no_run_has_is_said_with_what_was_meant(root):
    runs.make(root, "a")
    registry = runs.opened(root)
    registry.refresh()
    names, remark = registry.matching(registry_search.parsed("optim.lerning_rate<1"))
    assert names == set()
    assert remark == "no run has a key optim.lerning_rate; did you mean optim.learning_rate?"


@pytest.mark.parametrize("words", ["", "algorithm", "=grpo", "a b=1", "k<fast", "k>=", "'; DROP TABLE runs; --=1"])
def test_what_is_no_condition_is_refused(words):
    with pytest.raises(UserError, match="--where: "):
        registry_search.parsed(words)


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_compared_as_numbers(value, limit):
    holds = {op: registry_search.parsed(f"a.b{op}{limit!r}").holds(value) for op in ("=", "!=", "<", ">", "<=", ">=")}
    assert holds["="] == (value == limit)
    assert holds["!="] != holds["="]
    assert (holds["<"], holds[">"]) == (value < limit, value > limit)
    assert (holds["<="], holds[">="]) == (value <= limit, value >= limit)


# -------------------------------------------------------------------------------------------------------- tags, promotions
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans())))
def test_a_run_has_the_tags_whose_last_line_says_so(lines):
    marks = [{"kind": "tag", "name": name, "is_on": is_on} for name, is_on in lines]
    last = dict(lines)
    assert registry_tags.tags_of(marks) == tuple(sorted(name for name, is_on in last.items() if is_on))


MOVES = st.lists(
    st.tuples(st.sampled_from(("promote", "undo")), st.sampled_from(("prod", "next")), st.sampled_from("ab"))
)


@settings(deadline=None)
@given(MOVES, st.randoms())
def test_labels_are_a_stack_whatever_run_each_line_stands_in(moves, chance):
    """The lines of several runs say, in any order, what a stack for each label would hold."""
    marks, stacks = [], {"prod": [], "next": []}
    for place, (kind, label, run) in enumerate(moves):
        number = registry_tags.next_number(marks, label)
        if kind == "promote":
            more = {"step": place, "folder": "promoted/1", "files": {}, "metrics": {}}
            marks.append((run, {"kind": kind, "label": label, "number": number, **more}))
            stacks[label].append((run, place))
        elif stacks[label]:
            last = registry_tags.standing(registry_tags.promotions(marks))[label][-1]
            marks.append((last.run, {"kind": kind, "label": label, "number": number, "undoes": last.number}))
            stacks[label].pop()
    chance.shuffle(marks)
    found = registry_tags.standing(registry_tags.promotions(marks))
    assert {label: [(p.run, p.step) for p in found.get(label, [])] for label in stacks} == stacks


def test_a_line_that_a_crash_has_cut_was_never_there_and_costs_no_other(root):
    directory = runs.make(root, "a")
    registry = runs.opened(root)
    registry.refresh()
    operate.tag(registry, "a", "one")
    path = directory.root / registry_tags.FILE
    whole = path.read_bytes()
    operate.tag(registry, "a", "two")
    line = path.read_bytes()[len(whole) :]
    for length in (*range(0, len(line) - 3, 7), len(line) - 3, len(line) - 2):
        path.write_bytes(whole + line[:length])
        assert registry_tags.tags_of(registry_tags.read(directory)) == ("one",)
        operate.tag(registry, "a", "three")
        assert registry_tags.tags_of(registry_tags.read(directory)) == ("one", "three")


def test_a_line_that_was_altered_makes_the_tags_unknown_so_nothing_is_done_with_the_run(root):
    directory = runs.make(root, "a")
    registry = runs.opened(root)
    registry.refresh()
    operate.tag(registry, "a", "paper")
    path = directory.root / registry_tags.FILE
    path.write_bytes(path.read_bytes().replace(b"paper", b"apper"))
    with pytest.raises(StorageError, match=r"tags\.jsonl:1: is not as it was written"):
        registry_tags.read(directory)
    registry.refresh()
    assert "is not as it was written" in registry.briefs()[0].problem


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "tag", "name": "../x"},
        {"kind": "tag", "name": 5},
        {
            "kind": "promote",
            "label": "prod",
            "number": "1",
            "step": 1,
            "folder": "promoted/1",
            "files": {},
            "metrics": {},
        },
        {"kind": "promote", "label": "prod", "number": 1, "step": 1, "folder": "../../etc", "files": {}, "metrics": {}},
        {"kind": "promote", "label": "a/b", "number": 1, "step": 1, "folder": "promoted/1", "files": {}, "metrics": {}},
        {"kind": "undo", "label": "prod", "number": 1},
        {"kind": "else"},
    ],
)
def test_a_line_that_is_whole_but_no_mark_counts_for_nothing(root, record):
    directory = runs.make(root, "a")
    journal.Journal(directory.root / registry_tags.FILE).append(record.pop("kind"), **record)
    assert registry_tags.read(directory) == []


def test_the_size_of_a_run_counts_a_file_with_two_names_once(root):
    directory = runs.make(root, "a", steps=(10,), rewards=(0.1, 0.2))
    before = registry_index.size_of(directory.root)
    os.link(directory.checkpoints / "10/policy/model.safetensors", directory.root / "again")
    assert registry_index.size_of(directory.root) == before
