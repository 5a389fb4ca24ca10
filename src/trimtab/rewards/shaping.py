"""What is added to a completion's reward after the reward functions have judged it: the punishment for length.

The groups that dynamic sampling keeps are chosen before this: a group whose answers are all right but of unlike length
has no spread in what it is to learn.

Source: DAPO, Yu et al. 2025, arXiv:2503.14476, section 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trimtab.algorithms.credit import overlong_penalty
from trimtab.errors import UserError
from trimtab.types import Scored, torch

OVERLONG = "overlong"
"""The punishment's name among the parts of the reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlong:
    """The soft punishment for length, one more part of the reward, with weight 1.

    A part like the others, it is seen in `reward/overlong` and beside every shown completion, and an algorithm that
    normalises each part in its group normalises this one too.
    """

    max_length: int
    """Tokens of prompt and completion; a completion has the room that its prompt leaves."""
    buffer: int
    """Tokens before the end of the room over which the punishment grows."""
    factor: float
    """Reward units, the punishment of a completion that fills its room."""

    def labels(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the parts, the punishment's last.

        Raises:
            UserError: a reward function has the punishment's name.
        """
        if OVERLONG in labels:
            raise UserError(
                f"rewards: a reward function is called `{OVERLONG}`, which is the name of the punishment for length; "
                "call the function something else, or set sampling.overlong.buffer: 0"
            )
        return (*labels, OVERLONG)

    def __call__(self, scored: Sequence[Scored]) -> list[Scored]:
        """The completions with their punishment; one without a reward has none."""
        lengths = torch.tensor([len(s.rollout.tokens) for s in scored], dtype=torch.float64)
        room = torch.tensor([self.max_length - len(s.rollout.prompt.tokens) for s in scored], dtype=torch.float64)
        penalties = overlong_penalty(lengths, room, self.buffer, self.factor).tolist()
        return [
            replace(s, reward=s.reward + penalty, parts=(*s.parts, penalty))
            if s.is_scored
            else replace(s, parts=(*s.parts, None))
            for s, penalty in zip(scored, penalties, strict=True)
        ]
