"""Every alarm: when it is raised, what follows, the likely causes and the remedy. The guard and the docs read it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    name: str
    condition: str
    limit: int
    """How often in a row before the action."""
    action: str
    """`stop` (exit 3) or `finish` (early stop: a completed run)."""
    causes: tuple[str, ...]
    remedy: str


NON_FINITE = Rule(
    name="non_finite",
    condition="no loss and gradient of a step was finite, so none of its updates was applied",
    limit=3,
    action="stop",
    causes=(
        "the learning rate is too high",
        "a reward or a critic's value is far out of the range of the others",
        "the model's weights were not finite when the run began",
    ),
    remedy="lower optim.learning_rate, or look at the rewards of these steps in samples/",
)

NO_IMPROVEMENT = Rule(
    name="no_improvement",
    condition="an evaluation did not better the best one so far",
    limit=3,
    action="finish",
    causes=("the task is learned", "the learning rate is too low to go on"),
    remedy="raise eval.early_stop.patience, or set it to null, to train all steps",
)

NO_SIGNAL = Rule(
    name="no_signal",
    condition="dynamic sampling found no group whose rewards differ, and a step trained on nothing that teaches",
    limit=3,
    action="stop",
    causes=(
        "the task is too hard for the model: no completion is ever right",
        "the reward gives the same number to everything",
        "the temperature is so low that the completions of a prompt are copies",
    ),
    remedy="look at the rewards in samples/, take easier prompts, or raise sampling.group_size or temperature",
)

RULES = (NON_FINITE, NO_SIGNAL, NO_IMPROVEMENT)
