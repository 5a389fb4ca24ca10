"""The lines of an evaluation: wherever they are cut, whole chunks stay and nothing else."""

import json

import pytest

from trimtab.errors import StorageError, UserError
from trimtab.operate.evaluation_files import EvaluationFiles, line_of
from trimtab.rollout.evaluation import Completion

PROMPTS, SAMPLES, CHUNK = 5, 2, 2


def completion(prompt, index, text="é\n\ud800"):
    return Completion(
        prompt_id=prompt,
        index=index,
        text=text,
        tokens=3,
        reward=0.5 * index,
        parts={"rule": None},
        is_truncated=False,
        extracted="é",
    )


@pytest.fixture
def files(tmp_path):
    found = EvaluationFiles(tmp_path / "it")
    found.create()
    return found


def lines(threshold=1.0):
    return [line_of(completion(7 * p, i), threshold) for p in range(PROMPTS) for i in range(SAMPLES)]


def mend(files, threshold=1.0, is_same=True):
    return files.mend(samples=SAMPLES, chunk=CHUNK, prompts=PROMPTS, threshold=threshold, is_same=is_same)


def test_cut_anywhere_what_is_left_are_whole_chunks(files):
    whole = b"".join(lines())
    ends = {0: b"", 2: b"".join(lines()[:4]), 4: b"".join(lines()[:8]), 5: whole}
    line_ends = [len(b"".join(lines()[:n])) for n in range(len(lines()) + 1)]
    sizes = {end + by for end in line_ends for by in (-1, 0, 1)} | {end + 40 for end in line_ends}
    for size in sorted(size for size in sizes if 0 <= size <= len(whole)):
        files.completions.write_bytes(whole[:size])
        done = mend(files)
        assert done == max(count for count, text in ends.items() if len(text) <= size)
        assert files.completions.read_bytes() == ends[done]


def test_more_than_there_should_be_is_cut_too(files):
    files.completions.write_bytes(b"".join(lines()) + lines()[0])
    assert mend(files) == PROMPTS
    assert files.completions.read_bytes() == b"".join(lines())


def test_lines_that_are_whole_are_not_written_again(files):
    files.completions.write_bytes(b"".join(lines()))
    before = files.completions.stat().st_ino
    assert mend(files) == PROMPTS
    assert files.completions.stat().st_ino == before


def test_another_threshold_judges_them_again(files):
    files.completions.write_bytes(b"".join(lines()))
    assert mend(files, threshold=0.5, is_same=False) == PROMPTS
    assert files.completions.read_bytes() == b"".join(lines(0.5))
    assert [json.loads(line)["right"] for line in lines(0.5)] == [False, True] * PROMPTS


def test_what_is_read_is_what_was_written(files):
    files.completions.write_bytes(b"".join(lines()))
    assert [[(c.prompt_id, c.index) for c in group] for group in files.read()] == [
        [(7 * p, i) for i in range(SAMPLES)] for p in range(PROMPTS)
    ]
    assert next(files.read())[1] == completion(0, 1)


def test_a_document_that_is_not_ours_is_said_to_be_so(files):
    files.metrics.write_text("[1]")
    with pytest.raises(StorageError, match="is not what an evaluation writes"):
        files.document()
    files.metrics.write_text('{"identity": {"a": {"b": 1}}}')
    files.refuse_another({"a": {"b": 1}})
    with pytest.raises(UserError, match=r"holds another evaluation: a\.b was 1, is 2"):
        files.refuse_another({"a": {"b": 2}})


def test_a_place_that_cannot_be_a_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"no evaluation can be kept here: .*; give a directory with --to"):
        EvaluationFiles(tmp_path / "file" / "it").create()
