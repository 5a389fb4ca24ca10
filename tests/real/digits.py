"""A reward that differs between any two completions of a model that cannot do arithmetic yet."""


def share_of_digits(prompts, completions, **_):
    """How much of a completion is digits, in [0, 1]."""
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in completions]
