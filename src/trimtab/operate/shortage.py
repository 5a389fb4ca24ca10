"""A run that memory did not suffice for: one message with the figures that matter and the smallest change that fits."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType

from trimtab import config as configs
from trimtab.config import RunConfig
from trimtab.errors import OutOfMemoryError, TrimtabError
from trimtab.operate import advice
from trimtab.store.checkpoints import resumable
from trimtab.store.run_directory import RunDirectory

DOING = {
    "trimtab.train.evaluator": ("the evaluation", None),
    "trimtab.rollout.evaluator": ("the evaluation", "rollout"),
    "trimtab.rollout": ("sampling", "rollout"),
    "trimtab.rewards": ("judging completions", None),
    "trimtab.store": ("saving a checkpoint", None),
    "trimtab.train.learner": ("the update", "update"),
    "trimtab.assemble": ("loading models and data", None),
}
"""What a run was doing, by the outermost module of it that an error came through; and the phase of `Demand.passing`."""
IN_GENERAL = (
    "set policy.gradient_checkpointing=true, lower sampling.max_length or train.prompts_per_step, take a smaller "
    "policy.model, or a larger machine"
)


def explained(error: BaseException, config: RunConfig, directory: RunDirectory) -> BaseException:
    """What to raise in the place of an error: an `OutOfMemoryError` that says everything where memory did not suffice.

    Args:
        error: that ended a run; any other is given back as it is.
        config: of the run.
        directory: of the run.
    """
    if isinstance(error, TrimtabError) and not isinstance(error, OutOfMemoryError):
        return error
    from trimtab.train import passes

    if not passes.is_shortage(error):
        return error
    asked = error.asked if isinstance(error, OutOfMemoryError) else passes.asked_bytes(error)
    tokens = error.tokens if isinstance(error, OutOfMemoryError) else None
    doing, phase = _doing(error.__traceback__)
    traceback.clear_frames(error.__traceback__)  # they hold what filled the memory
    words = f"out of memory in {doing}{f', {error}' if tokens is not None else ''}"
    try:
        words += "\n" + _figures(config, directory, asked=asked, tokens=tokens, phase=phase)
    except Exception:  # a model that has no name, or no memory even for this
        words += f"\n{IN_GENERAL}"
    return OutOfMemoryError(words, asked=asked, tokens=tokens)


def _doing(place: TracebackType | None) -> tuple[str, str | None]:
    for name in _modules(place):
        for module, what in DOING.items():
            if name == module or name.startswith(f"{module}."):
                return what
    return "the run", None


def _modules(place: TracebackType | None) -> Iterator[str]:
    """From the outermost call to the innermost."""
    while place is not None:
        yield str(place.tb_frame.f_globals.get("__name__", ""))
        place = place.tb_next


def _figures(
    config: RunConfig, directory: RunDirectory, *, asked: float | None, tokens: int | None, phase: str | None
) -> str:
    """What was wanted and what is there, in words; what to change; what is kept."""
    from trimtab.assemble.numerics import choose_numerics
    from trimtab.models import memory

    before = directory.facts().get("numerics")
    numerics = choose_numerics(config, memory.configuration(config.policy.model), before=before)
    numerics = numerics if tokens is None else replace(numerics, micro_batch_tokens=tokens)
    sizes = {role: memory.sizes(name, key) for role, (key, name) in advice.models_of(config).items()}
    longest = min(config.sampling.max_length, sizes["policy"]["positions"] or config.sampling.max_length)
    demand = advice.demand_of(config, sizes, numerics, longest=longest)
    free, total, whose = memory.tightest(numerics.device)
    peak, held = demand.peak(phase), sum(demand.held().values())
    # whatever the estimate says: it did not fit, and by as much as was asked for at least
    room = min(free + held, peak - max(asked or 0.0, 0.05 * (peak - held)))
    change = memory.smallest_change(demand, room, group_size=config.sampling.group_size, phase=phase)
    group = f"sampling.group_size {config.sampling.group_size} x " if demand.rows_at_once else ""
    dtype = config.policy.dtype if config.policy.autocast is None else f"{config.policy.autocast} autocast"
    parts = ", ".join(
        f"{name} {memory.bytes_in_words(part)}" for name, part in {**demand.held(), **demand.passing()}.items()
    )
    wanted = "" if asked is None else f"{memory.bytes_in_words(asked)} more were asked for; "
    return (
        f"{group}length {longest} x micro-batch {demand.micro_batch:,} tokens x {dtype}: about {memory.bytes_in_words(peak)} "
        f"beside the program ({parts})\n"
        f"{wanted}{whose} has {memory.bytes_in_words(total)}, of which {memory.bytes_in_words(free)} are free now\n"
        f"{change}{_how_to_go_on(change, directory)}"
    )


def _how_to_go_on(change: str, directory: RunDirectory) -> str:
    """From what was saved, with a change that a continued run may make; else in another place."""
    kept = max((s for s, can_go_on in resumable(directory.checkpoints).items() if can_go_on), default=None)
    if kept is None or not change.startswith("set "):
        return ""
    words = change.removeprefix("set ").split(",")[0].split()
    if all(configs.may_change(word.split("=")[0]) for word in words):
        return f"; the run goes on from step {kept}"
    return f", in another --run-dir or with --fresh; on a larger machine the run goes on from step {kept} as it is"
