"""The source and the evaluator of a run that reads its rows: demonstrations, pairs, labelled completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from trimtab.assemble.inputs import RowSets, evaluation_interval
from trimtab.config import RunConfig
from trimtab.data import preferences
from trimtab.data.order import Order
from trimtab.types import Need

if TYPE_CHECKING:
    from trimtab.data.prompts import Left
    from trimtab.data.rows import Row
    from trimtab.data.sources import Kind, ReadingSource
    from trimtab.models.roles import InProcessModels
    from trimtab.models.scoring import ScoringModels
    from trimtab.train.evaluator import ReadingEvaluator
    from trimtab.train.ranks import Ranks

Notice = Callable[[str], None]


def kind_of(need: Need) -> Kind[Any]:
    """What a source does with the rows that an algorithm reads."""
    from trimtab.data import sources

    return sources.PAIRS if need & Need.PAIRS else sources.LABELLED if need & Need.LABELS else sources.DEMONSTRATIONS


def encoded(
    rows: Sequence[Row], need: Need, config: RunConfig, tokenizer: Any, eos_ids: frozenset[int]
) -> tuple[Sequence[Any], Left]:
    """The rows as the algorithm with these needs reads them, and how many were left out or cut.

    Raises:
        DataError: none is left, one is too long under `refuse`, or the chat template refuses one.
    """
    from trimtab.data import judged
    from trimtab.data.prompts import Limits, demonstrations

    s = config.sampling
    limits = Limits(max_prompt_length=s.max_prompt_length, max_length=s.max_length, long_prompts=s.long_prompts)
    encoder = judged.Encoder(tokenizer=tokenizer, limits=limits, end_ids=eos_ids, as_chat=config.data.as_chat)
    if need & Need.PAIRS:
        return judged.pairs(rows, encoder)
    if need & Need.LABELS:
        return judged.labelled(rows, encoder)
    eos_id, on = tokenizer.eos_token_id, config.imitation.train_on
    return demonstrations(rows, tokenizer, limits, eos_id, end_ids=eos_ids, as_chat=config.data.as_chat, train_on=on)


def source_of(
    rows: Sequence[Row],
    need: Need,
    config: RunConfig,
    models: InProcessModels | ScoringModels,
    eos_ids: frozenset[int],
    ranks: Ranks,
    notice: Notice,
    *,
    rows_per_step: int,
    name: str = "data.train",
) -> tuple[ReadingSource[Any], Left]:
    """A source of the rows, and how many were left out or cut; what became of them is said.

    Args:
        name: the key that names the file.
    """
    from trimtab.data import judged
    from trimtab.data.rows import remarks
    from trimtab.data.sources import ReadingSource

    found, left = encoded(rows, need, config, models.tokenizer, eos_ids)
    if str(left):
        notice(f"{name}: of {len(rows):,} rows {_why(left)}")
    if need & Need.LABELS:
        notice(f"{name}: {judged.counts(found)}")
    for line in [*preferences.remarks(row.values for row in rows), *remarks(rows)]:
        notice(f"{name}: {line}")
    order = Order(len(found), seed=config.data.seed, shuffle=config.data.shuffle)
    source = ReadingSource(found, order, kind_of(need), rows_per_step=rows_per_step, rank=ranks.rank, ranks=ranks.size)
    return source, left


def mixed_sources(
    config: RunConfig,
    row_sets: RowSets,
    models: InProcessModels | ScoringModels,
    eos_ids: frozenset[int],
    ranks: Ranks,
    notice: Notice,
) -> tuple[tuple[ReadingSource[Any], ...], dict[str, int]]:
    """The sources of the parts that `mix` adds, and how many rows each has."""
    sources: list[ReadingSource[Any]] = []
    counts: dict[str, int] = {}
    for number, (part, rows) in enumerate(zip(config.mix, row_sets.mixed, strict=True)):
        name = f"mix[{number}].data"
        size = part.spec.rows_per_step
        source, _ = source_of(rows, part.need, config, models, eos_ids, ranks, notice, rows_per_step=size, name=name)
        sources.append(source)
        counts[f"mix[{number}]"] = len(source.rows)
    return tuple(sources), counts


def source_and_evaluator(
    config: RunConfig,
    own: Any,
    row_sets: RowSets,
    models: InProcessModels | ScoringModels,
    eos_ids: frozenset[int],
    ranks: Ranks,
    notice: Notice,
    *,
    micro_batch_tokens: int,
) -> tuple[ReadingSource[Any], ReadingEvaluator, dict[str, int]]:
    """What a run that reads is made of, and how many rows of each part there are.

    Args:
        own: the algorithm's record, fitted to the run.
    """
    from trimtab.models.roles import InProcessModels
    from trimtab.train.evaluator import ReadingEvaluator

    need = config.need
    source, left = source_of(
        row_sets.train, need, config, models, eos_ids, ranks, notice, rows_per_step=config.train.prompts_per_step
    )
    kept: Sequence[Any] = []
    if row_sets.validation:
        kept, without = encoded(row_sets.validation, need, config, models.tokenizer, eos_ids)
        if str(without):
            notice(f"data.validation: of {len(row_sets.validation):,} rows {_why(without)}")
    compared = models if need & Need.REFERENCE and isinstance(models, InProcessModels) else None
    evaluator = ReadingEvaluator(
        models=models,
        batch=kind_of(need).collated(kept, range(len(kept))) if kept else None,
        algorithm=config.algorithm,
        config=own,
        every=said_interval(config, len(source.rows), notice),
        micro_batch_tokens=micro_batch_tokens,
        ranks=ranks,
        js=compared.js if compared else None,
        freeze=partial(compared.freeze, is_evaluated=True) if compared else None,
        tell=notice if need & Need.REFERENCE and config.reference.model is not None else None,
    )
    return source, evaluator, {"train": len(source.rows), "validation": len(kept), "dropped": left.dropped}


def said_interval(config: RunConfig, rows: int, notice: Notice) -> int:
    """Steps between evaluations; what `epoch` comes to is said."""
    every = evaluation_interval(config, rows)
    if config.eval.every == "epoch" and config.data.validation is not None:
        size = config.train.prompts_per_step
        notice(f"eval.every: epoch, that is {every:,} steps ({rows:,} rows, {size:,} a step)")
    return every


def _why(left: Left) -> str:
    from trimtab.data.judged import LeftOut

    return str(left) if isinstance(left, LeftOut) else f"{left}, since they are too long"
