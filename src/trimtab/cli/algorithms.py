"""`trimtab algorithms [NAME]`: what there is, and what one of them is."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
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
    _show(description)


def _show(description: dict[str, Any]) -> None:
    typer.echo(f"{description['name']}: {description['summary']}\n")
    typer.echo(f"  loss    {description['formula']}")
    typer.echo(f"  needs   {', '.join(description['needs'])}")
    if description["source"]:
        typer.echo(f"  source  {description['source']}")
    typer.echo("\nsettings and their defaults")
    rows = [(row["key"], _plain(row["default"]), row["help"]) for row in description["settings"]]
    _table(rows)
    if description["presets"]:
        typer.echo("\nwhat `auto` is elsewhere with this algorithm")
        _table([(key, value, "") for key, value in description["presets"].items()])
    if description["refuses"]:
        typer.echo("\nrefused")
        _table([(key, "", why) for key, why in description["refuses"].items()])
    typer.echo("\nmetrics of its own, beside those of every run")
    _table([(row["name"], row["unit"], row["help"]) for row in description["metrics"]])


def _table(rows: list[tuple[str, str, str]]) -> None:
    """Name, value and text in columns; the text goes on under itself."""
    first, second = (max((len(row[place]) for row in rows), default=0) for place in (0, 1))
    start = f"{'':<{first + second + (6 if second else 4)}}"
    room = max(shutil.get_terminal_size((120, 24)).columns - len(start), 40)
    for name, value, text in rows:
        head = f"  {name:<{first}}  {value:<{second}}  " if second else f"  {name:<{first}}  "
        lines = textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False) or [""]
        typer.echo(f"\n{start}".join([head + lines[0], *lines[1:]]).rstrip())


def _plain(value: Any) -> str:
    """A value as a configuration file has it, on one line."""
    if isinstance(value, str):
        return value
    return json.dumps(value)


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
    """Name, formula, needs, settings, presets, refused keys and metrics of an algorithm."""
    from trimtab import catalogue
    from trimtab.config.sections import of_algorithm

    settings = [
        row
        for owner in of_algorithm(algorithm)
        for row in _settings(owner.section, owner.default, set(owner.key_names()))
    ]
    needs = algorithm.needs(algorithm.config())
    names = [*(f"loss/{name}" for name in _terms(algorithm)), *algorithm.reports]
    entries = [(name, catalogue.find(name) if _is_known(name) else None) for name in names]
    metrics = [{"name": n, "unit": m.unit if m else "", "help": m.help if m else ""} for n, m in entries]
    return {
        "name": algorithm.name,
        "summary": algorithm.summary,
        "formula": algorithm.formula,
        "source": algorithm.source,
        "needs": [str(need.name).lower() for need in needs],
        "settings": settings,
        "presets": {key: _preset(value) for key, value in algorithm.presets.items()},
        "refuses": dict(algorithm.refuses),
        "metrics": metrics,
    }


def _settings(prefix: str, record: Any, names: set[str]) -> Iterator[dict[str, Any]]:
    """Every key below a section, nested ones by themselves."""
    from trimtab.config.records import plain_record
    from trimtab.config.schema import help_of
    from trimtab.types import Schedule

    plain = plain_record(record)
    for spec in fields(record):
        value, key = getattr(record, spec.name), f"{prefix}.{spec.name}"
        if spec.name not in names:
            continue
        if is_dataclass(value) and not isinstance(value, Schedule):
            yield from _settings(key, value, {inner.name for inner in fields(value)})
        else:
            yield {"key": key, "default": plain[spec.name], "help": help_of(type(record), spec.name)}


def _terms(algorithm: Any) -> list[str]:
    """The terms that its loss may have, by what it needs and which coefficients it declares."""
    from trimtab.config.sections import of_algorithm
    from trimtab.types import Need

    needs = algorithm.needs(algorithm.config())
    keys = {f"{owner.section}.{key}" for owner in of_algorithm(algorithm) for key in owner.key_names()}
    found = {
        "policy": Need.ROLLOUTS in needs,
        "preference": any(key.startswith("preference.") for key in keys),
        "value": Need.VALUES in needs,
        "entropy": "policy.entropy_coef" in keys,
        "kl": "kl.coef" in keys,
        "nll": Need.DEMONSTRATIONS in needs or "preference.nll_coef" in keys,
        "center": "preference.center" in keys,
    }
    return [name for name, is_there in found.items() if is_there]


def _is_known(name: str) -> bool:
    """A plug-in may report what the catalogue does not have."""
    from trimtab import catalogue

    return name in catalogue.METRICS or name.rsplit("/", 1)[0] + "/*" in catalogue.METRICS


def _preset(value: Any) -> str:
    return f"{value.of} / {value.divisor}" if hasattr(value, "divisor") else _plain(value)


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
