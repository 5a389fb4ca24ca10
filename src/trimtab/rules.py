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

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Judged = Literal[
    "above", "below", "times_median", "under_median", "share_of_start", "range_of_start", "fall", "improvement"
]
Then = Literal["warn", "roll_back", "stop", "finish", "restart"]


@dataclass(frozen=True, slots=True)
class Text:
    """The same in both languages. `{figure}`, `{key}` or `{figure:.0%}` is filled in from what was seen."""

    en: str
    zh: str

    def said(self, facts: Mapping[str, Any], language: str = "en") -> str | None:
        """The text with its figures; None if one of them was not seen.

        >>> Text("{kl/update:.3f} nats from {optim.learning_rate}", "").said({"kl/update": 0.0712, "optim.learning_rate": 1e-3})
        '0.071 nats from 0.001'
        """
        text = self.zh if language == "zh" else self.en
        if any(facts.get(name) is None for name, _ in PLACES.findall(text)):
            return None
        return PLACES.sub(lambda found: _formatted(facts[found[1]], found[2]), text)

    def general(self, language: str = "en") -> str:
        """The text for a page, where nothing was seen: without the values, figures by their names.

        >>> Text("lower optim.learning_rate from {optim.learning_rate} (largest {reward/max:.4g})", "").general()
        'lower optim.learning_rate'
        """
        text = VALUES.sub("", self.zh if language == "zh" else self.en).replace("`", "")
        return PLACES.sub(lambda found: f"`{found[1]}`", text)


PLACES = re.compile(r"\{([^{}:]+)(?::([^{}]*))?\}")
VALUES = re.compile(r" from \{[^{}]*\}| ?从 \{[^{}]*\}| ?[(（][^()（）]*\{[^{}]*\}[^()（）]*[)）]")
"""Parts of a text that only say what a value is."""


def _formatted(value: Any, spec: str | None) -> str:
    if spec:
        return format(value, spec)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Something that may be behind an alarm, and what to do about it."""

    text: Text
    remedy: Text
    evidence: tuple[str, Literal["above", "below"], float] | None = None
    """A figure that speaks for it: then it is named before the others."""

    def support(self, facts: Mapping[str, Any]) -> int:
        """1 if its figure speaks for it, -1 if it speaks against it, 0 if there is none."""
        if self.evidence is None:
            return 0
        name, side, limit = self.evidence
        value = facts.get(name)
        if not isinstance(value, int | float):
            return 0
        return 1 if (value > limit if side == "above" else value < limit) else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An alarm."""

    name: str
    figures: tuple[str, ...]
    """Of a step's report; the one furthest over its limit counts. A rule whose figures a run does not have is silent."""
    judged: Judged
    warn: float | None = None
    act: float | None = None
    steps: int = 1
    """In a row (for `fall` and `improvement`: evaluations)."""
    seconds: float | None = None
    """In the place of `steps`: so long without a break."""
    then: Then = "warn"
    """What follows at `act`."""
    acts_over_median: float | None = None
    """The action needs a figure that is also over so many times its running median."""
    unless: tuple[str, Literal["above", "below"], float] | None = None
    """A figure that says that all is well nevertheless."""
    title: Text
    seen: Text
    """`{value}` is the figure and `{limit}` what it is held against."""
    causes: tuple[Cause, ...]


LEARNING_RATE = Cause(
    text=Text("the learning rate is too high", "学习率过高"),
    remedy=Text(
        "lower optim.learning_rate from {optim.learning_rate}", "将 optim.learning_rate 从 {optim.learning_rate} 调低"
    ),
)
WEAK_KL = Cause(
    text=Text("nothing holds the policy near the reference", "没有约束使策略留在参考模型附近"),
    remedy=Text("raise kl.coef from {kl.coef}", "将 kl.coef 从 {kl.coef} 调高"),
    evidence=("kl.coef", "below", 1e-3),
)
MANY_UPDATES = Cause(
    text=Text(
        "a batch is used for too many updates ({updates/count:.0f} in this step)",
        "同一批样本更新次数过多（本步 {updates/count:.0f} 次）",
    ),
    remedy=Text(
        "lower train.epochs_per_batch from {train.epochs_per_batch} or train.minibatches from {train.minibatches}",
        "将 train.epochs_per_batch 从 {train.epochs_per_batch}、或 train.minibatches 从 {train.minibatches} 调低",
    ),
    evidence=("updates/count", "above", 8),
)
WIDE_CLIP = Cause(
    text=Text("the clip is wide", "裁剪范围过宽"),
    remedy=Text(
        "lower policy.clip_high from {policy.clip_high} and policy.clip_low from {policy.clip_low}",
        "将 policy.clip_high 从 {policy.clip_high}、policy.clip_low 从 {policy.clip_low} 调低",
    ),
    evidence=("policy.clip_high", "above", 0.3),
)
STALE = Cause(
    text=Text("the samples are {staleness:.0f} steps old", "样本已过期 {staleness:.0f} 步"),
    remedy=Text("sample afresh: lower sampling.max_staleness", "使用更新的样本：调低 sampling.max_staleness"),
    evidence=("staleness", "above", 1),
)
CHANGED_REWARD = Cause(
    text=Text(
        "the reward measures something else than before, or returns noise",
        "奖励函数的含义发生变化，或返回噪声",
    ),
    remedy=Text(
        "look at the rewards of these steps in samples/, and at the reward's own source; run `trimtab reward check`",
        "查看 samples/ 中这些步的奖励和奖励函数本身；运行 `trimtab reward check`",
    ),
)
REWARD_ERRORS = Cause(
    text=Text(
        "the reward fails ({reward/errors:.0f} errors in this step)", "奖励函数出错（本步 {reward/errors:.0f} 次）"
    ),
    remedy=Text("mend it: the errors stand in the journal", "修复奖励函数；错误记录在 journal 中"),
    evidence=("reward/errors", "above", 0),
)
REWARD_MODEL = Cause(
    text=Text("the policy has found what the reward model overrates", "策略利用了奖励模型的漏洞"),
    remedy=Text(
        "check the reward model's output distribution (`trimtab reward report`), the labels it was trained on, and its "
        "AUC; train it on completions of this policy; raise kl.coef from {kl.coef}",
        "检查奖励模型的输出分布（`trimtab reward report`）、训练标签质量与 AUC；用当前策略的样本重新训练；"
        "将 kl.coef 从 {kl.coef} 调高",
    ),
)
DPO_BETA = Cause(
    text=Text("beta is outside 0.05 to 0.3", "beta 不在 0.05 到 0.3 之间"),
    remedy=Text(
        "set preference.beta between 0.05 and 0.3 (it is {preference.beta})",
        "将 preference.beta 设为 0.05 到 0.3（当前 {preference.beta}）",
    ),
)
LABELS = Cause(
    text=Text("labels contradict each other or are wrong", "标签互相矛盾或有误"),
    remedy=Text(
        "run `trimtab data check` on data.train: it counts contradictions, duplicates and length bias",
        "对 data.train 运行 `trimtab data check`：统计矛盾、重复与长度偏差",
    ),
)

NON_FINITE = Rule(
    name="non_finite",
    figures=("updates/non_finite",),
    judged="above",
    warn=0,
    act=0,
    steps=3,
    then="roll_back",
    unless=("updates/count", "above", 0),
    title=Text("No loss and gradient of a step was finite", "损失或梯度出现 NaN/Inf"),
    seen=Text(
        "no loss and gradient of the step was finite, so none of its updates was applied",
        "该步没有有限的损失与梯度，更新均未应用",
    ),
    causes=(
        LEARNING_RATE,
        Cause(
            text=Text(
                "a reward or a critic's value is far out of the range of the others (largest reward {reward/max:.4g})",
                "某个奖励或价值远超其他（最大奖励 {reward/max:.4g}）",
            ),
            remedy=Text("look at the rewards of these steps in samples/", "查看 samples/ 中这些步的奖励"),
            evidence=("reward/max", "above", 1e3),
        ),
        Cause(
            text=Text("the model's weights were not finite when the run began", "模型权重在开始时就含有非有限值"),
            remedy=Text("check policy.model with `trimtab smoke`", "用 `trimtab smoke` 检查 policy.model"),
        ),
    ),
)

BROKEN_WEIGHTS = Rule(
    name="broken_weights",
    figures=("non_finite/weights", "non_finite/probe"),
    judged="above",
    act=0,
    then="roll_back",
    title=Text("Weights are not finite", "权重出现 NaN/Inf"),
    seen=Text(
        "{figure}: after an update that was applied {value:.0f} numbers are not finite",
        "{figure}：更新应用之后有 {value:.0f} 个数不是有限数",
    ),
    causes=(
        LEARNING_RATE,
        Cause(
            text=Text("the precision is too narrow for the weights", "权重的精度过窄"),
            remedy=Text("train in policy.dtype: float32 or bfloat16", "使用 policy.dtype: float32 或 bfloat16"),
        ),
    ),
)

KL_UPDATE = Rule(
    name="kl_update",
    figures=("kl/update",),
    judged="above",
    warn=0.03,
    act=0.05,
    then="roll_back",
    title=Text("One step moves the policy too far", "单步策略变化过大（KL 爆炸）"),
    seen=Text(
        "kl/update: one step moved the policy by {value:.4f} nats per token, the limit is {limit:.4g}",
        "kl/update：一步使策略移动了每词元 {value:.4f} nats，上限为 {limit:.4g}",
    ),
    causes=(
        LEARNING_RATE,
        MANY_UPDATES,
        WIDE_CLIP,
        WEAK_KL,
        Cause(
            text=Text("a task that must move fast has its own limit", "任务本身需要较快的变化"),
            remedy=Text(
                "set kl.limit.warn and kl.limit.act to what it needs, if the rewards rise nevertheless",
                "若奖励仍在上升，可将 kl.limit.warn 与 kl.limit.act 设为所需的值",
            ),
        ),
    ),
)

KL_REFERENCE = Rule(
    name="kl_reference",
    figures=("kl/reference",),
    judged="above",
    warn=0.05,
    act=1.0,
    acts_over_median=10.0,
    then="roll_back",
    title=Text("The policy is far from the reference", "策略远离参考模型"),
    seen=Text(
        "kl/reference: the policy is {value:.4f} nats per token from the reference, the limit is {limit:.4g}",
        "kl/reference：策略与参考模型相距每词元 {value:.4f} nats，上限为 {limit:.4g}",
    ),
    causes=(
        WEAK_KL,
        LEARNING_RATE,
        REWARD_MODEL,
        Cause(
            text=Text("the task needs a policy far from where it began", "任务需要策略远离初始位置"),
            remedy=Text(
                "set guard.rules.kl_reference.warn to what it needs", "把 guard.rules.kl_reference.warn 设为所需的值"
            ),
        ),
    ),
)

LOSS_DIVERGENCE = Rule(
    name="loss_divergence",
    figures=("loss/total", "loss/value", "grad_norm/total"),
    judged="times_median",
    warn=10.0,
    act=10.0,
    steps=3,
    then="roll_back",
    title=Text("Loss divergence", "损失发散"),
    seen=Text(
        "{figure} is {value:.4g}, more than {limit:.4g}, that is ten times what is usual in this run",
        "{figure} 为 {value:.4g}，超过 {limit:.4g}，即本次训练常见值的十倍",
    ),
    causes=(
        LEARNING_RATE,
        WIDE_CLIP,
        WEAK_KL,
        Cause(
            text=Text(
                "the critic does not follow (explained_variance {explained_variance:.2f})",
                "价值网络没有跟上（explained_variance {explained_variance:.2f}）",
            ),
            remedy=Text(
                "lower value.learning_rate, or give it value.warmup_steps",
                "调低 value.learning_rate，或设置 value.warmup_steps",
            ),
            evidence=("explained_variance", "below", 0.0),
        ),
        CHANGED_REWARD,
    ),
)

REWARD_FALL = Rule(
    name="reward_fall",
    figures=("eval/reward/mean", "reward/mean"),
    judged="fall",
    warn=0.05,
    act=0.05,
    steps=3,
    then="roll_back",
    title=Text("Reward collapse, or a policy that gets worse", "奖励崩溃或策略退化"),
    seen=Text(
        "{figure} is {value:.4g}, under {limit:.4g}: more than 5 % and more than its error under the evaluations before",
        "{figure} 为 {value:.4g}，低于 {limit:.4g}：比之前的评估低 5% 以上且超出误差",
    ),
    causes=(REWARD_ERRORS, CHANGED_REWARD, REWARD_MODEL, LEARNING_RATE, WEAK_KL, LABELS),
)

RATIO_MAX = Rule(
    name="ratio_max",
    figures=("update/ratio_max",),
    judged="above",
    warn=10.0,
    title=Text("Ratio out of range", "重要性比率超出范围"),
    seen=Text(
        "update/ratio_max: a token became {value:.1f} times as probable or more in one step, the limit is {limit:.4g}",
        "update/ratio_max：某词元的概率一步内变为 {value:.1f} 倍，上限为 {limit:.4g}",
    ),
    causes=(MANY_UPDATES, STALE, LEARNING_RATE),
)

CLIP_FRACTION = Rule(
    name="clip_fraction",
    figures=("clip_fraction/low", "clip_fraction/high"),
    judged="above",
    warn=0.5,
    title=Text("Most tokens are clipped", "多数词元被裁剪"),
    seen=Text(
        "{figure}: {value:.0%} of tokens are clipped, the limit is {limit:.0%}",
        "{figure}：{value:.0%} 的词元被裁剪，上限 {limit:.0%}",
    ),
    causes=(
        MANY_UPDATES,
        STALE,
        LEARNING_RATE,
        Cause(
            text=Text("the clip is too narrow for this ratio", "裁剪范围对该比率过窄"),
            remedy=Text(
                "look at policy.clip_low: {policy.clip_low}; it fits a token's ratio at 0.2, a sequence's at 3e-4",
                "检查 policy.clip_low（当前 {policy.clip_low}）：词元级比率用 0.2，序列级用 3e-4",
            ),
        ),
    ),
)

ENTROPY = Rule(
    name="entropy",
    figures=("entropy",),
    judged="share_of_start",
    warn=0.5,
    steps=3,
    title=Text("Entropy collapse", "熵坍缩"),
    seen=Text(
        "entropy is {value:.3f} nats per token, under {limit:.3f}", "熵为每词元 {value:.3f} nats，低于 {limit:.3f}"
    ),
    causes=(
        Cause(
            text=Text("nothing keeps the policy from being sure too early", "没有约束防止策略过早确定"),
            remedy=Text(
                "raise policy.entropy_coef from {policy.entropy_coef}, or policy.clip_high",
                "将 policy.entropy_coef 从 {policy.entropy_coef} 调高，或调高 policy.clip_high",
            ),
        ),
        Cause(
            text=Text("the temperature is low", "采样温度过低"),
            remedy=Text(
                "raise sampling.temperature from {sampling.temperature}",
                "将 sampling.temperature 从 {sampling.temperature} 调高",
            ),
            evidence=("sampling.temperature", "below", 0.7),
        ),
        LEARNING_RATE,
        Cause(
            text=Text("the task is learned", "任务已学会"),
            remedy=Text(
                "nothing to do if eval/reward/mean is where it should be", "若 eval/reward/mean 已达标则无需处理"
            ),
            evidence=("reward/zero_spread_groups", "above", 0.8),
        ),
    ),
)

COPIES = Cause(
    text=Text(
        "the completions of a prompt are alike ({rollout/distinct_share:.0%} are distinct)",
        "同一提示的回答雷同（仅 {rollout/distinct_share:.0%} 不同）",
    ),
    remedy=Text(
        "raise sampling.temperature from {sampling.temperature}",
        "将 sampling.temperature 从 {sampling.temperature} 调高",
    ),
    evidence=("rollout/distinct_share", "below", 0.5),
)
FEW_COMPLETIONS = Cause(
    text=Text("there are few completions a prompt", "每个提示的采样数过少"),
    remedy=Text(
        "raise sampling.group_size from {sampling.group_size}", "将 sampling.group_size 从 {sampling.group_size} 调高"
    ),
    evidence=("sampling.group_size", "below", 8),
)
FLAT_REWARD = Cause(
    text=Text("a reward does not tell the completions apart", "奖励函数不能区分回答"),
    remedy=Text(
        "look at reward `{least_reward}`: its spread inside groups is {least_spread:.3g}",
        "查看奖励 `{least_reward}`：其组内离散度为 {least_spread:.3g}",
    ),
)
DIFFICULTY = Cause(
    text=Text(
        "the prompts are too hard or too easy for the model (mean reward {reward/mean:.3g})",
        "提示对模型过难或过易（平均奖励 {reward/mean:.3g}）",
    ),
    remedy=Text(
        "take others, or let sampling.dynamic.enabled: true leave out groups without a spread",
        "更换提示，或用 sampling.dynamic.enabled: true 去掉无差异的组",
    ),
)

GROUP_SPREAD = Rule(
    name="group_spread",
    figures=("reward/zero_spread_groups",),
    judged="above",
    warn=0.8,
    steps=3,
    unless=("reward_share_of_best", "above", 0.9),
    title=Text("Degenerate sampling: groups without a spread", "采样退化：组内奖励无差异"),
    seen=Text("{value:.0%} of groups have equal rewards, three steps running", "{value:.0%} 的组内奖励全部相同"),
    causes=(COPIES, FEW_COMPLETIONS, FLAT_REWARD, DIFFICULTY),
)

DISTINCT = Rule(
    name="distinct_share",
    figures=("rollout/distinct_share",),
    judged="below",
    warn=0.2,
    steps=3,
    unless=("reward_share_of_best", "above", 0.9),
    title=Text("Degenerate sampling: copies", "采样退化：回答雷同"),
    seen=Text("{value:.0%} of a group's completions are distinct", "一组回答中只有 {value:.0%} 不同"),
    causes=(COPIES, LEARNING_RATE, WEAK_KL),
)

SAME_REWARD = Cause(
    text=Text(
        "the reward gives the same number to everything (`{least_reward}`, {reward/mean:.4g})",
        "奖励对所有回答给出同一个数（`{least_reward}`，{reward/mean:.4g}）",
    ),
    remedy=Text(
        "look at the completions and rewards in samples/, and run `trimtab reward check`",
        "查看 samples/ 中的回答与奖励，并运行 `trimtab reward check`",
    ),
)

NO_SIGNAL = Rule(
    name="no_signal",
    figures=("reward/zero_spread_groups",),
    judged="above",
    act=0.999,
    steps=20,
    then="stop",
    unless=("reward_share_of_best", "above", 0.999),
    title=Text("The rewards give no signal", "奖励没有任何信号"),
    seen=Text(
        "in no group of 20 steps do the rewards differ, so no step teaches anything",
        "连续 20 步没有任何一组的奖励有差异，训练没有信号",
    ),
    causes=(REWARD_ERRORS, SAME_REWARD, DIFFICULTY, COPIES, FEW_COMPLETIONS),
)

NO_SPREAD = Rule(
    name="no_spread",
    figures=("sampling_without_spread",),
    judged="above",
    act=0,
    steps=3,
    then="stop",
    unless=("reward_share_of_best", "above", 0.999),
    title=Text("Dynamic sampling finds no signal", "动态采样找不到信号"),
    seen=Text(
        "three times in a row dynamic sampling found no group whose rewards differ, and a step trained on nothing that "
        "teaches",
        "动态采样连续三步没有找到奖励有差异的组，训练没有信号",
    ),
    causes=(REWARD_ERRORS, SAME_REWARD, DIFFICULTY, COPIES, FEW_COMPLETIONS),
)

TRUNCATED = Rule(
    name="truncated",
    figures=("length/truncated",),
    judged="above",
    warn=0.5,
    steps=3,
    title=Text("Most completions are cut off", "多数回答被截断"),
    seen=Text("{value:.0%} of completions are cut by the length limit", "{value:.0%} 的回答被长度上限截断"),
    causes=(
        Cause(
            text=Text("the limit is too short for the task", "长度上限过短"),
            remedy=Text(
                "raise sampling.max_length from {sampling.max_length}",
                "将 sampling.max_length 从 {sampling.max_length} 调高",
            ),
        ),
        Cause(
            text=Text("the reward pays for length", "奖励鼓励长度"),
            remedy=Text(
                "set sampling.overlong.buffer, or look at the reward", "设置 sampling.overlong.buffer，或检查奖励函数"
            ),
        ),
        Cause(
            text=Text("the model does not end its completions", "模型不会结束回答"),
            remedy=Text(
                "give sampling.stop, or train on demonstrations that end first (sft)", "设置 sampling.stop，或先做 sft"
            ),
        ),
    ),
)

LENGTH = Rule(
    name="length",
    figures=("length/p50",),
    judged="range_of_start",
    warn=2.0,
    steps=3,
    title=Text("Lengths drift", "回答长度漂移"),
    seen=Text(
        "the median completion has {value:.0f} tokens, outside {limit}",
        "回答长度中位数为 {value:.0f} 词元，超出 {limit}",
    ),
    causes=(
        Cause(
            text=Text("the reward pays for length, or for brevity", "奖励鼓励长或短"),
            remedy=Text("look at the longest and shortest completions in samples/", "查看 samples/ 中最长与最短的回答"),
        ),
        Cause(
            text=Text("the loss weighs long completions less", "损失对长回答的权重更小"),
            remedy=Text("set policy.aggregation: token-mean", "设置 policy.aggregation: token-mean"),
        ),
    ),
)

STALENESS = Rule(
    name="staleness",
    figures=("staleness",),
    judged="above",
    warn=1,
    title=Text("Samples are stale", "样本过期"),
    seen=Text(
        "the oldest token was sampled {value:.0f} steps ago, the limit is {limit:.0f}",
        "最旧的词元采样于 {value:.0f} 步之前，上限 {limit:.0f}",
    ),
    causes=(STALE,),
)

REWARD_MODEL_AUC = Rule(
    name="reward_model_auc",
    figures=("eval/reward_model/auc", "reward_model/auc"),
    judged="below",
    warn=0.85,
    title=Text("A weak reward model", "奖励模型过弱"),
    seen=Text(
        "{figure} is {value:.3f}, under {limit:.2f}; a reward wants more than 0.90",
        "{figure} 为 {value:.3f}，低于 {limit:.2f}；用作奖励应高于 0.90",
    ),
    causes=(
        LABELS,
        Cause(
            text=Text("it has seen too few pairs", "训练样本过少"),
            remedy=Text("train longer or on more pairs", "训练更久或使用更多样本"),
        ),
    ),
)

PREFERENCE_ACCURACY = Rule(
    name="preference_accuracy",
    figures=("final/preference/accuracy",),
    judged="below",
    warn=0.85,
    title=Text("Preferences are not learned", "偏好没有学会"),
    seen=Text(
        "eval/preference/accuracy ends at {value:.3f}, under {limit:.2f}",
        "eval/preference/accuracy 最终为 {value:.3f}，低于 {limit:.2f}",
    ),
    causes=(
        DPO_BETA,
        LABELS,
        Cause(
            text=Text("the learning rate is too low, or the run too short", "学习率过低或训练过短"),
            remedy=Text(
                "raise optim.learning_rate from {optim.learning_rate}, or train.max_steps from {train.max_steps}",
                "将 optim.learning_rate 从 {optim.learning_rate} 或 train.max_steps 从 {train.max_steps} 调高",
            ),
        ),
    ),
)

PREFERENCE_JS = Rule(
    name="preference_js",
    figures=("eval/preference/js",),
    judged="above",
    warn=0.05,
    title=Text("The policy leaves the reference in preference training", "偏好训练中策略远离参考模型"),
    seen=Text(
        "eval/preference/js is {value:.4f} nats per token, over {limit:.4g}",
        "eval/preference/js 为每词元 {value:.4f} nats，超过 {limit:.4g}",
    ),
    causes=(DPO_BETA, LEARNING_RATE),
)

ACCELERATOR_IDLE = Rule(
    name="accelerator_idle",
    figures=("utilisation/accelerator",),
    judged="below",
    warn=0.30,
    seconds=300.0,
    title=Text("The accelerator is idle", "加速器利用率过低"),
    seen=Text(
        "the accelerator is used to {value:.0%}, under {limit:.0%}, for five minutes",
        "加速器利用率 {value:.0%}，低于 {limit:.0%}，持续五分钟",
    ),
    causes=(
        Cause(
            text=Text(
                "it waits for rewards ({time/reward:.1f} s of {time/step:.1f} s a step)",
                "在等待奖励计算（每步 {time/step:.1f} 秒中的 {time/reward:.1f} 秒）",
            ),
            remedy=Text("give the reward more processes, or a faster rule", "增加奖励进程，或使用更快的规则"),
        ),
        Cause(
            text=Text("its passes are small", "每次前向过小"),
            remedy=Text(
                "raise train.micro_batch_tokens from {train.micro_batch_tokens}, or prompts_per_step",
                "将 train.micro_batch_tokens 从 {train.micro_batch_tokens} 或 prompts_per_step 调高",
            ),
        ),
    ),
)

MEMORY = Rule(
    name="accelerator_memory",
    figures=("utilisation/accelerator_memory",),
    judged="above",
    warn=0.95,
    seconds=300.0,
    title=Text("Memory is nearly full", "显存接近耗尽（OOM 风险）"),
    seen=Text(
        "{value:.0%} of the accelerator's memory is taken, over {limit:.0%}", "显存占用 {value:.0%}，超过 {limit:.0%}"
    ),
    causes=(
        Cause(
            text=Text(
                "precision, a reference on the device, batches or groups are too large", "精度、参考模型、批次或组过大"
            ),
            remedy=Text(
                "policy.dtype: bfloat16; reference.offload: true; policy.gradient_checkpointing: true; lower "
                "sampling.group_size from {sampling.group_size} or sampling.max_length from {sampling.max_length}",
                "policy.dtype: bfloat16；reference.offload: true；policy.gradient_checkpointing: true；将 "
                "sampling.group_size 从 {sampling.group_size} 或 sampling.max_length 从 {sampling.max_length} 调低",
            ),
        ),
    ),
)

DISK = Rule(
    name="disk",
    figures=("utilisation/disk",),
    judged="above",
    warn=0.95,
    seconds=300.0,
    title=Text("The disk is nearly full", "磁盘接近写满"),
    seen=Text("{value:.0%} of the disk is taken, over {limit:.0%}", "磁盘占用 {value:.0%}，超过 {limit:.0%}"),
    causes=(
        Cause(
            text=Text("checkpoints and samples add up", "检查点与样本累积"),
            remedy=Text(
                "lower checkpoint.keep from {checkpoint.keep}, remove old runs",
                "将 checkpoint.keep 从 {checkpoint.keep} 调低，清理旧的运行",
            ),
        ),
    ),
)

THROUGHPUT = Rule(
    name="throughput",
    figures=("throughput/train_tokens_per_second", "throughput/rollout_tokens_per_second"),
    judged="under_median",
    warn=0.5,
    steps=3,
    title=Text("Throughput drops", "吞吐下降"),
    seen=Text(
        "{figure} is {value:.0f}, under half of what is usual ({limit:.0f})",
        "{figure} 为 {value:.0f}，低于常见值的一半（{limit:.0f}）",
    ),
    causes=(
        Cause(
            text=Text(
                "saving a checkpoint holds training up ({checkpoint/stall_seconds:.1f} s)",
                "保存检查点阻塞训练（{checkpoint/stall_seconds:.1f} 秒）",
            ),
            remedy=Text(
                "leave checkpoint.async on, and save to a faster disk", "保持 checkpoint.async 开启，并使用更快的磁盘"
            ),
            evidence=("checkpoint/stall_seconds", "above", 1.0),
        ),
        Cause(
            text=Text(
                "ranks wait for each other ({time/communication:.1f} s a step)",
                "进程之间互相等待（每步 {time/communication:.1f} 秒）",
            ),
            remedy=Text("look at the interconnect, and for one slow node", "检查互联网络与慢节点"),
            evidence=("time/communication", "above", 1.0),
        ),
        Cause(
            text=Text("the rewards take {time/reward:.1f} s a step", "奖励计算每步 {time/reward:.1f} 秒"),
            remedy=Text("look at the load of the reward's processes or service", "检查奖励进程或服务的负载"),
        ),
        Cause(
            text=Text("something else runs on the machine", "机器上有其他负载"),
            remedy=Text("look at its load; training goes on as it is", "检查机器负载；训练会继续"),
        ),
    ),
)

HEARTBEAT = Rule(
    name="role_heartbeat",
    figures=("role/heartbeat_age",),
    judged="above",
    act=30.0,
    then="restart",
    title=Text("A role does not answer", "某个角色失去心跳（硬件故障）"),
    seen=Text(
        "a role has not answered for {value:.0f} s, the limit is {limit:.0f} s",
        "某角色已 {value:.0f} 秒没有响应，上限 {limit:.0f} 秒",
    ),
    causes=(
        Cause(
            text=Text("its process is stopped, dead, or its machine is", "其进程或机器停止或死亡"),
            remedy=Text(
                "it is started again, and what it had not finished is given to it again; if a machine is at fault, start the "
                "same command on another: the run goes on from its newest checkpoint",
                "会自动重启并重新分配未完成的批次；若机器故障，请在备用节点上执行同一命令，训练会从最新检查点继续",
            ),
        ),
    ),
)

NO_IMPROVEMENT = Rule(
    name="no_improvement",
    figures=(),
    judged="improvement",
    steps=3,
    then="finish",
    title=Text("Early stop", "早停"),
    seen=Text(
        "{figure} has not improved on {limit:.4g} for {steps} evaluations",
        "{figure} 连续 {steps} 次评估没有超过 {limit:.4g}",
    ),
    causes=(
        Cause(
            text=Text("the task is learned, or the learning rate is too low to go on", "任务已学会，或学习率过低"),
            remedy=Text(
                "raise eval.early_stop.patience, or set it to null, to train all steps",
                "调高 eval.early_stop.patience 或设为 null 以训练全部步数",
            ),
        ),
    ),
)

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


def language(asked: str = "auto") -> str:
    """`en` or `zh`: what was asked for, else TRIMTAB_LANG, else the locale's."""
    if asked in ("en", "zh"):
        return asked
    found = next((v for name in ("TRIMTAB_LANG", "LC_ALL", "LC_MESSAGES", "LANG") if (v := os.environ.get(name))), "")
    return "zh" if found.lower().startswith("zh") else "en"


def diagnosis(rule: Rule, facts: Mapping[str, Any], spoken: str = "en") -> str:
    """What was seen, the likely causes, and what to do about each.

    Causes that a figure speaks for come first, those that one speaks against are left out.
    """
    seen = rule.seen.said(facts, spoken) or rule.title.said({}, spoken) or rule.name
    causes = sorted((c for c in rule.causes if c.support(facts) >= 0), key=lambda cause: -cause.support(facts))
    said = [
        f"{text}: {remedy}"
        for cause in causes
        if (text := cause.text.said(facts, spoken)) and (remedy := cause.remedy.said(facts, spoken))
    ]
    if spoken == "zh":
        return f"{seen}。可能的原因：{'；'.join(said)}" if said else seen
    return f"{seen}. Likely: {'; '.join(said)}" if said else seen
