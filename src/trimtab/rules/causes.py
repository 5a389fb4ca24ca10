"""Causes that stand behind more than one alarm."""

from __future__ import annotations

from trimtab.rules.texts import Cause, Text

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
