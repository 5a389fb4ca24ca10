"""What every reward function must do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.rewards.worker import plain_values

HARD_TEXTS = ("", " ", "\n", "0", "-1", "1e309", "NaN", "数学题", "<b>&amp;</b>", "x" * 10_000, "####", "\x00")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardUnderTest:
    reward: Callable[..., Sequence[float | None]]
    columns: Mapping[str, Any]
    """The value of each column that it reads, the same for every row."""


def it_gives_one_finite_number_or_none_for_each_completion(under_test: RewardUnderTest) -> None:
    for count in (1, 2, len(HARD_TEXTS)):
        plain_values(_call(under_test, HARD_TEXTS[:count]), count)


def it_does_not_depend_on_the_order_of_completions(under_test: RewardUnderTest) -> None:
    forward = list(_call(under_test, HARD_TEXTS))
    backward = list(_call(under_test, HARD_TEXTS[::-1]))
    assert forward == backward[::-1], "a completion's reward depends on its place in the batch"


def it_gives_the_same_twice(under_test: RewardUnderTest) -> None:
    assert list(_call(under_test, HARD_TEXTS)) == list(_call(under_test, HARD_TEXTS)), "two calls, two answers"


def it_ignores_columns_that_it_does_not_know(under_test: RewardUnderTest) -> None:
    plain = list(_call(under_test, HARD_TEXTS))
    more = list(_call(under_test, HARD_TEXTS, unknown_column=[None] * len(HARD_TEXTS)))
    assert plain == more, "a column that it does not read changed its answer"


CHECKS: tuple[Callable[[Any], None], ...] = (
    it_gives_one_finite_number_or_none_for_each_completion,
    it_does_not_depend_on_the_order_of_completions,
    it_gives_the_same_twice,
    it_ignores_columns_that_it_does_not_know,
)


def _call(under_test: RewardUnderTest, texts: Sequence[str], **more: Any) -> Sequence[float | None]:
    columns = {name: [value] * len(texts) for name, value in under_test.columns.items()}
    columns["completion_ids"] = [list(range(len(text))) for text in texts]
    return under_test.reward(prompts=["?"] * len(texts), completions=list(texts), **columns, **more)
