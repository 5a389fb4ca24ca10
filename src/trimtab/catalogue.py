"""Every metric: name, unit and help. Exporters, dashboards, alerts and docs are made from this table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trimtab.errors import TrimtabError


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    name: str
    """With slashes; a name that ends in `/*` stands for a family (`reward/exact_match`)."""
    unit: str
    help: str

    @property
    def kind(self) -> Literal["gauge", "step_count", "total"]:
        """The newest value; what happened in a step, which exporters add up; what happened since a start."""
        return "step_count" if self.name in STEP_COUNTS else "total" if self.name in TOTALS else "gauge"

    @property
    def labels(self) -> tuple[str, ...]:
        """What tells the members of a family apart."""
        return LABELS.get(self.name, ("name",)) if self.name.endswith("/*") else ()

    @property
    def prometheus_name(self) -> str:
        """By the conventions of Prometheus: base units, `_total` for counters; a counter's name ends so in the exposition.

        >>> [find(name).prometheus_name for name in ("kl/update", "updates/count", "loss/total", "reward/brevity")]
        ['trimtab_kl_update_nats', 'trimtab_updates_total', 'trimtab_loss', 'trimtab_reward']
        """
        words = "trimtab_" + self.name.removesuffix("/*").replace("/", "_")
        if self.kind != "gauge":
            return words.removesuffix("_count") + "_total"
        words = words.removesuffix("_total")  # which only a counter may end in, as only a histogram may in _count
        if words.endswith("_count"):
            return words.removesuffix("count") + self.unit
        unit = SUFFIXES.get(self.unit, "")
        is_said = words.endswith(unit) or (unit == "_ratio" and "_ratio_" in words)
        return words if is_said else words + unit


_TABLE = """
loss/policy                  | loss    | policy term before its coefficient, averaged over the updates of the step
loss/value                   | loss    | critic's term before its coefficient
loss/entropy                 | nats    | entropy term before its (negative) coefficient
loss/kl                      | nats    | KL term before its coefficient
loss/nll                     | nats    | negative log-likelihood of demonstrated tokens
loss/preference              | loss    | preference term, mean over pairs (kto: over rows)
loss/center                  | loss    | squared sum of a pair's scores (preference.center)
loss/total                   | loss    | sum of coefficient times term
loss/mix/*                   | loss    | term of a part that `mix` adds, by algorithm and term, before its weight
coefficient/*                | 1       | the coefficient that a term entered the loss with
learning_rate                | 1       | of the policy, in the step's last update
grad_norm/total              | 1       | gradient norm over all trained weights before clipping, mean over the updates
grad_norm/critic             | 1       | of the critic's own weights, before clipping
grad_norm/policy             | 1       | gradient norm of the policy term alone, coefficient included, on a sample of tokens
grad_norm/value              | 1       | likewise of the critic's term
grad_norm/entropy            | 1       | likewise of the entropy term
grad_norm/kl                 | 1       | likewise of the KL term
grad_norm/nll                | 1       | likewise of the likelihood term
grad_norm/preference         | 1       | likewise of the preference term
grad_norm/center             | 1       | likewise of the term that centres scores
kl/reference                 | nats    | mean over tokens of k3 of the policy against the reference
kl/update                    | nats    | mean over probe tokens of k3, before the first to after the last update of the step
kl/controlled                | nats    | KL that the controller of kl.coef went by, per kl.unit
ratio/mean                   | ratio   | mean over tokens and updates of the ratio that the loss bounds (token's, segment's, sequence's)
ratio/max                    | ratio   | largest such ratio in an update
ratio/min                    | ratio   | smallest such ratio in an update
update/ratio_max             | ratio   | largest token ratio after the step's last update, on the probe tokens
updates/count                | updates | optimiser steps taken in the step
updates/skipped              | updates | not applied: empty, overflowed, or something of it was not finite
updates/non_finite           | updates | of those, because a number that the update is made of, its loss or its gradient was not finite
updates/overflow             | updates | skipped because float16 gradients overflowed; the loss scale is halved
non_finite/*                 | values  | numbers that were not finite where they count, by name (rewards, old_log_probs, ...); of loss the terms, of gradient and weights the tensors
loss_scale                   | 1       | what float16 losses are multiplied by before the backward pass, after the step's last update
updates/stopped              | updates | left out because the policy had moved further than kl.limit.warn (kl.stop_epochs)
clip_fraction/low            | ratio   | share of tokens with a negative advantage whose ratio fell under the clip
clip_fraction/high           | ratio   | share of tokens with a positive advantage whose ratio rose over the clip
clip_fraction/dual           | ratio   | share of tokens bounded by the dual clip
segment/length               | tokens  | mean length of a segment (gspo_segment)
cispo/weight                 | 1       | mean over tokens of the bounded importance weight
sapo/gate                    | ratio   | mean over tokens of the share of the gradient that the gate lets through
covariance/picked            | ratio   | share of tokens picked for a high covariance (clip_cov, kl_cov)
preference/accuracy          | ratio   | share of pairs whose chosen side has the higher implicit reward, a tie is wrong; kto: of rows on their side of z0
preference/margin            | reward  | mean implicit reward (reward model: score) of the chosen less that of the rejected side
preference/probability       | ratio   | mean probability that the implicit rewards give to the choice
reward_model/accuracy        | ratio   | share of pairs whose chosen side has the higher score; a tie counts half
kto/desirable_reward         | reward  | mean implicit reward of desirable rows
kto/undesirable_reward       | reward  | mean implicit reward of undesirable rows
kto/desirable_share          | ratio   | share of rows that are desirable
kto/z0                       | nats    | log-ratio of mismatched completions, at least 0: how far the policy has moved as a whole
ess                          | ratio   | effective sample size of the mismatch weights over tokens, as a share
mismatch/masked              | ratio   | share of tokens with a mismatch weight of 0
entropy                      | nats    | mean over tokens of the next-token entropy at the sampling temperature
reward/mean                  | reward  | mean over scored completions
reward/std                   | reward  | standard deviation over scored completions
reward/min                   | reward  | smallest reward
reward/max                   | reward  | largest reward
reward/length_correlation    | 1       | correlation of reward and tokens over scored completions; near 1 or -1 the reward pays for length or brevity
reward/unscored              | ratio   | share of completions without a reward
reward/errors                | calls   | reward functions' calls that raised, timed out or gave no number
reward/zero_spread_groups    | ratio   | share of groups whose rewards are all equal
reward/overlong              | reward  | mean over scored completions of the punishment for length
reward/*                     | reward  | mean of one reward function over the completions that it judged
reward_spread/*              | reward  | mean over groups of one reward function's standard deviation inside the group
rollout/distinct_share       | ratio   | mean over groups of distinct completions by completions
rollout/trainer_mismatch     | nats    | mean over tokens of |old_log_probs - rollout_log_probs|
advantage/mean               | 1       | mean over tokens
advantage/std                | 1       | standard deviation over tokens
explained_variance           | 1       | 1 - Var(returns - values) / Var(returns) of the critic before the first update
length/mean                  | tokens  | completions, generated tokens
length/p50                   | tokens  | median completion
length/p95                   | tokens  | 95th percentile of completions
length/max                   | tokens  | longest completion
length/truncated             | ratio   | share of completions cut by the length limit
staleness                    | steps   | largest age of the weights that sampled a token of the batch
sampling/accepted            | ratio   | share of the groups sampled in the step whose rewards have a spread
sampling/refills             | rounds  | rounds of sampling beyond the first, to find groups with a spread
sampling/kept                | groups  | groups with a spread that the step trains on; 0: the rewards gave no signal
sampling/surplus             | groups  | groups with a spread that wait for the next step
sampling/stale               | groups  | groups that waited, left out since they were older than sampling.max_staleness or undone
data/epoch                   | epochs  | passes over the prompts begun
data/prompts                 | prompts | drawn since the start, whether the step trained on them or not
eval/reward/mean             | reward  | mean reward on the validation prompts, greedy
eval/reward/std              | reward  | standard deviation over the validation prompts
eval/reward/*                | reward  | mean of one reward function on the validation prompts
eval/length/mean             | tokens  | completions on the validation prompts
eval/length/truncated        | ratio   | share of validation completions cut by the length limit
eval/loss/nll                | nats    | negative log-likelihood of demonstrated (of a pair: the chosen) validation tokens
eval/loss/preference         | loss    | preference term on the validation rows, which count as one update
eval/loss/center             | loss    | likewise the term that centres scores
eval/loss/total              | loss    | sum of coefficient times term on the validation rows
eval/preference/accuracy     | ratio   | share of validation pairs whose chosen side has the higher implicit reward; a tie is wrong
eval/preference/margin       | reward  | mean implicit reward of the chosen less that of the rejected side
eval/preference/probability  | ratio   | mean probability that the implicit rewards give to the choice
eval/preference/js           | nats    | mean over validation tokens of the exact Jensen-Shannon divergence of policy and reference
eval/reward_model/accuracy   | ratio   | share of validation pairs whose chosen side has the higher score; a tie counts half
eval/reward_model/auc        | ratio   | how often any chosen validation score is above any rejected one
eval/kto/desirable_reward    | reward  | mean implicit reward of desirable validation rows
eval/kto/undesirable_reward  | reward  | mean implicit reward of undesirable validation rows
eval/kto/desirable_share     | ratio   | share of the validation rows that are desirable
eval/kto/z0                  | nats    | log-ratio of mismatched validation completions, at least 0
eval/count                   | prompts | validation prompts (rows, pairs) judged
throughput/rollout_tokens_per_second | tokens/s | sampled tokens by the time of sampling
throughput/train_tokens_per_second   | tokens/s | tokens of prompt and completion by the time of the updates
time/step                    | seconds | the whole step
time/rollout                 | seconds | sampling
time/reward                  | seconds | scoring
time/freeze                  | seconds | passes without gradient (old, reference, values)
time/forward                 | seconds | forward passes with gradient
time/backward                | seconds | backward passes
time/optimizer               | seconds | clipping and optimiser
time/term_norms              | seconds | gradient norms of single terms on a sample
time/probe                   | seconds | forward pass on the probe tokens after the last update
time/communication           | seconds | sums over ranks
time/evaluation              | seconds | evaluation
time/weight_sync             | seconds | giving the engine that samples the new weights
time/checkpoint              | seconds | that training stood still for saving since the step before, as checkpoint/stall_seconds
run/step                     | steps   | newest step; like all of run/* not in the journal
run/max_steps                | steps   | train.max_steps
run/started                  | timestamp | when this process began to train
run/last_step                | timestamp | when the newest step ended: the run's heartbeat
run/state/*                  | 1       | 1 for what the run is doing: starting, training, finished, stopped, preempted, failed
role/heartbeat_age/*         | seconds | since a role that is at work has last got further; 0 while it has nothing to do; not in the journal
role/up/*                    | 1       | 1 unless a role has died; not in the journal
alarm/*                      | 1       | of a rule: 0 all is well, 1 a warning is raised, 2 an alarm that acts; not in the journal
alarms/*                     | alarms  | raised by a rule since the process began; not in the journal
guard/limit/*                | 1       | what a rule's figure is held against, in the figure's own unit; not in the journal
guard/breach/*               | ratio   | steps (seconds) in a row that a figure is over its limit, by how many are needed: from 1 on the alarm is raised; not in the journal
utilisation/cpu              | ratio   | of all cores of the computer, since the step before
utilisation/memory           | ratio   | of the computer's memory, or of the container's limit
utilisation/disk             | ratio   | of the file system that the run lies on
utilisation/accelerator      | ratio   | share of the time in which the accelerator computed, by its driver
utilisation/accelerator_memory | ratio | of the accelerator's memory, whoever has taken it
io/network_bytes             | bytes   | sent and received by the computer, loopback left out, in the step
io/disk_bytes                | bytes   | read and written by the process, caches included, in the step
config/version               | 1       | number of the configuration that the step was trained with, RUN/config
role/restarts                | processes | processes of rewards started again because they were stopped from outside, since the start
guard/alarms                 | alarms  | raised after the step
guard/rollbacks              | rollbacks | by the guard, since the start
checkpoint/rejected          | checkpoints | damaged checkpoints passed over since the start
checkpoint/failed            | saves   | in a row that have failed; more than checkpoint.max_failed_saves end the run
checkpoint/save_seconds      | seconds | until the newest checkpoint was on the disk, beside training or not
checkpoint/stall_seconds     | seconds | that training stood still for saving since the step before
checkpoint/age               | seconds | since the state in the newest checkpoint was taken: what a crash now would lose
checkpoint/store_failed      | uploads | to checkpoint.store in a row that have failed; training goes on
checkpoint/store_age         | seconds | since the state in the newest checkpoint that is whole in checkpoint.store was taken: what the loss of this machine now would lose
notify/sent                  | notifications | that a webhook has taken, since the start of the process
notify/failed                | notifications | given up: refused by a webhook, or the oldest of too many that waited, since the start of the process
notify/waiting               | notifications | in RUN/outbox, to be sent
observe/failed_monitors      | monitors | trackers and others that are switched off since they failed, since the start of the process
observe/dropped_calls        | calls   | that a tracker was too slow to take, since the start of the process
samples/failed               | files   | of samples that could not be written, since the start of the process
drill/last_success           | timestamp | unix time of the newest drill that passed; in RUN/drill.json, not in the journal
memory/total                 | bytes   | resident memory of the process
memory/policy                | bytes   | of the policy's weights
memory/value                 | bytes   | of the critic's own weights
memory/reference             | bytes   | of the reference's weights, if it is a model of its own
memory/micro_batch_tokens    | tokens  | of a pass over the models at the end of the step, at most; the smallest of any process
memory/halvings              | times   | how often a pass did not fit into memory in the step and was made again at half the size; the most of any process
"""

STEP_COUNTS = frozenset(
    {
        "updates/count", "updates/skipped", "updates/non_finite", "updates/overflow", "updates/stopped", "non_finite/*",
        "reward/errors", "sampling/refills", "sampling/stale", "memory/halvings", "io/network_bytes", "io/disk_bytes",
    }
)  # fmt: skip
"""Metrics that say how often something happened in the step."""
TOTALS = frozenset(
    {
        "role/restarts", "guard/rollbacks", "checkpoint/rejected", "samples/failed", "alarms/*", "notify/sent",
        "notify/failed", "observe/failed_monitors", "observe/dropped_calls",
    }
)  # fmt: skip
"""Metrics that say how often something happened since a start."""
SUFFIXES: Mapping[str, str] = {
    "nats": "_nats", "ratio": "_ratio", "seconds": "_seconds", "bytes": "_bytes", "tokens": "_tokens",
    "timestamp": "_timestamp_seconds",
}  # fmt: skip
"""Of names in Prometheus, by unit."""
LABELS: Mapping[str, tuple[str, ...]] = {
    "run/state/*": ("state",),
    "role/heartbeat_age/*": ("role",),
    "role/up/*": ("role",),
    "alarm/*": ("rule",),
    "alarms/*": ("rule", "level"),
    "guard/limit/*": ("rule", "level", "figure"),
    "guard/breach/*": ("rule", "level"),
}
"""Of families whose members are not told apart by a name; the last one takes the rest of the slashes."""

METRICS: dict[str, Metric] = {}
for _line in _TABLE.strip().splitlines():
    _name, _unit, _help = (part.strip() for part in _line.split("|", 2))
    METRICS[_name] = Metric(name=_name, unit=_unit, help=_help)


def is_better_lower(name: str) -> bool:
    """Whether a smaller value of an evaluation's metric is the better one.

    >>> is_better_lower("eval/loss/nll"), is_better_lower("eval/reward/mean")
    (True, False)
    """
    return "/loss/" in name or name.endswith(("/truncated", "length/mean", "/js"))


def find(name: str) -> Metric:
    """The entry of a metric, by its own name or its family's.

    >>> find("loss/kl").unit, find("reward/exact_match").unit
    ('nats', 'reward')

    Raises:
        TrimtabError: no entry has that name.
    """
    if name in METRICS:
        return METRICS[name]
    parts = name.split("/")
    for length in range(len(parts) - 1, 0, -1):  # the nearest family around it
        if (family := "/".join([*parts[:length], "*"])) in METRICS:
            return METRICS[family]
    raise TrimtabError(f"metric {name!r} is not in the catalogue; add it there (name, unit, help)")


def members(name: str) -> dict[str, str]:
    """The labels that tell a metric apart from the others of its family.

    >>> members("reward/exact_match"), members("guard/limit/kl_update/act/kl/update"), members("loss/kl")
    ({'name': 'exact_match'}, {'rule': 'kl_update', 'level': 'act', 'figure': 'kl/update'}, {})
    """
    metric = find(name)
    if not metric.labels:
        return {}
    rest = name.removeprefix(metric.name.removesuffix("*"))
    return dict(zip(metric.labels, rest.split("/", len(metric.labels) - 1), strict=True))
