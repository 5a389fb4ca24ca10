"""`trimtab config schema|show|diff`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from trimtab import config as configs

app = typer.Typer(help="Configurations: schema for editors, resolved values, differences.", no_args_is_help=True)


@app.command("schema")
def schema() -> None:
    """A JSON Schema of configuration files."""
    from trimtab.config.schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=1))


@app.command("show", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def show(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Every key that the run reads, at its value."""
    import yaml

    config = configs.load(path, context.args)
    if as_json:
        typer.echo(json.dumps(config.resolved, indent=1))
        return
    typer.echo(yaml.safe_dump(dict(config.resolved), sort_keys=False, allow_unicode=True), nl=False)
    if config.unused:
        typer.echo(f"# unused by {config.algorithm.name}: {', '.join(config.unused)}")


@app.command("diff")
def diff(
    before: Annotated[Path, typer.Argument(metavar="A", show_default=False)],
    after: Annotated[Path, typer.Argument(metavar="B", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """What two configurations resolve to differently."""
    found = configs.differences(configs.load(before).resolved, configs.load(after).resolved)
    if as_json:
        typer.echo(json.dumps([{"key": k, "a": a, "b": b} for k, a, b in found], indent=1))
        return
    for key, a, b in found:
        typer.echo(f"{key:<32} {a!s:<20} -> {b}")
    typer.echo(f"{len(found)} differences")
