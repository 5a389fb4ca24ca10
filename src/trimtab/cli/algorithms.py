"""`trimtab algorithms [NAME]`: what there is, and what one of them is."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer


def algorithms(
    name: Annotated[str | None, typer.Argument(help="One algorithm in full.", show_default=False)] = None,
    test: Annotated[bool, typer.Option("--test", help="Run the contract suite on it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the algorithms; show one with its formula, needs and settings."""
    from trimtab import algorithms as table

    if name is None:
        _list(as_json=as_json)
        return
    algorithm = table.load(name)
    if test:
        _test(algorithm)
        return
    description = describe(algorithm)
    if as_json:
        typer.echo(json.dumps(description, indent=1))
        return
    typer.echo(f"{algorithm.name}: {algorithm.summary}\n")
    typer.echo(f"  loss    {algorithm.formula}")
    typer.echo(f"  needs   {', '.join(description['needs'])}")
    if algorithm.source:
        typer.echo(f"  source  {algorithm.source}")
    typer.echo("")
    for row in description["settings"]:
        typer.echo(f"  {row['key']:<28} {row['default']!s:<22} {row['help']}")


def _list(*, as_json: bool) -> None:
    from trimtab import algorithms as table

    found = table.loadable()
    if as_json:
        rows = [{"name": a.name, "summary": a.summary, "source": a.source} for a in found.values()]
        typer.echo(json.dumps(rows, indent=1))
        return
    width = max(map(len, table.names()))
    for name in table.names():
        summary = found[name].summary if name in found else "cannot be loaded; `trimtab algorithms NAME` says why"
        typer.echo(f"{name:<{width}}  {summary}")


def describe(algorithm: Any) -> dict[str, Any]:
    """Name, formula, needs and settings of an algorithm."""
    from trimtab.config.schema import help_of
    from trimtab.config.sections import of_algorithm

    settings = [
        {"key": f"{owner.section}.{key}", "default": getattr(owner.default, key), "help": help_of(owner.record, key)}
        for owner in of_algorithm(algorithm)
        for key in owner.key_names()
    ]
    needs = algorithm.needs(algorithm.config())
    return {
        "name": algorithm.name,
        "summary": algorithm.summary,
        "formula": algorithm.formula,
        "source": algorithm.source,
        "needs": [str(need.name).lower() for need in needs],
        "settings": settings,
    }


def _test(algorithm: Any) -> None:
    from trimtab.testing import algorithms as suite

    failures = 0
    for check in suite.CHECKS:
        try:
            check(algorithm)
        except AssertionError as error:
            failures += 1
            typer.echo(f"FAIL  {check.__name__.replace('_', ' ')}: {error}")
        else:
            typer.echo(f"ok    {check.__name__.replace('_', ' ')}")
    typer.echo(f"{len(suite.CHECKS) - failures} passed, {failures} failed")
    if failures:
        raise typer.Exit(1)
