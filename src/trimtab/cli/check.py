"""`trimtab check CONFIG`: everything that can fail before training, the cheap first."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab import config as configs
from trimtab.cli import resources
from trimtab.cli.page import Page
from trimtab.errors import TrimtabError, UserError

if TYPE_CHECKING:
    from trimtab.assemble.inputs import RowSets
    from trimtab.models.memory import Sizes
    from trimtab.operate.versions import OtherRun

SAMPLED_ROWS = 256
"""Rows that are tokenised to see how long they are."""
LABEL = 9


def check(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file.", show_default=False)],
    like: Annotated[Path | None, typer.Option("--like", metavar="RUN", help="Say what differs from this run.")] = None,
    run_dir: Annotated[Path | None, typer.Option("--run-dir", help="Where the run would live, for the disk.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Check configuration, data, rewards, model, memory and disk; estimate the time; compare with the guides' figures.

    Nothing is trained and no weight is read. All faults of a stage are shown at once.
    KEY=VALUE (or --key value) behind the file overrides it.
    """
    page = Page(is_silent=as_json, found={"ok": False})
    try:
        _examine(page, path, context.args, like, run_dir or Path("runs") / path.stem)
    except TrimtabError as error:
        page.found["problems"] = str(error).splitlines()
        raise
    finally:
        if as_json:
            typer.echo(json.dumps(page.found, indent=1, default=str))


def _examine(page: Page, path: Path, words: list[str], like: Path | None, place: Path) -> None:
    """All stages.

    Raises:
        UserError: with every problem of the first stage that has one.
    """
    from trimtab.operate import versions

    config = _config(page, path, words)
    other = versions.other_run(like) if like is not None else None
    rows = _data(page, config)
    _rewards(page, config)
    _listeners(page, config)
    _store(page, config)
    models = _models(page, config)
    _kept(page, config, rows)
    longest = _longest(page, config, models["policy"])
    demand, numerics = resources.machine(page, config, models, longest, place)
    resources.time(page, config, demand, rows, numerics, other)
    _advise(page, config, len(rows.train))
    if other is not None:
        _compare(page, config, rows, numerics, other)
    if page.problems:
        raise UserError("\n".join(page.problems))
    page.found["ok"] = True
    page.say("\nnothing is wrong")


# ------------------------------------------------------------------------------------------------- what is asked for
def _config(page: Page, path: Path, words: list[str]) -> configs.RunConfig:
    config = configs.load(path, words)
    name = config.algorithm.name
    page.found["config"] = {"algorithm": name, "files": list(config.chain), "unused": list(config.unused)}
    page.row("ok", "config", f"{name}, {' <- '.join(config.chain)}")
    if config.unused:
        page.more(f"unused by {name}: {', '.join(config.unused)}")
    return config


def _data(page: Page, config: configs.RunConfig) -> RowSets:
    from trimtab import assemble

    rows = assemble.read_rows(config)
    page.found["data"] = {
        "train": {"name": config.data.train, "rows": len(rows.train)},
        "validation": {"name": config.data.validation, "rows": len(rows.validation)},
        "fingerprints": rows.fingerprints,
    }
    page.row("ok", "data", f"{len(rows.train):,} training rows, {len(rows.validation):,} validation rows")
    if config.data.validation is None:
        page.more("data.validation is not set: no evaluation, no early stop")
    return rows


def _rewards(page: Page, config: configs.RunConfig) -> None:
    """Every function imported.

    Raises:
        RewardError: one cannot be.
    """
    from trimtab import assemble
    from trimtab.assemble import judges

    scorer = assemble.scorer_of(config)
    if scorer is None:
        return
    scorer.close()
    quality = judges.examine(config)
    page.found["rewards"] = list(scorer.labels)
    weights = [f"{label} x {spec.weight:g}" for label, spec in zip(scorer.labels, config.rewards, strict=True)]
    page.row("ok", "rewards", ", ".join(weights))
    for line in quality:
        page.more(line)


def _listeners(page: Page, config: configs.RunConfig) -> None:
    """Trackers and webhooks: their libraries, addresses and keys. Nobody is called.

    Raises:
        UserError: one of them would keep the run from starting.
    """
    from trimtab.assemble import monitors

    monitors.refuse_missing(config)
    hooks = list(monitors.placed(config))
    for place, hook in hooks:
        monitors.check(place, hook)
    token = config.export.prometheus_token
    if token is not None:
        token.read("observe.prometheus_token")
    told = [*config.telling.trackers, *(f"{hook.format} webhook" for _, hook in hooks)]
    if config.export.prometheus_port is not None:
        told.append(f"Prometheus at {config.export.prometheus_address}:{config.export.prometheus_port}")
    if told:
        page.found["told"] = told
        page.row("ok", "told", ", ".join(told))


def _store(page: Page, config: configs.RunConfig) -> None:
    """The object store is there and can be written to; whose it is, is said.

    Raises:
        UserError: it cannot be, or the library for it is not installed.
    """
    if (url := config.checkpoint.store) is None:
        return
    from trimtab.store.remote import Remote, StoreError

    try:
        remote = Remote(url)
        remote.is_writable()
        owner = remote.owner()
    except StoreError as error:
        raise UserError(f"checkpoint.store: {error}") from error
    page.found["store"] = {"url": url, "run": owner and owner["id"]}
    page.row(
        "ok", "store", f"{url} can be written to; " + (f"run {owner['id']} is there" if owner else "no run is there")
    )


# ------------------------------------------------------------------------------------------------------------ models
def _models(page: Page, config: configs.RunConfig) -> dict[str, Sizes]:
    """Sizes of the roles that have weights of their own.

    Raises:
        UserError: all that is wrong with any of them.
    """
    from trimtab.assemble import named_models
    from trimtab.errors import ModelError
    from trimtab.models import memory
    from trimtab.models import policy as policies
    from trimtab.operate.advice import models_of

    try:
        named_models.refuse_spoilt(config)
    except ModelError as error:
        raise UserError(str(error)) from error
    found: dict[str, Sizes] = {}
    by_name: dict[str, Sizes | None] = {}
    problems = []
    for role, (key, name) in models_of(config).items():
        try:
            if name not in by_name:
                by_name[name] = None
                by_name[name] = memory.sizes(name, key)
                if role == "policy":
                    policies.load_tokenizer(name)
        except ModelError as error:
            problems.append(str(error))
        if (size := by_name[name]) is not None:
            found[role] = size
    if problems:
        raise UserError("\n".join(problems))
    page.found["models"] = found
    policy = found["policy"]
    page.row(
        "ok",
        "model",
        f"{policy['name']}: {policy['architecture']}, {policy['parameters']:,} parameters, {policy['layers']} layers, "
        f"{policy['vocabulary']:,} tokens, {policy['positions'] or 'any number of'} positions, tokenizer found",
    )
    for role in found:
        if role != "policy" and found[role]["name"] != policy["name"]:
            page.more(f"{role}: {found[role]['name']}, {found[role]['parameters']:,} parameters")
    return found


def _kept(page: Page, config: configs.RunConfig, rows: RowSets) -> None:
    """The first rows as the run will read them.

    Raises:
        DataError: none of them can be trained on, or one is refused.
    """
    from trimtab.assemble import reading
    from trimtab.cli.data import end_ids
    from trimtab.data.prompts import Limits, prompts
    from trimtab.errors import DataError
    from trimtab.models import policy as policies
    from trimtab.types import Need

    tokenizer, some, s = policies.load_tokenizer(config.policy.model), rows.train[:SAMPLED_ROWS], config.sampling
    try:
        if config.need & Need.ROLLOUTS:
            limits = Limits(max_prompt_length=s.max_prompt_length, max_length=s.max_length, long_prompts=s.long_prompts)
            _, left = prompts(some, tokenizer, limits, as_chat=config.data.as_chat)
        else:
            ends = end_ids(policies.directory_of(config.policy.model), tokenizer)
            _, left = reading.encoded(some, config.need, config, tokenizer, ends)
    except DataError as error:
        if len(rows.train) <= SAMPLED_ROWS or s.long_prompts == "refuse":
            raise
        page.more(f"the first {SAMPLED_ROWS} rows: {error}")
        return
    if str(left):
        page.more(f"of the first {len(some):,} rows {left}")


def _longest(page: Page, config: configs.RunConfig, policy: Sizes) -> int:
    """Tokens of prompt and completion, at most."""
    positions, asked = policy["positions"], config.sampling.max_length
    if positions is None or asked <= positions:
        return asked
    page.more(f"sampling.max_length: {asked}, but the model has {positions} positions; {positions} is used")
    return positions


# -------------------------------------------------------------------------------------------------------------- time


# ------------------------------------------------------------------------------------------------------- comparisons
def _advise(page: Page, config: configs.RunConfig, count: int) -> None:
    from trimtab.operate.advice import advice

    rows = advice(config, count)
    page.found["advice"] = [asdict(row) for row in rows]
    page.table(("setting", "yours", "guides say", "note"), [(r.setting, r.yours, r.guides, r.note) for r in rows])


def _compare(page: Page, config: configs.RunConfig, rows: RowSets, numerics: Any, other: OtherRun) -> None:
    from trimtab.operate import versions

    found = versions.against(other, config=config, fingerprints=rows.fingerprints, numerics=numerics)
    page.found["like"] = {"run": str(other.root), "differences": [asdict(d) for d in found]}
    if not found:
        page.table((f"nothing differs from {other.root}",), [])
        return
    page.table(
        (f"differs from {other.root}", "there", "here"), [(d.what, _short(d.theirs), _short(d.ours)) for d in found]
    )


def _short(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
