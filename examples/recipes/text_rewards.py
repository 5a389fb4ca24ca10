"""Rewards for texts: phrases, refusals, length, numbers kept. Each is in [0, 1]; columns of the data say what is wanted.

They look at words, not at sense. A policy finds that out: keep `kl.coef` above 0, read `samples/`, and put a reward model
beside them (docs/reward-models.md) as soon as there are pairs.
"""

import re
from collections.abc import Sequence

Texts = Sequence[str]

REFUSAL = re.compile(
    r"\b(?:i|we)(?: can(?:['\u2019]|no)t| won['\u2019]t| will not"
    r"|(?: am|['\u2019]m| are|['\u2019]re) (?:unable|not (?:able|allowed)) to)\b",
    re.IGNORECASE,
)
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def phrases(completions: Texts, must: Sequence[Texts], avoid: Sequence[Texts], **_: object) -> list[float]:
    """The share of `must` that is said; 0 as soon as one of `avoid` is."""
    found = []
    for text, wanted, forbidden in zip(completions, must, avoid, strict=True):
        said = [says(text, phrase) for phrase in wanted]
        found.append(0.0 if any(says(text, phrase) for phrase in forbidden) else sum(said) / max(1, len(said)))
    return found


def refusal(completions: Texts, refuse: Sequence[bool], **_: object) -> list[float]:
    """1 where the answer refuses and should, or neither; refusing everything is as wrong as refusing nothing."""
    return [float(is_refusal(text) is wanted) for text, wanted in zip(completions, refuse, strict=True)]


def length(completions: Texts, words: Sequence[Sequence[int]], **_: object) -> list[float]:
    """1 between the least and the most of `words`, falling to 0 at no words and at twice the most."""
    found = []
    for text, (least, most) in zip(completions, words, strict=True):
        size = len(text.split())
        found.append(size / least if size < least else max(0.0, min(1.0, 2.0 - size / most)))
    return found


def numbers(prompts: Texts, completions: Texts, **_: object) -> list[float]:
    """The share of the prompt's numbers that are kept; 0 if the text has one of its own."""
    found = []
    for prompt, text in zip(prompts, completions, strict=True):
        given, said = set(NUMBER.findall(prompt)), set(NUMBER.findall(text))
        found.append(0.0 if said - given else len(said) / max(1, len(given)))
    return found


def says(text: str, phrase: str) -> bool:
    """Whole words, whatever the case."""
    return re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text, re.IGNORECASE) is not None


def is_refusal(text: str) -> bool:
    """Of its first sentence or two: a refusal that comes later has answered already."""
    return REFUSAL.search(text[:120]) is not None
