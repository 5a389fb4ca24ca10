"""The end of a run: `final/`, the report, the last facts."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.errors import MissingExtraError, StorageError
from trimtab.observe import report
from trimtab.ports import Checkpoints
from trimtab.secrets import redact
from trimtab.store import checkpoints, encryption, journal, writer
from trimtab.store.recorder import read_samples
from trimtab.store.run_directory import RunDirectory


def write_final(directory: RunDirectory, store: Checkpoints) -> int | None:
    """`final/`: the Hugging Face directory of the best checkpoint, else the newest, with a model card; its step.

    There is none if the checkpoint is encrypted, since it would hold the weights in plain; `trimtab export` makes one.
    """
    step = store.best()
    if step is None:
        return None
    scratch = directory.root / ".final.new"
    if scratch.exists():
        writer.remove_tree(scratch)
    if encryption.is_encrypted(directory.checkpoints / str(step)):
        if directory.final.exists():  # of the time before there was a key
            writer.remove_tree(directory.final)
        return step
    policy = directory.checkpoints / str(step) / "policy"
    if (policy / "adapter_config.json").is_file():
        from trimtab.models import lora

        writer.fill(scratch, lambda to: lora.write_merged(policy, to))
    else:
        writer.copy_tree(policy, scratch)
    writer.write_bytes(scratch / "README.md", redact(model_card(directory, step)).encode())
    writer.sync(scratch)
    writer.replace_directory(scratch, directory.final)
    return step


def model_card(directory: RunDirectory, step: int) -> str:
    """README.md of the weights of a step."""
    facts = directory.facts()
    found = {e["step"]: e["metrics"] for e in journal.read(directory.journal).evaluations()}
    figures = "\n".join(f"| {name} | {value:.4g} |" for name, value in sorted(found.get(step, {}).items()))
    table = f"\n| evaluation | value |\n|---|---|\n{figures}\n" if figures else ""
    return f"""---
library_name: transformers
pipeline_tag: {"text-classification" if facts.get("algorithm") == "reward_model" else "text-generation"}
tags: [trimtab, {facts.get("algorithm", "")}]
---

# {directory.root.name}

Trained from `{facts.get("model")}` with {facts.get("algorithm")} on `{facts.get("data", {}).get("train")}`;
these are the weights of step {step}.
{table}
Versions: {", ".join(f"{k} {v}" for k, v in facts.get("versions", {}).items())}.
"""


def write_report(directory: RunDirectory, *, outcome: str, next_steps: Sequence[str] = ()) -> list[str]:
    """report.html and report.png; what could not be written, in words."""
    record = record_of(directory, outcome=outcome, next_steps=next_steps)
    writer.replace_text(directory.report, report.html(record))
    try:
        report.png(record, directory.picture)
    except MissingExtraError as error:
        return [str(error)]
    return []


def record_of(directory: RunDirectory, *, outcome: str, next_steps: Sequence[str]) -> report.RunRecord:
    """What the report shows, from the run's own files."""
    import yaml

    reading = journal.read(directory.journal)
    facts = directory.facts()
    steps, evaluations = reading.steps(), reading.evaluations()
    files = [directory.samples / f"eval-{e['step']:07}.jsonl" for e in evaluations]
    shown = [f for f in files if f.is_file()]
    late = sorted(directory.samples.glob("step-*.jsonl"))
    return report.RunRecord(
        name=directory.root.name,
        algorithm=str(facts.get("algorithm", "")),
        facts=_facts_shown(facts, steps),
        config=yaml.safe_dump(directory.newest_config()["resolved"], sort_keys=False, allow_unicode=True),
        steps=steps,
        evaluations=evaluations,
        events=reading.events(),
        before=read_samples(shown[0]) if shown else [],
        after=read_samples(shown[-1]) if len(shown) > 1 else [],
        samples=read_samples(late[-1]) if late else [],
        outcome=outcome,
        formula=str(facts.get("formula", "")),
        next_steps=list(next_steps),
    )


def _facts_shown(facts: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    data, numerics = facts.get("data", {}), facts.get("numerics", {})
    counts = data.get("rows", {})
    versions = facts.get("versions", {})
    seconds = sum(s["metrics"].get("time/step", 0.0) for s in steps)
    return {
        "model": str(facts.get("model")),
        "parameters": ", ".join(f"{role} {count:,}" for role, count in facts.get("parameters", {}).items()),
        "training data": f"{data.get('train')} ({counts.get('train', 0):,} rows)",
        "validation data": f"{data.get('validation')} ({counts.get('validation', 0):,} rows)",
        "seed": str(facts.get("seeds", {}).get("train")),
        "machine": f"{numerics.get('device')}, {numerics.get('threads')} threads, {facts.get('ranks', 1)} process(es)",
        "training time": f"{seconds:.1f} s",
        "versions": ", ".join(f"{k} {v}" for k, v in versions.items()),
    }


def write_failure(directory: RunDirectory, *, code: int, cause: str, place: str, advice: str) -> None:
    """failure.json: why a command ended with another code than 0, and what to do."""
    there = checkpoints.resumable(directory.checkpoints)
    document = {
        "code": code,
        "cause": cause,
        "place": place,
        "last_checkpoint": max((step for step, can_go_on in there.items() if can_go_on), default=None),
        "what_to_do": advice,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    if directory.root.is_dir():
        writer.replace_text(directory.failure, json.dumps(document, indent=1, ensure_ascii=False))


def clear_failure(directory: RunDirectory) -> None:
    """And what a process has left that died while it wrote one.

    Raises:
        StorageError: it cannot be removed.
    """
    try:
        writer.remove_file(directory.failure)
        writer.remove_file(writer.scratch_of(directory.failure))
    except OSError as error:
        raise StorageError(f"cannot remove {directory.failure}: {error.strerror or error}") from error


def outcome_line(directory: RunDirectory) -> str:
    """One line of what the run achieved."""
    evaluations = journal.read(directory.journal).evaluations()
    for name in ("eval/reward/mean", "eval/reward_model/auc", "eval/preference/accuracy", "eval/loss/nll"):
        values = [(e["step"], e["metrics"][name]) for e in evaluations if name in e["metrics"]]
        if values:
            (first, before), (last, after) = values[0], values[-1]
            return f"{name} {before:.3f} at step {first} -> {after:.3f} at step {last}"
    return "finished"


def relative(path: Path) -> str:
    """A path as short as it can be said from here."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
