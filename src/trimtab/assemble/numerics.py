"""What is chosen for a machine: from config, model and machine description alone, never from load."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.config import RunConfig
from trimtab.store.run_directory import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """What was chosen. A continued run takes it from run.json, so that its numbers stay the same."""

    threads: int
    """Of torch's mathematics."""
    threads_by: str = ""
    """What they follow from: cores of this process, the container's share, OMP_NUM_THREADS."""
    micro_batch_tokens: int
    rollout_rows: int
    """Completions decoded together, at most."""
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """What of the machine this process may use."""

    usable: int
    """By affinity."""
    quota: float | None
    """Cores' worth of time that the container may take, None without a limit."""

    @property
    def whole(self) -> int:
        """Cores that can be busy all the time, 1 at least."""
        return self.usable if self.quota is None else max(1, min(self.usable, int(self.quota)))

    def __str__(self) -> str:
        quota = "no limit of the container" if self.quota is None else f"the container's share is {self.quota:g}"
        return f"{self.usable} core{'s' * (self.usable != 1)}, {quota}"


def cores_here() -> Cores:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Cores(usable=usable, quota=cpu_quota())


def available_cores() -> int:
    """Cores that this process may keep busy: by its affinity and by the container's limit."""
    return cores_here().whole


def cpu_quota(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> float | None:
    """Cores' worth of time that the control groups of this process allow, of version 2 or 1; None without a limit.

    A limit counts for all groups below it, so the smallest on the way up is the one that holds. Inside a container the
    path that the kernel names may not exist below the mount; then the mount itself is the group.
    """
    found = [quota for folder in _groups(root, membership) if (quota := _quota_of(folder)) is not None]
    return min(found, default=None)


def _groups(root: Path, membership: Path) -> Iterator[Path]:
    """The folders of this process's groups and of those above them."""
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines() if line.count(":") >= 2]
    except OSError:
        lines = []
    mounts = [(root, "/"), (root / "cpu", "/"), (root / "cpu,cpuacct", "/")]
    for _, controllers, path in lines:
        if not controllers:
            mounts.append((root, path))
        elif "cpu" in controllers.split(","):
            mounts += [(root / "cpu", path), (root / controllers, path)]
    for mount, path in mounts:
        folder = mount / path.lstrip("/")
        yield from (f for f in (folder, *folder.parents) if f == mount or mount in f.parents)


def _quota_of(folder: Path) -> float | None:
    """Of one group; version 2 writes `max` and version 1 writes -1 where there is no limit."""
    try:
        if (folder / "cpu.max").is_file():
            share, period = (folder / "cpu.max").read_text().split()
        else:
            share = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        quota = int(share) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
    return quota if quota > 0 else None


def choose_threads(cores: Cores, asked: str) -> tuple[int, str]:
    """Threads of mathematics, and why: half the cores, since two of them often are one, within the container's share.

    >>> choose_threads(Cores(usable=16, quota=None), "")
    (8, '16 cores, no limit of the container')
    >>> choose_threads(Cores(usable=16, quota=2.5), "")
    (2, "16 cores, the container's share is 2.5")
    >>> choose_threads(Cores(usable=16, quota=None), "3")
    (3, 'OMP_NUM_THREADS; 16 cores, no limit of the container')
    """
    if asked.isdigit() and int(asked):
        return int(asked), f"OMP_NUM_THREADS; {cores}"
    return max(1, min(cores.usable // 2, cores.whole)), str(cores)


def choose_numerics(config: RunConfig, model_config: Any, *, before: Mapping[str, Any] | None = None) -> Numerics:
    """Threads, device and sizes of work.

    Args:
        config: checked.
        model_config: of transformers.
        before: what the run began with, or has found to fit; taken as it is, but for a device that is not here, and
            for smaller micro-batches that are asked for now.
    """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if before:
        kept = before["device"] if before["device"] == "cpu" or device == "cuda" else device
        known = {name: before[name] for name in Numerics.__slots__ if name in before}
        tokens = min(before["micro_batch_tokens"], config.train.micro_batch_tokens or before["micro_batch_tokens"])
        return Numerics(**{**known, "device": kept, "micro_batch_tokens": tokens})
    threads, threads_by = choose_threads(cores_here(), os.environ.get("OMP_NUM_THREADS", ""))
    text = model_config.get_text_config()
    return Numerics(
        threads=threads,
        threads_by=threads_by,
        micro_batch_tokens=config.train.micro_batch_tokens or min(16384, max(2048, (1 << 28) // int(text.vocab_size))),
        rollout_rows=_rollout_rows(config, text),
        device=device,
    )


def _rollout_rows(config: RunConfig, text: Any) -> int:
    """As many completions as a quarter of the memory holds the cache of at full length; 1024 at most."""
    import psutil
    import torch

    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    length = min(
        config.sampling.max_length, getattr(text, "max_position_embeddings", None) or config.sampling.max_length
    )
    bytes_a_row = 2 * 4 * text.num_hidden_layers * heads * width * length
    on_gpu = torch.cuda.is_available()
    memory = torch.cuda.get_device_properties(0).total_memory if on_gpu else psutil.virtual_memory().total
    return int(max(1, min(1024, memory // 4 // bytes_a_row)))


def remember_passes(directory: RunDirectory, notice: Callable[[str], None], *, is_first: bool) -> Callable[[int], None]:
    """What to call with the tokens of a pass once fewer are needed for it to fit: a resumed run begins with them.

    Args:
        directory: whose run.json says them.
        notice: is told.
        is_first: whether this rank writes.
    """

    def told(tokens: int) -> None:
        before = directory.facts().get("numerics")
        if not is_first or before is None:
            return
        directory.describe(numerics={**before, "micro_batch_tokens": tokens})
        notice(
            f"a pass over the models did not fit into memory: micro-batches of {before['micro_batch_tokens']:,} tokens "
            f"became {tokens:,}; the result is the same, and a resumed run begins with them"
        )

    return told


def what_differs(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What of two runs' facts ends the promise that their numbers are the same to the last bit."""
    pairs = {
        "device": (before.get("numerics", {}).get("device"), after["numerics"]["device"]),
        "micro-batch tokens": (
            before.get("numerics", {}).get("micro_batch_tokens"),
            after["numerics"]["micro_batch_tokens"],
        ),
        "processes": (before.get("ranks"), after["ranks"]),
        "torch": (before.get("versions", {}).get("torch"), after["versions"]["torch"]),
        "transformers": (before.get("versions", {}).get("transformers"), after["versions"]["transformers"]),
    }
    return [f"{name} {old} -> {new}" for name, (old, new) in pairs.items() if old is not None and old != new]
