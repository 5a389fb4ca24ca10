"""An evaluation carried out: a chunk of prompts at a time, by any number of processes, going on where it was interrupted.

The completion of a prompt depends on weights, prompt, seed and its number alone, and is always sampled in the company of
the same other prompts. So the numbers of processes and interruptions show in no result, and the first completions of an
evaluation with many are those of one with few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab import config as configs
from trimtab.assemble import RowSets
from trimtab.assemble import exam as exams
from trimtab.assemble.exam import Exam
from trimtab.config import RunConfig
from trimtab.errors import TrimtabError, UserError, shown
from trimtab.operate import evaluation_document as documents
from trimtab.operate.evaluation_document import Asked
from trimtab.operate.evaluation_files import EvaluationFiles, line_of
from trimtab.operate.subject import Subject
from trimtab.rollout import evaluation
from trimtab.rollout.evaluation import Answered, Completion
from trimtab.types import Draw, Prompt, Schedule, Scored

if TYPE_CHECKING:
    from trimtab.train.ranks import Ranks

Say = Callable[[str], None]

TOGETHER = 32
"""Completions of a prompt that are sampled at once; the next so many are another draw of the prompt."""
CHUNK_PROMPTS, CHUNK_COMPLETIONS = 128, 512
"""Of a chunk, at most; at least one prompt."""
CHUNKS = 8
"""That fewer prompts are cut into, down to `SMALLEST` each, so that several processes have something to do."""
SMALLEST = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One that is complete; on other ranks than the first only that it is."""

    name: str
    """What the model is called."""
    files: EvaluationFiles
    document: dict[str, Any]
    """What metrics.json says."""
    answered: Sequence[Answered]
    prompts: Sequence[Prompt]
    values: Sequence[Any] | None = None
    """Of the column that it is broken down by, one a prompt."""


def evaluate(
    subject: Subject, rows: RowSets, asked: Asked, place: Callable[[str], Path], ranks: Ranks, say: Say
) -> Evaluation:
    """Evaluate, or go on with what was begun with the same model, data, rewards and settings.

    Args:
        subject: the model and the configuration.
        rows: with those that are held out.
        asked: checked.
        place: the directory, of a name that stands for all that the completions depend on.
        ranks: all of which call this.
        say: is told how it goes, on the first rank.
    Raises:
        UserError: there is nothing to evaluate on, or another evaluation has the directory.
        StorageError: it cannot be written.
    """
    config = subject.config
    temperature = asked.temperature or _temperature(config, subject.step)
    top_p = asked.top_p or config.sampling.top_p
    exam = exams.prepare(config, rows, temperature=temperature, top_p=top_p, seed=asked.seed, notice=say)
    try:
        values = _column(exam, asked.by)
        sampled: dict[str, Any] = {"samples": asked.count, "greedy": asked.samples is None}
        if asked.samples is not None:
            sampled |= {"temperature": temperature, "top_p": top_p, "seed": asked.seed}
        identity = {**exam.identity, "sampling": sampled}
        files = EvaluationFiles(place(documents.name_of(identity, subject.step)))
        document = documents.begun(subject, exam, asked, identity, ranks.size)
        with ExitStack() as stack:
            done = _together(ranks, lambda: _open(files, stack, document, asked, len(exam.prompts), say))
            _work(exam, files, asked, done, ranks, say)
            answered: list[Answered] = []
            if ranks.rank == 0:
                answered, document = _conclude(files, exam, asked, document, values)
        ranks.barrier()
        return Evaluation(
            name=str(subject),
            files=files,
            document=document,
            answered=answered,
            prompts=exam.prompts,
            values=values,
        )
    finally:
        exam.close()


def _temperature(config: RunConfig, step: int | None) -> float:
    from trimtab.train import schedule

    given = config.sampling.temperature
    return schedule.number_at(given, step or 1) if isinstance(given, Schedule) else given


def _column(exam: Exam, by: str | None) -> list[Any] | None:
    """The column's value of each prompt.

    Raises:
        UserError: no prompt has the column.
    """
    if by is None:
        return None
    values = list(exam.column(by))
    if all(value is None for value in values):
        there = sorted({name for prompt in exam.prompts[:100] for name in prompt.columns})
        raise UserError(f"--by {by}: no prompt has that column; there are {', '.join(there) or 'none'}")
    return values


def _together(ranks: Ranks, work: Callable[[], int]) -> int:
    """What the first rank finds, on all; what it raises, they all raise."""
    found: int | TrimtabError = 0
    if ranks.rank == 0:
        try:
            found = work()
        except TrimtabError as error:
            if ranks.size == 1:
                raise
            found = error
    first = ranks.gather(found)[0]
    if isinstance(first, TrimtabError):
        raise first
    return int(first)


def _open(
    files: EvaluationFiles, stack: ExitStack, document: dict[str, Any], asked: Asked, prompts: int, say: Say
) -> int:
    """The directory, locked and mended; how many prompts are done."""
    files.create()
    stack.enter_context(files.locked())
    if not files.exists:
        files.write_document(document)
        return 0
    files.refuse_another(document["identity"])
    before = files.document()
    is_same = before.get("right") == asked.right
    if not is_same:  # until all lines are judged anew, they are judged by nothing in particular
        files.write_document({**before, "right": None})
    done = files.mend(
        samples=asked.count,
        chunk=_chunk(asked, prompts),
        prompts=prompts,
        threshold=asked.right,
        is_same=is_same,
    )
    made, now = before.get("made_with") or document["made_with"], document["made_with"]
    changed = [f"{name} {made.get(name)} -> {now[name]}" for name in documents.MATTERS if made.get(name) != now[name]]
    if 0 < done < prompts and changed:
        say(f"{done:,} prompts were answered with other versions or on another device: {', '.join(changed)}")
    files.write_document({**document, "made_with": made if done else now})
    if done:
        say(f"{files.root}: {done:,} of {prompts:,} prompts are done")
    return done


def _chunk(asked: Asked, prompts: int) -> int:
    """Prompts of a chunk: of nothing but the evaluation itself, so that chunks do not change with the processes."""
    share = max(SMALLEST, -(-prompts // CHUNKS))
    return max(1, min(share, CHUNK_PROMPTS, CHUNK_COMPLETIONS // asked.count))


def _work(exam: Exam, files: EvaluationFiles, asked: Asked, done: int, ranks: Ranks, say: Say) -> None:
    """Answer the prompts that are missing: in each round every rank a chunk, which the first one writes."""
    prompts = exam.prompts
    size = _chunk(asked, len(prompts))
    shown_at = 0.0
    for start in range(done, len(prompts), size * ranks.size):
        mine = start + ranks.rank * size
        lines = _answers(exam, prompts[mine : mine + size], asked) if mine < len(prompts) else b""
        everybody = ranks.gather(lines)
        if ranks.rank == 0:
            files.append(b"".join(everybody))
        share = min(1.0, (start + size * ranks.size) / len(prompts))
        if share >= shown_at + 0.1 and share < 1:
            shown_at = share
            say(f"{round(share * len(prompts)):,} of {len(prompts):,} prompts")


def _answers(exam: Exam, prompts: Sequence[Prompt], asked: Asked) -> bytes:
    """The lines of a chunk."""
    assert exam.engine is not None
    by_prompt: dict[int, list[Any]] = {prompt.id: [] for prompt in prompts}
    for first in range(0, asked.count, TOGETHER):
        draws = [Draw(prompt=prompt, draw=first // TOGETHER) for prompt in prompts]
        size = min(TOGETHER, asked.count - first)
        for rollout in exam.engine.generate(draws, group_size=size, greedy=asked.samples is None):
            by_prompt[rollout.prompt.id].append(replace(rollout, index=first + rollout.index))
    scored = exam.scorer.score([rollout for own in by_prompt.values() for rollout in own])
    return b"".join(line_of(_completion(one, exam), asked.right) for one in scored)


def _completion(scored: Scored, exam: Exam) -> Completion:
    rollout = scored.rollout
    return Completion(
        prompt_id=rollout.prompt.id,
        index=rollout.index,
        text=rollout.text,
        tokens=len(rollout.tokens),
        reward=scored.reward if scored.is_scored else None,
        parts=dict(zip(exam.scorer.labels, scored.parts, strict=True)),
        is_truncated=rollout.is_truncated,
        extracted=exam.answer(scored),
    )


def _conclude(
    files: EvaluationFiles, exam: Exam, asked: Asked, document: dict[str, Any], values: list[Any] | None
) -> tuple[list[Answered], dict[str, Any]]:
    """The figures of all that was written, from the file itself."""
    labels, ks = exam.scorer.labels, asked.wanted
    answered = [evaluation.answered(c, labels, ks, asked.right, seed=asked.seed) for c in files.read()]
    document = {
        **document,
        "made_with": files.document()["made_with"],
        "complete": True,
        "metrics": evaluation.figures(answered, labels, ks),
    }
    if asked.by is not None and values is not None:
        groups = evaluation.breakdown(answered, values, labels, ks)
        document |= {"by": asked.by, "groups": [{"value": g.value, "metrics": dict(g.figures)} for g in groups]}
    files.write_document(document)
    return answered, document


def of_directory(files: EvaluationFiles, like: Evaluation, asked: Asked) -> Evaluation:
    """An evaluation that was made before, of any model on the same prompts in the same way as another.

    Raises:
        UserError: it is not complete, or of something else.
    """
    document = files.document()
    if not document["complete"]:
        raise UserError(f"{files.root}: is not complete; the command that began it goes on with it")
    identity = {**document["identity"], **{name: like.document["identity"][name] for name in ("model", "tokenizer")}}
    if changed := configs.differences(like.document["identity"], identity):
        named = "; ".join(f"{key} is {shown(new)}, here {shown(old)}" for key, old, new in changed)
        raise UserError(f"{files.root}: was not made in the same way: {named}")
    labels = like.document["reward_labels"]
    answered = [evaluation.answered(c, labels, asked.wanted, asked.right, seed=asked.seed) for c in files.read()]
    metrics = evaluation.figures(answered, labels, asked.wanted)
    model = document["model"]
    name = model["name"] if model["step"] is None else f"{model['name']} at step {model['step']:,}"
    return Evaluation(
        name=name,
        files=files,
        document={**document, "metrics": metrics},
        answered=answered,
        prompts=like.prompts,
        values=like.values,
    )
