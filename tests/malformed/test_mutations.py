"""Whatever random damage does to a configuration or a file of rows, it is read or refused; never is there a traceback."""

import gzip
import io
import json
import random
import signal
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml

from tests.malformed import mutations
from trimtab import algorithms
from trimtab import config as configs
from trimtab.config import document
from trimtab.data import files, judged, rows
from trimtab.data.preferences import LABELLED, PAIR
from trimtab.data.prompts import Limits, demonstrations, prompts
from trimtab.errors import TrimtabError
from trimtab.models import builtin

ROOT = Path(__file__).parents[2]
SECONDS = 5
"""Of the processor's time, so that a busy machine changes nothing."""
LIMITS = Limits(max_prompt_length=64, max_length=96, long_prompts="drop")
TOKENIZER = builtin.tokenizer()
USER, ASSISTANT = {"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}
RECORDS = {
    ("prompt",): [
        {"prompt": "1+1=", "answer": "2"},
        {"prompt": [USER], "answer": 3},
        {"messages": [USER, ASSISTANT, USER]},
    ],
    ("prompt", "completion"): [
        {"prompt": "1+1=", "completion": "2"},
        {"messages": [{"role": "system", "content": ""}, USER, ASSISTANT]},
        {"messages": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    ],
    PAIR: [
        {"prompt": "1+1=", "chosen": "2", "rejected": "3", "margin": 1.5},
        {"chosen": [USER, ASSISTANT], "rejected": [USER, {"role": "assistant", "content": "3"}]},
        {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"},
    ],
    LABELLED: [{"prompt": "1+1=", "completion": "2", "label": True}, {"messages": [USER, ASSISTANT], "label": "false"}],
}
"""What a reader requires -> good rows for it."""
GOOD = {required: "".join(json.dumps(r) + "\n" for r in records).encode() for required, records in RECORDS.items()}
CONFIGS = sorted((ROOT / "examples").rglob("*.yaml"))


@pytest.fixture(autouse=True)
def _plugins_looked_up_once(monkeypatch):
    """Which plug-ins are installed does not change meanwhile, and looking takes longer than all else."""
    found = algorithms._plugins()
    monkeypatch.setattr(algorithms, "_plugins", lambda: found)


@contextmanager
def limited():
    """A hang is a fault."""

    def hangs(*_):
        raise AssertionError(f"it takes more than {SECONDS} s")

    before = signal.signal(signal.SIGPROF, hangs)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outcome(read, seed, data):
    """`read` or `refused`; anything but an error of ours fails, with what it takes to see it again."""
    try:
        with limited():
            read()
    except TrimtabError as error:
        assert error.exit_code == 2, (seed, data)
        assert 0 < len(str(error).splitlines()) <= 60, (seed, data)
        return "refused"
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{data[:2000]!r}") from error
    return "read"


# ---------------------------------------------------------------------------------------------------------------- rows
def in_form(data, name, draw):
    """The lines in another form, which is then spoilt in its turn, now and then."""
    if name.endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    elif name.endswith(".json"):
        data = b"[" + b",".join(line for line in data.splitlines() if line.strip()) + b"]"
    elif name.endswith(".parquet"):
        out = io.BytesIO()
        pyarrow.parquet.write_table(pa.table({"prompt": ["a", "b"], "completion": ["c", None]}), out)
        data = out.getvalue()
    return mutations.of_bytes(data, draw) if name != "a.jsonl" and draw.random() < 0.5 else data


def read_rows(file, required):
    """As a run does it: all rows, their fingerprint, then all that fit as tokens."""
    found = rows.read(str(file), {}, required)
    files.fingerprint(str(file))
    plain = [row for row in found if not isinstance(row.values["prompt"], list)]
    encoder = judged.Encoder(tokenizer=TOKENIZER, limits=LIMITS)
    if required == PAIR:
        judged.pairs(plain, encoder)
    elif required == LABELLED:
        judged.labelled(plain, encoder)
    elif plain and "completion" in required:
        demonstrations(plain, TOKENIZER, LIMITS, 2)
    elif plain:
        prompts(plain, TOKENIZER, LIMITS)


def spoil_rows(folder, count, first):
    counts = Counter()
    for seed in range(first, first + count):
        draw = random.Random(seed)
        required = draw.choice(list(GOOD))
        name = draw.choices(("a.jsonl", "a.jsonl.gz", "a.json", "a.parquet"), weights=(12, 3, 3, 2))[0]
        data = in_form(mutations.rows(GOOD[required], draw), name, draw)
        file = folder / name
        file.write_bytes(data)

        def read(file=file, required=required):
            try:
                read_rows(file, required)
            except TrimtabError as error:
                if "left out" not in str(error):  # no row is left, since all are conversations or empty
                    raise

        counts[outcome(read, seed, data)] += 1
    return counts


# ------------------------------------------------------------------------------------------------------ configurations
def read_settings(file):
    found = configs.load(file)
    again = yaml.safe_load(yaml.safe_dump(dict(found.resolved), sort_keys=False, allow_unicode=True))
    assert configs.from_mapping(again).resolved == found.resolved


def spoil_settings(folder, count, first):
    counts = Counter()
    for seed in range(first, first + count):
        draw = random.Random(seed)
        file = folder / "c.yaml"
        data = mutations.settings(draw.choice(CONFIGS).read_bytes(), draw)
        file.write_bytes(data)
        counts[outcome(lambda file=file: read_settings(file), seed, data)] += 1
        word = mutations.of_bytes(b"optim.learning_rate=1e-5", draw).decode("utf-8", "surrogateescape")
        outcome(
            lambda word=word: configs.from_mapping({"algorithm": "sft"}, [word]), seed, word.encode("utf-8", "replace")
        )
    return counts


# --------------------------------------------------------------------------------------------------------------- tests
def test_300_spoilt_files_of_rows_are_read_or_refused(tmp_path):
    counts = spoil_rows(tmp_path, 300, first=0)
    assert counts["read"] > 15
    assert counts["refused"] > 100


def test_300_spoilt_configurations_are_read_or_refused(tmp_path):
    counts = spoil_settings(tmp_path, 300, first=0)
    assert counts["read"] > 10
    assert counts["refused"] > 100


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_10_000_spoilt_files_of_rows_are_read_or_refused(tmp_path, part):
    print(spoil_rows(tmp_path, 1000, first=1000 + 1000 * part))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_10_000_spoilt_configurations_are_read_or_refused(tmp_path, part):
    print(spoil_settings(tmp_path, 1000, first=1000 + 1000 * part))


# ------------------------------------------------------------------------------------------------- misspelt once
def keys_of(path):
    """Every key of a file as it is written, with what is around it; those whose names are free are left out."""
    found = document.read(path)
    free = ("columns", "options", "overrides", "extends")
    return [key for key in found.places if key and isinstance(key[-1], str) and not {*free} & {*key[:-1]}]


SHIPPED = [(path, key) for path in CONFIGS for key in keys_of(path)]


def misspelt(word, number):
    """A letter doubled, two changed over, one left out."""
    place = len(word) // 2
    swapped = word[: place - 1] + word[place] + word[place - 1] + word[place + 1 :]
    return (word[:place] + word[place] + word[place:], swapped, word[:place] + word[place + 1 :])[number]


def renamed(values, key, name):
    """The values with one key of another name."""
    first, *rest = key
    if isinstance(values, list):
        return [renamed(v, rest, name) if place == first else v for place, v in enumerate(values)]
    return {
        (name if k == first and not rest else k): (renamed(v, rest, name) if k == first and rest else v)
        for k, v in values.items()
    }


def unrecognised(keys, number):
    """The keys that nobody recognises when they are misspelt: the file, the key, what was said."""
    wrong = []
    for path, key in keys:
        name = misspelt(key[-1], number)
        if name == key[-1]:
            continue
        values = renamed(document.read(path).values, key, name)
        try:
            configs.from_mapping({"algorithm": "grpo", **values}, folder=path.parent)
            wrong.append((path.name, key, "accepted"))
        except TrimtabError as error:
            said = [line for line in str(error).splitlines() if f"did you mean `{key[-1]}`?" in line]
            if len(said) != 1:
                wrong.append((path.name, key, name, str(error)))
    return wrong


SPELLINGS = pytest.mark.parametrize("number", range(3), ids=["doubled", "swapped", "left out"])


@SPELLINGS
def test_every_key_that_is_shipped_is_recognised_when_it_is_misspelt(number):
    once = {tuple(part for part in key if isinstance(part, str)): (path, key) for path, key in SHIPPED}
    assert len(once) > 50
    assert unrecognised(once.values(), number) == []


@pytest.mark.soak
@SPELLINGS
def test_every_key_of_every_shipped_configuration_is_recognised_when_it_is_misspelt(number):
    assert unrecognised(SHIPPED, number) == []
