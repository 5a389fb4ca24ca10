"""Alarms about rewards and preferences, and about completions that teach nothing."""

from __future__ import annotations

from trimtab.rules.causes import (
    CHANGED_REWARD,
    COPIES,
    DIFFICULTY,
    DPO_BETA,
    FEW_COMPLETIONS,
    FLAT_REWARD,
    LABELS,
    LEARNING_RATE,
    REWARD_ERRORS,
    REWARD_MODEL,
    SAME_REWARD,
    WEAK_KL,
)
from trimtab.rules.texts import Cause, Rule, Text

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
