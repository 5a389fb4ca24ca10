"""Every alarm: what is judged, at which limit, what follows, the likely causes and the remedies, in English and Chinese.

The guard, the documents and whoever watches a run from outside read this table. How a figure is judged:

    above, below           the figure against the limit
    times_median           against so many times its running median, or that of the run's first steps if that is more
    under_median           under such a share of its running median
    share_of_start         under such a share of what it was in the first steps
    range_of_start         outside 1/limit to limit times what it was in the first steps
    fall                   so much under the evaluations before, as a share of the reward's size or spread

A rule that acts warns at the first breach and acts after `steps` in a row; one that only warns does so after `steps`.
"""

from __future__ import annotations

from trimtab.rules.learning import (
    BROKEN_WEIGHTS,
    CLIP_FRACTION,
    ENTROPY,
    KL_REFERENCE,
    KL_UPDATE,
    LOSS_DIVERGENCE,
    NON_FINITE,
    PREFERENCE_JS,
    RATIO_MAX,
    STALENESS,
)
from trimtab.rules.machine import ACCELERATOR_IDLE, DISK, HEARTBEAT, MEMORY, THROUGHPUT
from trimtab.rules.rewards import (
    DISTINCT,
    GROUP_SPREAD,
    LENGTH,
    NO_IMPROVEMENT,
    NO_SIGNAL,
    NO_SPREAD,
    PREFERENCE_ACCURACY,
    REWARD_FALL,
    REWARD_MODEL_AUC,
    TRUNCATED,
)
from trimtab.rules.texts import Cause, Judged, Rule, Text, Then, diagnosis, language

RULES = (
    NON_FINITE,
    BROKEN_WEIGHTS,
    KL_UPDATE,
    KL_REFERENCE,
    LOSS_DIVERGENCE,
    REWARD_FALL,
    NO_SIGNAL,
    NO_SPREAD,
    HEARTBEAT,
    RATIO_MAX,
    CLIP_FRACTION,
    ENTROPY,
    GROUP_SPREAD,
    DISTINCT,
    TRUNCATED,
    LENGTH,
    STALENESS,
    REWARD_MODEL_AUC,
    PREFERENCE_ACCURACY,
    PREFERENCE_JS,
    ACCELERATOR_IDLE,
    MEMORY,
    DISK,
    THROUGHPUT,
    NO_IMPROVEMENT,
)

__all__ = [
    "ACCELERATOR_IDLE",
    "BROKEN_WEIGHTS",
    "CLIP_FRACTION",
    "DISK",
    "DISTINCT",
    "ENTROPY",
    "GROUP_SPREAD",
    "HEARTBEAT",
    "KL_REFERENCE",
    "KL_UPDATE",
    "LENGTH",
    "LOSS_DIVERGENCE",
    "MEMORY",
    "NON_FINITE",
    "NO_IMPROVEMENT",
    "NO_SIGNAL",
    "NO_SPREAD",
    "PREFERENCE_ACCURACY",
    "PREFERENCE_JS",
    "RATIO_MAX",
    "REWARD_FALL",
    "REWARD_MODEL_AUC",
    "RULES",
    "STALENESS",
    "THROUGHPUT",
    "TRUNCATED",
    "Cause",
    "Judged",
    "Rule",
    "Text",
    "Then",
    "diagnosis",
    "language",
]
