"""Which files a run may read."""

import pytest

from trimtab import config as configs
from trimtab.assemble.inputs import read_rows
from trimtab.errors import ConfigError

ROW = '{"prompt": "1+1=", "answer": "2"}\n'


@pytest.fixture
def folders(tmp_path):
    """A folder that is allowed and one that is not, a file in each."""
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_text(ROW)
    return tmp_path


def rows_of(folders, train, allow, **data):
    values = {"algorithm": "grpo", "rewards": ["exact_match"], "data": {"train": str(train), "allow": allow, **data}}
    return read_rows(configs.from_mapping(values, folder=folders))


def refused(folders, train, allow, **data):
    with pytest.raises(ConfigError) as error:
        rows_of(folders, train, allow, **data)
    assert error.value.exit_code == 2
    return [(finding.place, finding.what, finding.hint) for finding in error.value.findings]


@pytest.mark.parametrize("allow", [None, ["in"], ["out", "in"]])
def test_a_file_in_an_allowed_folder_is_read(folders, allow):
    assert len(rows_of(folders, folders / "in" / "a.jsonl", allow).train) == 1


def test_a_file_elsewhere_is_refused_with_its_key(folders):
    path = folders / "out" / "a.jsonl"
    assert refused(folders, path, [str(folders / "in")]) == [
        ("data.train", f"{path} lies outside of the folders of data.allow", f"allowed: {folders / 'in'}")
    ]
    assert refused(folders, path, [])[0][2] == "allowed: none"


def test_a_link_is_judged_by_where_it_leads(folders):
    link = folders / "in" / "link.jsonl"
    link.symlink_to(folders / "out" / "a.jsonl")
    found = refused(folders, link, ["in"])
    assert f"{link} is {folders / 'out' / 'a.jsonl'}, which lies outside" in found[0][1]
    assert len(rows_of(folders, link, ["out"]).train) == 1


def test_a_way_up_and_a_folder_with_a_longer_name_are_no_way_in(folders):
    (folders / "in-side").mkdir()
    (folders / "in-side" / "a.jsonl").write_text(ROW)
    assert refused(folders, folders / "in" / ".." / "out" / "a.jsonl", ["in"])
    assert refused(folders, folders / "in-side" / "a.jsonl", ["in"])


def test_every_file_that_lies_elsewhere_is_named_and_the_built_in_task_lies_nowhere(folders):
    path = folders / "out" / "a.jsonl"
    assert [f[0] for f in refused(folders, path, ["in"], validation=str(path))] == ["data.train", "data.validation"]
    assert len(rows_of(folders, "builtin:addition", []).train) > 1000
