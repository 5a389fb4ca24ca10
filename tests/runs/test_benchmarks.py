"""The programs of `benchmarks/`, at sizes that take seconds."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SMALL: dict[str, Any] = {"steps": 1, "prompts": 2, "group": 2, "prompt_tokens": 6, "new_tokens": 8, "micro_rows": 4}
EVERYWHERE = {"workload", "model", "dtype", "seed", "threads", "mu", "stop", "params", "phase"}
TIMED = {"seconds", "cpu_seconds", "tokens_per_s", "tokens_per_cpu_s", "peak_rss_mb", "rss_before_mb"}
PHASES = ["setup", "first_step", "step", "rollout", "reward", "logps", "forward", "backward", "optimizer", "other"]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The folder's modules, importable as they are for a program of it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib
    for name in ("workloads", "ppo_transformers", "work", "phases", "compare", "learning", "saving"):
        sys.modules.pop(name, None)


def test_a_load_on_the_real_loop_gives_a_line_for_each_phase_and_its_log_probs_are_those_of_a_padded_pass(programs):
    work, workloads = programs.import_module("work"), programs.import_module("workloads")

    lines = workloads.measure(work.Work(**SMALL, beta=0.1))
    json.dumps(lines)

    *timed, check = lines
    assert [line["phase"] for line in timed if line["phase"] != "probe"] == PHASES
    assert all(line.keys() >= EVERYWHERE | TIMED for line in timed)
    by_phase = {line["phase"]: line for line in timed}
    assert by_phase["step"]["rows_per_step"] == 4
    assert by_phase["step"]["tokens_per_cpu_s"] > 0
    assert by_phase["step"]["padding_share"] >= 0
    shares = [line["cpu_share"] for line in timed if "cpu_share" in line]
    assert 0 < sum(shares) <= 1.001
    assert check["is_right"]
    assert check["max_difference"].keys() == {"rollout", "logps", "forward"}
    assert 0 < check["tokens"] <= 4 * SMALL["new_tokens"]


def test_log_probs_of_another_distribution_are_found_out(programs):
    work, workloads = programs.import_module("work"), programs.import_module("workloads")
    real = workloads.config_of
    workloads.config_of = lambda work: {**real(work), "sampling": {**real(work)["sampling"], "temperature": 2.0}}

    check = workloads.measure(work.Work(**SMALL))[-1]

    assert not check["is_right"]
    assert all(gap > 1e-3 for gap in check["mean_difference"].values())


def test_ppo_with_transformers_alone_is_timed_on_the_same_rows(programs):
    work, loop = programs.import_module("work"), programs.import_module("ppo_transformers")
    small = {**SMALL, "steps": 2}

    lines = loop.measure(work.Work(workload="ppo", **small, mu=2))

    by_phase = {line["phase"]: line for line in lines}
    assert list(by_phase) == PHASES
    assert by_phase["step"]["steps"] == 4
    assert by_phase["step"]["rows_per_step"] == 4
    assert by_phase["step"]["real_tokens_per_step"] >= 4 * (SMALL["prompt_tokens"] + 1)


def test_a_phase_inside_another_is_charged_to_itself_alone_and_figures_are_for_one_update(programs, monkeypatch):
    phases = programs.import_module("phases")
    clock = iter(range(100))
    monkeypatch.setattr(phases, "now", lambda: phases.Seconds(wall=(tick := float(next(clock))), cpu=2 * tick))
    timer = phases.Phases()
    for _ in range(2):
        timer.begin()  # 0
        with timer.phase("forward"), timer.phase("reward"):  # 1 to 2, 3 to 4; 2 to 3
            pass
        timer.count("tokens", 12)
        timer.end()  # 5

    lines = {line["phase"]: line for line in timer.lines({}, updates=2)}

    assert [lines[name]["seconds"] for name in ("step", "forward", "reward", "other")] == [2.5, 1.0, 0.5, 1.0]
    assert [lines[name]["cpu_share"] for name in ("forward", "reward")] == [0.4, 0.2]
    assert lines["step"]["tokens_per_cpu_s"] == 12 / 5


@pytest.mark.parametrize(
    ("workload", "measured", "precomputes"),
    [("dpo", {"logps", "forward"}, False), ("dpo", {"logps", "forward"}, True), ("rm", {"forward"}, False)],
)
def test_a_load_of_pairs_is_that_of_the_definition_and_its_figures_those_of_a_padded_pass(
    programs, workload, measured, precomputes
):
    work, workloads = programs.import_module("work"), programs.import_module("workloads")
    small = work.Work(
        workload=workload, steps=1, pairs=3, shortest=10, longest=30, micro_rows=4, precompute_ref=precomputes
    )
    rows = work.pairs(small)
    sizes = [len(row["prompt"].split()) + len(row[side].split()) for row in rows for side in ("chosen", "rejected")]
    assert len(rows) == 2 * 3
    assert all(10 <= size <= 30 for size in sizes)

    *timed, check = workloads.measure(small)

    by_phase = {line["phase"]: line for line in timed}
    assert by_phase.keys() >= {"setup", "first_step", "step", "forward", "backward", "optimizer", "other"}
    assert ("logps" in by_phase) == (workload == "dpo")
    assert by_phase["step"]["rows_per_step"] == 2 * 3
    assert by_phase["step"]["real_tokens_per_step"] == sum(sizes[6:]) + 6  # and an end of sequence each
    assert check["is_right"]
    assert check["max_difference"].keys() == measured


def test_a_reference_that_is_asked_once_answers_for_all_rows_in_the_first_step(programs, monkeypatch):
    from trimtab.models.reference import Reference

    work, workloads = programs.import_module("work"), programs.import_module("workloads")
    phases, computed = programs.import_module("phases"), Reference._computed
    timers, asked = [], []
    monkeypatch.setattr(
        phases.Phases, "begin", lambda self, begin=phases.Phases.begin: (timers.append(self), begin(self))
    )

    def noted(self, batch, *others):
        asked.append((len(timers), len(batch)))
        return computed(self, batch, *others)

    monkeypatch.setattr(Reference, "_computed", noted)
    small = {"workload": "dpo", "steps": 2, "pairs": 2, "shortest": 10, "longest": 20, "micro_rows": 8}

    workloads.measure(work.Work(**small))
    by_step = {step: sum(n for at, n in asked if at == step) for step in (1, 2, 3)}
    timers.clear()
    asked.clear()
    workloads.measure(work.Work(**small, precompute_ref=True))

    assert by_step == {1: 4, 2: 4, 3: 4}
    assert {step: sum(n for at, n in asked if at == step) for step in (1, 2, 3)} == {1: 12, 2: 0, 3: 0}


def test_keeping_what_a_reference_says_is_refused_where_nothing_is_read(programs, monkeypatch, capsys):
    work = programs.import_module("work")
    monkeypatch.setattr(sys, "argv", ["workloads.py", "--workload", "rm", "--precompute-ref"])

    with pytest.raises(SystemExit) as ended:
        work.parse("", ("grpo", "rm"))

    assert ended.value.code == 2
    assert "--precompute-ref: rm does not keep what a reference says; it is for dpo" in capsys.readouterr().err


def test_a_comparison_sets_cost_for_each_token_against_each_other(programs):
    compare = programs.import_module("compare")

    def run(seconds: float, rate: float) -> list[dict[str, object]]:
        memory = {"peak_rss_mb": 500.0, "rss_before_mb": 300.0}
        return [
            {"phase": "setup", "cpu_seconds": 1.0, "tokens_per_cpu_s": None, **memory},
            {"phase": "step", "cpu_seconds": seconds, "tokens_per_cpu_s": rate, **memory},
        ]

    shown = compare.table([*run(2.0, 1000.0), *run(4.0, 500.0), *run(2.0, 1000.0)], run(6.0, 250.0), ("ours", "theirs"))

    assert "| step | 2.000 | 6.000 | 3.00 | 4.00 |" in shown
    assert "| memory of the steps, MB | 200 | 200 | 1.00 | |" in shown


def test_the_table_of_learning_says_which_algorithm_is_not_above_its_start(programs):
    learning = programs.import_module("learning")
    same = {
        "seed": 1,
        "before": 0.4,
        "reward": 0.5,
        "clipped": 0.1,
        "kl_update": 0.01,
        "prompts": 9,
        "cpu_seconds": 1.0,
    }
    results = [
        *({**same, "algorithm": "good", "after": after} for after in (0.7, 0.8, 0.9)),
        *({**same, "algorithm": "bad", "after": after} for after in (0.3, 0.45, 0.6)),
        {**same, "algorithm": "new", "after": 0.35},
    ]

    rows = learning.table(results).splitlines()[2:]

    assert [row.split(" | ")[0] for row in rows] == ["| `good`", "| `bad`", "| `new`"]
    assert "0.800 ± 0.248" in rows[0]
    assert [row.split(" | ")[4] for row in rows] == ["yes", "**no**", "one seed"]


def test_every_algorithm_that_samples_is_measured_and_no_other(programs):
    learning = programs.import_module("learning")

    assert "sft" not in learning.online()
    assert {"ppo", "grpo", "rloo", "gspo", "kl_cov"} <= set(learning.online())


def test_saves_beside_training_and_in_its_place_are_measured_in_one_run(programs, tmp_path):
    saving = programs.import_module("saving")

    found = saving.measured(saving.train("builtin:tiny", 6, 4, tmp_path), 6)

    beside, in_place = found["beside training"], found["in its place"]
    assert (beside["saves"], in_place["saves"]) == (2, 2)
    assert in_place["stall_seconds"] >= in_place["save_seconds"] > 0
    assert beside["save_seconds"] > 0
    assert min(beside["step_seconds"], in_place["step_seconds"]) > 0
