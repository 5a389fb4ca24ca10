"""Rewards of the tasks that the claims are measured on."""


def digits(prompts, completions, answer, **_):
    """Share of the answer's digits that stand in their place."""
    return [
        sum(a == b for a, b in zip(text.strip(), right, strict=False)) / max(len(right), len(text.strip()), 1)
        for text, right in zip(completions, answer, strict=True)
    ]


def brief(prompts, completions, answer, **_):
    """1 for a right answer, and up to 0.5 more the shorter it is said."""
    return [
        float(text.strip() == right) + 0.5 * max(0.0, 1 - len(text) / 8)
        for text, right in zip(completions, answer, strict=True)
    ]
