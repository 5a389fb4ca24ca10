"""How busy the computer is: processor, memory, disk, network, and an NVIDIA GPU if there is one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

LOOK_SECONDS = 1.0
"""The computer is looked at so often at most; steps between see the newest figures."""
LOOPBACK = ("lo", "lo0")


class Resources:
    """What a run takes of its computer, as metrics of a step.

    Ratios are of the whole computer, whoever uses it: an operator wants to know whether there is room. Bytes of the
    network are the computer's, those of the disk the process's.
    """

    def __init__(
        self,
        place: Path,
        *,
        device: str = "cpu",
        memory: Callable[[], tuple[float, float]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            place: a directory on the file system that is looked at.
            device: `cpu` or `cuda`: the present one is looked at.
            memory: (free, total) bytes that the process may use; None: the computer's.
        """
        self.place = place
        self._memory = memory or _computer
        self._clock = clock
        self._process = psutil.Process()
        self._accelerator = _Accelerator() if device.startswith("cuda") else None
        self._ratios: dict[str, float] = {}
        self._looked_at: float | None = None
        psutil.cpu_percent(None)  # it is measured from one call to the next
        self._bytes = self._counted()

    @property
    def complaint(self) -> str:
        """What of the accelerator cannot be seen, and why; empty if all can, or there is none."""
        return "" if self._accelerator is None else self._accelerator.complaint

    def figures(self) -> dict[str, float]:
        """Metrics of the step that ends now."""
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at < LOOK_SECONDS:
            return {**self._ratios, **dict.fromkeys(self._bytes, 0.0)}
        self._looked_at = now
        free, total = self._memory()
        self._ratios = {"utilisation/cpu": psutil.cpu_percent(None) / 100, "utilisation/memory": 1 - free / total}
        with suppress(OSError):  # the file system may be gone for a moment; whoever writes to it says so
            self._ratios["utilisation/disk"] = psutil.disk_usage(str(self.place)).percent / 100
        if self._accelerator is not None:
            self._ratios |= self._accelerator.figures()
        before, self._bytes = self._bytes, self._counted()
        moved = {name: max(0.0, count - before.get(name, count)) for name, count in self._bytes.items()}
        return {**self._ratios, **moved}

    def _counted(self) -> dict[str, float]:
        """Bytes since the computer and the process began; what the system does not count is absent."""
        found: dict[str, float] = {}
        cards = psutil.net_io_counters(pernic=True)
        found["io/network_bytes"] = float(
            sum(card.bytes_sent + card.bytes_recv for name, card in cards.items() if name not in LOOPBACK)
        )
        with suppress(psutil.Error, AttributeError):  # macOS counts none of a process
            counters = self._process.io_counters()
            read, written = (getattr(counters, f"{what}_chars", None) for what in ("read", "write"))
            found["io/disk_bytes"] = float(
                counters.read_bytes + counters.write_bytes if read is None else read + written
            )
        return found


def _computer() -> tuple[float, float]:
    memory = psutil.virtual_memory()
    return float(memory.available), float(memory.total)


class _Accelerator:
    """The process's present CUDA device, by NVIDIA's management library; without it, its memory by torch alone."""

    def __init__(self) -> None:
        self.complaint = ""
        self._library: Any = None
        self._handle: Any = None
        try:
            import pynvml
        except ImportError:
            self.complaint = "utilisation/accelerator is not measured; pip install 'trimtab[gpu]'"
            return
        import torch

        try:
            pynvml.nvmlInit()
            uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
            # torch numbers the devices that CUDA_VISIBLE_DEVICES leaves, the driver all
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
            self._library = pynvml
        except pynvml.NVMLError as error:
            self.complaint = f"utilisation/accelerator is not measured: {error}"

    def figures(self) -> Mapping[str, float]:
        if self._library is None:
            import torch

            free, total = torch.cuda.mem_get_info()
            return {"utilisation/accelerator_memory": 1 - free / total}
        found: dict[str, float] = {}
        with suppress(self._library.NVMLError):  # a virtual device may not say
            found["utilisation/accelerator"] = self._library.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
        with suppress(self._library.NVMLError):
            memory = self._library.nvmlDeviceGetMemoryInfo(self._handle)
            found["utilisation/accelerator_memory"] = memory.used / memory.total
        return found
