"""Files that look odd and are right: every one is read, and means what it says."""

import datetime
import gzip
import io
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.malformed import model_files
from tests.malformed.model_files import TOKENIZER_CONFIG, dumped, header, safetensors, tokenizer, with_config
from trimtab import config as configs
from trimtab.data import rows
from trimtab.data.preferences import LABELLED, PAIR
from trimtab.models import headers, loading

ROW = b'{"prompt": "1+1=", "completion": "2"}'
READ = [{"prompt": "1+1=", "completion": "2"}]
DEMONSTRATION = ("prompt", "completion")


def columns(**values):
    out = io.BytesIO()
    pyarrow.parquet.write_table(pa.table(values), out)
    return out.getvalue()


def text(value):
    """A row with that prompt, as a line."""
    return json.dumps({"prompt": value, "completion": "2"}, ensure_ascii=False).encode()


ROWS = {
    "a byte order mark": (b"\xef\xbb\xbf" + ROW + b"\n", "a.jsonl", READ),
    "line ends of Windows": (ROW + b"\r\n" + ROW + b"\r\n", "a.jsonl", READ * 2),
    "no line end behind the last row": (ROW + b"\n" + ROW, "a.jsonl", READ * 2),
    "blank lines": (b"\n\n" + ROW + b"\n \t\n" + ROW + b"\n\n\n", "a.jsonl", READ * 2),
    "space around a row": (b"   " + ROW + b"  \t \n", "a.jsonl", READ),
    "keys in another order": (b'{"completion": "2", "prompt": "1+1="}\n', "a.jsonl", READ),
    "no space in the JSON": (b'{"prompt":"1+1=","completion":"2"}\n', "a.jsonl", READ),
    "much space in the JSON": (b'{  "prompt"  :  "1+1=" ,\t"completion": "2"  }\n', "a.jsonl", READ),
    "columns that nobody reads": (
        b'{"prompt": "1+1=", "completion": "2", "id": 7, "meta": {"a": [1, null, 2.5]}, "when": null}\n',
        "a.jsonl",
        [READ[0] | {"id": 7, "meta": {"a": [1, None, 2.5]}, "when": None}],
    ),
    "other columns in every row": (
        ROW + b"\n" + b'{"prompt": "1+1=", "completion": "2", "x": 1}\n',
        "a.jsonl",
        [READ[0], READ[0] | {"x": 1}],
    ),
    "line separators of Unicode in a text": (text("a\u2028b\u2029c\x85d"), "a.jsonl", [READ[0] | {"prompt": "a\u2028b\u2029c\x85d"}]),
    "line ends in a text, escaped": (text("a\nb\r\nc"), "a.jsonl", [READ[0] | {"prompt": "a\nb\r\nc"}]),
    "NUL in a text, escaped": (rb'{"prompt": "a\u0000b", "completion": "2"}', "a.jsonl", [READ[0] | {"prompt": "a\0b"}]),
    "a pair of surrogates, escaped": (rb'{"prompt": "\ud83c\udfb2", "completion": "2"}', "a.jsonl", [READ[0] | {"prompt": "🎲"}]),
    "Chinese": (text("一加一等于几？"), "a.jsonl", [READ[0] | {"prompt": "一加一等于几？"}]),
    "a slash, escaped": (rb'{"prompt": "1\/2", "completion": "2"}', "a.jsonl", [READ[0] | {"prompt": "1/2"}]),
    "space alone as a prompt": (text("  "), "a.jsonl", [READ[0] | {"prompt": "  "}]),
    "a text that looks like JSON": (text('{"a": [1, }'), "a.jsonl", [READ[0] | {"prompt": '{"a": [1, }'}]),
    "a text that looks like a page": (text("<html>"), "a.jsonl", [READ[0] | {"prompt": "<html>"}]),
    "a line of 2 MB": (text("a" * (2 << 20)), "a.jsonl", [READ[0] | {"prompt": "a" * (2 << 20)}]),
    "60 lists in each other": (
        b'{"prompt": "1+1=", "completion": "2", "x": ' + b"[" * 60 + b"]" * 60 + b"}",
        "a.jsonl",
        [READ[0] | {"x": json.loads("[" * 60 + "]" * 60)}],
    ),
    "the largest integer": (
        b'{"prompt": "1+1=", "completion": "2", "x": -9223372036854775807}',
        "a.jsonl",
        [READ[0] | {"x": -(2**63) + 1}],
    ),
    "numbers in every form": (
        b'{"prompt": "1+1=", "completion": "2", "x": [1.0, 1E5, 1e-7, -0, 0.0]}',
        "a.jsonl",
        [READ[0] | {"x": [1.0, 1e5, 1e-7, 0, 0.0]}],
    ),
    "a name without an ending": (ROW, "rows", READ),
    "another ending": (ROW, "a.ndjson", READ),
    "lines in a file that is called .json": (ROW + b"\n" + ROW, "a.json", READ * 2),
    "an array": (b"\xef\xbb\xbf \n[" + ROW + b",\n\n" + ROW + b"\n]\n\n", "a.json", READ * 2),
    "an array over many lines": (json.dumps(READ * 2, indent=4).encode(), "a.json", READ * 2),
    "gzip": (gzip.compress(ROW), "a.jsonl.gz", READ),
    "gzip of several members": (gzip.compress(ROW + b"\n") + gzip.compress(ROW), "a.jsonl.gz", READ * 2),
    "gzip with zeros behind it": (gzip.compress(ROW) + bytes(512), "a.jsonl.gz", READ),
    "gzip with a mark inside": (gzip.compress(b"\xef\xbb\xbf" + ROW), "a.jsonl.gz", READ),
    "Parquet with dates, decimals and null": (
        columns(
            prompt=["1+1="], completion=["2"], when=[datetime.datetime(2026, 1, 2)], day=[datetime.date(2026, 1, 2)],
            price=[Decimal("1.50")], none=pa.array([None], pa.string()),
        ),
        "a.parquet",
        [READ[0] | {"when": "2026-01-02 00:00:00", "day": "2026-01-02", "price": "1.50"}],
    ),
    "Parquet by a link": (columns(prompt=["1+1="], completion=["2"]), "a.parquet", READ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_odd_rows_are_read_as_they_are_meant(tmp_path, name):
    data, file, expected = ROWS[name]
    (tmp_path / file).write_bytes(data)
    if "link" in name:
        (tmp_path / file).rename(tmp_path / "there")
        (tmp_path / file).symlink_to("there")
    found = rows.read(str(tmp_path / file), {}, DEMONSTRATION)
    assert [row.values for row in found] == expected


USER, ASSISTANT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}
JUDGED = {
    "a label of every form": (LABELLED, [{"prompt": "a", "completion": "b", "label": v} for v in (True, 0, 1, "TRUE", " false ")]),
    "an empty completion that was judged": (LABELLED, [{"prompt": "a", "completion": "", "label": False}]),
    "equal sides": (PAIR, [{"prompt": "a", "chosen": "b", "rejected": "b"}]),
    "an empty side": (PAIR, [{"prompt": "a", "chosen": "b", "rejected": ""}]),
    "a margin of 0, and none": (PAIR, [{"prompt": "a", "chosen": "b", "rejected": "c", "margin": m} for m in (0, None, 2.5)]),
    "names of a guide": (PAIR, [{"prompt": "a", "preferred_response": "b", "dispreferred_response": "c"}]),
    "dialogues with one beginning": (PAIR, [{"chosen": [USER, ASSISTANT], "rejected": [USER, {"role": "assistant", "content": "no"}]}]),
    "two turns of the user in a row": (DEMONSTRATION, [{"messages": [USER, USER, ASSISTANT]}]),
    "an empty system turn": (DEMONSTRATION, [{"messages": [{"role": "system", "content": ""}, USER, ASSISTANT]}]),
    "a call of a tool without content": (DEMONSTRATION, [{"messages": [USER, CALL, {"role": "tool", "content": ""}, ASSISTANT]}]),
    "parts of text": (DEMONSTRATION, [{"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, ASSISTANT]}]),
    "turns of ShareGPT": (DEMONSTRATION, [{"messages": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}]),
    "turns behind the last answer": (DEMONSTRATION, [{"messages": [USER, ASSISTANT, USER]}]),
}  # fmt: skip


@pytest.mark.parametrize("name", JUDGED)
def test_odd_judgements_and_conversations_are_read(tmp_path, name):
    required, records = JUDGED[name]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    assert len(rows.read(str(tmp_path / "a.jsonl"), {}, required)) == len(records)


# ------------------------------------------------------------------------------------------------------ configurations
GRPO = "algorithm: grpo\nrewards: [exact_match]\n"
SETTINGS = {
    "a byte order mark": (b"\xef\xbb\xbf" + GRPO.encode(), {}),
    "line ends of Windows": (GRPO.replace("\n", "\r\n"), {}),
    "no line end at the end": (GRPO.strip(), {}),
    "comments and blank lines": ("# first\n\n" + GRPO + "\n  # last\n\n", {}),
    "one line in braces": ("{algorithm: grpo, rewards: [exact_match], kl: {coef: 0.1}}", {"kl.coef": 0.1}),
    "JSON": ('{"algorithm": "grpo", "rewards": ["exact_match"], "train": {"max_steps": 7}}', {"train.max_steps": 7}),
    "marks of a document": ("---\n" + GRPO + "...\n", {}),
    "a directive": ("%YAML 1.1\n---\n" + GRPO, {}),
    "keys in quotes": ("'algorithm': grpo\n\"rewards\": [exact_match]\n", {}),
    "another order": ("rewards: [exact_match]\nkl: {coef: 0.5}\nalgorithm: grpo\n", {"kl.coef": 0.5}),
    "a list with dashes that are not indented": ("algorithm: grpo\nrewards:\n- exact_match\n- name: length\n  options: {max_tokens: 4}\n", {}),
    "an anchor used twice": (GRPO + "optim: {learning_rate: &rate 1e-6}\nvalue: {learning_rate: *rate}\n", {"optim.learning_rate": 1e-6}),
    "an anchor of a whole list": (GRPO + "optim: {betas: &b [0.9, 0.95]}\n", {"optim.betas": [0.9, 0.95]}),
    "a small number": (GRPO + "optim: {learning_rate: 1e-6}\n", {"optim.learning_rate": 1e-6}),
    "a number without a digit in front": (GRPO + "optim: {learning_rate: .5}\n", {"optim.learning_rate": 0.5}),
    "a number in quotes": (GRPO + "optim: {learning_rate: '1e-6'}\n", {"optim.learning_rate": 1e-6}),
    "a whole number as a float": (GRPO + "train: {max_steps: 10.0}\n", {"train.max_steps": 10}),
    "a number with a zero in front": (GRPO + "train: {max_steps: 010}\n", {"train.max_steps": 10}),
    "a number with underscores": (GRPO + "train: {max_steps: 1_000}\n", {"train.max_steps": 1000}),
    "a number in base 16": (GRPO + "train: {max_steps: 0x10}\n", {"train.max_steps": 16}),
    "a date as a name": (GRPO + "policy: {model: 2026-01-02}\n", {"policy.model": "2026-01-02"}),
    "a time as a name": (GRPO + "policy: {model: 12:30:45}\n", {"policy.model": "12:30:45"}),
    "yes as a name": (GRPO + "policy: {model: yes}\n", {"policy.model": "yes"}),
    "a text over several lines": (GRPO + "policy:\n  model: >-\n    org/name\n", {"policy.model": "org/name"}),
    "Chinese": (GRPO + "policy: {model: 模型/甲}  # 说明\n", {"policy.model": "模型/甲"}),
    "an empty section in braces": (GRPO + "policy: {}\n", {}),
    "auto": (GRPO + "kl: {coef: auto}\n", {"kl.coef": 0.0}),
    "true in capitals": (GRPO + "data: {shuffle: False}\n", {"data.shuffle": False}),
    "tags of plain values": (GRPO + "train: {max_steps: !!int '7'}\npolicy: {model: !!str 7}\n", {"train.max_steps": 7, "policy.model": "7"}),
    "a very long line": (GRPO + "policy: {model: " + "a" * 100_000 + "}\n", {"policy.model": "a" * 100_000}),
    "long space": (GRPO + "\n" * 10_000 + "train: {max_steps: 3}\n", {"train.max_steps": 3}),
}  # fmt: skip


def at(resolved, key):
    for part in key.split("."):
        resolved = resolved[part]
    return resolved


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("file", ["c.yaml", "c.yml"])
def test_odd_configurations_are_read_as_they_are_meant(tmp_path, name, file):
    content, expected = SETTINGS[name]
    (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    found = configs.load(tmp_path / file)
    assert found.algorithm.name == "grpo"
    assert {key: at(found.resolved, key) for key in expected} == expected


# -------------------------------------------------------------------------------------------------------------- models
SPARE = {**model_files.shapes(), "model.layers.2.mtp.weight": [4]}
MODELS = {
    "as it is saved": {},
    "a byte order mark in config.json": {"config.json": b"\xef\xbb\xbf" + model_files.whole()["config.json"]},
    "half precision": {"model.safetensors": safetensors(*header(dtype="BF16", width=2)), **with_config(dtype="bfloat16")},
    "dtype under its old name": with_config(dtype=KeyError, torch_dtype="float32"),
    "a name and a version nobody knows": with_config(_name_or_path="x", transformers_version="9.9.9", mine={"a": 1}),
    "an end of several ids": with_config(eos_token_id=[2, 3]),
    "an id out of the vocabulary": with_config(pad_token_id=50256),
    "weights that the model has no place for": {"model.safetensors": safetensors(*header(SPARE))},
    "metadata in the weights": {"model.safetensors": safetensors({"__metadata__": {"format": "pt"}, **header()[0]}, header()[1])},
    "a token that was added and has no embedding": {
        "tokenizer.json": dumped(tokenizer(added_tokens=[*tokenizer()["added_tokens"], tokenizer()["added_tokens"][0] | {"id": 12, "content": "<image>"}]))
    },
    "the end named as an object": {"tokenizer_config.json": dumped(TOKENIZER_CONFIG | {"eos_token": {"content": "<eos>", "special": True}})},
    "the end named by config.json alone": {"tokenizer_config.json": dumped(TOKENIZER_CONFIG | {"eos_token": None})},
    "pickled weights beside": {"pytorch_model.bin": b"PK"},
}  # fmt: skip


def put(folder, changes):
    for name, data in (model_files.whole() | changes).items():
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("name", MODELS)
def test_odd_models_are_without_a_fault(tmp_path, name):
    put(tmp_path, MODELS[name])
    assert headers.faults(str(tmp_path)) == []


def test_the_model_that_the_tables_spoil_can_be_loaded_as_it_is(tmp_path):
    put(tmp_path, {})
    loaded = loading.load(str(tmp_path), seed=0)
    assert sum(p.numel() for p in loaded.model.parameters()) == header()[1] // 4
    assert loaded.tokenizer("01").input_ids == [4, 5]
    assert loaded.eos_ids == {2}


def test_there_are_as_many_as_are_promised():
    assert len(ROWS) + len(JUDGED) + len(SETTINGS) + len(MODELS) >= 40
