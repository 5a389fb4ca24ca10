"""Files in other forms than JSON lines are read as the same rows, at places that can be found again."""

import gzip
import json
import sys
import types
from pathlib import Path

import pytest

from trimtab.data import files, rows
from trimtab.errors import DataError, MissingExtraError

ROWS = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "你好", "list": [{"role": "user"}, {"role": "x", "n": 3}]}]


def lines(records):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def values(file, first=None):
    return [dict(row.values) for row in rows.read(str(file), {}, ("prompt",), first=first)]


def fault(file):
    with pytest.raises(DataError) as error:
        rows.read(str(file), {}, ("prompt",))
    return str(error.value).replace(f"{file.parent}/", "") if isinstance(file, Path) else str(error.value)


def test_gzip_is_read_and_its_faults_have_the_lines_of_what_is_in_it(tmp_path):
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(gzip.compress(lines(ROWS)))
    assert values(file) == ROWS
    file.write_bytes(gzip.compress(lines(ROWS) + b"nonsense\n"))
    assert fault(file) == "a.jsonl.gz:3:1: not JSON: found `nonsense`, expected a value"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:-12], "is not whole gzip: its end is cut off; fetch it again"),
        (lambda data: b"no gzip at all", "is no gzip: it begins with b'no'; let its name end as what it is"),
    ],
)
def test_gzip_that_is_cut_short_or_none_is_refused(tmp_path, damage, said):
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(damage(gzip.compress(lines(ROWS))))
    assert fault(file).startswith(f"a.jsonl.gz: {said}")


def test_a_json_array_has_the_lines_at_which_its_rows_begin(tmp_path):
    file = tmp_path / "a.json"
    file.write_text(json.dumps(ROWS, indent=2, ensure_ascii=False))
    found = rows.read(str(file), {}, ("prompt",))
    assert [dict(row.values) for row in found] == ROWS
    assert [row.place for row in found] == [f"{file}:2", f"{file}:6"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '[{"prompt": "a"}\n {"prompt": "b"}]',
            'a.json:2:2: not JSON: found `{"prompt": "b"}]`, expected `,` or a closing bracket',
        ),
        ('[{"prompt": "a"},\n', "a.json:2:1: not JSON: ends where a value is expected; is the file cut off?"),
        (
            '[{"prompt": "a"}] 3',
            "a.json:1: more than one value in the file: `3` follows the array; take it out, or put it into the array",
        ),
        ('[{"prompt": "a"},\n{"prompt": "a", "prompt": "b"}]', "a.json:2: key 'prompt' stands twice in one object"),
        ('[{"prompt": "a"},\n\n3]', "a.json:3: expected a JSON object, found a number"),
        ("[]", "a.json:1: has no rows; expected one JSON object a line"),
    ],
)
def test_the_faults_of_a_json_array_are_named_with_their_lines(tmp_path, text, expected):
    file = tmp_path / "a.json"
    file.write_text(text)
    assert fault(file) == expected


def test_a_json_file_with_a_row_a_line_is_read_as_that(tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(lines(ROWS))
    assert values(file) == ROWS


def test_a_json_array_that_is_too_large_is_refused_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "WHOLE_BYTES", 10)
    file = tmp_path / "a.json"
    file.write_text(json.dumps(ROWS))
    assert "write it as JSON lines: jq -c" in fault(file)


def test_parquet_is_read_and_members_that_a_row_does_not_have_stay_absent(tmp_path):
    import pyarrow
    from pyarrow import parquet

    file, wanted = tmp_path / "a.parquet", [*ROWS, {"prompt": "b", "list": []}]
    columns = {name: [row.get(name) for row in wanted] for name in ("prompt", "answer", "list")}
    parquet.write_table(pyarrow.table(columns), file, row_group_size=1)
    assert values(file) == wanted
    assert values(file, first=1) == ROWS[:1]


def test_a_row_of_parquet_with_a_fault_is_named_by_its_number(tmp_path):
    import pyarrow
    from pyarrow import parquet

    file = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"prompt": ["a", "", "c"]}), file)
    assert fault(file) == "a.parquet:2: `prompt` is empty, expected text"
    parquet.write_table(pyarrow.table({"prompt": ["a"], "image": [b"\xff"]}), file)
    assert fault(file) == "a.parquet:1: `image` holds bytes; leave the column out, or write it as text"
    file.write_bytes(file.read_bytes()[:-9])
    assert fault(file).startswith("a.parquet: is not whole Parquet: ")


@pytest.mark.parametrize(("name", "library"), [("a.parquet", "pyarrow"), ("hf:someone/pairs", "datasets")])
def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch, name, library):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, f"{library}.parquet", None)
    with pytest.raises(MissingExtraError, match=rf"needs {library}: pip install 'trimtab\[data\]'"):
        rows.read(name, {}, ("prompt",))


def test_a_data_set_that_was_saved_is_read_from_its_directory(tmp_path):
    import datasets

    one = datasets.Dataset.from_list([{"prompt": "a"}, {"prompt": "b"}])
    datasets.DatasetDict({"train": one, "test": one.select([1])}).save_to_disk(tmp_path / "set")
    assert values(f"hf:{tmp_path}/set") == [{"prompt": "a"}, {"prompt": "b"}]
    found = rows.read(f"hf:{tmp_path}/set:test", {}, ("prompt",))
    assert (found[0].place, found[0].values) == (f"hf:{tmp_path}/set:test:1", {"prompt": "b"})
    assert "has no split 'dev', found train, test" in fault(f"hf:{tmp_path}/set:dev")
    assert fault(tmp_path / "set").endswith(
        "is a directory, expected a JSONL file; a data set that was saved there is hf:set"
    )


def test_a_data_set_that_cannot_be_fetched_says_why_and_what_to_do(monkeypatch):
    def no_network(name, *, split):
        raise ConnectionError(f"Couldn't reach '{name}' on the Hub\n(offline)")

    stub = types.ModuleType("datasets")
    stub.load_dataset = no_network
    monkeypatch.setitem(sys.modules, "datasets", stub)
    assert fault("hf:someone/pairs") == (
        "hf:someone/pairs: cannot be loaded: Couldn't reach 'someone/pairs' on the Hub (offline); "
        "without a network, name a directory that holds it"
    )


# ---------------------------------------------------------------------------------------------------------- read again
def test_a_large_file_is_read_again_row_by_row(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "HELD_BYTES", 8)
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + lines(ROWS).replace(b"\n", b"\r\n\n") * 3)
    found = rows.read(str(file), {}, ("prompt",))
    assert [dict(row.values) for row in found] == ROWS * 3
    assert [(row.id, row.place) for row in found[-2:]] == [(4, f"{file}:9"), (5, f"{file}:11")]
    assert [row.id for row in found[1:5][::2]] == [1, 3]
    assert found[-1].values == ROWS[1]


def test_a_large_file_that_is_changed_while_it_is_used_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "HELD_BYTES", 8)
    file = tmp_path / "a.jsonl"
    file.write_bytes(lines(ROWS))
    found = rows.read(str(file), {}, ("prompt",))
    file.write_bytes(lines([{"prompt": "other"}, *ROWS]))
    with pytest.raises(DataError, match=r"a\.jsonl: was changed while it was being read"):
        found[0]


def test_a_large_file_that_is_replaced_stays_as_it_was_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "HELD_BYTES", 8)
    file, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    file.write_bytes(lines(ROWS))
    found = rows.read(str(file), {}, ("prompt",))
    other.write_bytes(lines([{"prompt": "other"}]))
    other.rename(file)
    assert found[0].values == ROWS[0]


def test_the_first_row_without_a_column_is_known_without_reading_again(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(lines([*ROWS, {"prompt": "c"}]))
    found = rows.read(str(file), {}, ("prompt",))
    assert rows.first_without(found, "answer") == f"{file}:2"
    assert rows.first_without(found, "list") == f"{file}:1"
    assert rows.first_without(found, "prompt") is None
    assert rows.first_without(list(found), "list") == f"{file}:1"
