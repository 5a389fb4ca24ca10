"""A file in parts: every row with the same prompt in the same part, and every scene in every part."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.data.quality import digest, normalised, text_of
from trimtab.data.rows import Row

PARTS = ("train", "validation", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    parts: tuple[array[int], ...]
    """The rows of each part, in the order of the file."""
    counts: dict[str, list[int]]
    """Of each scene, the rows in each part."""
    too_small: dict[str, int]
    """Scenes with fewer prompts than there are parts -> how many they have. They are not in every part."""


def split(rows: Sequence[Row], weights: Sequence[int], *, by: str | None = None, seed: int = 0) -> Split:
    """Rows dealt out by the hash of their prompt; the same file, seed and weights give the same parts.

    Within a scene its prompts are put in the order of their hashes and cut by the weights. A prompt that is met in two
    scenes belongs to the one that it is met in first.

    Args:
        rows: in any order.
        weights: how large each part is to be in relation to the others; 0 leaves it empty.
        by: the column with the scene; None: there is one scene.
        seed: of the hash.
    """
    scene_of: dict[int, str] = {}
    prompts: dict[str, list[int]] = {}
    keys = array("Q")
    for row in rows:
        key = digest(str(seed), normalised(text_of(row.values["prompt"])))
        keys.append(key)
        if key not in scene_of:
            scene = "" if by is None else str(row.values.get(by))
            scene_of[key] = scene
            prompts.setdefault(scene, []).append(key)
    part_of: dict[int, int] = {}
    wanted = sum(weight > 0 for weight in weights)
    for found in prompts.values():
        found.sort()
        start = 0
        for part, size in enumerate(sizes(len(found), weights)):
            part_of |= dict.fromkeys(found[start : start + size], part)
            start += size
    parts: tuple[array[int], ...] = tuple(array("I") for _ in weights)
    counts: dict[str, list[int]] = {scene: [0] * len(weights) for scene in sorted(prompts)}
    for number, key in enumerate(keys):
        parts[part_of[key]].append(number)
        counts[scene_of[key]][part_of[key]] += 1
    too_small = {scene: len(found) for scene, found in prompts.items() if len(found) < wanted}
    return Split(parts=parts, counts=counts, too_small=too_small)


def sizes(count: int, weights: Sequence[int]) -> list[int]:
    """How many of `count` each part gets: by largest remainders, and at least one where there are enough.

    >>> sizes(10, [8, 1, 1]), sizes(5, [8, 1, 1]), sizes(2, [8, 1, 1]), sizes(7, [1, 0, 0])
    ([8, 1, 1], [3, 1, 1], [2, 0, 0], [7, 0, 0])
    """
    total = sum(weights)
    found = [count * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda part: (-(count * weights[part] % total), part))
    for part in by_remainder[: count - sum(found)]:
        found[part] += 1
    if count >= sum(weight > 0 for weight in weights):
        for part, weight in enumerate(weights):
            if weight and not found[part]:
                found[found.index(max(found))] -= 1
                found[part] = 1
    return found
