"""The live view, on a terminal and elsewhere."""

import io
import re

import pytest
from rich.console import Console

from trimtab.observe import live
from trimtab.observe.live import LiveView
from trimtab.ports import Recorder
from trimtab.types import Sample, StepReport

METRICS = {
    "reward/mean": 0.5312, "loss/policy": -0.00123, "loss/kl": 0.0003, "kl/reference": 0.0004, "entropy": 0.4101,
    "length/mean": 3.9, "length/max": 8.0, "length/truncated": 0.025, "grad_norm/total": 0.75,
    "throughput/rollout_tokens_per_second": 1234.4, "time/step": 0.8,
}  # fmt: skip


def step(number, metrics=METRICS, **more):
    return StepReport(step=number, metrics=metrics, **more)


def evaluation(number, reward):
    return StepReport(step=number, metrics={"eval/reward/mean": reward, "eval/count": 200.0}, phase="eval")


def plain(max_steps, **more):
    file = io.StringIO()
    view = LiveView(
        name="r", algorithm="grpo", max_steps=max_steps, console=Console(file=file, force_terminal=False), **more
    )
    return view, file


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    file = io.StringIO()
    console = Console(force_terminal=True, file=file, width=100, height=40, color_system=None)
    return LiveView(name="addition", algorithm="grpo", max_steps=100, console=console), file


def without_codes(text):
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_it_is_a_recorder():
    view: Recorder = plain(10)[0]
    assert callable(view.record)
    assert callable(view.event)
    assert callable(view.close)


def test_a_plain_line_says_what_the_step_measured():
    view, file = plain(100)
    view.record(step(12))
    assert file.getvalue() == (
        "step   12/100  reward 0.531  loss/policy -0.0012  loss/kl 0.0003  kl 0.0004  entropy 0.41  length 3.9"
        "  1,234 tok/s  0.8 s/step  left 1m10s\n"
    )


def test_a_plain_line_leaves_out_what_was_not_measured():
    view, file = plain(10)
    view.record(step(10, {"loss/nll": 2.5, "time/step": 2.0}))
    assert file.getvalue() == "step  10/10  loss/nll 2.5  2 s/step  left 0.0s\n"


def test_short_runs_print_every_step_and_long_ones_about_fifty():
    for max_steps, expected in ((50, 50), (1000, 51), (130, 44)):
        view, file = plain(max_steps)
        for number in range(1, max_steps + 1):
            view.record(step(number))
        view.close()
        lines = file.getvalue().splitlines()
        assert len(lines) in (expected, expected + 1)
        assert "1/" in lines[0]
        assert f"{max_steps}/{max_steps}" in lines[-1]


def test_the_last_step_is_printed_when_the_run_ends_early():
    view, file = plain(1000)
    for number in range(1, 34):
        view.record(step(number))
    view.close()
    view.close()
    assert [line.split()[1] for line in file.getvalue().splitlines()] == ["1/1000", "20/1000", "33/1000"]


def test_every_evaluation_is_printed_and_counts_as_no_step():
    view, file = plain(1000)
    view.record(evaluation(0, 0.05))
    view.record(step(1))
    view.record(step(3, {**METRICS, "eval/reward/mean": 0.5}))
    view.record(evaluation(50, 0.93))
    lines = file.getvalue().splitlines()
    assert lines[0] == "eval  step 0  reward/mean 0.05  count 200"
    assert lines[2] == "eval  step 3  reward/mean 0.5"
    assert lines[3] == "eval  step 50  reward/mean 0.93  count 200"


def test_events_are_single_lines_without_control_characters():
    view, file = plain(10)
    view.event("resumed", step=5, path="runs/[bold]x[/bold]", note="a\nb\x1b[2J")
    assert file.getvalue() == "event  resumed  step 5  path runs/[bold]x[/bold]  note a↵b\\x1b[2J\n"


def test_a_console_without_unicode_gets_what_it_can_show():
    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, encoding="ascii")
    view = LiveView(name="加法", algorithm="grpo", max_steps=5, console=Console(file=file, force_terminal=False))
    view.event("started", data="加法")
    view.record(step(1))
    file.flush()
    assert buffer.getvalue().startswith(b"event  started  data ??\n")


def test_the_panel_shows_the_step_the_losses_and_the_newest_evaluation(terminal):
    view, file = terminal
    view.record(evaluation(0, 0.05))
    for number in (1, 2, 3):
        view.record(step(number, {**METRICS, "reward/mean": number / 10}))
    view.record(evaluation(3, 0.93))
    view.close()
    last = without_codes(file.getvalue()).rpartition("addition · grpo")[2]
    for said in (
        "step 3/100", "0.8 s/step", "left 1m18s", "0.300", "▁▅█", "reward/mean 0.93", "(reward/mean 0.05 at step 0)",
        "policy -0.00123  kl 0.0003", "reference 0.0004", "0.41", "mean 3.9  max 8  truncated 2.5 %", "sampled 1,234",
        "total 0.75",
    ):  # fmt: skip
        assert said in last, said


def test_the_completion_in_the_panel_is_text_and_nothing_else(terminal):
    view, file = terminal
    shown = Sample(prompt_id=1, prompt="47+35=", completion="[red]82[/red]\n\x1b[2J" + "x" * 5000, reward=1.0,
                   reward_parts={}, is_truncated=True)  # fmt: skip
    view.record(step(1, samples=(shown,)))
    view.close()
    text = without_codes(file.getvalue())
    assert re.search(r"reward 1  cut  47\+35=\s+│\n│ +→ \[red\]82\[/red\]↵\\x1b\[2Jx+… ", text)
    assert "\x1b[2J" not in file.getvalue()
    assert max(map(len, text.splitlines())) <= 100


def test_events_stand_above_the_panel(terminal):
    view, file = terminal
    view.record(step(1))
    view.event("resumed", step=1, path="runs/[x]")
    view.close()
    text = without_codes(file.getvalue())
    assert "event  resumed  step 1  path runs/[x]" in text
    assert text.rindex("event  resumed") < text.rindex("step 1/100")


def test_the_panel_is_not_redrawn_for_every_step(terminal):
    view, file = terminal
    for number in range(1, 60):
        view.record(step(number))
    view.close()
    assert without_codes(file.getvalue()).count("addition · grpo") < 20


def test_closing_after_an_exception_shows_the_cursor_and_the_newest_step(terminal):
    view, file = terminal

    def train():
        try:
            view.record(step(1))
            view.record(step(2))
            raise RuntimeError("lost")
        finally:
            view.close()

    with pytest.raises(RuntimeError, match="lost"):
        train()
    view.close()
    assert file.getvalue().count("\x1b[?25l") == file.getvalue().count("\x1b[?25h") == 1
    assert file.getvalue().endswith("\x1b[?25h")
    assert "step 2/100" in without_codes(file.getvalue())


def test_a_view_that_saw_nothing_leaves_nothing(terminal):
    view, file = terminal
    view.close()
    assert file.getvalue() == ""


@pytest.mark.parametrize("width", [20, 40, 200])
def test_the_panel_fits_any_width(width, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    file = io.StringIO()
    view = LiveView(
        name="r" * 50, algorithm="grpo", max_steps=9, console=Console(force_terminal=True, file=file, width=width)
    )
    view.record(step(1))
    view.close()
    assert max(map(len, without_codes(file.getvalue()).splitlines())) <= width


def test_a_sparkline_of_negative_and_equal_values():
    assert live.sparkline([-1.0, -2.0], 8) == "█▁"
    assert live.sparkline([], 8) == ""
    assert len(live.sparkline([float(i) for i in range(1000)], 40)) == 40
