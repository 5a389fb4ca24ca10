"""The page of two evaluations: everything from outside is escaped, every row says how it changed."""

import re

from trimtab.observe import side_by_side
from trimtab.observe.side_by_side import Shown, Table
from trimtab.types import Sample


def sample(prompt_id, text, reward):
    return Sample(
        prompt_id=prompt_id, prompt=f"<p{prompt_id}>", completion=text, reward=reward, reward_parts={},
        is_truncated=reward is None, answer="<script>",
    )  # fmt: skip


def page(shown, **changed):
    given = {
        "names": ("<old>", "new & better"),
        "outcome": "Mean reward <up>",
        "headlines": {"mean reward": "0 → 1"},
        "facts": {"data": "<rows>"},
        "tables": [Table(title="Figures", help="a < b", head=("figure", "<old>"), rows=[("pass@1", "<1>")])],
        "curves": {"pass@k": {"<old>": [(1, 0.25), (4, 0.5)]}},
        "shown": shown,
        "counts": {"better": 1, "worse": 1, "changed": 0, "same": 0},
        "locked": {"name": "</pre><b>"},
    }
    return side_by_side.html(**{**given, **changed})


SHOWN = [
    Shown(before=sample(0, "<x>", 0.0), after=sample(0, "y", 1.0), kind="better", means=(0.25, 0.75)),
    Shown(before=sample(1, "x", 1.0), after=sample(1, "", None), kind="worse", means=None),
]


def test_nothing_from_outside_reaches_the_page_as_markup():
    text = page(SHOWN)
    for bad in ("<old>", "<up>", "<rows>", "<p0>", "<x>", "<script>", "</pre><b>", "<1>"):
        assert text.count(bad) == (0 if bad != "<script>" else 1), bad  # one script is the page's own
    assert not re.search(r'(?:src|href)="[^#]', text)


def test_rows_say_how_they_changed_and_what_is_missing():
    text = page(SHOWN)
    assert re.findall(r'<tr class="(\w+)">', text) == ["better", "worse"]
    assert "0.250 → 0.750" in text
    assert "not scored" in text
    assert "cut by the length limit" in text
    assert "2 prompts: 1 better, 1 worse, 0 with the same reward and another text, 0 unchanged" in text
    assert ">k<" in text
    assert ">step<" not in text


def test_without_several_completions_there_is_no_column_of_means_and_without_several_k_no_chart():
    text = page([SHOWN[1]], curves={})
    assert "Mean reward</th>" not in text
    assert "<figure" not in text


def test_of_many_prompts_the_rest_is_folded_and_what_is_left_out_is_counted():
    text = page([SHOWN[0]] * 30, counts={"better": 500, "worse": 0, "changed": 0, "same": 0})
    assert "<summary>6 more</summary>" in text
    assert "470 more are in completions.jsonl of both" in text
