"""`trimtab eval ... --against OTHER`: two models on the same prompts with the same seed, paired prompt by prompt."""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.errors import StorageError
from trimtab.types import Sample

if TYPE_CHECKING:
    from trimtab.assemble import RowSets
    from trimtab.compare.statistics import Difference
    from trimtab.config import RunConfig
    from trimtab.observe.record import Points
    from trimtab.observe.side_by_side import Shown, Table
    from trimtab.operate.evaluate import Evaluation
    from trimtab.operate.evaluation_document import Asked
    from trimtab.rollout.evaluation import Answered, Completion
    from trimtab.train.ranks import Ranks

EQUAL = 1e-9
"""Rewards that are less than this apart are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """What the pairing came to: the subject less the other."""

    names: tuple[str, str]
    """The other, the subject."""
    prompts: int
    """That both have a reward for."""
    left_out: int
    """That one of them has none for."""
    reward: Difference | None
    right: Difference | None
    """Of pass@1."""
    counts: Mapping[str, int]
    """Prompts by how they changed."""
    metrics: tuple[Mapping[str, float], Mapping[str, float]]
    page: Path

    def values(self) -> dict[str, Any]:
        """For programs."""
        return {
            "other": self.names[0],
            "prompts": self.prompts,
            "left_out": self.left_out,
            "reward": None if self.reward is None else asdict(self.reward),
            "pass@1": None if self.right is None else asdict(self.right),
            **self.counts,
            "metrics": dict(self.metrics[0]),
            "page": str(self.page),
        }


def evaluated(
    against: str,
    config: RunConfig,
    rows: RowSets,
    like: Evaluation,
    asked: Asked,
    ranks: Ranks,
    say: Callable[[str], None],
) -> Evaluation:
    """The other model's evaluation: read if it was made, else made with the same configuration, data and seed.

    Args:
        against: a run, a run and a step, a directory of an evaluation, or the name of a model.
    Raises:
        UserError: an evaluation that was made in another way, or a model that cannot be read.
    """
    from trimtab.operate import evaluate as operate
    from trimtab.operate import subject as subjects
    from trimtab.operate.evaluation_files import EvaluationFiles

    files = EvaluationFiles(Path(against))
    if files.exists and files.completions.is_file():
        return operate.of_directory(files, like, asked)
    run, step = subjects.run_and_step(against)
    model = against if run is None else subjects.model_of_run(run, step)
    config = replace(config, policy=replace(config.policy, model=model))

    def place(name: str) -> Path:
        return Path("runs") / f"eval-{_slug(against)}-{name}" if run is None else run.root / "evaluations" / name

    say(f"beside it: {against}")
    with subjects.opened(config, run, step) as subject:
        return operate.evaluate(subject, rows, asked, place, ranks, say)


def joined(after: Evaluation, before: Evaluation, asked: Asked) -> Joint:
    """Pair two evaluations, and write the page and its figures beside the first.

    Raises:
        StorageError: the page cannot be written.
    """
    from trimtab.store import writer

    both = [(b, a) for b, a in zip(before.answered, after.answered, strict=True) if b.rewards and a.rewards]
    counts = dict.fromkeys(("better", "worse", "changed", "same"), 0)
    shown = _shown(before, after, asked, counts)
    stem = f"against-{_slug(before.name)}-{before.files.root.name}"
    page = after.files.root / f"{stem}.html"
    names = (before.name, after.name)
    if names[0] == names[1]:
        names = (f"{before.name} ({before.files.root.name})", f"{after.name} ({after.files.root.name})")
    joint = Joint(
        names=names,
        prompts=len(both),
        left_out=len(after.answered) - len(both),
        reward=_difference([(_mean(b), _mean(a)) for b, a in both], asked.seed),
        right=_difference([(_share(b), _share(a)) for b, a in both], asked.seed),
        counts=counts,
        metrics=(before.document["metrics"], after.document["metrics"]),
        page=page,
    )
    try:
        writer.replace_text(page, _page(joint, before, after, asked, shown))
        text = json.dumps(joint.values(), indent=1, ensure_ascii=False)
        writer.replace_text(page.with_suffix(".json"), text + "\n")
    except OSError as error:
        raise StorageError(f"cannot write to {page}: {error.strerror or error}") from error
    return joint


def lines(joint: Joint) -> list[str]:
    """What is printed."""
    found = ["", f"against {joint.names[0]}, paired over {joint.prompts:,} prompts"]
    if joint.left_out:
        verb = (
            "prompt has no reward in one of them and is"
            if joint.left_out == 1
            else "prompts have no reward in one and are"
        )
        found.append(f"  {joint.left_out:,} {verb} left out")
    for name, short, of in (("eval/reward/mean", "mean reward", joint.reward), ("eval/pass@1", "pass@1", joint.right)):
        if of is not None:
            values = [f"{metrics[name]:.4f}" if name in metrics else "-" for metrics in joint.metrics]
            found.append(f"  {short:<12} {values[0]} -> {values[1]}, {_signed(of)}")
    counts = joint.counts
    found.append(
        f"  {counts['better']:,} better, {counts['worse']:,} worse, {counts['changed'] + counts['same']:,} same"
    )
    return [*found, f"page {joint.page}"]


def _difference(pairs: Sequence[tuple[float, float]], seed: int) -> Difference | None:
    """After less before; of a single prompt nothing can be said."""
    import numpy as np

    from trimtab.compare.statistics import difference

    if len(pairs) < 2:
        return None
    table = np.array(pairs, dtype=np.float64).T
    return difference(table[1:], table[:1], seed=abs(seed))


def _mean(answered: Answered) -> float:
    return sum(answered.rewards) / len(answered.rewards)


def _share(answered: Answered) -> float:
    return answered.right / len(answered.rewards)


def _signed(of: Difference) -> str:
    return f"{of.mean:+.4f} (95 % interval {of.low:+.4f} to {of.high:+.4f})"


def _shown(before: Evaluation, after: Evaluation, asked: Asked, counts: dict[str, int]) -> list[Shown]:
    """The prompts that changed most, each with one completion of both; `counts` is filled with all of them."""
    from trimtab.observe.side_by_side import MOST_SHOWN, Shown

    def candidates() -> Iterator[tuple[tuple[float, int, int], str, Completion, Completion]]:
        pairs = zip(before.files.read(), after.files.read(), before.answered, after.answered, strict=True)
        for place, (old, new, b, a) in enumerate(pairs):
            change = _mean(a) - _mean(b) if a.rewards and b.rewards else 0.0
            change = 0.0 if abs(change) < EQUAL else change
            one = max(zip(old, new, strict=True), key=lambda pair: _change_of(pair, change))
            has_changed = any(o.text != n.text for o, n in zip(old, new, strict=True))
            kind = "better" if change > 0 else "worse" if change < 0 else "changed" if has_changed else "same"
            counts[kind] += 1
            yield (-round(abs(change), 9), kind == "same", place), kind, *one

    chosen = heapq.nsmallest(MOST_SHOWN, candidates(), key=lambda one: one[0])
    return [
        Shown(
            before=_sample(old, after, place),
            after=_sample(new, after, place),
            kind=kind,
            means=_means(before.answered[place], after.answered[place]) if asked.count > 1 else None,
        )
        for (_, _, place), kind, old, new in chosen
    ]


def _change_of(pair: tuple[Completion, Completion], change: float) -> tuple[float, bool, int]:
    """How well two completions of one number show a prompt's change: the largest of its sign, else any, the first."""
    old, new = pair
    gain = 0.0 if old.reward is None or new.reward is None else new.reward - old.reward
    return (gain if change > 0 else -gain if change < 0 else abs(gain)), old.text != new.text, -new.index


def _means(before: Answered, after: Answered) -> tuple[float, float] | None:
    return (_mean(before), _mean(after)) if before.rewards and after.rewards else None


def _sample(completion: Completion, of: Evaluation, place: int) -> Sample:
    prompt = of.prompts[place]
    answer = prompt.columns.get("answer")
    return Sample(
        prompt_id=completion.prompt_id,
        prompt=prompt.text,
        completion=completion.text,
        reward=completion.reward,
        reward_parts=completion.parts,
        is_truncated=completion.is_truncated,
        answer=None if answer is None else str(answer),
    )


def _page(joint: Joint, before: Evaluation, after: Evaluation, asked: Asked, shown: Sequence[Shown]) -> str:
    from trimtab.observe import figures
    from trimtab.observe.side_by_side import html

    counts = joint.counts
    same = counts["changed"] + counts["same"]
    said = "Fewer than two prompts have a reward in both"
    if (reward := joint.reward) is not None:
        said = f"Mean reward {_plus(reward.mean)} (95 % interval {_interval(reward)})"
    headlines = {}
    for name, label in (("eval/reward/mean", "mean reward"), ("eval/pass@1", "pass@1")):
        if all(name in metrics for metrics in joint.metrics):
            values = figures.alike([metrics[name] for metrics in joint.metrics])
            headlines[label] = f"{values[0]} → {values[1]}"
    headlines |= {"better": f"{counts['better']:,}", "worse": f"{counts['worse']:,}", "same reward": f"{same:,}"}
    identity = dict(after.document["identity"])
    sampling = identity["sampling"]
    facts = {
        "data": str(after.document["data"]["name"]),
        "prompts": f"{len(after.answered):,}",
        "completions": "one a prompt, greedy" if sampling["greedy"] else f"{sampling['samples']} a prompt, sampled",
        **(
            {}
            if sampling["greedy"]
            else {
                "temperature": f"{sampling['temperature']:g}",
                "top-p": f"{sampling['top_p']:g}",
                "seed": f"{asked.seed}",
            }
        ),
        "right": f"a reward of {asked.right:g} or more",
    }
    locked = {name: value for name, value in identity.items() if name not in ("model", "tokenizer")}
    tables = [_figures(joint), *([] if after.values is None else [_groups(before, after, asked)])]
    return html(
        names=joint.names,
        outcome=f"{said}; {counts['better']:,} prompts better, {counts['worse']:,} worse, {same:,} with the same reward.",
        headlines=headlines,
        facts=facts,
        tables=tables,
        curves=_curves(joint, asked),
        shown=shown,
        counts=counts,
        locked=locked,
    )


def _figures(joint: Joint) -> Table:
    from trimtab.observe.side_by_side import Table
    from trimtab.rollout.evaluation import COUNTS, written

    intervals = {"eval/reward/mean": joint.reward, "eval/pass@1": joint.right}
    rows = []
    for name in dict.fromkeys([*joint.metrics[1], *joint.metrics[0]]):
        old, new = (metrics.get(name) for metrics in joint.metrics)
        last = name.rsplit("/", 1)[-1]
        by = "" if old is None or new is None or last in (*COUNTS, "standard_error") else _plus(new - old)
        cells = ("" if value is None else written(name, value) for value in (old, new))
        rows.append((name.removeprefix("eval/"), *cells, by, _interval(intervals.get(name))))
    left = f"; {joint.left_out:,} without a reward in one of them are left out" if joint.left_out else ""
    return Table(
        title="Figures",
        help=f"Intervals are those of a paired bootstrap over {joint.prompts:,} prompts{left}.",
        head=("figure", *joint.names, "difference", "95 % interval"),
        rows=rows,
    )


def _plus(value: float) -> str:
    """Typeset with its sign; what is 0 when it is rounded has none."""
    text = f"{value:+.4f}"
    return "0.0000" if float(text) == 0 else text.replace("-", "−")


def _interval(of: Difference | None) -> str:
    return "" if of is None else f"{_plus(of.low)} to {_plus(of.high)}"


def _groups(before: Evaluation, after: Evaluation, asked: Asked) -> Table:
    """Each value of the column with the paired differences of its own prompts."""
    from trimtab.observe.side_by_side import Table

    places: dict[str, list[int]] = {}
    labels: dict[str, str] = {}
    for place, value in enumerate(after.values or ()):
        key = json.dumps(value, sort_keys=True, ensure_ascii=False)
        labels[key] = "(none)" if value is None else value if isinstance(value, str) else key
        places.setdefault(key, []).append(place)
    rows = []
    for key, own in sorted(places.items(), key=lambda one: -len(one[1])):
        both = [(before.answered[p], after.answered[p]) for p in own]
        both = [(b, a) for b, a in both if b.rewards and a.rewards]
        cells: list[str] = []
        for of in (_mean, _share):
            pairs = [(of(b), of(a)) for b, a in both]
            means = [sum(values) / len(pairs) for values in zip(*pairs, strict=True)]
            cells += [" → ".join(f"{mean:.4f}" for mean in means), _interval(_difference(pairs, asked.seed))]
        rows.append((labels[key], f"{len(both):,}", *cells))
    return Table(
        title=f"By {asked.by}",
        help="Each group's own prompts, paired. With many groups some intervals leave out 0 by chance.",
        head=(str(asked.by), "prompts", "mean reward", "95 % interval", "pass@1", "95 % interval"),
        rows=rows,
    )


def _curves(joint: Joint, asked: Asked) -> dict[str, dict[str, Points]]:
    """pass@k and maj@k over k, where there is more than one."""
    found: dict[str, dict[str, Points]] = {}
    for kind in ("pass", "maj"):
        lines: dict[str, Points] = {}
        for name, metrics in zip(joint.names, joint.metrics, strict=True):
            points = [(k, metrics[f"eval/{kind}@{k}"]) for k in asked.wanted if f"eval/{kind}@{k}" in metrics]
            if len(points) > 1:
                lines[name] = points
        if lines:
            found[f"{kind}@k"] = lines
    return found


def _slug(name: str) -> str:
    return re.sub(r"[^0-9A-Za-z.]+", "-", name).strip("-.")[-60:] or "model"
