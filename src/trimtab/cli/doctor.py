"""`trimtab doctor`: whether this machine and what is installed on it are fit to train."""

from __future__ import annotations

import importlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

OLDEST = (3, 11)
LITTLE_MEMORY = 2 * 2**30
LITTLE_DISK = 2 * 2**30
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    status: str
    """`ok`, `warn` or `FAIL`."""
    name: str
    value: str
    remedy: str = ""


def doctor(as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """Versions, devices, threads, memory, extras and known conflicts, each with its remedy.

    Ends with 1 if something makes training impossible.
    """
    rows = []
    for row in examine():
        rows.append(row)
        if not as_json:
            _show(row)
    failed = sum(row.status == "FAIL" for row in rows)
    warned = sum(row.status == "warn" for row in rows)
    if as_json:
        typer.echo(json.dumps({"ok": not failed, "rows": [asdict(row) for row in rows]}, indent=1))
    else:
        typer.echo(f"\n{len(rows) - failed - warned} ok, {warned} warn, {failed} FAIL")
    raise typer.Exit(1 if failed else 0)


def _show(row: Row) -> None:
    typer.echo(f"{row.status:<5} {row.name:<18} {row.value}".rstrip())
    if row.remedy:
        typer.echo(f"{'':<24} -> {row.remedy}")


def examine() -> Iterator[Row]:
    """Every row, the quick ones first."""
    yield python(sys.version_info[:3])
    yield Row(status="ok", name="platform", value=f"{platform.platform()}, {platform.machine()}")
    yield from _libraries()
    yield from _torch()
    yield from _conflicts()
    yield from _threads()
    yield memory()
    yield _disk()
    yield from _environment()


def python(version: tuple[int, ...]) -> Row:
    shown = ".".join(map(str, version))
    if version < OLDEST:
        return Row(status="FAIL", name="python", value=shown, remedy="install Python 3.11 or newer, and Trimtab there")
    return Row(status="ok", name="python", value=f"{shown} at {sys.executable}")


# ----------------------------------------------------------------------------------------------------------- libraries
def _libraries() -> Iterator[Row]:
    from trimtab.operate import versions

    found = versions.libraries()
    for library in found:
        if not library.extra:
            yield judged(library)
    for extra in versions.extras():
        parts = [library for library in found if library.extra == extra]
        missing = [library.name for library in parts if not library.is_fitting]
        if missing:
            pip = f"pip install 'trimtab[{extra}]'"
            names = ", ".join(missing)
            yield Row(status="ok", name=f"extra {extra}", value=f"not installed ({names}); if you want it: {pip}")
        else:
            yield Row(status="ok", name=f"extra {extra}", value="installed")


def judged(library: Any) -> Row:
    """A library that is always needed."""
    wanted = library.wanted or "any version"
    pip = f"pip install '{library.name}{library.wanted}'"
    if library.installed is None:
        return Row(status="FAIL", name=library.name, value=f"not installed, needed is {wanted}", remedy=pip)
    if not library.is_fitting:
        value = f"{library.installed}, needed is {wanted}"
        return Row(status="FAIL", name=library.name, value=value, remedy=pip)
    return Row(status="ok", name=library.name, value=f"{library.installed} ({wanted})")


def _torch() -> Iterator[Row]:
    """Whether it can be loaded, how it was built, and the devices that it sees."""
    try:
        import torch
    except Exception as error:  # a broken build raises OSError, ImportError and others
        remedy = "install it anew: pip install --force-reinstall torch"
        yield Row(status="FAIL", name="torch", value=f"does not load: {_reason(error)}", remedy=remedy)
        return
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    yield Row(status="ok", name="torch build", value=f"{torch.__version__}, {built}")
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(number)
            yield Row(status="ok", name=f"device {number}", value=f"{found.name}, {found.total_memory / 2**30:.1f} GiB")
    elif torch.version.cuda and Path("/proc/driver/nvidia").exists():
        remedy = "the driver is too old for this torch, or CUDA_VISIBLE_DEVICES hides the device"
        yield Row(status="warn", name="device", value="torch is built for CUDA but sees none", remedy=remedy)
    else:
        yield Row(status="ok", name="device", value="the CPU")


def _conflicts() -> Iterator[Row]:
    from trimtab.operate.versions import version

    if version("torchao") is not None:
        yield Row(
            status="warn",
            name="torchao",
            value=f"{version('torchao')}: makes importing transformers slow and noisy; Trimtab does not use it",
            remedy="pip uninstall torchao",
        )
    if version("torchvision") is not None and (reason := _import_fault("torchvision")):
        yield Row(
            status="warn",
            name="torchvision",
            value=f"{version('torchvision')} does not load with this torch ({reason}), which can break transformers",
            remedy="pip uninstall torchvision, or install the one that belongs to this torch",
        )
    if reason := _import_fault("transformers"):
        remedy = "install it anew: pip install --force-reinstall transformers"
        yield Row(status="FAIL", name="transformers", value=f"does not load: {reason}", remedy=remedy)


def _import_fault(name: str) -> str | None:
    try:
        importlib.import_module(name)
    except Exception as error:  # broken builds raise OSError, RuntimeError and others
        return _reason(error)
    return None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


# ------------------------------------------------------------------------------------------------------------- machine
def _threads() -> Iterator[Row]:
    from trimtab.assemble.numerics import available_cores

    cores, quota = available_cores(), cpu_quota(Path("/sys/fs/cgroup/cpu.max"))
    shown = f"{cores} of {os.cpu_count()}" + (f", a container's share of {quota:g}" if quota is not None else "")
    yield Row(status="ok", name="cores", value=shown)
    chosen = _chosen_threads()
    if chosen is not None:
        yield threads(chosen, cores, quota, os.environ.get("OMP_NUM_THREADS", ""))


def threads(chosen: int, cores: int, quota: float | None, asked: str) -> Row:
    """What Trimtab would compute with, and whether that is more than there is."""
    value = f"{chosen} would be used" + (f" (OMP_NUM_THREADS={asked})" if asked else "")
    room = min(cores, quota) if quota is not None else cores
    if chosen > max(room, 1):
        whence = "OMP_NUM_THREADS" if asked else "the choice"
        value += f", but there {'is' if room == 1 else 'are'} {room:g}: {whence} makes threads wait for each other"
        return Row(status="warn", name="threads", value=value, remedy=f"export OMP_NUM_THREADS={max(1, int(room))}")
    return Row(status="ok", name="threads", value=value)


def _chosen_threads() -> int | None:
    from trimtab import config as configs
    from trimtab.assemble.numerics import choose_numerics
    from trimtab.models import builtin, memory

    if _import_fault("torch") or _import_fault("transformers"):
        return None  # which has a row of its own
    return choose_numerics(configs.from_mapping({"algorithm": "sft"}), memory.configuration(builtin.NAME)).threads


def cpu_quota(file: Path) -> float | None:
    """Cores' worth of time that the container may use, or None if there is no limit."""
    try:
        share, period = file.read_text().split()
        return int(share) / int(period)
    except (OSError, ValueError):  # no such file, or `max`
        return None


def memory() -> Row:
    from trimtab.models.memory import available_bytes

    free, total = available_bytes("cpu")
    value = f"{free / 2**30:.1f} GiB free of {total / 2**30:.1f} GiB"
    if free < LITTLE_MEMORY:
        remedy = "end other programs; `trimtab check CONFIG` says what a run needs"
        return Row(status="warn", name="memory", value=value, remedy=remedy)
    return Row(status="ok", name="memory", value=value)


def _disk() -> Row:
    free = shutil.disk_usage(Path.cwd()).free
    value = f"{free / 2**30:.1f} GiB free here"
    if free < LITTLE_DISK:
        remedy = "make room, or give another --run-dir; `trimtab check CONFIG` says what a run needs"
        return Row(status="warn", name="disk", value=value, remedy=remedy)
    return Row(status="ok", name="disk", value=value)


def _environment() -> Iterator[Row]:
    offline = [name for name in OFFLINE if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")]
    value = f"offline ({', '.join(offline)})" if offline else "models may be fetched (no offline switch is set)"
    yield Row(status="ok", name="hugging face", value=value)
    there = ", ".join(name for name in SECRETS if os.environ.get(name)) or "none"
    yield Row(status="ok", name="secrets set", value=f"{there} of {', '.join(SECRETS)}; values are never shown")
