"""A run as Python holds it: train it, look at it, use its model."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from html import escape
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from trimtab import assemble
from trimtab.assemble.fingerprints import model_print
from trimtab.config import RunConfig
from trimtab.errors import Preempted, UserError
from trimtab.operate import continuing, finish, start
from trimtab.store import checkpoints, journal
from trimtab.store.recorder import read_samples
from trimtab.store.run_directory import RunDirectory

REPORT_HEIGHT = 720
"""Pixels of the report in a notebook."""


class PreparedRun:
    """A run of `trimtab.prepare`. Its files are those of the command line; `directory` says where."""

    def __init__(
        self,
        *,
        config: RunConfig,
        directory: Path,
        given: assemble.Given,
        rows: assemble.RowSets,
        front: start.Front,
        fresh: bool = False,
    ) -> None:
        self.config = config
        """Resolved and checked; `config.resolved` has every key as plain values."""
        self.directory = directory
        self._files = RunDirectory(directory)
        self._given = given
        self._rows = rows
        self._front = front
        self._fresh = fresh
        self._parts: assemble.Assembled | None = None
        self._is_sealed = False

    # --------------------------------------------------------------------------------------------------------- train
    def train(self) -> PreparedRun:
        """Train up to `train.max_steps`, from the newest checkpoint if there is one.

        Called again it goes on, or says that all steps are done. Ctrl-C (a notebook's stop) ends the step that is under
        way, saves and raises `Preempted`; a second one raises at once, and the next call goes on from the checkpoint.

        Raises:
            Preempted: interrupted; the message says from which step it goes on.
            ConfigError: the directory holds a run with another configuration, other data or other objects.
            RewardError, GuardError, StorageError: what ended the run.
        """
        self.close()
        self._seal()
        before = self._files.facts().get("id")
        try:
            self._parts = start.train_in(
                self.config, self._files, fresh=self._fresh, given=self._given, rows=self._rows, front=self._front
            )
        except (Preempted, KeyboardInterrupt) as error:
            raise Preempted(self._said_when_interrupted(isinstance(error, Preempted))) from None
        finally:
            is_old = self._files.facts().get("id") == before
            self._fresh = self._fresh and is_old  # the next call goes on with the new run
        return self

    def _said_when_interrupted(self, is_saved: bool) -> str:
        kept = [step for step, can_go_on in checkpoints.resumable(self._files.checkpoints).items() if can_go_on]
        if not kept:
            return "interrupted before anything was saved; call train() again to start"
        if is_saved:
            return f"interrupted: saved at step {kept[-1]}; call train() again to go on from there"
        return f"interrupted within a step; call train() again to go on from step {kept[-1]}, the newest that is saved"

    def _seal(self) -> None:
        """Take the fingerprint of a given model while it is as it was given."""
        if self._given.model is not None and not self._is_sealed:
            prints = {**self._given.fingerprints, "model": model_print(self._given.model)}
            self._given = replace(self._given, fingerprints=prints)
        self._is_sealed = True

    # ----------------------------------------------------------------------------------------------------- use the model
    @property
    def model(self) -> Any:
        """The policy, a transformers model: as the last step of `train` left it, else as `train` would start with it.

        `directory / "final"` holds the weights of the best evaluation instead.
        """
        return self._assembled().models.model

    @property
    def tokenizer(self) -> Any:
        return self._assembled().models.tokenizer

    def evaluate(self) -> dict[str, float]:
        """The metrics of an evaluation of the present weights on `data.validation`; nothing is written.

        Raises:
            UserError: there are no validation rows.
        """
        if self.config.data.validation is None:
            raise UserError("data.validation is not set: there is nothing to evaluate on; give validation=")
        parts = self._assembled()
        try:
            report = parts.run.evaluator.evaluate_if_due(parts.run.step, last=True)
        finally:
            if parts.scorer is not None:
                parts.scorer.close()
        if report is None:
            raise UserError(f"data.validation: {self.config.data.validation} has no rows to evaluate on")
        return dict(report.metrics)

    def _assembled(self) -> assemble.Assembled:
        """The parts that `train` has left, else new ones with the weights that it would start with."""
        if self._parts is None:
            from trimtab.train.control import NoControl

            self._seal()
            files = self._files
            if files.exists and not self._fresh:
                continuing.compare(self.config, self._rows, self._given, files, self._front)
            elif files.exists:
                files = RunDirectory(files.root / "new")  # it is not there, so nothing is found in it
            self._parts = assemble.build(self.config, files, NoControl(), row_sets=self._rows, given=self._given)
            if self._parts.start is not None:
                self._parts.run.checkpoints.restore(self._parts.run)
        return self._parts

    # ------------------------------------------------------------------------------------------------------------ look
    @property
    def metrics(self) -> list[dict[str, float]]:
        """A dict for each step, from 0 (the evaluation before training), as `pandas.DataFrame` takes it."""
        reading = journal.read(self._files.journal)
        found: dict[int, dict[str, float]] = {}
        for record in (*reading.evaluations(), *reading.steps()):
            found.setdefault(record["step"], {"step": record["step"]}).update(record["metrics"])
        return [found[step] for step in sorted(found)]

    @property
    def samples(self) -> list[dict[str, Any]]:
        """The completions that were kept (`observe.samples`), in the order of steps; `phase` is `step` or `eval`."""
        found: list[tuple[int, str, Path]] = []
        for path in self._files.samples.glob("*-*.jsonl"):
            phase, _, step = path.stem.partition("-")
            found.append((int(step), phase, path))
        return [
            {"step": step, "phase": phase, **asdict(s)} for step, phase, p in sorted(found) for s in read_samples(p)
        ]

    def report(self) -> Path:
        """Write report.html from what the run has done so far, and show it if this is a notebook; its path.

        Raises:
            UserError: nothing has been trained yet.
        """
        if not self._files.exists:
            raise UserError(f"{self.directory}: nothing has been trained yet, so there is nothing to report")
        outcome = f"{self.state}: {finish.outcome_line(self._files)}"
        finish.write_report(self._files, outcome=outcome, next_steps=self._front.next_steps(self.config, self._files))
        if _is_notebook():
            shown: Any = import_module("IPython.display")
            page = escape(self._files.report.read_text())
            frame = f'<iframe srcdoc="{page}" style="width:100%;height:{REPORT_HEIGHT}px;border:0"></iframe>'
            shown.display(shown.HTML(f"<div>{frame}</div>"))
        return self._files.report

    @property
    def state(self) -> str:
        """`not started`, how it ended, or at which step it was interrupted."""
        if not self._files.exists or self._fresh:
            return "not started"
        facts = self._files.facts()
        if facts.get("ended"):
            return str(facts["outcome"])
        steps = journal.read(self._files.journal).steps()
        return f"at step {steps[-1]['step'] if steps else 0} of {self.config.train.max_steps}"

    def __repr__(self) -> str:
        algorithm, model = self.config.algorithm.name, self.config.policy.model
        return f"<PreparedRun {algorithm} {model} -> {finish.relative(self.directory)}: {self.state}>"

    def _repr_html_(self) -> str:
        """A table of what the run is and how its reward and losses went."""
        rows = {
            "algorithm": self.config.algorithm.name,
            "model": self.config.policy.model,
            "directory": finish.relative(self.directory),
            "state": self.state,
            **_curves(self.metrics if self.state != "not started" else []),
        }
        cells = "".join(
            f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(said)}</td></tr>'
            for name, said in rows.items()
        )
        return f"<table><tbody>{cells}</tbody></table>"

    # ------------------------------------------------------------------------------------------------------------ close
    def close(self) -> None:
        """Let go of the model and of the reward functions' processes. The run's files stay, and `train` works again."""
        parts, self._parts = self._parts, None
        if parts is not None and parts.scorer is not None:
            parts.scorer.close()

    def __enter__(self) -> PreparedRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


SHOWN = (
    "reward/mean",
    "eval/reward/mean",
    "eval/loss/nll",
    "eval/preference/accuracy",
    "loss/total",
    "kl/reference",
    "entropy",
    "length/mean",
)


def _curves(metrics: list[dict[str, float]]) -> dict[str, str]:
    """First value, course, last value of the most looked at figures."""
    from trimtab.observe.figures import short
    from trimtab.observe.live import sparkline

    found = {}
    for name in SHOWN:
        values = [m[name] for m in metrics if name in m]
        if values:
            found[name] = f"{short(values[0])} {sparkline(values, 30)} {short(values[-1])}"
    return found


def _is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    found = sys.modules.get("IPython")
    shell = found.get_ipython() if found is not None else None
    return shell is not None and "IPKernelApp" in shell.config
