"""Alarms about the machine and the processes that a run lies on."""

from __future__ import annotations

from trimtab.rules.texts import Cause, Rule, Text

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
