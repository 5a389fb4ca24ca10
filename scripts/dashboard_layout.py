"""What stands where on the Grafana dashboards. `scripts/dashboards.py` makes JSON of it.

An expression is PromQL in which `<reward/mean>` stands for the series of a metric of the catalogue, chosen by the
dashboard's variables; `<role/up/*|role="rollout">` adds a matcher. A bare name is the expression `<name>`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["series", "trend", "stat", "gauge", "bars", "states", "table", "text"]
Colours = Literal["", "role", "state", "alarm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query of a panel."""

    expr: str
    legend: str = ""
    """Empty: the run, and the metric's name where the panel has several."""
    unit: str = ""
    """Grafana's name of the unit; empty: that of the expression's first metric."""
    is_dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel; its description is made from the help of the metrics that it shows."""

    title: str
    zh: str
    queries: tuple[str | Query, ...] = ()
    kind: Kind = "series"
    width: int = 8
    height: int = 8
    limits: tuple[str, ...] = ()
    """Figures of the guard's rules whose limits are drawn as dashed lines."""
    is_now: bool = False
    """Only what is reported at this moment counts, not the last value of a run that has ended."""
    is_stacked: bool = False
    is_logarithmic: bool = False
    has_band: bool = False
    """Its first two queries are the edges of a band."""
    is_per_run: bool = False
    """Once for each chosen run."""
    colours: Colours = ""
    note: str = ""
    text: str = ""
    """Markdown, of a panel of text."""
    link: str = ""
    """uid of the dashboard that says more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels that fill lines of 24 units from the left; or columns of panels, one under the other."""

    title: str
    panels: tuple[Panel, ...] = ()
    columns: tuple[tuple[Panel, ...], ...] = ()
    """The panels of a column have one width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One JSON file."""

    name: str
    """Of the file; the uid is `trimtab-` and the name."""
    title: str
    description: str
    rows: tuple[Row, ...]
    has_bucket: bool = False
    """Whether it has the variable that says how many steps make one point."""


def role(name: str, title: str, zh: str, width: int) -> Panel:
    """Whether a role is there, and how long ago it has last got further."""
    return Panel(
        title=title, zh=zh, kind="stat", width=width, height=4, is_now=True, colours="role",
        queries=(
            Query(expr=f'<role/up/*|role="{name}">', legend="{{run}}"),
            Query(expr=f'<role/heartbeat_age/*|role="{name}">', legend="{{run}} heartbeat"),
        ),
        note="Nothing is shown for a run whose process has ended.",
    )  # fmt: skip


def component(text: str, link: str, width: int) -> Panel:
    """The head of a column: a component and what it hands on."""
    return Panel(title="", zh="", kind="text", width=width, height=3, text=text, link=link)


def stat(title: str, zh: str, *queries: str | Query, width: int, height: int = 4, is_now: bool = False) -> Panel:
    return Panel(title=title, zh=zh, queries=queries, kind="stat", width=width, height=height, is_now=is_now)


def latest(name: str) -> str:
    """The last value of the time range, of runs that have ended too, a line a run."""
    return f"max by (run, algorithm) (last_over_time(<{name}>[$__range]))"


def by_step(name: str) -> str:
    """The last value that a run had in each bucket of its own steps."""
    runs = "run, algorithm, environment"
    steps = f'group by ({runs}, step) (count_values by ({runs}) ("step", floor(<run/step> / $bucket) * $bucket))'
    paired = f"<{name}> * on ({runs}) group_left (step) {steps}"
    return (
        f"max by (line, step) (label_join(last_over_time(({paired})[$__range:$__interval]), "
        '"line", " ", "run", "algorithm"))'
    )


TERMS = ("policy", "value", "entropy", "kl", "nll", "preference", "center")
TIMES = (
    "rollout", "reward", "freeze", "forward", "backward", "optimizer", "term_norms", "probe", "communication",
    "evaluation", "weight_sync", "checkpoint",
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------- overview
OVERVIEW = Dashboard(
    name="overview",
    title="Trimtab / Run overview",
    description="The components of a run as the architecture shows them, their health and key figures. 训练总览",
    rows=(
        Row(
            title="Training orchestrator",
            panels=(
                Panel(
                    title="State", zh="运行状态", kind="stat", width=6, height=4, is_now=True, colours="state",
                    queries=(Query(expr="<run/state/*> == 1", legend="{{run}}: {{state}}"),),
                    note="`not reporting`: no process of the chosen runs answers Prometheus.",
                ),
                Panel(
                    title="Progress", zh="进度", kind="gauge", width=4, height=4,
                    queries=(Query(expr="<run/step> / <run/max_steps>", legend="{{run}}", unit="percentunit"),),
                ),
                stat("Step and last step", "当前步与总步数", "run/step", "run/max_steps", width=4),
                stat(
                    "Time left", "预计剩余时间",
                    Query(
                        expr="(<run/max_steps> - <run/step>) * avg_over_time(<time/step>[$__range])",
                        legend="{{run}}", unit="s",
                    ),
                    width=4,
                ),
                stat(
                    "Since the last step", "距上一步",
                    Query(expr="time() - <run/last_step>", legend="{{run}}", unit="s"),
                    width=6, is_now=True,
                ),
                Panel(
                    title="Reward", zh="奖励：训练与评估", queries=("reward/mean", "eval/reward/mean"), width=8, height=7
                ),
                Panel(
                    title="Configuration, rollbacks", zh="配置版本、回退次数",
                    queries=("config/version", "guard/rollbacks"), width=4, height=7,
                ),
                Panel(title="Step", zh="步数", queries=("run/step",), width=4, height=7),
                Panel(title="Time of a step", zh="单步时间", queries=("time/step",), width=4, height=7),
                stat("Training since", "开始时间", Query(expr="<run/started> * 1000", unit="dateTimeFromNow"), width=4, height=3),
                stat("Passes over the data", "数据轮次", "data/epoch", "data/prompts", width=4),
            ),
        ),
        Row(
            title="Policy service -> reward -> learner, value, reference -> storage",
            columns=(
                (
                    component("### Policy service &rarr;\nprompts in, completions out", "rollout", 6),
                    role("rollout", "Rollout", "采样", 6),
                    stat("Sampled tokens", "采样吞吐", "throughput/rollout_tokens_per_second", width=6),
                    stat("Length, cut off", "长度与截断", "length/mean", "length/truncated", width=6),
                    Panel(title="Entropy", zh="熵", queries=("entropy",), limits=("entropy",), width=6, height=7),
                ),
                (
                    component("### Reward module &rarr;\ncompletions in, scored rows out", "rollout", 6),
                    role("reward", "Reward", "奖励", 6),
                    stat("Errors, workers restarted", "错误与重启", "reward/errors", "role/restarts", width=6),
                    stat("Groups without spread", "无差异组占比", "reward/zero_spread_groups", width=6),
                    Panel(
                        title="Mean and spread of the reward", zh="奖励均值与标准差",
                        queries=("reward/mean", "reward/std"), width=6, height=7,
                    ),
                ),
                (
                    component("### Learner, value, reference &rarr;\nscored rows in, new weights out", "algorithm", 6),
                    role("trainer", "Trainer", "训练器", 6),
                    stat("Loss, updates left out", "损失与跳过的更新", "loss/total", "updates/skipped", width=6),
                    stat("Gradients, explained variance", "梯度、解释方差", "grad_norm/total", "explained_variance", width=6),
                    Panel(
                        title="KL to the reference, of a step", zh="与参考模型的 KL、单步 KL",
                        queries=("kl/reference", "kl/update"), limits=("kl/update",), width=6, height=7,
                    ),
                ),
                (
                    component("### Storage\nstate in, a run that can go on out", "resources", 6),
                    role("saving", "Saving", "保存", 6),
                    stat("Age of the newest checkpoint", "最新检查点的年龄", "checkpoint/age", width=6),
                    stat("Saves failed, damaged", "保存失败与损坏", "checkpoint/failed", "checkpoint/rejected", width=6),
                    Panel(
                        title="Saving, and training held up by it", zh="保存耗时与阻塞",
                        queries=("checkpoint/save_seconds", "checkpoint/stall_seconds"), width=6, height=7,
                    ),
                ),
            ),
        ),
        Row(
            title="Monitoring",
            panels=(
                Panel(
                    title="Alarms raised", zh="当前告警", kind="table", width=8, height=8, is_now=True, colours="alarm",
                    queries=(Query(expr="max by (run, rule) (<alarm/*>) > 0", legend="level"),),
                    note="Empty: all is well. Causes and remedies: the troubleshooting page.",
                ),
                Panel(
                    title="Alerts that fire in Prometheus", zh="Prometheus 告警", kind="table", width=8, height=8,
                    is_now=True,
                    queries=(Query(expr='max by (alertname, severity, run) (ALERTS{alertstate="firing"})', legend="firing"),),
                    note="Of every alert rule of this Prometheus: those of a run that no longer answers too.",
                ),
                Panel(
                    title="Raised since the start, by rule", zh="各规则告警次数", kind="table", width=8, height=8,
                    queries=(
                        Query(expr="max by (run, rule, level) (last_over_time(<alarms/*>[$__range]))", legend="times"),
                    ),
                ),
                Panel(
                    title="Rules", zh="各规则状态", kind="states", width=12, height=12, colours="alarm",
                    queries=(Query(expr="max by (run, rule) (<alarm/*>)", legend="{{run}} {{rule}}"),),
                ),
                Panel(
                    title="How near each rule is to its alarm", zh="距告警的程度", kind="bars", width=12, height=12,
                    queries=(
                        Query(expr="max by (run, rule, level) (<guard/breach/*>)", legend="{{run}} {{rule}} {{level}}"),
                    ),
                ),
                stat("Evaluation: prompts, time", "评估", "eval/count", "time/evaluation", width=6),
                stat("Alarms after the newest step", "本步告警数", "guard/alarms", width=6),
                stat(
                    "Last drill that passed", "上次演练",
                    Query(expr="<drill/last_success> * 1000", unit="dateTimeFromNow"), width=6,
                ),
                stat("Samples not written", "未写入的样本文件", "samples/failed", width=6),
                stat("Notifications", "通知", "notify/sent", "notify/failed", "notify/waiting", width=12),
                stat("Trackers", "追踪器", "observe/failed_monitors", "observe/dropped_calls", width=12),
            ),
        ),
    ),
)  # fmt: skip

# -------------------------------------------------------------------------------------------------------- algorithm
ALGORITHM = Dashboard(
    name="algorithm",
    title="Trimtab / Algorithm",
    description="Loss terms, ratios, KL, entropy, advantages, critic, preferences. 算法内部指标",
    rows=(
        Row(
            title="L = sum of coefficient x term",
            panels=(
                *(
                    Panel(title=title, zh=zh, queries=(name,), width=6, height=7)
                    for title, zh, name in (
                        ("Policy term", "策略项", "loss/policy"), ("Value term", "价值项", "loss/value"),
                        ("Entropy term", "熵项", "loss/entropy"), ("KL term", "KL 项", "loss/kl"),
                    )
                ),
                Panel(
                    title="Other terms", zh="其他项", width=8,
                    queries=("loss/nll", "loss/preference", "loss/center", "loss/mix/*"),
                ),
                Panel(title="Coefficients", zh="系数", queries=("coefficient/*",), width=8),
                Panel(
                    title="Coefficient x term", zh="系数乘以各项", width=8,
                    queries=(
                        *(
                            Query(
                                expr=f'<loss/{term}> * ignoring (name) <coefficient/*|name="{term}">',
                                legend=f"{{{{run}}}} {term}", unit="none",
                            )
                            for term in TERMS
                        ),
                        Query(
                            expr='<loss/mix/*> * label_replace(<coefficient/*|name=~"mix/.+">, "name", "$1", "name", "mix/(.+)")',
                            legend="{{run}} mix {{name}}",
                        ),
                        Query(expr="<loss/total>", legend="{{run}} total", is_dashed=True),
                    ),
                    note="The parts add up to the total, but for rows that have no term in an update.",
                ),
            ),
        ),
        Row(
            title="Gradients and updates",
            panels=(
                Panel(
                    title="Gradient norm", zh="梯度范数", queries=("grad_norm/total", "grad_norm/critic"),
                    width=8, is_logarithmic=True,
                ),
                Panel(
                    title="Gradient norm by term", zh="各项梯度范数", width=8, is_logarithmic=True,
                    queries=tuple(f"grad_norm/{term}" for term in TERMS),
                ),
                Panel(title="Learning rate", zh="学习率", queries=("learning_rate",), width=4),
                Panel(title="Loss scale", zh="损失缩放", queries=("loss_scale",), width=4),
                Panel(
                    title="Updates by the second", zh="更新速率", width=8,
                    queries=(Query(expr="rate(<updates/count>[$__rate_interval])", legend="{{run}}", unit="suffix: /s"),),
                ),
                Panel(
                    title="Updates left out", zh="未执行的更新", width=8,
                    queries=("updates/skipped", "updates/non_finite", "updates/overflow", "updates/stopped"),
                    note="Counted since the process began.",
                ),
                Panel(title="Numbers that were not finite", zh="非有限值", queries=("non_finite/*",), width=8),
            ),
        ),
        Row(
            title="How far the policy moves",
            panels=(
                Panel(
                    title="Ratio", zh="重要性比率", width=8, is_logarithmic=True,
                    queries=("ratio/max", "ratio/mean", "ratio/min", "update/ratio_max"), limits=("update/ratio_max",),
                ),
                Panel(
                    title="Tokens that are clipped", zh="裁剪比例", width=8,
                    queries=("clip_fraction/low", "clip_fraction/high", "clip_fraction/dual"),
                    limits=("clip_fraction/low", "clip_fraction/high"),
                ),
                Panel(title="KL of a step", zh="单步 KL", queries=("kl/update",), limits=("kl/update",), width=8),
                Panel(
                    title="KL to the reference", zh="与参考模型的 KL", width=8,
                    queries=("kl/reference", "kl/controlled"), limits=("kl/reference",),
                ),
                Panel(title="Entropy", zh="熵", queries=("entropy",), limits=("entropy",), width=8),
                Panel(
                    title="Bounded weights", zh="受限的权重", width=8,
                    queries=("cispo/weight", "sapo/gate", "covariance/picked", "segment/length"),
                    note="Of CISPO, SAPO, Clip-Cov and KL-Cov, GSPO with segments.",
                ),
            ),
        ),
        Row(
            title="Advantages and critic",
            panels=(
                Panel(title="Advantages", zh="优势", queries=("advantage/mean", "advantage/std"), width=12),
                Panel(title="Explained variance", zh="解释方差", queries=("explained_variance",), width=12),
            ),
        ),
        Row(
            title="Preferences, scores, labels",
            panels=(
                Panel(
                    title="Accuracy", zh="偏好准确率", width=8,
                    queries=("preference/accuracy", "preference/probability", "reward_model/accuracy"),
                ),
                Panel(title="Margin", zh="偏好间隔", queries=("preference/margin",), width=8),
                Panel(
                    title="Implicit rewards (KTO)", zh="隐式奖励", width=8,
                    queries=("kto/desirable_reward", "kto/undesirable_reward", "kto/desirable_share", "kto/z0"),
                ),
            ),
        ),
    ),
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------- rollout
ROLLOUT = Dashboard(
    name="rollout",
    title="Trimtab / Rollout and reward",
    description="Rewards, groups, lengths, staleness, mismatch, what fails. 采样与奖励",
    rows=(
        Row(
            title="Rewards",
            panels=(
                Panel(
                    title="Reward of $run", zh="奖励均值与最小、最大值", width=24, height=8, has_band=True, is_per_run=True,
                    queries=("reward/max", "reward/min", "reward/mean"),
                ),
                Panel(title="By reward function", zh="各奖励函数", queries=("reward/*", "reward/overlong"), width=8),
                Panel(
                    title="Spread", zh="奖励离散度", queries=("reward/std", "reward_spread/*"), width=8,
                ),
                Panel(
                    title="Reward and length", zh="奖励与长度的相关性", queries=("reward/length_correlation",), width=8,
                ),
            ),
        ),
        Row(
            title="Groups",
            panels=(
                Panel(
                    title="Groups without spread", zh="无差异组占比", width=8,
                    queries=("reward/zero_spread_groups",), limits=("reward/zero_spread_groups",),
                ),
                Panel(
                    title="Distinct completions", zh="不同样本占比", width=8,
                    queries=("rollout/distinct_share",), limits=("rollout/distinct_share",),
                ),
                Panel(
                    title="Dynamic sampling: accepted", zh="动态采样接受率", queries=("sampling/accepted",), width=8,
                ),
                Panel(
                    title="Dynamic sampling: groups", zh="动态采样的组", width=12,
                    queries=("sampling/kept", "sampling/surplus"),
                ),
                Panel(
                    title="Dynamic sampling: rounds, groups too old", zh="补采轮数与过期组", width=12,
                    queries=("sampling/refills", "sampling/stale"), note="Counted since the process began.",
                ),
            ),
        ),
        Row(
            title="Completions",
            panels=(
                Panel(
                    title="Length", zh="长度", width=8,
                    queries=("length/mean", "length/p50", "length/p95", "length/max"),
                ),
                Panel(
                    title="Cut off by the length limit", zh="截断比例", width=8,
                    queries=("length/truncated",), limits=("length/truncated",),
                ),
                Panel(title="Prompts drawn", zh="已取提示数", queries=("data/prompts",), width=4),
                Panel(title="Passes over the data", zh="数据轮次", queries=("data/epoch",), width=4),
            ),
        ),
        Row(
            title="Engine against trainer",
            panels=(
                Panel(title="Age of the weights", zh="权重陈旧度", queries=("staleness",), limits=("staleness",), width=8),
                Panel(title="Mismatch of log-probs", zh="训练与推理差异", queries=("rollout/trainer_mismatch",), width=8),
                Panel(
                    title="Effective samples, masked tokens", zh="有效样本与屏蔽比例", width=8,
                    queries=("ess", "mismatch/masked"),
                ),
            ),
        ),
        Row(
            title="What fails",
            panels=(
                Panel(title="Completions without a reward", zh="未评分比例", queries=("reward/unscored",), width=8),
                Panel(
                    title="Errors of rewards", zh="奖励错误", queries=("reward/errors",), width=8,
                    note="Counted since the process began.",
                ),
                Panel(
                    title="Restarted, not written", zh="重启与未写入", queries=("role/restarts", "samples/failed"), width=8,
                    note="Counted since the process began.",
                ),
            ),
        ),
    ),
)  # fmt: skip

# -------------------------------------------------------------------------------------------------------- resources
RESOURCES = Dashboard(
    name="resources",
    title="Trimtab / Resources",
    description="Throughput, where time goes, memory, utilisation, traffic, checkpoints. 资源",
    rows=(
        Row(
            title="Time",
            panels=(
                Panel(
                    title="Tokens by the second", zh="吞吐", width=12,
                    queries=("throughput/rollout_tokens_per_second", "throughput/train_tokens_per_second"),
                    limits=("throughput/rollout_tokens_per_second", "throughput/train_tokens_per_second"),
                ),
                Panel(title="Time of a step", zh="单步时间", queries=("time/step",), width=12),
                Panel(
                    title="Parts of a step of $run", zh="单步时间构成", width=24, is_stacked=True, is_per_run=True,
                    queries=tuple(f"time/{part}" for part in TIMES),
                ),
            ),
        ),
        Row(
            title="Memory and devices",
            panels=(
                Panel(
                    title="Memory of the process, and of weights", zh="进程内存与各角色权重", width=8,
                    queries=("memory/total", "memory/policy", "memory/value", "memory/reference"),
                ),
                Panel(
                    title="Computer", zh="处理器与内存利用率", queries=("utilisation/cpu", "utilisation/memory"), width=8
                ),
                Panel(
                    title="Accelerator", zh="加速器利用率与显存", width=8,
                    queries=("utilisation/accelerator", "utilisation/accelerator_memory"),
                    limits=("utilisation/accelerator", "utilisation/accelerator_memory"),
                ),
                Panel(title="Tokens of a pass", zh="单次前向的词元数", queries=("memory/micro_batch_tokens",), width=12),
                Panel(
                    title="Passes that did not fit", zh="内存不足后减半次数", queries=("memory/halvings",), width=12,
                    note="Counted since the process began.",
                ),
            ),
        ),
        Row(
            title="Traffic and disk",
            panels=(
                Panel(
                    title="Network", zh="网络流量", width=8,
                    queries=(Query(expr="rate(<io/network_bytes>[$__rate_interval])", legend="{{run}}", unit="Bps"),),
                ),
                Panel(
                    title="Disk", zh="磁盘流量", width=8,
                    queries=(Query(expr="rate(<io/disk_bytes>[$__rate_interval])", legend="{{run}}", unit="Bps"),),
                ),
                Panel(
                    title="Disk taken", zh="磁盘占用", width=8,
                    queries=("utilisation/disk",), limits=("utilisation/disk",),
                ),
            ),
        ),
        Row(
            title="Checkpoints",
            panels=(
                Panel(
                    title="Age of the newest, on the disk and in the store", zh="最新检查点的年龄：磁盘与对象存储", width=8,
                    queries=("checkpoint/age", "checkpoint/store_age"),
                ),
                Panel(
                    title="Saving, and training held up by it", zh="保存耗时与阻塞", width=8,
                    queries=("checkpoint/save_seconds", "checkpoint/stall_seconds"),
                ),
                Panel(
                    title="Failed, damaged", zh="失败与损坏", width=8,
                    queries=("checkpoint/failed", "checkpoint/rejected", "checkpoint/store_failed"),
                ),
            ),
        ),
    ),
)  # fmt: skip

# ------------------------------------------------------------------------------------------------------- comparison
COLUMNS = {
    "step": "run/step", "reward": "reward/mean", "reward, evaluation": "eval/reward/mean",
    "accuracy, evaluation": "eval/preference/accuracy", "loss, evaluation": "eval/loss/total",
    "KL to reference": "kl/reference", "entropy": "entropy", "length": "length/mean",
    "tokens trained /s": "throughput/train_tokens_per_second", "time of a step": "time/step",
    "rollbacks": "guard/rollbacks",
}  # fmt: skip
STEPPED = (
    ("Reward by step", "按步的奖励", "reward/mean"),
    ("Evaluation's reward by step", "按步的评估奖励", "eval/reward/mean"),
    ("Loss by step", "按步的损失", "loss/total"),
    ("KL to the reference by step", "按步的参考 KL", "kl/reference"),
    ("Entropy by step", "按步的熵", "entropy"),
    ("Preference accuracy by step", "按步的偏好准确率", "preference/accuracy"),
)
COMPARISON = Dashboard(
    name="comparison",
    title="Trimtab / Comparison of runs",
    description="Several runs side by side, by their own steps; evaluations. 运行对比",
    has_bucket=True,
    rows=(
        Row(
            title="Side by side",
            panels=(
                Panel(
                    title="Runs", zh="各运行的最新指标", kind="table", width=24, height=8,
                    queries=(
                        *(Query(expr=latest(name), legend=column) for column, name in COLUMNS.items()),
                        Query(expr="max by (run, algorithm) (max_over_time(<reward/mean>[$__range]))", legend="best reward"),
                    ),
                    note="The last value in the time range, of runs that have ended too.",
                ),
            ),
        ),
        Row(
            title="By step",
            panels=tuple(
                Panel(
                    title=title, zh=zh, kind="trend", width=12, height=9,
                    queries=(Query(expr=by_step(name), legend="{{line}}"),),
                    note="The last value in each `$bucket` steps, which the variable *steps per point* sets.",
                )
                for title, zh, name in STEPPED
            ),
        ),
        Row(
            title="Evaluations",
            panels=(
                Panel(
                    title="Reward", zh="评估奖励", queries=("eval/reward/mean", "eval/reward/std", "eval/reward/*"), width=8,
                    limits=("eval/reward/mean",),
                ),
                Panel(
                    title="Length", zh="评估长度", queries=("eval/length/mean", "eval/length/truncated"), width=8,
                ),
                Panel(title="Prompts judged", zh="评估样本数", queries=("eval/count",), width=8),
                Panel(
                    title="Loss", zh="评估损失", width=8,
                    queries=("eval/loss/total", "eval/loss/nll", "eval/loss/preference", "eval/loss/center"),
                ),
                Panel(
                    title="Preference accuracy", zh="评估偏好准确率", width=8,
                    queries=("eval/preference/accuracy", "eval/preference/probability"),
                ),
                Panel(title="Preference margin", zh="评估偏好间隔", queries=("eval/preference/margin",), width=8),
                Panel(
                    title="Divergence from the reference", zh="与参考模型的 JS 散度", width=8,
                    queries=("eval/preference/js",), limits=("eval/preference/js",),
                ),
                Panel(
                    title="Reward model", zh="奖励模型", width=8,
                    queries=("eval/reward_model/auc", "eval/reward_model/accuracy"), limits=("eval/reward_model/auc",),
                ),
                Panel(
                    title="KTO", zh="KTO 评估", width=8,
                    queries=(
                        "eval/kto/desirable_reward", "eval/kto/undesirable_reward", "eval/kto/desirable_share", "eval/kto/z0",
                    ),
                ),
            ),
        ),
    ),
)  # fmt: skip

DASHBOARDS = (OVERVIEW, ALGORITHM, ROLLOUT, RESOURCES, COMPARISON)
