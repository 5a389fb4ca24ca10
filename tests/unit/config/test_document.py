"""Files and the command line become values with places."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.config import document
from trimtab.errors import ConfigError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("document")


def write(folder, text, name="a.yaml"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def fault(folder, text):
    with pytest.raises(ConfigError) as error:
        document.read(write(folder, text))
    assert error.value.exit_code == 2
    return str(error.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("5E+3", 5000.0),
        ("2e10", 2e10),
        ("-.5", -0.5),
        ("3.", 3.0),
        (".inf", float("inf")),
        ("3", 3),
        ("true", True),
        ("False", False),
        ("on", "on"),
        ("no", "no"),
        ("yes", "yes"),
        ("null", None),
        ("~", None),
        ("", None),
        ("'1e-6'", "1e-6"),
        ("[a, 1e-3]", ["a", 1e-3]),
        ("{a: 1}", {"a": 1}),
        ("e5", "e5"),
        ("1e", "1e"),
        ("a: b: c", "a: b: c"),
        ("2024-13-45", "2024-13-45"),
        ("!!int x", "!!int x"),
        ("!!int", "!!int"),
        ("!!bool x", "!!bool x"),
        ("!!timestamp x", "!!timestamp x"),
        ("[" * 5000, "[" * 5000),
    ],
)
def test_a_value_of_the_command_line_is_read_by_yaml_s_rules(text, value):
    found = document.parse_value(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a.b=1"], [(("a", "b"), 1)]),
        (["--a.b", "1"], [(("a", "b"), 1)]),
        (["--a.b=1"], [(("a", "b"), 1)]),
        (["a=x=y"], [(("a",), "x=y")]),
        (["--a", "-1", "b.c=1e-6"], [(("a",), -1), (("b", "c"), 1e-6)]),
        (["a="], [(("a",), None)]),
    ],
)
def test_both_spellings_of_an_override_mean_the_same(words, expected):
    assert [(key, value) for key, value, _ in document.parse_overrides(words)] == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.b"], "command line: `a.b` is neither KEY=VALUE nor --KEY VALUE; such as optim.learning_rate=1e-5"),
        (["a=1", "--b"], "command line: --b has no value; write b=VALUE"),
    ],
)
def test_a_word_that_is_no_override_is_refused(words, message):
    with pytest.raises(ConfigError) as error:
        document.parse_overrides(words)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.yaml:1: is empty; expected at least `algorithm:`"),
        ("# only words\n", "a.yaml:1: is empty; expected at least `algorithm:`"),
        ("- a\n", "a.yaml:1: found a list, expected keys and values; such as `algorithm: grpo`"),
        ("a: 1\nb: [1\n", "a.yaml:2:4: not YAML: `[` is not closed; add `]`"),
        ("a: 1\n\tb: 2\n", "a.yaml:2:1: not YAML: a tab where YAML wants spaces; indent with spaces"),
        (b"a: \xc4\xe3\n", "a.yaml:1: not UTF-8: byte 0xc4 at offset 3 of the line; convert it, such as: iconv -f GBK"),
        (b"a: \x00\n", "a.yaml:1:4: not YAML: the character U+0000 cannot stand in YAML"),
        ("a: 1\nb: 2\na: 3\n", "a.yaml:3: key `a` stands twice"),
        ("a:\n  b: 1\n  b: 2\n", "a.yaml:3: key `a.b` stands twice; it is in line 2 too; keep one"),
        ("a: 1\n[x, y]: 2\n", "a.yaml:2: a key must be a word"),
        ("a: 1\nb: !!python/object:os.system x\n", "a.yaml:2: b: the tag !!python/object:os.system is not read; "),
        ("a: !!python/tuple [1]\n", "a.yaml:1: a: the tag !!python/tuple is not read; "),
        ("a: !!int x\n", "a.yaml:1: a: 'x' does not fit !!int"),
        ("a: !!int ''\n", "a.yaml:1: a: '' does not fit !!int"),
        ("a: !!bool x\n", "a.yaml:1: a: 'x' does not fit !!bool"),
        ("a: !!timestamp x\n", "a.yaml:1: a: the tag !!timestamp is not read; "),
        ("a: &x [*x]\n", "a.yaml:1: a.0: is an alias of what it stands in"),
        ("a: " + "[" * 5000 + "]" * 5000, "a.yaml:1:54: not YAML: nested more than 50 levels deep"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2:1: not YAML: a second document begins here"),
        ("a: *x\n", "a.yaml:1:4: not YAML: `*x` names no anchor"),
    ],
)
def test_a_fault_of_the_file_is_named_with_its_place(folder, text, message):
    assert fault(folder, text).startswith(message)


def test_all_keys_that_stand_twice_are_named_in_one_pass(folder):
    assert fault(folder, "a: 1\na: 2\nb: {c: 1, c: 2}\n").splitlines() == [
        "a.yaml:2: key `a` stands twice; it is in line 1 too; keep one",
        "a.yaml:3: key `b.c` stands twice; it is in line 3 too; keep one",
    ]


def test_a_file_of_aliases_that_unfolds_without_end_is_refused(folder):
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert "unfolds to more than 100000 values" in fault(folder, "\n".join(lines))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.yaml", "none.yaml: no such file"),
        ("", "is a directory, expected a YAML file"),
        ("there.yaml/x.yaml", "there.yaml/x.yaml: cannot be read: Not a directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_once(tmp_path, name, message):
    (tmp_path / "there.yaml").write_text("a: 1")
    with pytest.raises(ConfigError) as error:
        document.read(tmp_path / name)
    assert str(error.value).endswith(message)
    assert str(error.value).count(str(tmp_path)) == 1


def test_every_key_knows_its_line(folder):
    found = document.read(write(folder, "a: 1\nb:\n  c: 2\n  d: {e: 3,\n      f: 4}\ng:\n- x\n- y\n"))
    lines = {".".join(map(str, key)): place.rsplit(":", 1)[1] for key, place in found.places.items() if key}
    assert lines == {
        "a": "1",
        "b": "2",
        "b.c": "3",
        "b.d": "4",
        "b.d.e": "4",
        "b.d.f": "5",
        "g": "6",
        "g.0": "7",
        "g.1": "8",
    }


def test_the_place_of_a_key_that_is_not_there_is_that_of_what_is_around_it(folder):
    found = document.read(write(folder, "a: 1\nb:\n  c: 2\n"))
    assert found.place(("b", "nothing", "at all")).endswith("a.yaml:2")


def test_a_byte_order_mark_is_no_part_of_the_first_key(folder):
    assert document.read(write(folder, b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")).values == {"a": 1, "b": 2}


def test_a_file_is_laid_over_the_bases_that_it_extends(folder):
    write(folder, "a: {x: 1, y: 1, z: 1}\nlist: [1, 2]\nkept: 5\n", "base.yaml")
    write(folder, "extends: base.yaml\na: {y: 2, z: 2}\n", "middle.yaml")
    found = document.read(write(folder, "extends: middle.yaml\na: {z: 3}\nlist: [7]\n"))
    assert found.values == {"a": {"x": 1, "y": 2, "z": 3}, "list": [7], "kept": 5}
    assert [path.rsplit("/", 1)[1] for path in found.chain] == ["a.yaml", "middle.yaml", "base.yaml"]
    places = [found.place(("a", key)).rsplit("/", 1)[1] for key in "xyz"]
    assert places == ["base.yaml:1", "middle.yaml:2", "a.yaml:2"]
    assert found.place(("list", 1)).endswith("a.yaml:3"), "the base's second entry is no longer there"


def test_a_base_is_looked_for_beside_the_file_that_names_it(tmp_path):
    (tmp_path / "sub").mkdir()
    write(tmp_path, "a: 1\n", "base.yaml")
    write(tmp_path, "extends: ../base.yaml\nb: 2\n", "sub/middle.yaml")
    assert document.read(write(tmp_path, "extends: sub/middle.yaml\n")).values == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nextends: a.yaml\n", "a.yaml:2: extends: a.yaml extends itself"),
        ("extends: back.yaml\n", "back.yaml:2: extends: a.yaml extends itself"),
        ("a: 1\n\nextends: none.yaml\n", "a.yaml:3: none.yaml: no such file"),
        ("extends: [x]\n", "a.yaml:1: extends: ['x']; expected the path of a YAML file"),
        ("extends: broken.yaml\n", "broken.yaml:1:4: not YAML"),
    ],
)
def test_a_base_that_cannot_be_used_is_refused_where_it_is_named(folder, text, message):
    write(folder, "b: 1\nextends: a.yaml\n", "back.yaml")
    write(folder, "a: *x\n", "broken.yaml")
    assert fault(folder, text).startswith(message)


def findings(read, what):
    """The findings of a fault; None if there was none. Any other error goes through."""
    try:
        read(what)
    except ConfigError as error:
        return error.findings
    return None


PIECES = st.sampled_from(
    ["algorithm", ": ", ":\n  ", "\n", "- ", "[", "]", "{", "}", "&a ", "*a", "|\n",
     "!!int ", "!!map ", "!!bool ", "!!binary ", "!!omap ", "!!set ", "!!timestamp ", '"', "'", "# ",
     "1e-6", "grpo", "<<", "? ", "2024-13-45", "---\n", "\t", "\x00", "é", ", ", "extends"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=25).map("".join))
def test_no_text_raises_anything_but_a_config_error(folder, text):
    path = write(folder, text, "fuzz.yaml")
    assert findings(document.read, path) != []


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_a_config_error(folder, data):
    path = write(folder, data, "fuzz.yaml")
    assert findings(document.read, path) != []


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_no_word_of_the_command_line_raises_anything_but_a_config_error(word):
    found = findings(document.parse_overrides, [word, f"a={word}"])
    assert found is None or found[0].place == "command line"
