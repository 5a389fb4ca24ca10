"""Reading JSONL: every fault at its place, odd but valid files accepted, and nothing but `DataError` for any bytes."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.data import rows
from trimtab.errors import DataError

GOOD = b'{"prompt": "1+1=", "answer": "2"}\n'


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("rows") / "a.jsonl"


def read(file, data, columns=None, required=("prompt",)):
    file.write_bytes(data)
    return rows.read(str(file), columns or {}, required)


def faults(file, data, columns=None, required=("prompt",)):
    """What is wrong, line by line, the folder cut off."""
    with pytest.raises(DataError) as error:
        read(file, data, columns, required)
    assert error.value.exit_code == 2
    return str(error.value).replace(f"{file.parent}/", "").splitlines()


GBK = '{"prompt": "你"}'.encode("gbk")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "a.jsonl:1: has no rows; expected one JSON object a line"),
        (b"\n \n\t\n", "a.jsonl:1: has no rows; expected one JSON object a line"),
        (
            GOOD + GBK,
            "a.jsonl:2: not UTF-8: byte 0xc4 at offset 12 of the line; convert it, such as: iconv -f GBK -t UTF-8 a.jsonl",
        ),
        (
            '{"prompt": "x"}'.encode("utf-16"),
            "a.jsonl:1:1: is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 a.jsonl",
        ),
        (
            b'{"prompt": "a"} {"prompt": "b"}\n',
            "a.jsonl:1:16: more than one value on the line: `{\"prompt\": \"b\"}` follows; put each object on a line of its own",
        ),
        (
            b'   {"prompt": "a"}, 1\n',
            "a.jsonl:1:19: more than one value on the line: `, 1` follows; take it out",
        ),
        (GOOD + b'{"prompt": "a", "prompt": "b"}', "a.jsonl:2: key 'prompt' stands twice in one object"),
        (b'{"prompt": "a", "x": {"k": 1, "k": 2}}', "a.jsonl:1: key 'k' stands twice in one object"),
        (b'{"prompt": "a", "x": NaN}', "a.jsonl:1: NaN is not JSON; write a number or null"),
        (b'{"prompt": "a", "x": -Infinity}', "a.jsonl:1: -Infinity is not JSON; write a number or null"),
        (
            b'{"prompt": "a", "x": 9223372036854775808}',
            "a.jsonl:1: the integer 9223372036854775808 does not fit into 64 bits; write it as text",
        ),
        (
            b'{"prompt": "a", "x": ' + b"9" * 5000 + b"}",
            f"a.jsonl:1: the integer {'9' * 24} does not fit into 64 bits; write it as text",
        ),
        (b'{"prompt": "a", "x": 1e999}', "a.jsonl:1: the number 1e999 is too large; write it as text"),
        (b'{"prompt": ' + b"[" * 100_000, "a.jsonl:1: is nested more than 64 levels deep; a row holds text, numbers, and lists and objects of a few levels"),
        (b'["prompt"]', "a.jsonl:1: expected a JSON object, found a list"),
        (b'"prompt"', "a.jsonl:1: expected a JSON object, found text"),
        (b"null", "a.jsonl:1: expected a JSON object, found null"),
        (b"3.5", "a.jsonl:1: expected a JSON object, found a number"),
        (b"true", "a.jsonl:1: expected a JSON object, found true"),
        (b'{"prompt": "a"', "a.jsonl:1:15: not JSON: ends where `,` or a closing bracket is expected; is the line cut off, or an object on more than one line?"),
        (b"  {'prompt': 1}", "a.jsonl:1:4: not JSON: `'prompt': 1}` has single quotes, expected double ones"),
        (b'{"prompt": null}', "a.jsonl:1: `prompt` is null, expected text or messages"),
        (b'{"prompt": 3}', "a.jsonl:1: `prompt` is a number, expected text or messages"),
        (b'{"prompt": false}', "a.jsonl:1: `prompt` is false, expected text or messages"),
        (b'{"prompt": ["a"]}', "a.jsonl:1: `prompt[0]` is text, expected an object with role and content"),
        (b'{"prompt": {"a": 1}}', "a.jsonl:1: `prompt` is an object, expected text or messages"),
        (b'{"prompt": ""}', "a.jsonl:1: `prompt` is empty, expected text"),
        (rb'{"prompt": "\ud83d"}', "a.jsonl:1: `prompt` has half a surrogate pair, which is no character"),
        (
            GOOD + b"\n\n" + b'{"question": "a", "gold": 1}',
            "a.jsonl:4: no column `prompt`, found 'question', 'gold'; "
            "name the column that holds it: data.columns: {prompt: question}",
        ),
    ],
)  # fmt: skip
def test_a_fault_is_named_with_its_line_and_what_to_do(file, data, expected):
    assert faults(file, data) == [expected]


def test_a_column_that_was_renamed_is_missed_by_the_name_in_the_file(file):
    assert faults(file, b'{"prompt": "a", "text": "b"}', {"prompt": "question"}) == [
        "a.jsonl:1: no column `question`, found 'prompt', 'text'; "
        "name the column that holds it: data.columns: {prompt: ...}"
    ]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.jsonl: no such file; give a JSONL file, or builtin:addition"):
        rows.read(str(tmp_path / "none.jsonl"), {}, ("prompt",))


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(DataError, match="is a directory, expected a JSONL file"):
        rows.read(str(tmp_path), {}, ("prompt",))


def test_a_path_through_a_file_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(GOOD)
    with pytest.raises(DataError, match=r"a/b\.jsonl: cannot be read: Not a directory"):
        rows.read(str(tmp_path / "a" / "b.jsonl"), {}, ("prompt",))


def test_an_unknown_builtin_task_names_those_that_there_are():
    with pytest.raises(DataError, match=r"builtin:multiplication: no built-in task has that name.*builtin:addition"):
        rows.read("builtin:multiplication", {}, ("prompt",))


def test_all_faults_of_a_file_are_found_at_once(file):
    found = faults(file, b'{"prompt": 1}\n' + GOOD + b'nonsense\n{"prompt": "a", "x": NaN}\n')
    assert [line.split(": ")[0] for line in found] == ["a.jsonl:1", "a.jsonl:3:1", "a.jsonl:4"]


def test_no_more_than_twenty_faults_are_shown(file):
    found = faults(file, b"[]\n" * 50)
    assert found == [f"a.jsonl:{line}: expected a JSON object, found a list" for line in range(1, 21)]


def test_rows_with_two_faults_each_do_not_pass_the_limit_of_twenty(file):
    found = faults(file, b"[]\n" + b'{"prompt": 1, "completion": 2}\n' * 50, required=("prompt", "completion"))
    assert len(found) == rows.MAX_FINDINGS


@pytest.mark.parametrize(
    ("data", "prompts"),
    [
        (b"\xef\xbb\xbf" + GOOD, ["1+1="]),
        (GOOD.replace(b"\n", b"\r\n") * 2, ["1+1=", "1+1="]),
        (b"\n\n" + GOOD + b"\n \n" + GOOD, ["1+1=", "1+1="]),
        (GOOD.rstrip(), ["1+1="]),
        (b'{"answer": "2", "prompt": "1+1="}', ["1+1="]),
        (b'  {"prompt": "a"}  \n', ["a"]),
        ('{"prompt": "你好 é 🎲"}'.encode(), ["你好 é 🎲"]),
        (rb'{"prompt": "\ud83c\udfb2 \u4f60"}', ["🎲 你"]),
        ('{"prompt": "a\u2028b\x85c"}'.encode(), ["a\u2028b\x85c"]),
        (rb'{"prompt": "a\nb\u0000"}', ["a\nb\0"]),
        (b'{"prompt": "a", "x": 9223372036854775807, "y": 1e-300, "z": {"k": [1]}}', ["a"]),
        (b'{"prompt": " "}', [" "]),
        (b'{"prompt": "' + b"x" * 100_000 + b'"}', ["x" * 100_000]),
    ],
)
def test_an_odd_but_valid_file_is_read(file, data, prompts):
    assert [row.values["prompt"] for row in read(file, data)] == prompts


def test_a_row_knows_its_line_though_blank_lines_are_not_counted(file):
    found = read(file, b"\n" + GOOD + b"\n\n" + GOOD)
    assert [(row.id, row.place) for row in found] == [(0, f"{file}:2"), (1, f"{file}:5")]


def test_other_columns_stay_as_they_are(file):
    assert read(file, b'{"prompt": "a", "n": 3, "list": [1, null]}')[0].values == {
        "prompt": "a",
        "n": 3,
        "list": [1, None],
    }


@pytest.mark.parametrize("line", [b'{"question": "q", "prompt": "p"}', b'{"prompt": "p", "question": "q"}'])
def test_a_renamed_column_wins_over_one_that_has_our_name_already(file, line):
    assert read(file, line, {"prompt": "question"})[0].values == {"prompt": "q"}


def test_two_columns_can_change_names(file):
    found = read(file, b'{"prompt": "a", "answer": "b"}', {"prompt": "answer", "answer": "prompt"})
    assert found[0].values == {"prompt": "b", "answer": "a"}


def test_one_column_can_have_two_of_our_names(file):
    found = read(file, b'{"text": "a"}', {"prompt": "text", "completion": "text"}, ("prompt", "completion"))
    assert found[0].values == {"prompt": "a", "completion": "a"}


def test_rows_of_a_builtin_task_have_places_too():
    found = rows.read("builtin:addition", {}, ("prompt",))
    assert (found[0].place, found[0].values["prompt"]) == ("builtin:addition:1", "10+10=")


TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
VALUE = st.recursive(st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | TEXT, st.lists, max_leaves=5)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(TEXT, VALUE, max_size=3), min_size=1, max_size=5))
def test_whatever_json_writes_is_read_back(file, made):
    wanted = [{**row, "prompt": "x"} for row in made]
    lines = [json.dumps(row, ensure_ascii=number % 2 == 0) for number, row in enumerate(wanted)]
    assert [row.values for row in read(file, "\n".join(lines).encode())] == wanted


def rows_or_findings(file, data):
    """What a file gives, one of the two empty. Any error but a `DataError` goes through."""
    try:
        return read(file, data), []
    except DataError as error:
        return [], error.findings


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_data_error(file, data):
    good, bad = rows_or_findings(file, data)
    assert len(good) >= 1 or 1 <= len(bad) <= rows.MAX_FINDINGS
    assert all(isinstance(row.values["prompt"], str | list) for row in good)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 98), st.binary(max_size=4)), max_size=4))
def test_no_mutation_of_a_good_file_raises_anything_but_a_data_error(file, changes):
    data = GOOD * 3
    for place, piece in changes:
        data = data[:place] + piece + data[place + len(piece) :]
    good, bad = rows_or_findings(file, data)
    assert all(finding.place.startswith(f"{file}:") for finding in bad)
    assert all(isinstance(row.values["prompt"], str) for row in good)


def test_only_the_first_rows_are_read_if_no_more_are_asked_for(file):
    file.write_bytes(GOOD * 2 + b"nonsense")
    assert [row.id for row in rows.read(str(file), {}, ("prompt",), first=2)] == [0, 1]
    assert len(rows.read("builtin:addition", {}, ("prompt",), first=3)) == 3
