"""`trimtab smoke CONFIG`: one small step through every stage, before the real run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from trimtab import config as configs
from trimtab.errors import TrimtabError

if TYPE_CHECKING:
    from trimtab.types import Sample

Value = TypeVar("Value")
PROMPTS = 2
NEW_TOKENS = 32


@dataclass(slots=True)
class _Table:
    """The stages as they are gone through."""

    failures: int = 0

    def stage(self, name: str, what: Callable[[], Value], describe: Callable[[Value], str]) -> Value:
        """Do a stage, print its row; a stage that fails ends the command."""
        import psutil

        started = time.perf_counter()
        try:
            found = what()
            row, is_ok = describe(found), True
        except AssertionError as error:
            row, is_ok = str(error), False
        memory = psutil.Process().memory_info().rss / 2**20
        word = "ok  " if is_ok else "FAIL"
        typer.echo(f"{word}  {name:<10} {time.perf_counter() - started:7.2f} s  {memory:7.0f} MiB  {row}")
        if not is_ok:
            raise TrimtabError(f"smoke: stage `{name}` failed: {row}")
        return found


def smoke(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file.", show_default=False)],
) -> None:
    """Few prompts in whole groups, short sequences, one full step: sample, reward, forward, backward, update, save."""
    import tempfile

    from trimtab import assemble
    from trimtab.store.run_directory import RunDirectory
    from trimtab.train.control import NoControl

    config = shortened(configs.load(path, context.args))
    typer.echo(f"smoke {config.algorithm.name} {config.policy.model}: {config.train.prompts_per_step} prompts")
    table = _Table()
    with tempfile.TemporaryDirectory() as scratch:
        directory = RunDirectory(Path(scratch) / "run")
        directory.create()
        rows = table.stage("data", lambda: assemble.read_rows(config), lambda r: f"{len(r.train):,} rows")
        built = table.stage(
            "load",
            lambda: assemble.build(config, directory, NoControl(), row_sets=rows),
            lambda b: ", ".join(f"{role} {count:,} parameters" for role, count in b.facts["parameters"].items()),
        )
        try:
            _walk(built, table)
        finally:
            built.close()
    typer.echo("every stage passed")


def shortened(config: configs.RunConfig) -> configs.RunConfig:
    """The same run with few prompts and short completions, one update pass."""
    longest = min(config.sampling.max_prompt_length + NEW_TOKENS, config.sampling.max_length)
    sampling = replace(config.sampling, group_size=min(config.sampling.group_size, 8), max_length=longest)
    train = replace(config.train, prompts_per_step=max(PROMPTS, config.train.minibatches), max_steps=1)
    return replace(config, sampling=sampling, train=train, eval=replace(config.eval, prompts=PROMPTS))


def _walk(built: Any, table: _Table) -> None:
    run = built.run
    before = run.models.weights_sum()
    batch = table.stage("source", run.source.next_batch, _describe_batch)
    if run.source.samples():
        for sample in _shown(run.source.samples()):
            said = f"reward {sample.reward}" if sample.reward is not None else sample.label or ""
            typer.echo(f"      {sample.prompt!r} -> {sample.completion!r}  {said}".rstrip())
    report = table.stage("update", lambda: run.learner.update(batch), _describe_update)
    table.stage("weights", lambda: _changed(before, run.models.weights_sum(), report), lambda text: text)
    run.step = report.step
    run.source.refresh(version=report.step)
    table.stage("engine", run.source.next_batch, _describe_batch)
    table.stage(
        "save",
        lambda: run.checkpoints.save_if_due(report.step, run, report.metrics, last=True),
        lambda seconds: "checkpoint written",
    )
    table.stage("restore", lambda: run.checkpoints.restore(run), lambda step: f"step {step}, every byte checked")


def _shown(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The first completion; of a pair both."""
    return samples[:2] if samples[0].label == "chosen" else samples[:1]


def _describe_batch(batch: Any) -> str:
    if not bool(batch.loss_mask.any()):
        raise AssertionError("no token counts in the loss")
    scored = batch.rewards[batch.is_scored]
    reward = f", rewards {float(scored.min()):g} to {float(scored.max()):g}" if len(scored) else ""
    return f"{len(batch)} rows, {int(batch.loss_mask.sum())} tokens in the loss{reward}"


def _describe_update(report: Any) -> str:
    losses = {name: value for name, value in report.metrics.items() if name.startswith("loss/")}
    wrong = [name for name, value in losses.items() if not math.isfinite(value)]
    if wrong or report.metrics.get("updates/non_finite"):
        raise AssertionError(f"not finite: {', '.join(wrong) or 'loss or gradient'}; the update was not applied")
    if report.metrics.get("updates/count", 0) < 1:
        raise AssertionError("no update was applied")
    terms = ", ".join(f"{name} {value:.4g}" for name, value in losses.items())
    return f"{terms}, gradient norm {report.metrics['grad_norm/total']:.4g}"


def _changed(before: str, after: str, report: Any) -> str:
    if before != after:
        return "changed by the update"
    if report.metrics.get("grad_norm/total") == 0.0:
        return "unchanged: every group had equal rewards, so there was nothing to learn from in this step"
    raise AssertionError("unchanged, though the gradient was not zero")
