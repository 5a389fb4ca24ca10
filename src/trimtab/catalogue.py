"""Every metric: name, unit and help. Exporters, dashboards, alerts and docs are made from this table."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.errors import TrimtabError


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    name: str
    """With slashes; a name that ends in `/*` stands for a family (`reward/exact_match`)."""
    unit: str
    help: str


_TABLE = """
loss/policy                  | loss    | policy term before its coefficient, averaged over the updates of the step
loss/value                   | loss    | critic's term before its coefficient
loss/entropy                 | nats    | entropy term before its (negative) coefficient
loss/kl                      | nats    | KL term before its coefficient
loss/nll                     | nats    | negative log-likelihood of demonstrated tokens
loss/total                   | loss    | sum of coefficient times term
coefficient/*                | 1       | the coefficient that a term entered the loss with
learning_rate                | 1       | of the policy, in the step's last update
grad_norm/total              | 1       | gradient norm over all trained weights before clipping, mean over the updates
grad_norm/value              | 1       | of the critic's own weights, before clipping
kl/reference                 | nats    | mean over tokens of k3 of the policy against the reference
kl/update                    | nats    | mean over probe tokens of k3, before the first to after the last update of the step
ratio/mean                   | ratio   | mean over tokens and updates of exp(log_probs - old_log_probs)
ratio/max                    | ratio   | largest token ratio in an update
ratio/min                    | ratio   | smallest token ratio in an update
update/ratio_max             | ratio   | largest token ratio after the step's last update, on the probe tokens
updates/count                | updates | optimiser steps taken in the step
updates/skipped              | updates | not applied: empty, or a loss or gradient was not finite
updates/non_finite           | updates | of those, because a loss or gradient was not finite
clip_fraction/low            | ratio   | share of tokens with a negative advantage whose ratio fell under the clip
clip_fraction/high           | ratio   | share of tokens with a positive advantage whose ratio rose over the clip
clip_fraction/dual           | ratio   | share of tokens bounded by the dual clip
entropy                      | nats    | mean over tokens of the next-token entropy at the sampling temperature
reward/mean                  | reward  | mean over scored completions
reward/std                   | reward  | standard deviation over scored completions
reward/min                   | reward  | smallest reward
reward/max                   | reward  | largest reward
reward/unscored              | ratio   | share of completions without a reward
reward/errors                | calls   | reward functions' calls that raised, timed out or gave no number
reward/zero_spread_groups    | ratio   | share of groups whose rewards are all equal
reward/*                     | reward  | mean of one reward function over the completions that it judged
rollout/distinct_share       | ratio   | mean over groups of distinct completions by completions
rollout/trainer_mismatch     | nats    | mean over tokens of |old_log_probs - rollout_log_probs|
advantage/mean               | 1       | mean over tokens
advantage/std                | 1       | standard deviation over tokens
explained_variance           | ratio   | 1 - Var(returns - values) / Var(returns) of the critic before the first update
length/mean                  | tokens  | completions, generated tokens
length/p50                   | tokens  | median completion
length/p95                   | tokens  | 95th percentile of completions
length/max                   | tokens  | longest completion
length/truncated             | ratio   | share of completions cut by the length limit
staleness                    | steps   | largest age of the weights that sampled a token of the batch
data/epoch                   | epochs  | passes over the prompts begun
eval/reward/mean             | reward  | mean reward on the validation prompts, greedy
eval/reward/*                | reward  | mean of one reward function on the validation prompts
eval/length/mean             | tokens  | completions on the validation prompts
eval/length/truncated        | ratio   | share of validation completions cut by the length limit
eval/loss/nll                | nats    | negative log-likelihood of demonstrated validation tokens
eval/count                   | prompts | validation prompts judged
throughput/rollout_tokens_per_second | tokens/s | sampled tokens by the time of sampling
throughput/train_tokens_per_second   | tokens/s | tokens of prompt and completion by the time of the updates
time/step                    | seconds | the whole step
time/rollout                 | seconds | sampling
time/reward                  | seconds | scoring
time/freeze                  | seconds | passes without gradient (old, reference, values)
time/forward                 | seconds | forward passes with gradient
time/backward                | seconds | backward passes
time/optimizer               | seconds | clipping and optimiser
time/probe                   | seconds | forward pass on the probe tokens after the last update
time/communication           | seconds | sums over ranks
time/evaluation              | seconds | evaluation
checkpoint/rejected          | checkpoints | damaged checkpoints passed over since the start
memory/total                 | bytes   | resident memory of the process
"""

METRICS: dict[str, Metric] = {}
for _line in _TABLE.strip().splitlines():
    _name, _unit, _help = (part.strip() for part in _line.split("|", 2))
    METRICS[_name] = Metric(name=_name, unit=_unit, help=_help)


def is_better_lower(name: str) -> bool:
    """Whether a smaller value of an evaluation's metric is the better one.

    >>> is_better_lower("eval/loss/nll"), is_better_lower("eval/reward/mean")
    (True, False)
    """
    return "/loss/" in name or name.endswith(("/truncated", "length/mean"))


def find(name: str) -> Metric:
    """The entry of a metric, by its own name or its family's.

    >>> find("loss/kl").unit, find("reward/exact_match").unit
    ('nats', 'reward')

    Raises:
        TrimtabError: no entry has that name.
    """
    if name in METRICS:
        return METRICS[name]
    family = name.rsplit("/", 1)[0] + "/*"
    if family in METRICS:
        return METRICS[family]
    raise TrimtabError(f"metric {name!r} is not in the catalogue; add it there (name, unit, help)")
