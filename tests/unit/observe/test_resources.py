"""How busy the computer is: ratios in their range, bytes that were really moved, a GPU by its driver's library."""

import sys
from types import SimpleNamespace

import psutil
import pytest

from trimtab.observe import resources as looked_at
from trimtab.observe.resources import Resources


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_ratios_are_ratios(tmp_path):
    found = Resources(tmp_path, memory=lambda: (250.0, 1000.0)).figures()
    assert found["utilisation/memory"] == 0.75
    assert set(found) >= {"utilisation/cpu", "utilisation/memory", "utilisation/disk", "io/network_bytes"}
    assert all(0 <= value <= 1 for name, value in found.items() if name.startswith("utilisation/"))


@pytest.mark.skipif(not hasattr(psutil.Process, "io_counters"), reason="this system does not count a process's bytes")
def test_bytes_are_those_that_were_moved_since_the_look_before(tmp_path):
    clock = Clock()
    of = Resources(tmp_path, clock=clock)
    of.figures()
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    clock.now = 2.0
    assert 1 << 20 <= of.figures()["io/disk_bytes"] < 1.5 * (1 << 20)


def test_the_computer_is_not_looked_at_in_every_short_step(tmp_path):
    clock, looks = Clock(), []

    def memory():
        looks.append(clock.now)
        return 1.0, 2.0

    of = Resources(tmp_path, memory=memory, clock=clock)
    seen = []
    for clock.now in (0.0, 0.4, 0.8, 1.2, 1.6, 2.4):
        seen.append(of.figures())
    assert looks == [0.0, 1.2, 2.4]
    assert [f["utilisation/memory"] for f in seen] == [0.5] * 6
    assert seen[1]["io/disk_bytes"] == seen[2]["io/disk_bytes"] == 0.0


def test_a_disk_that_cannot_be_asked_is_left_out(tmp_path):
    assert "utilisation/disk" not in Resources(tmp_path / "gone").figures()


def test_without_the_drivers_library_the_memory_is_torchs_and_the_rest_is_said(tmp_path, monkeypatch):
    import torch

    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (20.0, 80.0))
    of = Resources(tmp_path, device="cuda")
    assert of.figures()["utilisation/accelerator_memory"] == 0.75
    assert "pip install 'trimtab[gpu]'" in of.complaint
    assert "utilisation/accelerator" not in of.figures()


class Driver:
    """The functions of NVIDIA's library that are used, on one GPU."""

    class NVMLError(Exception):
        pass

    def __init__(self):
        self.asked = None
        self.is_virtual = False

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid):
        self.asked = uuid
        return "handle"

    def nvmlDeviceGetUtilizationRates(self, handle):
        if self.is_virtual:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=87, memory=3)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=80, free=8, used=72)


def test_the_gpu_is_the_one_that_torch_uses(tmp_path, monkeypatch):
    import torch

    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda n: SimpleNamespace(uuid=f"1234-{n}"))
    of = Resources(tmp_path, device="cuda")
    assert (driver.asked, of.complaint) == ("GPU-1234-1", "")
    found = of.figures()
    assert (found["utilisation/accelerator"], found["utilisation/accelerator_memory"]) == (0.87, 0.9)
    driver.is_virtual = True
    monkeypatch.setattr(looked_at, "LOOK_SECONDS", 0.0)
    assert of.figures()["utilisation/accelerator_memory"] == 0.9
