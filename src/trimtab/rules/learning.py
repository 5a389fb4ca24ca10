"""Alarms about what the updates do to the policy."""

from __future__ import annotations

from trimtab.rules.causes import (
    CHANGED_REWARD,
    DPO_BETA,
    LEARNING_RATE,
    MANY_UPDATES,
    REWARD_MODEL,
    STALE,
    WEAK_KL,
    WIDE_CLIP,
)
from trimtab.rules.texts import Cause, Rule, Text

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
