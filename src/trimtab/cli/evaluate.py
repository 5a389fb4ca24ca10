"""`trimtab eval CONFIG|RUN`: the evaluation alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab import config as configs
from trimtab.cli import side_by_side
from trimtab.errors import StorageError, UserError
from trimtab.secrets import redact
from trimtab.types import Need

if TYPE_CHECKING:
    from trimtab.assemble import RowSets
    from trimtab.cli.side_by_side import Joint
    from trimtab.operate.evaluate import Evaluation
    from trimtab.operate.evaluation_document import Asked
    from trimtab.operate.subject import Subject
    from trimtab.store.run_directory import RunDirectory
    from trimtab.train.ranks import Ranks

MOST_GROUPS = 40
"""That are printed; all are in metrics.json."""


def evaluate(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="CONFIG|RUN", help="A YAML file or a run.", show_default=False)],
    checkpoint: Annotated[int | None, typer.Option("--checkpoint", help="A step of the run; default its best.")] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", metavar="K", help="Sample K completions a prompt; default one, greedy.")
    ] = None,
    ks: Annotated[
        str | None,
        typer.Option("--k", metavar="1,4,8", help="Of pass@k and maj@k; default 1 and the number of samples."),
    ] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", help="Of samples; default the run's.")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", help="Of samples; default the run's.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of samples; train.seed has no part in them.")] = 0,
    right: Annotated[float, typer.Option("--right", help="A completion is right if its reward reaches this.")] = 1.0,
    by: Annotated[
        str | None, typer.Option("--by", metavar="COLUMN", help="Break down by a column of the data.")
    ] = None,
    prompts: Annotated[int | None, typer.Option("--prompts", help="The first so many; default eval.prompts.")] = None,
    to: Annotated[Path | None, typer.Option("--to", help="Its directory; default RUN/evaluations/...")] = None,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="RUN[:STEP]|MODEL|DIR", help="Beside it, on the same prompts and seed."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Evaluate a run's model, or the model of a configuration, on data.validation.

    The same command goes on with what was interrupted, and shows what is complete without doing it again.
    """
    from trimtab.cluster.torchrun import joined
    from trimtab.operate import evaluate as operate
    from trimtab.operate import evaluation_document as documents
    from trimtab.operate import subject as subjects
    from trimtab.store.run_directory import RunDirectory
    from trimtab.train.ranks import Ranks

    if prompts is not None and prompts < 1:
        raise UserError(f"--prompts {prompts}: expected 1 or more")
    asked = documents.Asked(
        samples=samples, ks=_ks(ks), temperature=temperature, top_p=top_p, seed=seed, right=right, by=by
    )
    asked.check()
    words = [*context.args, *([f"eval.prompts={prompts}"] if prompts is not None else [])]
    config = _config_of(path, checkpoint, words)
    if config.data.validation is None:
        raise UserError("data.validation is not set: there is nothing to evaluate on")
    run = RunDirectory(path) if RunDirectory(path).exists else None
    place = _place(run, path, to)
    with joined():
        ranks = Ranks()
        say = _say if ranks.rank == 0 else _silently
        if not config.need & Need.ROLLOUTS:
            _refuse_what_samples(config, asked, against)
            with subjects.opened(config, run, checkpoint) as subject:
                document, root = _read(subject, _rows(config, run, ranks), place, ranks, is_asked=to is not None)
            if ranks.rank == 0:
                _print_read(config, document, root, as_json=as_json)
            return
        rows = _rows(config, run, ranks)
        with subjects.opened(config, run, checkpoint) as subject:
            found = operate.evaluate(subject, rows, asked, place, ranks, say)
        joint = None
        if against is not None:
            other = side_by_side.evaluated(against, config, rows, found, asked, ranks, say)
            joint = side_by_side.joined(found, other, asked) if ranks.rank == 0 else None
    if ranks.rank != 0:
        return
    if as_json:
        typer.echo(json.dumps(_for_programs(found, joint), indent=1, ensure_ascii=False))
        return
    for line in [*_lines(config, found), *([] if joint is None else side_by_side.lines(joint))]:
        typer.echo(line)


def _say(line: str) -> None:
    print(redact(line), file=sys.stderr)


def _silently(_: str) -> None:
    pass


def _ks(words: str | None) -> tuple[int, ...]:
    """
    Raises:
        UserError: it is no list of numbers.
    """
    if words is None:
        return ()
    parts = [part.strip() for part in words.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise UserError(f"--k {words}: expected whole numbers above 0 with commas between them, such as 1,4,8")
    return tuple(map(int, parts))


def _place(run: RunDirectory | None, path: Path, to: Path | None) -> Callable[[str], Path]:
    """The directory of an evaluation, of the name that stands for what it depends on."""
    if to is not None:
        return lambda _: to
    if run is not None:
        return lambda name: run.root / "evaluations" / name
    return lambda name: Path("runs") / f"eval-{path.stem}-{name}"


def _rows(config: configs.RunConfig, run: RunDirectory | None, ranks: Ranks) -> RowSets:
    """What is evaluated on; of a run, each file stands in its audit log."""
    from trimtab import assemble
    from trimtab.operate import audited

    told: list[assemble.Admission] = []
    try:
        return assemble.read_rows(config, tell=told.append)
    finally:
        for found in told if run is not None and ranks.rank == 0 else ():
            assert run is not None
            audited.note_if_possible(run, "eval", key=found.key, place=found.place, allowed=found.is_allowed)


def _config_of(path: Path, checkpoint: int | None, words: list[str]) -> configs.RunConfig:
    from trimtab.operate.subject import model_of_run
    from trimtab.store.run_directory import RunDirectory

    run = RunDirectory(path)
    if not run.exists:
        if checkpoint is not None:
            raise UserError(f"--checkpoint {checkpoint}: {path} is a configuration, only a run has checkpoints")
        return configs.load(path, words)
    version = run.newest_config()
    requested = dict(version["requested"])
    requested["policy"] = {**requested.get("policy", {}), "model": model_of_run(run, checkpoint)}
    return configs.from_mapping(requested, words, folder=Path(version["folder"]))


def _refuse_what_samples(config: configs.RunConfig, asked: Asked, against: str | None) -> None:
    """
    Raises:
        UserError: something is asked for that only completions have.
    """
    given = {
        "--samples": asked.samples,
        "--k": asked.ks or None,
        "--by": asked.by,
        "--against": against,
        "--seed": asked.seed or None,
        "--right": None if asked.right == 1.0 else asked.right,
    }
    if names := [name for name, value in given.items() if value is not None]:
        raise UserError(
            f"{', '.join(names)}: {config.algorithm.name} evaluates rows that are read and writes no completions; "
            "leave it out, or evaluate with a configuration of an algorithm that samples and policy.model=RUN"
        )


def _read(
    subject: Subject, rows: RowSets, place: Callable[[str], Path], ranks: Ranks, *, is_asked: bool
) -> tuple[dict[str, Any], Path | None]:
    """The figures of an algorithm that reads, and where they are kept; None where nothing can be."""
    import tempfile

    from trimtab import assemble
    from trimtab.operate import evaluation_document as documents
    from trimtab.operate.evaluation_files import EvaluationFiles
    from trimtab.store.run_directory import RunDirectory
    from trimtab.train.control import NoControl

    config = subject.config
    with tempfile.TemporaryDirectory() as scratch:
        directory = RunDirectory(Path(scratch) / "run")
        directory.create()
        built = assemble.build(config, directory, NoControl(), row_sets=rows)
        try:
            report = built.run.evaluator.evaluate_if_due(0, last=True)
            document = documents.document_of_reading(subject, built, rows)
        finally:
            built.close()
    if report is None:
        raise UserError(f"data.validation: {config.data.validation} has no rows to evaluate on")
    document |= {"complete": True, "metrics": dict(report.metrics)}
    if ranks.rank != 0:
        return document, None
    files = EvaluationFiles(place(f"{documents.label_of(subject.step)}-{documents.digest(document['identity'])}"))
    try:
        files.create()
        if files.exists:
            files.refuse_another(document["identity"])
        files.write_document(document)
    except (StorageError, UserError) as error:
        if is_asked:
            raise
        _say(f"warning: {error}; the figures are kept nowhere")
        return document, None
    return document, files.root


def _print_read(config: configs.RunConfig, document: Mapping[str, Any], root: Path | None, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(document["metrics"], indent=1))
        return
    typer.echo(f"{config.policy.model} on {config.data.validation}")
    for name, value in document["metrics"].items():
        typer.echo(f"  {name:<28} {value:.4f}")
    if root is not None:
        typer.echo(f"kept in {root}")


def _for_programs(found: Evaluation, joint: Joint | None) -> dict[str, Any]:
    """The figures by their names, and what was asked for beside them."""
    said: dict[str, Any] = {**found.document["metrics"], "directory": str(found.files.root)}
    if "groups" in found.document:
        said |= {"by": found.document["by"], "groups": found.document["groups"]}
    return said if joint is None else {**said, "against": joint.values()}


def _lines(config: configs.RunConfig, found: Evaluation) -> list[str]:
    from trimtab.rollout.evaluation import written

    document = found.document
    sampling = document["identity"]["sampling"]
    how = "greedy"
    if not sampling["greedy"]:
        how = (
            f"{sampling['samples']} samples a prompt, temperature {sampling['temperature']:g}, "
            f"top-p {sampling['top_p']:g}, seed {sampling['seed']}"
        )
    lines = [f"{found.name} on {config.data.validation}, {how}"]
    lines += [f"  {name:<28} {written(name, value):>9}" for name, value in document["metrics"].items()]
    lines += _reading_aids(document)
    if "groups" in document:
        lines += ["", *_table_of_groups(document)]
    return [*lines, f"kept in {found.files.root}"]


def _reading_aids(document: Mapping[str, Any]) -> list[str]:
    """What the figures rest on, in words."""
    said = [f"  right: a reward of {document['right']:g} or more"]
    if any(k > 1 for k in document["k"]):
        said.append(f"  maj@k: answers read by {document['answers_read_by']}; {document['majority']}")
    if document["data"]["too_long"]:
        said.append(f"  prompts that are too long: {document['data']['too_long']}")
    return said


def _table_of_groups(document: Mapping[str, Any]) -> list[str]:
    """The groups of a column with the figures that differ most between readers of them."""
    by, groups = document["by"], document["groups"]
    names = ["eval/reward/mean", *(f"eval/pass@{k}" for k in document["k"])]
    names += [f"eval/maj@{k}" for k in document["k"] if k > 1] + ["eval/length/mean"]
    labels = ["(none)" if g["value"] is None else _short(g["value"]) for g in groups[:MOST_GROUPS]]
    width = max(len(by), *map(len, labels))
    heads = [name.removeprefix("eval/") for name in names]
    lines = [f"  {by:<{width}}  {'prompts':>7}" + "".join(f"  {head:>{max(8, len(head))}}" for head in heads)]
    for label, group in zip(labels, groups, strict=False):
        row = f"  {label:<{width}}  {group['metrics']['eval/prompts']:>7.0f}"
        for name, head in zip(names, heads, strict=True):
            value = group["metrics"].get(name)
            row += f"  {'-' if value is None else f'{value:.4f}':>{max(8, len(head))}}"
        lines.append(row)
    if len(groups) > MOST_GROUPS:
        lines.append(f"  {len(groups) - MOST_GROUPS:,} more groups are in metrics.json")
    return lines


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= 40 else f"{text[:37]}..."
