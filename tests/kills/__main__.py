"""The command: many trials or one, or trials that a test asks for."""

from __future__ import annotations

import argparse
import json
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from tests.kills import subjects, warm
from tests.kills.trial import Outcome, Undisturbed, attempt

STRIKES = 4
"""That a run meets."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description="Kill real runs at random and compare.")
    parser.add_argument("--kills", type=int, default=1000, help="how many, over all algorithms")
    parser.add_argument("--signal", choices=["KILL", "TERM"], default="KILL")
    parser.add_argument("--seed", type=int, help="of a single trial; else trials are counted from --first-seed")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--algorithm", choices=subjects.ALGORITHMS, help="only this one")
    parser.add_argument("--workers", type=int, default=1, help="trials at a time")
    parser.add_argument("--folder", type=Path, help="where the runs lie; default a new one, gone if all is well")
    parser.add_argument("--report", type=Path, help="default runs/kills-SIGNAL.json")
    parser.add_argument("--no-flush", action="store_true", help="leave fsync out, which a kill does not need")
    parser.add_argument("--serve", action="store_true", help="read trials from stdin, one JSON object a line")
    asked = parser.parse_args()
    warm.warm_up()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="kills-"))
    folder.mkdir(parents=True, exist_ok=True)
    undisturbed = Undisturbed(folder.resolve(), is_hurried=asked.no_flush)
    number = signal.Signals[f"SIG{asked.signal}"]
    if asked.serve:
        return _serve(undisturbed)
    algorithms = [asked.algorithm] if asked.algorithm else list(subjects.ALGORITHMS)
    if asked.seed is not None:
        outcomes = [attempt(undisturbed, name, asked.seed, STRIKES, number) for name in algorithms]
        for outcome in outcomes:
            print(json.dumps(json.loads(outcome.line()), indent=1))
        is_well = not any(outcome.faults for outcome in outcomes)
    else:
        report = _many(undisturbed, algorithms, asked.kills, number, asked.first_seed, asked.workers)
        is_well = not report["faults"]
        written = asked.report or Path("runs") / f"kills-{asked.signal}.json"
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(json.dumps(report, indent=1) + "\n")
        _show(report)
        print(f"written to {written}")
    if is_well and asked.folder is None:
        shutil.rmtree(folder)
    else:
        print(f"the runs lie in {folder}")
    return int(not is_well)


def _serve(undisturbed: Undisturbed) -> int:
    """One line of JSON for each on stdin, until it ends."""
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        number = signal.Signals[f"SIG{asked['signal']}"]
        print(attempt(undisturbed, asked["algorithm"], asked["seed"], asked["strikes"], number).line(), flush=True)
    return 0


def _many(
    undisturbed: Undisturbed, algorithms: Sequence[str], kills: int, number: int, first_seed: int, workers: int
) -> dict[str, Any]:
    """Trials until so many strikes have ended a process."""
    started = time.monotonic()
    for algorithm in algorithms:
        undisturbed.course(algorithm)
    outcomes: list[Outcome] = []
    total = 0
    for outcome in _outcomes(undisturbed, algorithms, kills, number, first_seed, workers):
        outcomes.append(outcome)
        total += outcome.struck
        bad = f"  FAULT: {outcome.faults[0]}" if outcome.faults else ""
        took = f"{time.monotonic() - started:7.0f} s"
        print(f"{took} {total:5}/{kills}  {outcome.algorithm:<5} seed {outcome.seed}{bad}", flush=True)
    return _summed(outcomes, number, time.monotonic() - started)


def _outcomes(
    undisturbed: Undisturbed, algorithms: Sequence[str], kills: int, number: int, first_seed: int, workers: int
) -> Iterator[Outcome]:
    """In turn over the algorithms; each worker is a fork of this process, with trials and a share of the kills."""
    readers = []
    for worker in range(workers):
        end, writer = os.pipe()

        def work(writer: int = writer, worker: int = worker) -> int:
            left = kills // workers + (worker < kills % workers)
            with os.fdopen(writer, "w") as pipe:
                for trial in count(worker, workers):
                    if left <= 0:
                        break
                    seed, place = divmod(trial, len(algorithms))
                    outcome = attempt(undisturbed, algorithms[place], first_seed + seed, STRIKES, number)
                    left -= outcome.struck
                    print(outcome.line(), file=pipe, flush=True)
            return 0

        warm.fork(work, undisturbed.folder / f"worker-{worker}.txt")
        os.close(writer)
        readers.append(os.fdopen(end))
    yield from _merged(readers)
    for worker in range(workers):
        said = (undisturbed.folder / f"worker-{worker}.txt").read_text()
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0, said


def _merged(readers: Sequence[Any]) -> Iterator[Outcome]:
    """Lines of all of them, as they come."""
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                if line := key.fileobj.readline():  # type: ignore[union-attr]
                    yield Outcome(**json.loads(line))
                else:
                    selector.unregister(key.fileobj)


def _summed(outcomes: Sequence[Outcome], number: int, seconds: float) -> dict[str, Any]:
    places: Counter[str] = Counter()
    for outcome in outcomes:
        places.update(outcome.places)
    struck = Counter(dict.fromkeys(subjects.ALGORITHMS, 0))
    for outcome in outcomes:
        struck[outcome.algorithm] += outcome.struck
    total = sum(struck.values())
    return {
        "signal": signal.Signals(number).name,
        "ended": total,
        "by_algorithm": dict(struck),
        "by_place": dict(places),
        "in_epoch_2_or_later": sum(o.in_later_epochs for o in outcomes),
        "at_an_epoch_boundary": sum(o.at_epoch_ends for o in outcomes),
        "runs": len(outcomes),
        "runs_as_undisturbed": sum(not o.faults for o in outcomes),
        "ended_before_their_time": sum(o.missed for o in outcomes),
        "recorded_steps_lost_at_most": max((o.lost for o in outcomes), default=0),
        "recorded_steps_lost_outside_a_save": max((o.lost_outside for o in outcomes), default=0),
        "steps_between_saves": subjects.ROLLING_EVERY,
        "seconds": round(seconds, 1),
        "seconds_each": round(seconds / max(total, 1), 2),
        "faults": [{"reproduce": _command(o), "strikes": o.strikes, "faults": o.faults} for o in outcomes if o.faults],
    }


def _command(outcome: Outcome) -> str:
    number = outcome.signal.removeprefix("SIG")
    return f"python -m tests.kills --algorithm {outcome.algorithm} --signal {number} --seed {outcome.seed}"


def _show(report: dict[str, Any]) -> None:
    for name, value in report.items():
        if name != "faults":
            print(f"{name.replace('_', ' '):<36}{json.dumps(value) if isinstance(value, dict) else value}")
    for fault in report["faults"]:
        print(f"FAULT  {fault['reproduce']}\n       " + "\n       ".join(map(str, fault["faults"][:5])))
    print(f"{len(report['faults'])} faults")


if __name__ == "__main__":
    sys.exit(main())
