"""`trimtab drill RUN`: whether a run can be recovered from its checkpoints, by doing it."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trimtab.operate.drill import Outcome


def drill(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)],
    steps: Annotated[int, typer.Option("--steps", min=1, help="Train at most so many again.")] = 2,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="Print a cron line and a systemd timer instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Restore a checkpoint in a scratch directory, train its next steps again, compare them with the journal.

    The run is only read and may be training; the outcome stands in its drill.json.
    Ends with 0 if every number is the journal's, 1 if not.
    """
    from trimtab.operate import drill as operate
    from trimtab.store.run_directory import RunDirectory

    if schedule:
        typer.echo(timetable(RunDirectory.existing(run).root.resolve(), steps))
        return
    outcome = operate.drill(run, steps=steps)
    if as_json:
        typer.echo(json.dumps({"passed": outcome.has_passed, **asdict(outcome)}, indent=1))
    else:
        _show(outcome)
    raise typer.Exit(0 if outcome.has_passed else 1)


def _show(outcome: Outcome) -> None:
    if outcome.restore_seconds > 0:
        typer.echo(f"restored  checkpoint {outcome.checkpoint} in {outcome.restore_seconds:.1f} s")
    if outcome.steps:
        how = "bit for bit" if outcome.is_exact else "within a tolerance"
        several = (
            f"steps {outcome.steps[0]} to {outcome.steps[-1]}" if len(outcome.steps) > 1 else f"step {outcome.steps[0]}"
        )
        typer.echo(f"compared  {several} with the journal, {how}: prompts, completions, loss terms, weights")
    for note in outcome.notes:
        typer.echo(f"note      {note}")
    for finding in outcome.findings:
        typer.echo(f"FAIL      {finding}")
    typer.echo("passed    the run can be recovered" if outcome.has_passed else "failed    see also `trimtab verify`")


def timetable(run: Path, steps: int) -> str:
    """A weekly drill, for cron and for systemd; each tells of a failure in its own way."""
    program = shutil.which(sys.argv[0]) or shutil.which("trimtab") or "trimtab"
    command = shlex.join(
        [str(Path(program).absolute()) if "/" in program else program, "drill", str(run), "--steps", str(steps)]
    )
    name = f"trimtab-drill-{run.name}"
    for_cron, for_systemd = command.replace("%", r"\%"), command.replace("%", "%%")
    return f"""# cron: Mondays at 04:17; cron sends a mail only if the drill fails. Add with `crontab -e`:
17 4 * * 1  out=$({for_cron} 2>&1) || echo "$out"

# systemd: ~/.config/systemd/user/{name}.service
[Unit]
Description=Recovery drill of {run.name}
[Service]
Type=oneshot
Nice=10
ExecStart={for_systemd}

# systemd: ~/.config/systemd/user/{name}.timer; then `systemctl --user enable --now {name}.timer`
[Unit]
Description=Weekly recovery drill of {run.name}
[Timer]
OnCalendar=Mon *-*-* 04:17
Persistent=true
[Install]
WantedBy=timers.target"""
