"""A file in parts: no prompt in two of them, every scene in all of them, the same parts every time."""

from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.data.rows import Row
from trimtab.data.split import split


def rows(*pairs):
    return [
        Row(id=n, place=f"a:{n + 1}", values={"prompt": prompt, "scene": scene})
        for n, (prompt, scene) in enumerate(pairs)
    ]


MANY = rows(*((f"question {n % 80}", "ab"[n % 80 >= 60]) for n in range(160)))


def test_sizes_are_as_asked_in_every_scene():
    found = split(MANY, (8, 1, 1), by="scene")
    assert found.counts == {"a": [96, 12, 12], "b": [32, 4, 4]}
    assert found.too_small == {}
    assert [len(part) for part in found.parts] == [128, 16, 16]


def test_the_same_seed_gives_the_same_parts_whatever_the_order_of_the_rows_and_another_one_others():
    def tests(made, seed=0):
        return {made[n].values["prompt"] for n in split(made, (8, 1, 1), seed=seed).parts[2]}

    assert tests(MANY) == tests(MANY[::-1])
    assert tests(MANY) != tests(MANY, seed=1)


def test_a_scene_with_fewer_prompts_than_parts_is_named():
    found = split(rows(("a", "big"), ("b", "big"), ("c", "big"), ("d", "small"), ("d", "small")), (8, 1, 1), by="scene")
    assert found.too_small == {"small": 1}
    assert found.counts == {"big": [1, 1, 1], "small": [2, 0, 0]}


def test_a_part_of_weight_0_gets_nothing_and_needs_nothing():
    found = split(rows(("a", "x"), ("b", "x")), (1, 1, 0), by="scene")
    assert ([len(part) for part in found.parts], found.too_small) == ([1, 1, 0], {})


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("xyz")), min_size=1), st.integers(0, 3))
def test_no_prompt_is_in_two_parts_and_every_row_in_one(pairs, seed):
    made = rows(*pairs)
    found = split(made, (8, 1, 1), by="scene", seed=seed)
    assert sorted(number for part in found.parts for number in part) == list(range(len(made)))
    prompts = [{made[number].values["prompt"].casefold() for number in part} for part in found.parts]
    assert sum(map(len, prompts)) == len(set().union(*prompts))
    assert all(sorted(part) == list(part) for part in found.parts)
