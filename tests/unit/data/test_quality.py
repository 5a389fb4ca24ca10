"""What is said about a file's quality: each finding in a file that has it, and none in one that does not."""

import pytest

from trimtab.data.annotators import kappa
from trimtab.data.quality import quality
from trimtab.data.rows import Row


def rows(*records):
    return [Row(id=n, place=f"a:{n + 1}", values=values) for n, values in enumerate(records)]


def pair(prompt="p", chosen="yes", rejected="no", **others):
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, "margin": None, **others}


def said(prompt="p", completion="c", label=True, **others):
    return {"prompt": prompt, "completion": completion, "label": label, **others}


def test_a_clean_file_has_no_findings():
    found = quality(
        rows(pair("a"), pair("b", "longer one.", "short")), "pairs", against=rows(pair("c")), looks_near=True
    )
    met = (found.duplicates, found.near, found.contradictions, found.equal, found.empty, found.cut_off, found.leaked)
    assert [m.count for m in met] == [0] * 7
    assert (found.rows, found.prompts) == (2, 2)


def test_exact_duplicates_are_counted_with_the_first_place():
    found = quality(rows(pair(), pair("q"), pair(), pair()), "pairs").duplicates
    assert (found.count, found.examples) == (2, ["a:3 repeats a:1", "a:4 repeats a:1"])


def test_the_same_judgement_by_another_annotator_or_with_another_label_is_no_duplicate():
    assert quality(rows(pair(annotator="x"), pair(annotator="y")), "pairs").duplicates.count == 0
    assert quality(rows(said(label=True), said(label=False)), "labels").duplicates.count == 0


def test_the_border_between_prompt_and_answer_counts():
    assert quality(rows(pair("ab", "c"), pair("a", "bc")), "pairs").duplicates.count == 0


def test_a_pair_both_ways_is_a_contradiction():
    found = quality(rows(pair(), pair(chosen="no", rejected="yes"), pair("q", "no", "yes")), "pairs").contradictions
    assert (found.count, found.examples) == (1, ["a:2 against a:1"])


def test_a_completion_with_both_labels_is_a_contradiction():
    found = quality(rows(said(), said(label=False), said("q", label=False)), "labels").contradictions
    assert (found.count, found.examples) == (1, ["a:2 against a:1"])


def test_equal_and_empty_and_cut_off_sides_are_counted():
    long = "word " * 60
    found = quality(rows(pair(chosen="no"), pair(rejected=" \n"), pair("q", long + "and th", long + "end.")), "pairs")
    assert (found.equal.examples, found.empty.examples) == (["a:1"], ["a:2 rejected"])
    assert (found.cut_off.count, found.cut_off.examples[0][:10]) == (1, "a:3 chosen")


def test_length_bias_is_over_pairs_with_sides_of_different_lengths():
    made = rows(pair(chosen="12345", rejected="123"), pair(chosen="1", rejected="12"), pair(chosen="1", rejected="2"))
    assert quality(made, "pairs").length_bias() == (0.5, pytest.approx(1 / 3))
    assert quality(rows(pair(chosen="a", rejected="b")), "pairs").length_bias() is None
    assert quality(rows(said()), "labels").length_bias() is None


def test_a_prompt_of_the_other_file_is_a_leak_whatever_its_capitals_and_spaces():
    found = quality(rows(pair("What  is\nTHIS?"), pair("else")), "pairs", against=rows({"prompt": "what is this?"}))
    assert (found.leaked.count, found.leaked.examples) == (1, ["a:1"])
    assert quality(rows(pair()), "pairs").leaked is None


def test_near_duplicates_are_found_and_different_texts_are_not():
    words = [f"w{n}" for n in range(100)]
    nearly = [*words[:50], "other", *words[51:]]
    made = [" ".join(words), " ".join(nearly), " ".join(reversed(words)), " ".join(words).upper()]
    made += ["你好吗" * 20, "你好吗" * 21, " ".join(words)]  # the last stands there word for word
    found = quality(rows(*({"prompt": text} for text in made)), "prompts", looks_near=True)
    assert found.near.count == 3
    assert found.near.examples == ["a:2 is nearly a:1", "a:4 is nearly a:1", "a:6 is nearly a:5"]
    assert quality(rows({"prompt": "a"}), "prompts").near is None


def test_shares_are_of_columns_with_few_values():
    made = [pair(str(n), scene="ab"[n % 2], number=n, by={"x": 1}) for n in range(30)]
    found = quality(rows(*made), "pairs").shares
    assert found == {"scene": {"a": 15, "b": 15}}
    assert quality(rows(said(), said("q", label=False), said("r")), "labels").shares["label"] == {"True": 2, "False": 1}


def test_messages_are_read_as_text_and_lengths_are_of_what_follows_the_prompt():
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    found = quality(rows({"prompt": turns[:1], "messages": turns}), "demonstrations")
    assert list(found.lengths["completion"]) == [5]
    assert found.tokens == 3  # "user: hi" and "hello", four bytes a token


# ------------------------------------------------------------------------------------------------------- agreement
def test_agreement_of_two_is_cohens_kappa():
    """20 both yes, 5 and 10 apart, 15 both no: 0.7 agreed, 0.5 by chance."""
    both = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    found = kappa([{"a": one, "b": other} for one, other in both])
    assert (found.name, found.items, found.agreed) == ("Cohen", 50, 0.7)
    assert found.value == pytest.approx(0.4)


def test_agreement_of_several_is_fleiss_kappa():
    """Fleiss 1971 by hand: 3 judges, 2 things (3-0 and 1-2): P = (1 + 1/3) / 2, Pe = (4/6)^2 + (2/6)^2."""
    found = kappa([{"a": "y", "b": "y", "c": "y"}, {"a": "y", "b": "n", "c": "n"}])
    assert found.name == "Fleiss"
    assert found.value == pytest.approx((2 / 3 - 5 / 9) / (1 - 5 / 9))


def test_agreement_needs_something_that_two_judged_and_two_judgements():
    assert kappa([{"a": "y"}, {"b": "y"}]) is None
    assert kappa([{"a": "y", "b": "y"}]).value is None


def test_annotators_of_pairs_agree_whichever_way_the_file_writes_them():
    made = rows(
        pair(annotator="x"),
        pair(annotator="y"),
        pair("q", who="z", annotator="x"),
        pair("q", "no", "yes", annotator="y"),
    )
    found = quality(made, "pairs").agreement
    assert (found.items, found.agreed) == (2, 0.5)
    assert quality(made, "pairs", annotator="who").agreement is None
