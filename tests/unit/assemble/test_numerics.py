"""How many threads: from affinity and from the control groups of both versions, and the same in a continued run."""

import pytest

from trimtab import config as configs
from trimtab.assemble import numerics
from trimtab.assemble.numerics import Cores, choose_numerics, choose_threads, cpu_quota
from trimtab.models import builtin, memory


def groups(folder, membership, files):
    """A fake /sys/fs/cgroup and /proc/self/cgroup."""
    for name, text in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "self").write_text(membership)
    return cpu_quota(folder / "cgroup", folder / "self")


V1 = "9:name=systemd:/\n2:cpuacct:/\n1:cpu:/job/7\n"


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"cpu.max": "max 100000", "a/cpu.max": "200000 100000", "a/b/cpu.max": "400000 100000"}, 2.0),
        ("0::/not/mounted/here\n", {"cpu.max": "300000 100000"}, 3.0),
        (V1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        (V1, {"cpu/job/7/cpu.cfs_quota_us": "250000\n", "cpu/job/7/cpu.cfs_period_us": "100000\n"}, 2.5),
        (V1, {"cpu/job/cpu.cfs_quota_us": "50000", "cpu/job/cpu.cfs_period_us": "100000"}, 0.5),
        ("4:cpu,cpuacct:/\n", {"cpu,cpuacct/cpu.cfs_quota_us": "7", "cpu,cpuacct/cpu.cfs_period_us": "7"}, 1.0),
        ("0::/\n", {"cpu.max": "nonsense"}, None),
        ("", {}, None),
    ],
)
def test_the_smallest_limit_on_the_way_up_holds(tmp_path, membership, files, expected):
    assert groups(tmp_path, membership, files) == expected


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert cpu_quota(tmp_path / "none", tmp_path / "neither") is None


@pytest.mark.parametrize(
    ("usable", "quota", "asked", "expected"),
    [
        (1, None, "", 1),
        (2, None, "", 1),
        (16, None, "", 8),
        (16, 4.0, "", 4),
        (16, 100.0, "", 8),
        (16, 0.5, "", 1),
        (16, 4.0, "12", 12),
        (16, None, "0", 8),
        (16, None, "4,2", 8),
    ],
)
def test_threads_are_half_the_cores_within_the_share_unless_they_are_given(usable, quota, asked, expected):
    threads, why = choose_threads(Cores(usable=usable, quota=quota), asked)
    assert threads == expected
    assert ("OMP_NUM_THREADS" in why) == (asked == "12")


def chosen(monkeypatch, before=None, settings=(), **cores):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(numerics, "cores_here", lambda: Cores(**cores))
    config = configs.from_mapping({"algorithm": "grpo", "rewards": ["exact_match"], **dict(settings)})
    return choose_numerics(config, memory.configuration(builtin.NAME), before=before)


def test_what_was_chosen_and_why_is_recorded_and_a_continued_run_takes_it_from_there(monkeypatch):
    first = chosen(monkeypatch, usable=16, quota=3.0)
    assert (first.threads, first.threads_by) == (3, "16 cores, the container's share is 3")
    values = {name: getattr(first, name) for name in numerics.Numerics.__slots__}
    assert chosen(monkeypatch, before=values, usable=64, quota=None) == first
    older = {name: value for name, value in values.items() if name != "threads_by"}
    assert chosen(monkeypatch, before=older, usable=64, quota=None).threads == 3


@pytest.mark.parametrize(("asked", "found", "expected"), [(None, 128, 128), (4096, 128, 128), (64, 128, 64)])
def test_a_continued_run_begins_with_what_fitted_or_with_less_if_that_is_asked_for(monkeypatch, asked, found, expected):
    first = chosen(monkeypatch, usable=1, quota=None)
    values = {name: getattr(first, name) for name in numerics.Numerics.__slots__} | {"micro_batch_tokens": found}
    train = {} if asked is None else {"train": {"micro_batch_tokens": asked}}
    assert chosen(monkeypatch, before=values, settings=train, usable=1, quota=None).micro_batch_tokens == expected


def test_workers_for_rewards_keep_to_the_containers_share_too(monkeypatch):
    monkeypatch.setattr(numerics.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(numerics, "cpu_quota", lambda: 2.9)
    assert numerics.available_cores() == 2
    assert str(numerics.cores_here()) == "8 cores, the container's share is 2.9"
