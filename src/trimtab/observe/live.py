"""The run in the terminal while it happens: a panel that is redrawn, or plain lines where nobody can redraw."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trimtab.observe.figures import duration, short
from trimtab.types import Sample, StepReport

REDRAW_SECONDS = 0.25
"""At least, from one redraw to the next."""
PLAIN_LINES = 50
"""About so many step lines a run where there is no terminal."""
SPARK_WIDTH = 40
SHOWN_CHARACTERS = 500
BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-~=+*#"

Metrics = Mapping[str, float]
UNSAID = frozenset({"saved", "save failed", "samples failed"})
"""Events of everyday work, which would only push the figures off the screen, and those that a line tells anyway."""


class LiveView:
    """Shows the steps of a run, its evaluations and events; a `ports.Recorder`.

    Redraws a panel if the console is a terminal, else prints a line for about every fiftieth of the run. Nothing is
    drawn before the first record. `close` leaves the last panel on the screen and the cursor visible; call it in a
    `finally`, as often as you like.
    """

    def __init__(
        self, *, name: str, algorithm: str, max_steps: int, start_step: int = 0, console: Console | None = None
    ) -> None:
        self._console = console or Console()
        self._title = f"{name} · {algorithm}"
        self._max_steps = max_steps
        self._every = 1 if max_steps <= PLAIN_LINES else math.ceil(max_steps / PLAIN_LINES)
        self._step = start_step
        self._metrics: Metrics = {}
        self._rewards: list[float] = []
        self._evaluations: list[tuple[int, Metrics]] = []
        self._sample: Sample | None = None
        self._seconds: deque[float] = deque(maxlen=20)
        self._last_record = time.monotonic()
        self._last_drawn = -math.inf
        self._printed_step: int | None = None
        self._live: Live | None = None
        self._is_terminal = self._console.is_terminal and not self._console.is_dumb_terminal

    def record(self, report: StepReport) -> None:
        """Show a step, an evaluation (`phase` is `eval`), or a step that carries `eval/...` metrics too."""
        evaluation = {k.removeprefix("eval/"): v for k, v in report.metrics.items() if k.startswith("eval/")}
        if report.phase != "eval":
            self._take_step(report)
            if not self._is_terminal and self._is_due(report.step):
                self._print_step()
        is_new = not self._evaluations or self._evaluations[-1][0] != report.step
        if evaluation and is_new:
            self._evaluations = [*self._evaluations[:1], (report.step, evaluation)]
            if not self._is_terminal:
                figures = "  ".join(f"{k} {short(v)}" for k, v in evaluation.items())
                self._print(f"eval  step {report.step}  {figures}")
        if self._is_terminal:
            self._draw()

    def event(self, kind: str, **facts: Any) -> None:
        """Print something that is not a step, on a line of its own (above the panel)."""
        if kind in UNSAID:
            return
        if kind == "alarm":
            word = "ALARM" if facts["level"] == "act" else "warning"
            self._print(f"{word}  step {facts['step']}  {facts['rule']}: {facts['text']}")
            return
        said = "  ".join(f"{k} {short(v) if isinstance(v, float) else v}" for k, v in facts.items())
        self._print(f"event  {kind}  {said}".rstrip())

    def close(self) -> None:
        """Show what has not been shown yet, and give the terminal back."""
        if self._live is not None:
            live, self._live = self._live, None
            try:
                live.update(self._panel())
            finally:
                live.stop()
        elif not self._is_terminal and self._metrics and self._printed_step != self._step:
            self._print_step()

    def _take_step(self, report: StepReport) -> None:
        now = time.monotonic()
        self._seconds.append(report.metrics.get("time/step", now - self._last_record))
        self._last_record = now
        self._step, self._metrics = report.step, report.metrics
        if "reward/mean" in report.metrics:
            self._rewards.append(report.metrics["reward/mean"])
        if report.samples:
            self._sample = report.samples[-1]

    def _pace(self) -> tuple[float, float]:
        """Seconds a step, a running mean; seconds left."""
        pace = sum(self._seconds) / len(self._seconds) if self._seconds else 0.0
        return pace, pace * max(0, self._max_steps - self._step)

    def _is_due(self, step: int) -> bool:
        return self._printed_step is None or step % self._every == 0 or step == self._max_steps

    def _print(self, line: str) -> None:
        text = self._writable(line)
        if self._is_terminal:
            self._console.print(Text(text, style="dim", no_wrap=True, overflow="ellipsis"), highlight=False)
        else:
            self._console.out(text, highlight=False)

    def _print_step(self) -> None:
        self._printed_step = self._step
        width = len(str(self._max_steps))
        pace, left = self._pace()
        parts = [f"step {self._step:>{width + 1}}/{self._max_steps}", *plain_figures(self._metrics)]
        parts += [f"{short(pace, 2)} s/step", f"left {duration(left)}"]
        self._print("  ".join(parts))

    def _draw(self) -> None:
        now = time.monotonic()
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        if now - self._last_drawn >= REDRAW_SECONDS:
            self._last_drawn = now
            self._live.update(self._panel(), refresh=True)

    def _panel(self) -> Panel:
        pace, left = self._pace()
        head = Table.grid(expand=True, padding=(0, 1))
        head.add_column(no_wrap=True)
        head.add_column(ratio=1)
        head.add_column(no_wrap=True)
        bar = ProgressBar(total=self._max_steps, completed=min(self._step, self._max_steps))
        times = Text(f"{short(pace, 2)} s/step  left {duration(left)}")
        head.add_row(Text(f"step {self._step:,}/{self._max_steps:,}", style="bold"), bar, times)
        rows = Table.grid(expand=True, padding=(0, 2, 0, 0))
        rows.add_column(style="dim", no_wrap=True, width=12)
        rows.add_column(ratio=1, overflow="fold")
        for label, value in self._rows():
            rows.add_row(label, value)
        title = Text(self._writable(self._title), style="bold")
        return Panel(Group(head, Text(""), rows), title=title, title_align="left", border_style="dim")

    def _rows(self) -> list[tuple[str, Text]]:
        rows = []
        if self._rewards:
            blocks = ASCII_BLOCKS if self._console.options.ascii_only else BLOCKS
            spark = sparkline(self._rewards, min(SPARK_WIDTH, max(8, self._console.width - 40)), blocks)
            now = self._metrics.get("reward/mean", self._rewards[-1])
            rows.append(("reward", Text.assemble((f"{now:.3f}", "bold"), "  ", (spark, "cyan"))))
        if self._evaluations:
            rows.append(("evaluation", self._evaluation_row()))
        rows += [(label, Text(said)) for label, said in panel_figures(self._metrics)]
        if self._sample is not None:
            rows.append(("sample", self._sample_row(self._sample)))
        return rows

    def _evaluation_row(self) -> Text:
        step, metrics = self._evaluations[-1]
        text = Text("  ".join(f"{k} {short(v)}" for k, v in metrics.items()), style="green")
        text.append(f"  at step {step:,}", style="dim")
        first_step, first = self._evaluations[0]
        if len(self._evaluations) > 1 and "reward/mean" in first:
            text.append(f" (reward/mean {short(first['reward/mean'])} at step {first_step:,})", style="dim")
        return text

    def _sample_row(self, sample: Sample) -> Text:
        """One line if both fit into it, else one for the prompt and one for the completion, cut at the panel's edge."""
        prompt, completion = (self._writable(text[:SHOWN_CHARACTERS]) for text in (sample.prompt, sample.completion))
        text = Text(no_wrap=True, overflow="ellipsis")
        if sample.reward is not None:
            text.append(f"reward {short(sample.reward)}  ", style="dim")
        if sample.label is not None:
            text.append(f"{sample.label}  ", style="dim")
        if sample.is_truncated:
            text.append("cut  ", style="dim")
        text.append(prompt, style="dim")
        fits = text.cell_len + len(completion) + 4 <= self._console.width - 20
        text.append((" " if fits else "\n") + self._writable("→ "), style="dim")
        text.append(completion or "(empty)")
        return text

    def _writable(self, text: str) -> str:
        """The text with only what the console can encode, and without control characters."""
        encoding = self._console.encoding
        return printable(text).encode(encoding, "replace").decode(encoding)


JUDGED = {
    "reward_model/accuracy": "accuracy",
    "preference/accuracy": "accuracy",
    "preference/margin": "margin",
}
"""Figures of runs that read preferences, and how they are called in short."""


def plain_figures(metrics: Metrics) -> list[str]:
    """The figures of a step's plain line, `name value` each; only of metrics that are there."""
    said = [f"reward {metrics['reward/mean']:.3f}"] if "reward/mean" in metrics else []
    said += [f"{name} {short(metrics[name], 2)}" for name in metrics if name.startswith("loss/")]
    said += [f"{label} {short(metrics[name], 2)}" for name, label in JUDGED.items() if name in metrics]
    kl = next((name for name in ("kl/reference", "kl/update") if name in metrics), "")
    names = {kl: "kl" if kl == "kl/reference" else kl, "entropy": "entropy", "length/mean": "length"}
    said += [f"{label} {short(metrics[name], 2)}" for name, label in names.items() if name in metrics]
    for part in ("rollout", "train"):
        if (name := f"throughput/{part}_tokens_per_second") in metrics:
            return [*said, f"{metrics[name]:,.0f} tok/s"]
    return said


def panel_figures(metrics: Metrics) -> list[tuple[str, str]]:
    """Rows of the panel, label and figures; only of metrics that are there."""
    rows = {
        "loss": _family(metrics, "loss/"),
        "preference": "  ".join(f"{label} {short(metrics[name])}" for name, label in JUDGED.items() if name in metrics),
        "kl": _family(metrics, "kl/"),
        "entropy": short(metrics["entropy"]) if "entropy" in metrics else "",
        "length": _length(metrics),
        "tokens/s": "  ".join(
            f"{label} {metrics[name]:,.0f}"
            for label, part in (("sampled", "rollout"), ("trained", "train"))
            if (name := f"throughput/{part}_tokens_per_second") in metrics
        ),
        "gradient": _family(metrics, "grad_norm/"),
    }
    return [(label, said) for label, said in rows.items() if said]


def sparkline(values: Sequence[float], width: int, blocks: str = BLOCKS) -> str:
    """The values as a row of at most `width` blocks, each the mean of a stretch, from the lowest to the highest.

    >>> sparkline([0.0, 0.5, 1.0], width=8), sparkline([2.0, 2.0], width=8), sparkline([0, 0, 7, 7], width=2)
    ('▁▅█', '▁▁', '▁█')
    """
    if not values:
        return ""
    count = min(width, len(values))
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(blocks) - 1) / (high - low) if high > low else 0.0
    return "".join(blocks[math.floor((mean - low) * scale + 0.5)] for mean in means)


def printable(text: str) -> str:
    r"""The text on one line: line ends as an arrow, control characters (escape sequences among them) spelt out.

    >>> printable("a\nb\x1b[2J")
    'a↵b\\x1b[2J'
    """
    return "".join(c if c.isprintable() else "↵" if c == "\n" else repr(c)[1:-1] for c in text)


def _family(metrics: Metrics, prefix: str) -> str:
    return "  ".join(f"{k.removeprefix(prefix)} {short(v)}" for k, v in metrics.items() if k.startswith(prefix))


def _length(metrics: Metrics) -> str:
    parts = [f"{key} {short(metrics[f'length/{key}'])}" for key in ("mean", "max") if f"length/{key}" in metrics]
    if "length/truncated" in metrics:
        parts.append(f"truncated {100 * metrics['length/truncated']:.1f} %")
    return "  ".join(parts)
