"""What a run shows of itself and of its computers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.assemble.numerics import Numerics
from trimtab.config import RunConfig
from trimtab.store.run_directory import RunDirectory

if TYPE_CHECKING:
    from trimtab.observe.prometheus import Exporter

Notice = Callable[[str], None]


def exporter_of(
    config: RunConfig, directory: RunDirectory, facts: Mapping[str, Any], notice: Notice
) -> Exporter | None:
    """What shows the run to Prometheus; None if nothing was asked for."""
    export = config.export
    if export.prometheus_port is None and export.prometheus_textfile is None:
        return None
    from trimtab.observe.prometheus import Exporter, RunCollector

    token = export.prometheus_token
    if token is not None:
        token.read("observe.prometheus_token")  # one that is not there is said now, and read again at each scrape
    exporter = Exporter(
        RunCollector(
            labels={
                "run": directory.root.resolve().name,
                "algorithm": config.algorithm.name,
                "environment": environment_of(config),
            },
            info={"version": str(facts.get("versions", {}).get("trimtab", "")), "model": str(config.policy.model)},
            max_steps=config.train.max_steps,
            more=lambda: _of_drills(directory),
        ),
        address=export.prometheus_address,
        port=export.prometheus_port,
        token=None if token is None else lambda: token.read("observe.prometheus_token"),
        textfile=None if export.prometheus_textfile is None else Path(export.prometheus_textfile),
        warn=notice,
    )
    if exporter.url is not None:
        notice(f"metrics  {exporter.url}")
    return exporter


def _of_drills(directory: RunDirectory) -> dict[str, float]:
    """When the newest drill that passed was, whoever made it; nothing if there was none."""
    try:
        passed = json.loads((directory.root / "drill.json").read_bytes())["drill/last_success"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {"drill/last_success": float(passed)} if isinstance(passed, int | float) else {}


def environment_of(config: RunConfig) -> str:
    """The name of the environment: that of the file which extends others; empty if it stands alone."""
    return Path(config.chain[0]).stem if len(config.chain) > 1 else ""


def resources_of(
    directory: RunDirectory, models: Any, numerics: Numerics, ranks: Any, notice: Notice
) -> Callable[[], Mapping[str, float]]:
    """What says how busy the computers of all ranks are, and how large each role's weights."""
    from trimtab.models.memory import available_bytes
    from trimtab.observe.resources import Resources

    resources = Resources(directory.root, device=numerics.device, memory=lambda: available_bytes("cpu"))
    if resources.complaint:
        notice(resources.complaint)
    weights = weights_bytes(models)
    return lambda: {**weights, **over_ranks(ranks.gather(resources.figures()))}


def weights_bytes(models: Any) -> dict[str, float]:
    """Memory that each role's own weights take, as metrics."""
    of_roles = {"policy": models.model.parameters(), "value": models.parameters().get("value", ())}
    reference = getattr(models, "reference", None)
    if reference is not None and reference.model is not models.model:
        of_roles["reference"] = reference.model.parameters()
    found = {role: sum(p.numel() * p.element_size() for p in weights) for role, weights in of_roles.items()}
    return {f"memory/{role}": float(size) for role, size in found.items() if size}


def over_ranks(found: list[Mapping[str, float]]) -> dict[str, float]:
    """One computer's figures for those of several: the fullest, the idlest accelerator, the sum of what was moved.

    >>> over_ranks([{"utilisation/disk": 0.5, "io/disk_bytes": 1.0}, {"utilisation/disk": 0.9, "io/disk_bytes": 2.0}])
    {'utilisation/disk': 0.9, 'io/disk_bytes': 3.0}
    """
    names = dict.fromkeys(name for figures in found for name in figures)
    joined: dict[str, float] = {}
    for name in names:
        values = [figures[name] for figures in found if name in figures]
        how = sum if name.startswith("io/") else min if name == "utilisation/accelerator" else max
        joined[name] = float(how(values))
    return joined
