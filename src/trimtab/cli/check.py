"""`trimtab check CONFIG`: everything that can fail before training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trimtab import config as configs
from trimtab.errors import UserError


def check(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file.", show_default=False)],
) -> None:
    """Check configuration, data, rewards and model; print what the run would need. Nothing is trained."""
    from trimtab import assemble

    config = configs.load(path, context.args)
    typer.echo(f"ok    config    {config.algorithm.name}, {len(config.chain)} file(s)")
    if config.unused:
        typer.echo(f"      unused by {config.algorithm.name}: {', '.join(config.unused)}")
    found = assemble.read_rows(config)
    typer.echo(f"ok    data      {len(found.train):,} training rows, {len(found.validation):,} validation rows")
    if config.data.validation is None:
        typer.echo("      data.validation is not set: no evaluation, no early stop")
    scorer = assemble.scorer_of(config)
    if scorer is not None:
        typer.echo(f"ok    rewards   {', '.join(scorer.labels)}")
        scorer.close()
    sizes = _model_sizes(config)
    typer.echo(
        f"ok    model     {config.policy.model}: {sizes['parameters']:,} parameters, {sizes['vocabulary']:,} tokens"
    )
    for role, size in _memory(config, sizes).items():
        typer.echo(f"      {role:<30} {size / 2**20:>10,.0f} MiB")


def _model_sizes(config: configs.RunConfig) -> dict[str, int]:
    """From config.json alone: the weights are not read."""
    from trimtab.models import memory

    try:
        return memory.sizes(config.policy.model)
    except (OSError, ValueError) as error:
        raise UserError(f"policy.model: {config.policy.model}: {str(error).splitlines()[0]}") from error


def _memory(config: configs.RunConfig, sizes: dict[str, int]) -> dict[str, float]:
    from trimtab.algorithms.base import Need
    from trimtab.models import memory

    estimate: dict[str, Any] = memory.estimate(
        parameters=sizes["parameters"],
        has_own_critic=bool(config.need & Need.VALUES) and config.value.model != "shared",
        has_reference=bool(config.need & Need.REFERENCE),
    )
    return estimate
