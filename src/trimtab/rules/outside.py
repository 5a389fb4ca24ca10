"""What only somebody who looks from outside can judge: a run that is gone, stands still, or has ended.

The guard judges what a step reports; of these there is no step. Alert rules are made from this table and from the
guard's. `{value}` is what the condition gives, which stands in `observe/alerts.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trimtab.rules.texts import Cause, Text

DAY = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """An alarm from outside."""

    name: str
    level: Literal["warn", "act"]
    limit: float
    """In the unit of what is judged."""
    figures: tuple[str, ...]
    """Of the catalogue; `up` is Prometheus' own."""
    for_seconds: int = 0
    """So long without a break."""
    title: Text
    seen: Text
    causes: tuple[Cause, ...]


CRASHED = Cause(
    text=Text("its process has died, or its machine has", "训练进程或机器已停止"),
    remedy=Text(
        "look at failure.json in the run's directory and start the same command again: it goes on from the newest "
        "checkpoint; `trimtab train --supervise` does so by itself",
        "查看运行目录中的 failure.json，并再次执行同一命令：会从最新检查点继续；`trimtab train --supervise` 会自动完成",
    ),
)
UNREAD = Cause(
    text=Text("Prometheus does not reach it", "Prometheus 无法访问它"),
    remedy=Text(
        "compare observe.prometheus_address and observe.prometheus_port with the target, and observe.prometheus_token "
        "with the scrape's credentials",
        "核对 observe.prometheus_address、observe.prometheus_port 与抓取目标，以及 observe.prometheus_token 与抓取凭据",
    ),
)
FULL_DISK = Cause(
    text=Text("the disk is full, slow or gone", "磁盘已满、过慢或不可用"),
    remedy=Text(
        "make room or mend it; lower checkpoint.keep, remove old runs",
        "清理或修复磁盘；调低 checkpoint.keep，清理旧的运行",
    ),
)

RUN_DOWN = Outside(
    name="run_down",
    level="act",
    limit=0,
    figures=("up", "run/state/*"),
    title=Text("A run is down", "训练进程失联"),
    seen=Text(
        "the run was at work when it was last seen, and does not answer any more",
        "最后一次看到时仍在运行，现在没有响应",
    ),
    causes=(
        CRASHED,
        Cause(
            text=Text("it has ended since the last scrape", "它在上次抓取之后正常结束"),
            remedy=Text(
                "`trimtab status` says so; take the target out of the scrape configuration",
                "`trimtab status` 会显示；从抓取配置中删除该目标",
            ),
        ),
        UNREAD,
    ),
)

UNREACHABLE = Outside(
    name="unreachable",
    level="warn",
    limit=7 * DAY,
    figures=("up", "run/state/*"),
    for_seconds=60,
    title=Text("A target has never answered", "抓取目标从未响应"),
    seen=Text(
        "a target of the job `trimtab` does not answer, and has not for seven days if it ever has: nobody watches its run",
        "任务 `trimtab` 的一个目标没有响应（七天内从未响应），其运行无人监控",
    ),
    causes=(
        Cause(
            text=Text("no run is there", "那里没有运行"),
            remedy=Text("take the target out of the scrape configuration", "从抓取配置中删除该目标"),
        ),
        UNREAD,
    ),
)

STALLED = Outside(
    name="stalled",
    level="act",
    limit=600,
    figures=("run/last_step", "time/step"),
    title=Text("A run stands still", "训练停滞"),
    seen=Text(
        "the last step ended {value:.0f} s ago: more than ten minutes and more than ten usual steps (before the first "
        "step: more than an hour)",
        "上一步结束于 {value:.0f} 秒前：超过十分钟且超过常见步时的十倍（第一步之前：超过一小时）",
    ),
    causes=(
        Cause(
            text=Text("a role waits for something that does not come", "某个角色在等待不会到来的结果"),
            remedy=Text(
                "look at the heartbeat of each role in `trimtab status`, and at the reward's service if it waits for one",
                "在 `trimtab status` 中查看各角色的心跳；若在等待奖励服务，检查该服务",
            ),
        ),
        Cause(
            text=Text("ranks wait for one that is gone", "其他进程在等待一个已丢失的进程"),
            remedy=Text(
                "stop it and start the same command again: it goes on from the newest checkpoint",
                "停止后再次执行同一命令：会从最新检查点继续",
            ),
        ),
        Cause(
            text=Text("in textfile mode: the process has died", "在 textfile 模式下：进程已停止"),
            remedy=CRASHED.remedy,
        ),
    ),
)

ROLE_DOWN = Outside(
    name="role_down",
    level="act",
    limit=0,
    figures=("role/up/*",),
    title=Text("A role is down", "某个角色已停止"),
    seen=Text("the role {role} is down", "角色 {role} 已停止"),
    causes=(
        Cause(
            text=Text("its process has died", "其进程已停止"),
            remedy=Text(
                "it is started again if it can be; otherwise look at failure.json and start the same command again",
                "能重启时会自动重启；否则查看 failure.json 并再次执行同一命令",
            ),
        ),
    ),
)

SAVES_FAIL = Outside(
    name="saves_fail",
    level="warn",
    limit=0,
    figures=("checkpoint/failed",),
    title=Text("Checkpoints cannot be saved", "检查点保存失败"),
    seen=Text(
        "{value:.0f} saves in a row have failed; more than checkpoint.max_failed_saves end the run with exit code 4",
        "连续 {value:.0f} 次保存失败；超过 checkpoint.max_failed_saves 后运行以退出码 4 结束",
    ),
    causes=(
        FULL_DISK,
        Cause(
            text=Text("the directory may not be written to any more", "目录不再可写"),
            remedy=Text("look at its owner and rights, and at the quota", "检查其属主、权限与配额"),
        ),
    ),
)

CHECKPOINT_OLD = Outside(
    name="checkpoint_old",
    level="warn",
    limit=3600,
    figures=("checkpoint/age", "run/max_steps", "time/step"),
    title=Text("The newest checkpoint is old", "最新检查点过旧"),
    seen=Text(
        "the newest checkpoint is {value:.0f} s old: a crash now would lose more than an hour and more than 6 % of the run",
        "最新检查点已有 {value:.0f} 秒：此时崩溃将损失超过一小时且超过全程 6% 的训练",
    ),
    causes=(
        Cause(
            text=Text("checkpoints are far apart", "检查点间隔过大"),
            remedy=Text("lower checkpoint.rolling_every", "调低 checkpoint.rolling_every"),
        ),
        FULL_DISK,
    ),
)

CHECKPOINT_REJECTED = Outside(
    name="checkpoint_rejected",
    level="warn",
    limit=3600,
    figures=("checkpoint/rejected",),
    title=Text("A checkpoint is damaged", "检查点损坏"),
    seen=Text(
        "{value:.0f} damaged checkpoints were passed over within an hour; the run went on from an older one",
        "一小时内跳过了 {value:.0f} 个损坏的检查点，训练从更早的检查点继续",
    ),
    causes=(
        Cause(
            text=Text("a disk or a file system loses what was written", "磁盘或文件系统丢失了已写入的数据"),
            remedy=Text(
                "run `trimtab verify` on the run and look at the machine's log; keep runs on another disk",
                "对该运行执行 `trimtab verify`，检查机器日志；改用其他磁盘",
            ),
        ),
        Cause(
            text=Text("somebody has changed its files", "有人修改了文件"),
            remedy=Text("leave checkpoints as they are", "不要修改检查点"),
        ),
    ),
)

DRILL_OLD = Outside(
    name="drill_old",
    level="warn",
    limit=7 * DAY,
    figures=("drill/last_success", "run/started"),
    title=Text("No drill has passed for a week", "一周内没有通过的恢复演练"),
    seen=Text(
        "no drill has passed for {value:.0f} s, more than seven days: nobody knows whether this run could be restored",
        "已有 {value:.0f} 秒（超过七天）没有通过恢复演练：无法确定该运行能否恢复",
    ),
    causes=(
        Cause(
            text=Text("drills are not made", "没有进行演练"),
            remedy=Text(
                "`trimtab drill` on the run, or `trimtab drill --schedule`, which says how to have it made every week",
                "对该运行执行 `trimtab drill`，或用 `trimtab drill --schedule` 安排每周演练",
            ),
        ),
        Cause(
            text=Text("the last one has failed", "最近一次演练失败"),
            remedy=Text("drill.json in the run's directory says why", "运行目录中的 drill.json 说明了原因"),
        ),
    ),
)

RUN_ENDED = Outside(
    name="run_ended",
    level="act",
    limit=0,
    figures=("run/state/*",),
    title=Text("A run has ended before its time", "训练提前终止"),
    seen=Text("the run has ended: {state}", "运行已结束：{state}"),
    causes=(
        Cause(
            text=Text("failure.json in the run's directory names it", "运行目录中的 failure.json 写明了原因"),
            remedy=Text(
                "do what it says; exit codes 5, 6 and 75 may be started again as they are",
                "按其中的说明处理；退出码 5、6、75 可直接再次启动",
            ),
        ),
    ),
)

ROLLED_BACK = Outside(
    name="rolled_back",
    level="warn",
    limit=600,
    figures=("guard/rollbacks",),
    title=Text("The guard has gone back to a checkpoint", "守护已回退到检查点"),
    seen=Text(
        "{value:.0f} times within ten minutes the guard has taken the run back to an earlier checkpoint",
        "十分钟内守护 {value:.0f} 次将运行回退到更早的检查点",
    ),
    causes=(
        Cause(
            text=Text("an alarm that acts, which `trimtab status` names", "某个会动作的告警，`trimtab status` 会列出"),
            remedy=Text(
                "if it happens again, do what the alarm says; after guard.max_rollbacks the run ends with exit code 3",
                "若再次发生，按告警说明处理；超过 guard.max_rollbacks 后运行以退出码 3 结束",
            ),
        ),
    ),
)

HOOK = Cause(
    text=Text("the receiver is down, refuses, or its address has changed", "接收方不可用、拒绝接收，或地址已变更"),
    remedy=Text(
        "look at the lines about notifications in the run's output; set observe.webhook anew",
        "查看运行输出中有关通知的行；重新设置 observe.webhook",
    ),
)

NOTIFICATIONS_LOST = Outside(
    name="notifications_lost",
    level="warn",
    limit=3600,
    figures=("notify/failed",),
    title=Text("Notifications are lost", "通知丢失"),
    seen=Text(
        "{value:.0f} notifications were given up within an hour: refused, or too old among too many",
        "一小时内放弃了 {value:.0f} 条通知：被拒绝，或积压过多而丢弃最旧的",
    ),
    causes=(HOOK,),
)

NOTIFICATIONS_WAIT = Outside(
    name="notifications_wait",
    level="warn",
    limit=0,
    figures=("notify/waiting",),
    for_seconds=900,
    title=Text("Notifications are not sent", "通知未能发出"),
    seen=Text(
        "{value:.0f} notifications wait in the run's outbox, for a quarter of an hour",
        "{value:.0f} 条通知在运行的 outbox 中等待，已持续一刻钟",
    ),
    causes=(HOOK,),
)

MONITOR_OFF = Outside(
    name="monitor_off",
    level="warn",
    limit=0,
    figures=("observe/failed_monitors",),
    title=Text("A monitor is switched off", "监控组件被关闭"),
    seen=Text(
        "{value:.0f} trackers or other monitors have failed and are told nothing more; training goes on",
        "{value:.0f} 个跟踪器或其他监控组件出错并已关闭；训练继续",
    ),
    causes=(
        Cause(
            text=Text("what it said stands in the run's output", "出错信息在运行的输出中"),
            remedy=Text(
                "mend it; it is started again with the run's process", "修复后，它会随运行进程的下次启动而启动"
            ),
        ),
    ),
)

OUTSIDE = (
    RUN_DOWN,
    UNREACHABLE,
    RUN_ENDED,
    STALLED,
    ROLE_DOWN,
    ROLLED_BACK,
    SAVES_FAIL,
    CHECKPOINT_OLD,
    CHECKPOINT_REJECTED,
    DRILL_OLD,
    NOTIFICATIONS_LOST,
    NOTIFICATIONS_WAIT,
    MONITOR_OFF,
)
