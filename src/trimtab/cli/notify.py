"""`trimtab notify CONFIG|RUN`: one test message to each webhook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from trimtab import config as configs
from trimtab.errors import ConfigError, UserError


def notify(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="CONFIG|RUN", help="A YAML file or a run.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Send one test message to each webhook of observe.webhook, and say what each answered; exit code 1 if one failed."""
    from trimtab.assemble import monitors
    from trimtab.observe.notify import attempt

    config, directory = _config_of(path, context.args)
    if not config.telling.webhook:
        raise UserError(f"{path}: observe.webhook is not set: there is nobody to tell")
    run_id = str(directory.facts().get("id", "")) if directory.exists else ""
    editor = monitors.editor_of(config, directory, run_id)
    found: list[dict[str, Any]] = []
    for place, hook in monitors.placed(config):
        note = editor.notification("test", {"step": 0, "on": ", ".join(hook.on), "hook": place}, version=0)
        assert note is not None
        try:
            monitors.check(place, hook)
        except ConfigError as error:
            reason, is_sent = str(error), False
        else:
            verdict, _ = attempt(hook, note, place)
            reason, is_sent = verdict.reason, verdict.is_taken
        found.append({"key": place, "url": str(hook.url), "format": hook.format, "sent": is_sent, "reason": reason})
        if not as_json:
            typer.echo(
                f"{'ok' if is_sent else 'FAIL':<5} {place}  {hook.format}  {hook.url}{': ' if reason else ''}{reason}"
            )
    if as_json:
        typer.echo(json.dumps(found, indent=1, ensure_ascii=False))
    if not all(entry["sent"] for entry in found):
        raise typer.Exit(1)


def _config_of(path: Path, words: list[str]) -> tuple[configs.RunConfig, Any]:
    """The configuration of a file, or the newest of a run."""
    from trimtab.store.run_directory import RunDirectory

    if not path.is_dir():
        return configs.load(path, words), RunDirectory(Path("runs") / path.stem)
    directory = RunDirectory.existing(path)
    version = directory.newest_config()
    return configs.from_mapping(dict(version["requested"]), words, folder=Path(version["folder"])), directory
