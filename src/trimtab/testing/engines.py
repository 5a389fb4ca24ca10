"""What every rollout engine must do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trimtab.ports import RolloutEngine
from trimtab.types import Draw, Prompt, Rollout


class EngineUnderTest(Protocol):
    """What the suite needs of an engine's author."""

    prompts: Sequence[Prompt]
    """At least three, of different lengths."""
    max_length: int
    """Tokens of prompt and completion that `build` allows."""
    tolerance: float
    """Of log-probs against the trainer's, nats."""

    def build(self, seed: int, *, temperature: float = 1.0) -> RolloutEngine: ...

    def trainer_log_probs(self, rollouts: Sequence[Rollout], *, temperature: float) -> list[list[float]]:
        """Log-probs of the completions' tokens by the trainer's own forward pass, without a cache."""
        ...

    def change_weights(self) -> None:
        """Make the trainer's weights others."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    draw: int
    prompt: int
    index: int


def log_probs_are_those_of_the_trainer(under_test: EngineUnderTest) -> None:
    for temperature in (1.0, 0.6):
        engine = under_test.build(0, temperature=temperature)
        rollouts = engine.generate(_draws(under_test), group_size=4)
        for rollout, expected in zip(
            rollouts, under_test.trainer_log_probs(rollouts, temperature=temperature), strict=True
        ):
            worst = max((abs(a - b) for a, b in zip(rollout.log_probs, expected, strict=True)), default=0.0)
            assert worst <= under_test.tolerance, f"temperature {temperature}: log-probs differ by {worst:g} nats"


def the_same_seed_gives_the_same_tokens(under_test: EngineUnderTest) -> None:
    first = under_test.build(3).generate(_draws(under_test), group_size=3)
    second = under_test.build(3).generate(_draws(under_test), group_size=3)
    assert _tokens(first) == _tokens(second), "two engines with one seed sampled different tokens"


def another_seed_gives_other_tokens(under_test: EngineUnderTest) -> None:
    first = under_test.build(3).generate(_draws(under_test), group_size=8)
    second = under_test.build(4).generate(_draws(under_test), group_size=8)
    assert _tokens(first) != _tokens(second), "two seeds sampled the same tokens"


def the_same_prompt_drawn_again_gives_other_tokens(under_test: EngineUnderTest) -> None:
    engine, prompt = under_test.build(3), under_test.prompts[0]
    found = engine.generate([Draw(prompt=prompt, draw=0), Draw(prompt=prompt, draw=1)], group_size=8)
    assert [r.tokens for r in found[:8]] != [r.tokens for r in found[8:]], "a second draw repeated the first"


def completions_do_not_depend_on_their_neighbours(under_test: EngineUnderTest) -> None:
    draws = _draws(under_test)
    together = _by_key(under_test.build(5).generate(draws, group_size=3))
    for draw in draws:
        for key, rollout in _by_key(under_test.build(5).generate([draw], group_size=3)).items():
            assert rollout.tokens == together[key].tokens, f"prompt {key.prompt} alone: other tokens than in a batch"
            pairs = zip(rollout.log_probs, together[key].log_probs, strict=True)
            worst = max((abs(a - b) for a, b in pairs), default=0.0)
            assert worst <= under_test.tolerance, f"prompt {key.prompt} alone: log-probs differ by {worst:g}"


def results_come_in_the_order_of_the_draws(under_test: EngineUnderTest) -> None:
    draws = _draws(under_test)[::-1]
    found = under_test.build(0).generate(draws, group_size=2)
    wanted = [(d.draw, d.prompt.id, i) for d in draws for i in range(2)]
    assert [(r.draw, r.prompt.id, r.index) for r in found] == wanted, "the order of draws and groups is not kept"


def limits_hold(under_test: EngineUnderTest) -> None:
    for rollout in under_test.build(1).generate(_draws(under_test), group_size=6):
        total = len(rollout.prompt.tokens) + len(rollout.tokens)
        assert total <= under_test.max_length, f"{total} tokens, allowed are {under_test.max_length}"
        assert len(rollout.log_probs) == len(rollout.tokens), "not one log-prob a token"
        assert len(rollout.tokens) >= 1, "an empty completion"
        assert rollout.is_truncated <= (total == under_test.max_length), "truncated before the limit"


def new_weights_take_effect(under_test: EngineUnderTest) -> None:
    engine = under_test.build(2)
    before = engine.generate(_draws(under_test), group_size=8, greedy=False)
    assert {r.policy_version for r in before} == {0}, "the first weights are those of step 0"
    under_test.change_weights()
    engine.refresh(version=7)
    after = engine.generate(_draws(under_test), group_size=8)
    assert {r.policy_version for r in after} == {7}, "refresh did not change the version"
    assert [r.log_probs for r in before] != [r.log_probs for r in after], "refresh did not change what is sampled"


def greedy_takes_the_likeliest_token(under_test: EngineUnderTest) -> None:
    engine = under_test.build(0)
    first = engine.generate(_draws(under_test), group_size=1, greedy=True)
    second = under_test.build(9).generate(_draws(under_test), group_size=1, greedy=True)
    assert _tokens(first) == _tokens(second), "greedy decoding depends on the seed"


CHECKS: tuple[Callable[[Any], None], ...] = (
    log_probs_are_those_of_the_trainer,
    the_same_seed_gives_the_same_tokens,
    another_seed_gives_other_tokens,
    the_same_prompt_drawn_again_gives_other_tokens,
    completions_do_not_depend_on_their_neighbours,
    results_come_in_the_order_of_the_draws,
    limits_hold,
    greedy_takes_the_likeliest_token,
    new_weights_take_effect,
)


def _draws(under_test: EngineUnderTest) -> list[Draw]:
    return [Draw(prompt=p, draw=10 + place) for place, p in enumerate(under_test.prompts)]


def _tokens(rollouts: Sequence[Rollout]) -> list[tuple[int, ...]]:
    return [r.tokens for r in rollouts]


def _by_key(rollouts: Sequence[Rollout]) -> dict[_Key, Rollout]:
    return {_Key(draw=r.draw, prompt=r.prompt.id, index=r.index): r for r in rollouts}
