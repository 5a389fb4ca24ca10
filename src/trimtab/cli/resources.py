"""What a run would need of this machine: memory, disk, time. The part of `trimtab check` that estimates."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab import config as configs
from trimtab.cli.page import Page

if TYPE_CHECKING:
    from trimtab.assemble.inputs import RowSets
    from trimtab.models.memory import Demand, Sizes
    from trimtab.operate.versions import OtherRun

SAMPLED_ROWS = 256
"""Rows that are tokenised to see how long they are."""


def machine(
    page: Page, config: configs.RunConfig, models: dict[str, Sizes], longest: int, place: Path
) -> tuple[Demand, Any]:
    """Memory and disk, against what is there."""
    from trimtab.assemble.numerics import choose_numerics
    from trimtab.models import memory
    from trimtab.operate import advice

    numerics = choose_numerics(config, memory.configuration(config.policy.model))
    demand = advice.demand_of(config, models, numerics, longest=longest)
    _processes(page, config, numerics.device)
    _memory(page, config, demand, numerics.device)
    _disk(page, config, demand, place)
    return demand, numerics


def _processes(page: Page, config: configs.RunConfig, device: str) -> None:
    """How many train, if there are several, and whether each has a GPU."""
    count, launcher = config.cluster.processes, config.cluster.launcher
    if count == 1:
        return
    page.found["processes"] = {"count": count, "launcher": launcher}
    if device == "cuda" and launcher == "local":
        import torch

        if (gpus := torch.cuda.device_count()) < count:
            page.fail("processes", f"cluster.processes: {count}, but there are {gpus} GPUs and each needs one")
            return
    page.row("ok", "processes", f"{count}, started by {'this program' if launcher == 'local' else launcher}")


def _memory(page: Page, config: configs.RunConfig, demand: Demand, device: str) -> None:
    import psutil

    from trimtab.models import memory

    program = float(psutil.Process().memory_info().rss) if device == "cpu" else 0.0
    free, total = memory.available_bytes(device)
    held, passing = demand.held(), demand.passing()
    beside = config.cluster.processes if device == "cpu" and config.cluster.launcher == "local" else 1
    peak = (program + demand.peak()) * beside
    page.found["memory"] = {
        "held_bytes": held, "passing_bytes": passing, "program_bytes": program, "peak_bytes": peak,
        "available_bytes": free, "total_bytes": total, "device": device, "is_enough": peak <= free,
    }  # fmt: skip
    of_all = f" of all {beside} processes" if beside > 1 else ""
    if peak <= free:
        page.row(
            "ok", "memory", f"{_bytes(peak)} at the peak{of_all}, {_bytes(free)} of {_bytes(total)} are free ({device})"
        )
    else:
        own = free / beside - program
        change = memory.smallest_change(demand, own, group_size=config.sampling.group_size)
        page.fail(
            "memory", f"{_bytes(peak)} at the peak{of_all}, but {_bytes(free)} of {_bytes(total)} are free; {change}"
        )
    words = {
        "policy": _trained_words(demand),
        "adapter": f"{demand.adapter or 0:,} trained numbers with gradients and two moments: 16 bytes each",
        "critic": "the same of the critic, as much again: a critic of its own doubles the trained memory",
        "reference": f"weights, frozen: {demand.reference_bytes} bytes a parameter",
        "rewards": f"weights of reward models, frozen: {demand.weight_bytes} bytes a parameter",
        "update": f"activations and logits of {demand.micro_batch:,} tokens",
        "rollout": f"keys, values and logits of {demand.rows_at_once:,} completions of {demand.longest:,} tokens",
        "saving": "weights and moments once more, while a checkpoint is written beside training (checkpoint.async)",
    }
    if demand.is_recomputed:
        words["update"] += ", layers computed again in the backward pass"
    if demand.is_autocast:
        words["update"] += ", copies of weights in two bytes"
    if demand.is_offloaded:
        words["reference"] += ", on the device while it is read"
    if demand.adapter is not None:
        words["critic"] = "a critic of its own, all of its weights trained; value.model=shared has none"
    elif "critic" in held:
        before, after = _bytes(held["policy"]), _bytes(held["policy"] + held["critic"])
        words["critic"] += f", {before} to {after}"
    if beside > 1:
        page.more(f"of each of the {beside} processes:")
    lines = {**held, **passing}
    largest = max(passing, key=lambda name: passing[name])
    for name, size in lines.items():
        mark = "  (the largest of those that come in turn)" if name == largest else ""
        page.more(f"{name:<10}{_bytes(size):>10}  {words[name]}{mark}")
    if program:
        page.more(f"{'program':<10}{_bytes(program):>10}  Python, torch and transformers themselves")
    if demand.adapter is not None and "reference" not in lines and "reference" in config.resolved:
        page.more("reference none of its own: it is the policy with its adapter off")
    if config.value.model == "shared" and "critic" not in held and "value" in config.resolved:
        page.more("critic    none of its own: it is a head on the policy's trunk")


def _trained_words(demand: Demand) -> str:
    """What a parameter of the policy takes."""
    if demand.adapter is not None:
        return f"weights, frozen under the adapter: {demand.weight_bytes} bytes a parameter"
    if demand.weight_bytes == 2:
        return "weights of two bytes, their float32 copies, gradients, two moments: 18 bytes a parameter"
    return "weights, gradients, two moments: 16 bytes a parameter"


def _disk(page: Page, config: configs.RunConfig, demand: Demand, place: Path) -> None:
    from trimtab.models import memory
    from trimtab.models.memory import FLOAT
    from trimtab.operate import advice
    from trimtab.store.checkpoints import free_bytes

    size, (count, alone) = memory.checkpoint_bytes(demand), advice.checkpoints_kept(config)
    final = float(demand.weight_bytes * demand.policy["parameters"])
    weights = FLOAT * float(demand.adapter) if demand.adapter is not None else final
    wanted = (count + 1) * size + alone * weights + final  # one more while it is written
    free = free_bytes(place)
    page.found["disk"] = {
        "checkpoint_bytes": size, "checkpoints": count, "weights_bytes": weights, "weights_checkpoints": alone,
        "wanted_bytes": wanted, "free_bytes": free, "place": str(place), "is_enough": wanted <= free,
    }  # fmt: skip
    text = f"{_bytes(wanted)} for {place}: up to {count} checkpoints of {_bytes(size)}, "
    text += f"{alone} of the policy's weights alone of {_bytes(weights)}, " if alone else ""
    text += "one being written, and final/"
    if wanted <= free:
        page.row("ok", "disk", f"{text}; {_bytes(free)} are free")
    else:
        hint = "lower checkpoint.keep and checkpoint.rolling_keep, or give another --run-dir"
        page.fail("disk", f"{text}, but {_bytes(free)} are free; {hint}")


def _bytes(size: float) -> str:
    """
    >>> _bytes(13.1e6), _bytes(2**31)
    ('12.5 MiB', '2.0 GiB')
    """
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"


def time(
    page: Page,
    config: configs.RunConfig,
    demand: Demand,
    rows: RowSets,
    numerics: Any,
    like: OtherRun | None,
) -> None:

    from trimtab.assemble.inputs import evaluation_interval
    from trimtab.operate import advice

    if numerics.device != "cpu":
        page.row("", "time", "not estimated: what is measured here is the CPU")
        return
    prompt, completion, known = _lengths(config, rows, demand.longest, like)
    room = max(1.0, demand.longest - prompt)
    cases = [known] if known else [completion] if completion else [room, max(1.0, room / 4)]
    speed = _speed(demand, numerics, int(prompt + cases[0]))
    every = evaluation_interval(config, len(rows.train))
    seconds = [
        advice.time_of(config, demand, speed, prompt_length=prompt, completion_length=length, every=every)
        for length in cases
    ]
    page.found["time"] = {
        "prompt_tokens": prompt,
        "speed": asdict(speed),
        "cases": [
            {"completion_tokens": length, "step_seconds": sum(phases.values()), "run_seconds": whole, "phases": phases}
            for length, (phases, whole) in zip(cases, seconds, strict=True)
        ],
    }
    source = f"as in {like.root}" if like and known else "as in the data" if completion else "the limit"
    count, more = config.train.max_steps, " and evaluations" if config.data.validation is not None else ""
    for number, (length, (phases, whole)) in enumerate(zip(cases, seconds, strict=True)):
        step = sum(phases.values())
        why = source if number == 0 else "a quarter of it"
        text = f"{_clock(step)} a step, {_clock(whole)} in all ({count} steps{more}), "
        text += f"if completions have {length:,.3g} tokens, {why}"
        page.row("" if number else "about", "" if number else "time", text)
        if number == 0:
            page.more("a step: " + ", ".join(f"{name} {_clock(part)}" for name, part in phases.items()))
    page.more("an estimate from a layer timed here, right within a factor of about 2; rewards and saving come on top")


def _lengths(
    config: configs.RunConfig, rows: RowSets, longest: int, like: OtherRun | None
) -> tuple[float, float | None, float | None]:
    """Mean tokens of the prompts, of the demonstrations if they are imitated, of the completions of the other run."""
    from trimtab.data.prompts import mean_lengths
    from trimtab.models import policy as policies
    from trimtab.types import Need

    tokenizer = policies.load_tokenizer(config.policy.model)
    some = rows.train[:: max(1, len(rows.train) // SAMPLED_ROWS)][:SAMPLED_ROWS]

    is_read = not config.need & Need.ROLLOUTS
    as_chat, train_on = config.data.as_chat, config.imitation.train_on
    if config.need & (Need.PAIRS | Need.LABELS):
        from trimtab.data import judged

        tokens, answered = judged.mean_lengths(some, tokenizer, as_chat=as_chat)
    else:
        tokens, answered = mean_lengths(some, tokenizer, with_answers=is_read, as_chat=as_chat, train_on=train_on)
    prompt = min(tokens, float(min(config.sampling.max_prompt_length, longest - 1)))
    if is_read:
        return prompt, min(answered, longest - prompt), None
    known = like.completion_length if like is not None else None
    return prompt, None, None if known is None else min(known, longest - prompt)


def _speed(demand: Demand, numerics: Any, width: int) -> Any:
    import torch

    from trimtab.operate import advice

    before = torch.get_num_threads()
    torch.set_num_threads(numerics.threads)
    try:
        return advice.measure(demand.policy, tokens=demand.micro_batch, width=width, rows=demand.rows_at_once)
    finally:
        torch.set_num_threads(before)


def _clock(seconds: float) -> str:
    """
    >>> _clock(0.0312), _clock(42.3), _clock(5400)
    ('31 ms', '42 s', '1.5 h')
    """
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
