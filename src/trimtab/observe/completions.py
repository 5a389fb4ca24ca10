"""Completions as tables: the same prompts before and after training, and rows of late training."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from trimtab.observe import figures
from trimtab.types import Sample

Pair = tuple[Sample, Sample]

MOST_ROWS = 24
"""Shown at once."""
MOST_FOLDED = 400
"""Rows behind the fold; a page with more is slow."""
MOST_CHARACTERS = 1500

_SPECIAL = re.compile(r"\r?\n|\t|^ +| +$| {2,}|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")


def pairs(before: Sequence[Sample], after: Sequence[Sample]) -> list[Pair]:
    """The completions of the same prompts, the largest gain of reward first, then the losses, then the unchanged.

    Of equal ones the lowest reward comes first, then the lowest prompt id.
    """
    earlier = {sample.prompt_id: sample for sample in before}
    found = [(earlier[sample.prompt_id], sample) for sample in after if sample.prompt_id in earlier]
    return sorted(found, key=lambda p: (_rank(gain(p)), -abs(gain(p)), p[1].reward or 0.0, p[1].prompt_id))


def gain(pair: Pair) -> float:
    """Reward after minus before; 0 where one of them was not scored."""
    before, after = pair[0].reward, pair[1].reward
    return 0.0 if before is None or after is None else after - before


def split(ordered: Sequence[Pair], most: int = MOST_ROWS) -> tuple[list[Pair], list[Pair]]:
    """The rows to show and the rest: gains first, but not only gains, so that the table does not flatter."""
    kinds: tuple[list[int], list[int], list[int]] = ([], [], [])
    for i, pair in enumerate(ordered):
        kinds[_rank(gain(pair))].append(i)
    better, worse, same = kinds
    others = worse[: most // 6] + same[: most // 6]
    chosen = set(others + better[: most - len(others)])
    chosen.update([i for i in worse + same if i not in chosen][: most - len(chosen)])
    return [ordered[i] for i in sorted(chosen)], [pair for i, pair in enumerate(ordered) if i not in chosen]


def comparison(before: Sequence[Sample], after: Sequence[Sample]) -> str:
    """The table of prompts with both completions, HTML; a plain table if no prompt has both."""
    ordered = pairs(before, after)
    if not ordered:
        only = after or before
        return listing(only) if only else "<p>No completions were recorded.</p>"
    better, worse = sum(gain(p) > 0 for p in ordered), sum(gain(p) < 0 for p in ordered)
    count = f"{len(ordered):,} validation prompt{'s' * (len(ordered) != 1)}"
    said = f"{count}: {better:,} better, {worse:,} worse, {len(ordered) - better - worse:,} with the same reward."
    chosen, rest = split(ordered)
    head = _head("Prompt", "Answer", "Before", "After")
    table = (
        f'<p>{said}</p><div class="scroll"><table class="samples">{head}<tbody>{_rows(chosen)}</tbody></table></div>'
    )
    if not rest:
        return table
    left = f"<p>{len(rest) - MOST_FOLDED:,} more are not shown.</p>" if len(rest) > MOST_FOLDED else ""
    folded = f'<table class="samples">{head}<tbody>{_rows(rest[:MOST_FOLDED])}</tbody></table>{left}'
    return f'{table}<details><summary>{len(rest):,} more</summary><div class="scroll">{folded}</div></details>'


def listing(samples: Sequence[Sample]) -> str:
    """A table of completions, HTML."""
    rows = "".join(
        f'<tr><td data-label="Prompt">{visible(s.prompt)}</td><td data-label="Answer">{_answer(s)}</td>'
        f'<td data-label="Completion">{_completion(s)}</td></tr>'
        for s in samples[:MOST_FOLDED]
    )
    head = _head("Prompt", "Answer", "Completion")
    return f'<div class="scroll"><table class="samples">{head}<tbody>{rows}</tbody></table></div>'


def visible(text: str) -> str:
    """Text as HTML in which white space at the edges, line ends and control characters can be seen.

    >>> visible("1 <2 ").replace('<span class="w">', "[").replace("</span>", "]")
    '1 &lt;2[·]'
    """
    if not text:
        return '<span class="w">empty</span>'
    shown, parts, end = text[:MOST_CHARACTERS], [], 0
    for match in _SPECIAL.finditer(shown):
        parts += [escape(shown[end : match.start()]), f'<span class="w">{_mark(match[0])}</span>']
        end = match.end()
    parts.append(escape(shown[end:]))
    if (hidden := len(text) - len(shown)) > 0:
        parts.append(f'<span class="w"> … {hidden:,} more characters</span>')
    return "".join(parts)


def _mark(special: str) -> str:
    if special.isspace() and special[0] == " ":
        return "·" * len(special)
    if special.endswith("\n"):
        return "↵\n"
    return {"\t": "⇥\t"}.get(special, f"\\x{ord(special):02x}" if ord(special) < 256 else f"\\u{ord(special):04x}")


def _rank(change: float) -> int:
    return 0 if change > 0 else 1 if change < 0 else 2


def _rows(chosen: Sequence[Pair]) -> str:
    return "".join(
        f'<tr class="{("better", "worse", "same")[_rank(gain(pair))]}">'
        f'<td data-label="Prompt">{visible(pair[1].prompt)}</td><td data-label="Answer">{_answer(pair[1])}</td>'
        f'<td data-label="Before">{_completion(pair[0])}</td><td data-label="After">{_completion(pair[1])}</td></tr>'
        for pair in chosen
    )


def _answer(sample: Sample) -> str:
    return "" if sample.answer is None else visible(sample.answer)


def _completion(sample: Sample) -> str:
    reward = sample.label or "not scored" if sample.reward is None else figures.typeset(sample.reward)
    cut = '<span class="cut">cut by the length limit</span>' if sample.is_truncated else ""
    return f'<div>{visible(sample.completion)}</div><span class="reward">{reward}</span>{cut}'


def _head(*titles: str) -> str:
    return f"<thead><tr>{''.join(f'<th>{title}</th>' for title in titles)}</tr></thead>"
