"""`trimtab status RUN`: what a run has done, from its journal."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

SHOWN = (
    "reward/mean",
    "eval/reward/mean",
    "eval/loss/nll",
    "preference/accuracy",
    "preference/margin",
    "eval/preference/accuracy",
    "eval/preference/margin",
    "reward_model/accuracy",
    "eval/reward_model/auc",
    "loss/preference",
    "loss/policy",
    "loss/value",
    "loss/entropy",
    "loss/kl",
    "loss/nll",
    "loss/total",
    "kl/reference",
    "kl/update",
    "entropy",
    "length/mean",
    "length/truncated",
    "throughput/rollout_tokens_per_second",
    "throughput/train_tokens_per_second",
)


def status(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Step, newest figures, checkpoints and what happened."""
    found = describe(run)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    typer.echo(f"{found['name']}  {found['algorithm']}  step {found['step']}/{found['max_steps']}  {found['state']}")
    for name, value in found["metrics"].items():
        typer.echo(f"  {name:<40} {value:.6g}")
    typer.echo(f"  checkpoints{'':<29} {', '.join(map(str, found['checkpoints'])) or 'none'}")
    if found["weights_only"]:
        typer.echo(f"  of the policy's weights alone{'':<11} {', '.join(map(str, found['weights_only']))}")
    if (stored := found["store"]) is not None:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(stored["time"]))
        typer.echo(f"  in the object store{'':<21} {stored['step']}, {when}, {stored['url']}")
    if found["drill"] is not None:
        typer.echo(f"  drill{'':<35} {_drill_line(found['drill'])}")
    if found["restarts"]:
        newest = found["restarts"][-1]
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(newest["time"]))
        count, cause = len(found["restarts"]), newest["cause"] or f"exit code {newest['code']}"
        typer.echo(f"  restarts{'':<32} {count}, the newest {when}: {cause}")
    for alarm in found["alarms"]:
        word = "ALARM" if alarm["level"] == "act" else "warning"
        typer.echo(f"  {word}, since step {alarm['since']}: {alarm['text']}")
    for event in found["events"][-5:]:
        what = ", ".join(f"{k} {v}" for k, v in event.items() if k not in ("kind", "time", "event", "text"))
        typer.echo(f"  {time.strftime('%H:%M:%S', time.localtime(event['time']))}  {event['event']}  {what}")
    if found["damaged_lines"]:
        typer.echo(f"  journal: {len(found['damaged_lines'])} damaged lines, first {found['damaged_lines'][0]}")


def describe(path: Path) -> dict[str, Any]:
    """What the run's files say.

    Raises:
        UserError: there is no run.
    """
    from trimtab.operate.supervise import restarts
    from trimtab.store import journal
    from trimtab.store.checkpoints import resumable
    from trimtab.store.run_directory import RunDirectory

    directory = RunDirectory.existing(path)
    kept = resumable(directory.checkpoints)
    reading = journal.read(directory.journal)
    facts, steps, evaluations = directory.facts(), reading.steps(), reading.evaluations()
    metrics: dict[str, float] = {}
    for record in [*evaluations[-1:], *steps[-1:]]:
        metrics |= {name: record["metrics"][name] for name in SHOWN if name in record["metrics"]}
    step = steps[-1]["step"] if steps else 0
    failure = json.loads(directory.failure.read_text()) if directory.failure.is_file() else None
    return {
        "name": directory.root.name,
        "algorithm": facts.get("algorithm"),
        "step": step,
        "max_steps": directory.newest_config()["resolved"]["train"]["max_steps"],
        "state": _state(directory, facts, failure),
        "metrics": metrics,
        "checkpoints": [step for step, can_go_on in kept.items() if can_go_on],
        "weights_only": [step for step, can_go_on in kept.items() if not can_go_on],
        "alarms": _raised(reading.events("alarm", "alarm over", "rolled back")),
        "events": [dict(e) for e in reading.events()],
        "damaged_lines": list(reading.damaged_lines),
        "failure": failure,
        "store": directory.last_upload(),
        "drill": directory.last_drill(),
        "restarts": [note for note in restarts(directory) if note["event"] == "restarted"],
    }


def _raised(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The alarms that are raised now; a rollback has done what there was to do about those before it."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        if event["event"] == "alarm":
            found[event["rule"]] = {k: v for k, v in event.items() if k not in ("kind", "time", "event")}
        elif event["event"] == "alarm over":
            found.pop(event["rule"], None)
        else:
            found.clear()
    return list(found.values())


def _drill_line(drill: Mapping[str, Any]) -> str:
    """The newest drill, and when one last passed."""
    day = "%Y-%m-%d %H:%M"
    when, success = drill.get("time"), drill.get("drill/last_success")
    text = "passed" if drill.get("passed") else "FAILED"
    if isinstance(when, int | float):
        text += f" {time.strftime(day, time.localtime(when))}"
    if drill.get("passed"):
        return f"{text}, from checkpoint {drill.get('checkpoint')}"
    last = time.strftime(day, time.localtime(success)) if isinstance(success, int | float) else "never"
    return f"{text}; last passed {last}"


def _state(directory: Any, facts: dict[str, Any], failure: dict[str, Any] | None) -> str:
    if facts.get("ended"):
        return str(facts.get("outcome"))
    if failure is not None:
        return f"ended with exit code {failure['code']}: {failure['cause']}"
    return "running" if directory.is_locked() else "interrupted; the same command goes on"
