"""`trimtab`: one file a command. Nothing here loads torch or transformers until a command needs them."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback

import typer

from trimtab import __version__
from trimtab.cli import (
    accept,
    algorithms,
    check,
    compare,
    config,
    data,
    doctor,
    drill,
    evaluate,
    export,
    import_weights,
    notify,
    rekey,
    reward,
    reward_report,
    rollback,
    runs,
    smoke,
    status,
    swap,
    train,
    verify,
    watch,
)
from trimtab.errors import Preempted, TrimtabError
from trimtab.secrets import guard_console, redact

app = typer.Typer(
    name="trimtab",
    help="Reinforcement-learning post-training for language models: one loop, the algorithm is a plug-in.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

WORDS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Commands that take KEY=VALUE and --key value."""

app.command("train", context_settings=WORDS)(train.train)
app.command("smoke", context_settings=WORDS)(smoke.smoke)
app.command("check", context_settings=WORDS)(check.check)
app.command("eval", context_settings=WORDS)(evaluate.evaluate)
app.command("compare", context_settings=WORDS)(compare.compare)
app.command("status")(status.status)
app.command("watch")(watch.watch)
app.command("accept")(accept.accept)
app.command("swap", context_settings=WORDS)(swap.swap)
app.command("rollback", context_settings=WORDS)(rollback.rollback)
app.command("verify")(verify.verify)
app.command("drill")(drill.drill)
app.command("export")(export.export)
app.command("import-weights")(import_weights.import_weights)
app.command("notify", context_settings=WORDS)(notify.notify)
app.command("rekey")(rekey.rekey)
app.command("doctor")(doctor.doctor)
app.command("algorithms")(algorithms.algorithms)
app.add_typer(config.app, name="config")
app.add_typer(data.app, name="data")
app.add_typer(runs.app, name="runs")
reward.app.command("report", context_settings=WORDS)(reward_report.report)
app.add_typer(reward.app, name="reward")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"trimtab {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks."),
) -> None:
    if debug:
        os.environ["TRIMTAB_DEBUG"] = "1"


def main() -> None:
    """The program: runs a command and ends the process with the exit code of what happened."""
    guard_console()
    try:
        code = app(standalone_mode=False, prog_name="trimtab")
    except TrimtabError as error:
        code = complain(error)
    except typer.Exit as error:
        code = error.exit_code
    except typer.Abort:
        code = 130
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except Exception as error:
        code = complain(error)
    sys.exit(code if isinstance(code, int) else 0)


def complain(error: Exception) -> int:
    """Say what went wrong, without a traceback unless it is asked for; the exit code."""
    if os.environ.get("TRIMTAB_DEBUG"):
        sys.stderr.write(redact("".join(traceback.format_exception(error))))
    if isinstance(error, TrimtabError):
        word = "" if isinstance(error, Preempted) else "error: "
        for line in redact(str(error)).splitlines():
            print(f"{word}{line}", file=sys.stderr)
        return error.exit_code
    if hasattr(error, "format_message"):
        if message := error.format_message():  # it is empty where the help was shown instead
            context = getattr(error, "ctx", None)
            hint = f"; see `{context.command_path} --help`" if context is not None else ""
            print(f"error: {redact(message.rstrip('.'))}{hint}", file=sys.stderr)
        return 2
    with tempfile.NamedTemporaryFile("w", prefix="trimtab-", suffix=".txt", delete=False) as file:
        file.write(redact("".join(traceback.format_exception(error))))
    print(f"internal fault: {type(error).__name__}: {error}", file=sys.stderr)
    print(f"the traceback is in {file.name}; please report it", file=sys.stderr)
    return 1
