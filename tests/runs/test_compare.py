"""Comparisons: what is locked, what differs, what is said, and that a killed one goes on."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.runs import small
from trimtab.compare import arm, comparison, plan, report, results, runner, statistics
from trimtab.compare.budget import BudgetControl, Meter
from trimtab.compare.layout import Layout
from trimtab.compare.plan import Budget
from trimtab.errors import ConfigError, GuardError, LockError, UserError
from trimtab.store import journal
from trimtab.store.run_directory import RunDirectory

QUICK = ("train.max_steps=3", "eval.every=2")


def carried_out(path, root, vary, *, seeds=2, words=QUICK, budget=None):
    """A comparison whose runs are made in this process; its result."""
    layout = Layout(root)
    found, _ = plan.make(path, words, vary, seeds=seeds, budget=budget)
    found = runner.settle(layout, found, lambda _: None)
    for task in runner.tasks(found):
        try:
            arm.train(root, task.arm.folder, task.seed)
        except GuardError:
            assert runner.state_of(RunDirectory(layout.run(task.arm.folder, task.seed))) == "diverged"
    return comparison.conclude(layout, found)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    path = small.write(folder, "grpo")
    path.write_text(path.read_text().replace("policy: {", "policy: {clip_ratio: 0.3, "))
    return path, folder / "both", carried_out(path, folder / "both", ["algorithm=grpo,gspo"])


# ---------------------------------------------------------------------------------------------------------- what differs
def test_only_what_is_varied_differs_and_what_follows_from_it(compared):
    _, _, values = compared
    why = {d["key"]: d["why"] for d in values["config_differences"]}
    assert why.pop("algorithm") == "varied"
    assert set(why.values()) == {"each algorithm's own"}
    assert set(why) <= {"policy.clip_low", "policy.clip_high", "policy.aggregation"}


def test_a_clip_of_the_file_is_left_to_each_algorithm_where_algorithms_are_compared(compared):
    path, _, _ = compared
    both, configs = plan.make(path, QUICK, ["algorithm=grpo,gspo"], seeds=1)
    assert [c.resolved["policy"]["clip_high"] for c in configs] == [0.2, 4e-4]
    assert "clip_ratio" not in both.values_of(both.arms[0], 0)["policy"]
    _, configs = plan.make(path, QUICK, ["algorithm=grpo,gspo", "policy.clip_high=0.01,0.02"], seeds=1)
    assert [c.resolved["policy"]["clip_high"] for c in configs] == [0.01, 0.02, 0.01, 0.02]
    _, configs = plan.make(path, QUICK, ["kl.coef=0.0,0.1"], seeds=1)
    assert [c.resolved["policy"]["clip_high"] for c in configs] == [0.3, 0.3]
    own = "overrides={gspo: {policy: {clip_low: 0.001, clip_high: 0.002}}}"
    _, configs = plan.make(path, [*QUICK, own], ["algorithm=grpo,gspo"], seeds=1)
    assert [c.resolved["policy"]["clip_high"] for c in configs] == [0.2, 0.002]


def test_arms_begin_with_the_same_weights_and_meet_the_same_prompts_in_the_same_order(compared):
    _, root, values = compared
    assert [(c["name"], c["is_same"]) for c in values["checks"]] == [
        ("start", True), ("order", True), ("evaluation", True)
    ]  # fmt: skip
    layout = Layout(root)
    ids = [
        [s["prompt_ids"] for s in journal.read(RunDirectory(layout.run(a, seed)).journal).steps()]
        for seed in (0, 1)
        for a in ("grpo", "gspo")
    ]
    assert ids[0] == ids[1] != ids[2] == ids[3]


def test_a_varied_seed_of_the_data_is_said_to_change_the_order(tmp_path):
    values = carried_out(
        small.write(tmp_path), tmp_path / "c", ["data.seed=1,2"], seeds=1, words=("train.max_steps=1", "eval.every=9")
    )
    order = next(c for c in values["checks"] if c["name"] == "order")
    assert not order["is_same"]
    assert "data.seed is varied" in order["said"]
    assert any("data.seed is varied" in remark for remark in values["remarks"])


# -------------------------------------------------------------------------------------------------------------- verdicts
def test_the_scores_are_those_of_the_last_evaluation(compared):
    _, root, values = compared
    layout = Layout(root)
    for found in values["arms"]:
        for run in found["runs"]:
            last = journal.read(RunDirectory(layout.run(found["arm"], run["seed"])).journal).evaluations()[-1]
            assert (run["step"], run["score"]) == (3, last["metrics"]["eval/reward/mean"])
            assert run["samples"] == 3 * small_batch(root, found["arm"])
            assert run["tokens"] > 0
    pair = values["pairs"][0]
    assert pair["scores"][0] - pair["scores"][1] == pytest.approx(pair["difference"])
    assert pair["prompts"] > 1


def small_batch(root, folder):
    first = journal.read(RunDirectory(Layout(root).run(folder, 0)).journal).steps()[0]
    return len(first["completions"])


def test_two_arms_that_are_the_same_come_out_equal(tmp_path):
    values = carried_out(small.write(tmp_path), tmp_path / "c", ["checkpoint.keep=4,5"], seeds=1)
    pair = values["pairs"][0]
    assert (pair["difference"], pair["p"], pair["better"]) == (0, 1, None)
    assert values["headline"] == "No difference was found between 4 and 5."


def test_an_arm_that_diverges_counts_as_such(tmp_path):
    words = (*QUICK, "guard.max_rollbacks=0", "guard.rules.broken_weights.then=stop")
    values = carried_out(small.write(tmp_path), tmp_path / "c", ["optim.learning_rate=1e-3,1e30"], seeds=1, words=words)
    states = {a["arm"]: [(r["state"], bool(r["cause"])) for r in a["runs"]] for a in values["arms"]}
    assert states == {"1e-3": [("done", False)], "1e30": [("diverged", True)]}
    assert "1e30 diverged" in values["headline"]
    assert any("diverged in 1 of 1 runs and is judged by their last evaluation" in r for r in values["remarks"])


def of(scores, *, seeds=(0, 1, 2), state="done"):
    """An arm's result from scores [S][P]."""

    def made(label):
        runs = tuple(
            results.Result(
                seed=seed, state=state, cause="", step=9, score=sum(own) / len(own), prompts=dict(enumerate(own)),
                curves={}, steps=9, samples=9, tokens=9, seconds=1.0, cost={"cpu_seconds": 1.0, "peak_bytes": 1},
                on_gpu=False, rollbacks=0, alarms=0, parameters={}, order=(), weights="w",
            )
            for seed, own in zip(seeds, scores, strict=True)
        )  # fmt: skip
        return results.ArmResult(arm=plan.Arm(label=label, folder=label, changes={"algorithm": label}), runs=runs)

    return made


def judged(*arms, metric="eval/reward/mean", size=0.05):
    from trimtab.compare import verdict

    found = [make(label) for make, label in zip(arms, "abcdef", strict=False)]
    asked = plan.Plan(
        source="c.yaml", folder=".", values={}, arms=tuple(f.arm for f in found), seeds=(0, 1, 2),
        locked={"evaluation": {"metric": metric, "validation": "v"}},
    )  # fmt: skip
    return verdict.judge(asked, found, [], size=size)


def noisy(level, seed):
    import random

    rng = random.Random(seed)
    return [[float(rng.random() < level) for _ in range(100)] for _ in range(3)]


def test_sentences_say_no_more_than_the_figures():
    found = judged(of(noisy(0.9, 1)), of(noisy(0.2, 2)), of(noisy(0.21, 3)))
    assert found.headline == "a is better than b and c."
    better, _, level = found.pairs
    assert better.said.startswith("a is better than b: 0.9")
    assert "after Holm's correction over 3 pairs; 3 seeds and 100 prompts" in better.said
    assert level.said.startswith("No difference was found between b and c")
    assert re.search(r" \d+ seeds would show a difference of 0.05 in four of five such comparisons\.$", level.said)
    assert not re.search(r"\b(equal|same|prove|significant)", " ".join(p.said for p in found.pairs))


def test_of_a_loss_the_smaller_is_the_better():
    found = judged(of(noisy(0.9, 1)), of(noisy(0.2, 2)), metric="eval/loss/nll")
    assert found.headline == "b is better than a."
    assert found.ranking[0][0] == "b"


def test_one_seed_speaks_of_models_only():
    one = of(noisy(0.9, 1)[:1], seeds=(0,)), of(noisy(0.2, 2)[:1], seeds=(0,))
    found = judged(*one)
    assert "speaks of these two models, not of what made them" in found.pairs[0].said


def test_arms_without_a_seed_in_common_are_not_compared():
    found = judged(of(noisy(0.5, 1)[:1], seeds=(0,)), of(noisy(0.5, 2)[:1], seeds=(1,)))
    assert found.headline.startswith("There is nothing to compare")


def test_prompts_that_one_did_not_answer_are_left_out():
    whole, part = of(noisy(0.5, 1))("a"), of([scores[:60] for scores in noisy(0.5, 2)])("b")
    first, second, seeds = results.paired(whole, part)
    assert (first.shape, second.shape, seeds) == ((3, 60), (3, 60), (0, 1, 2))
    assert not results.checks(judged_plan([whole, part]), [whole, part])[2].is_same


def judged_plan(arms):
    return plan.Plan(source="c", folder=".", values={}, arms=tuple(a.arm for a in arms), seeds=(0, 1, 2))


# ---------------------------------------------------------------------------------------------------------------- report
def test_the_page_needs_nothing_but_itself_and_escapes_what_it_shows(compared):
    _, root, values = compared
    page = (root / "report.html").read_text()
    assert "<h1>algorithm: grpo against gspo</h1>" in page
    assert not re.search(r"(?:src|href)=\"(?!#)", page)
    for title in ("Verdict", "Learning curves", "Cost of a run", "What was the same", "What differs", "Locked"):
        assert title in page
    assert page.count('class="band') >= 2
    assert json.loads((root / "result.json").read_text()) == json.loads(json.dumps(values))
    hostile = of(noisy(0.5, 1))("<img src=x onerror=alert(1)>")
    asked = judged_plan([hostile, of(noisy(0.5, 2))("b")])
    asked = plan.Plan(**{**{n: getattr(asked, n) for n in asked.__slots__},
                         "locked": {"evaluation": {"metric": "eval/reward/mean", "validation": "v"}}})  # fmt: skip
    from trimtab.compare import verdict

    arms = [hostile, of(noisy(0.5, 2))("b")]
    shown = report.html(asked, arms, verdict.judge(asked, arms, [], size=0.1), [], [])
    assert "<img" not in shown


def test_the_markdown_says_it_too(compared):
    _, root, values = compared
    text = (root / "report.md").read_text()
    assert values["headline"] in text
    assert "| arm | eval/reward/mean, mean |" in text
    assert "* yes: every step had the same prompts in all arms, in the same order" in text


# ------------------------------------------------------------------------------------------------------ going on with it
def test_what_is_done_is_not_done_again(compared):
    path, root, values = compared
    before = {p: p.stat().st_mtime_ns for p in root.rglob("journal.jsonl")}
    again = comparison.compare(path, QUICK, ["algorithm=grpo,gspo"], seeds=2, root=root)
    assert {p: p.stat().st_mtime_ns for p in root.rglob("journal.jsonl")} == before
    assert again == json.loads(json.dumps(values)) or again == values


@pytest.mark.parametrize(
    ("vary", "seeds", "words", "said"),
    [
        (["algorithm=grpo,dapo"], 2, QUICK, "vary.gspo"),
        (["algorithm=grpo,gspo"], 3, QUICK, "seeds"),
        (["algorithm=grpo,gspo"], 2, (*QUICK, "kl.coef=0.1"), "config.kl"),
    ],
)
def test_another_comparison_in_the_same_place_is_refused(compared, vary, seeds, words, said):
    path, root, _ = compared
    with pytest.raises(UserError, match="was begun with something else") as caught:
        comparison.compare(path, words, vary, seeds=seeds, root=root)
    assert said in str(caught.value)


def test_changed_rewards_or_rows_are_refused(tmp_path):
    (tmp_path / "judge_of_ours.py").write_text("def f(completions, **_):\n    return [0.0 for _ in completions]\n")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "2+1=", "answer": "3"}\n')
    path = small.write(tmp_path)
    words = (*QUICK, "rewards=[{name: 'judge_of_ours:f'}]", f"data.train={rows}", f"data.validation={rows}",
             "train.prompts_per_step=2", "train.minibatches=1")  # fmt: skip
    layout = Layout(tmp_path / "c")
    vary = ["kl.coef=0.0,0.1"]
    runner.settle(layout, plan.make(path, words, vary, seeds=1)[0], print)
    runner.settle(layout, plan.make(path, words, vary, seeds=1)[0], print)
    (tmp_path / "judge_of_ours.py").write_text("def f(completions, **_):\n    return [1.0 for _ in completions]\n")
    with pytest.raises(UserError, match=r"locked\.rewards"):
        runner.settle(layout, plan.make(path, words, vary, seeds=1)[0], print)
    (tmp_path / "judge_of_ours.py").write_text("def f(completions, **_):\n    return [0.0 for _ in completions]\n")
    rows.write_text(rows.read_text() + '{"prompt": "2+2=", "answer": "4"}\n')
    with pytest.raises(UserError, match=r"locked\.data"):
        runner.settle(layout, plan.make(path, words, vary, seeds=1)[0], print)


def test_a_killed_comparison_goes_on_to_the_same_result(compared, tmp_path):
    """Real processes: the comparison is killed while its first run trains; nothing of it is left running."""
    path, _, values = compared
    target = tmp_path / "killed"
    command = [sys.executable, "-m", "trimtab", "compare", str(path), "--vary", "algorithm=grpo,gspo", "--seeds", "2"]
    process = subprocess.Popen([*command, "--to", str(target), *QUICK], stdout=subprocess.DEVNULL)
    first = RunDirectory(Layout(target).run("grpo", 0))
    ends = time.monotonic() + 120
    while not journal.read(first.journal).steps() and process.poll() is None:
        assert time.monotonic() < ends
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    while first.is_locked():  # the run dies with it
        assert time.monotonic() < ends
        time.sleep(0.02)
    after = carried_out(path, target, ["algorithm=grpo,gspo"])
    for one, other in zip(values["arms"], after["arms"], strict=True):
        assert [r["score"] for r in one["runs"]] == [r["score"] for r in other["runs"]]
    assert after["pairs"] == values["pairs"]


def test_one_process_at_a_time_compares_in_a_place(compared):
    path, root, _ = compared
    with comparison._locked(root), pytest.raises(LockError, match="another process compares here"):
        comparison.compare(path, QUICK, ["algorithm=grpo,gspo"], seeds=2, root=root)


# ---------------------------------------------------------------------------------------------------------------- budget
@pytest.mark.parametrize(("kind", "amount", "steps"), [("steps", 2, 2), ("samples", 100, None), ("tokens", 1, 2)])
def test_a_run_ends_where_its_budget_does(tmp_path, kind, amount, steps):
    budget = Budget(kind=kind, amount=amount)
    path = small.write(tmp_path)
    values = carried_out(path, tmp_path / "c", ["kl.coef=0.0,0.1"], seeds=1, words=("train.max_steps=9", "eval.every=9"),
                         budget=budget)  # fmt: skip
    for found in values["arms"]:
        run = found["runs"][0]
        a_step = run["samples"] / run["steps"]
        expected = steps or -(-amount // a_step)
        assert (run["steps"], run["state"]) == (expected, "done")
        assert run["step"] == run["steps"], "the last step is evaluated"


def test_a_budget_that_is_spent_lets_no_further_step_be_made(tmp_path):
    class Signals(BudgetControl):
        def __init__(self, budget, meter):
            self.budget, self.meter = budget, meter

    class Standing:
        step, max_steps = 4, 9

    meter = Meter(RunDirectory(tmp_path), group_size=2)
    control = Signals(Budget(kind="samples", amount=10), meter)
    run = Standing()
    assert control.apply(run).max_steps == 9
    meter.spent["samples"], meter.newest = 7.0, {"samples": 3.0}
    assert control.apply(run).max_steps == 5
    meter.spent["samples"] = 10.0
    assert control.apply(run).max_steps == 5, "it has not been evaluated"
    meter.evaluated = 4
    assert control.apply(run).max_steps == 4


@pytest.mark.parametrize("text", ["samples", "samples=0", "samples=-3", "hours=3", "tokens=many", "=5", "seconds=inf"])
def test_a_budget_that_is_none_is_refused(text):
    with pytest.raises(UserError, match="expected steps=N, samples=N, tokens=N or seconds=N"):
        Budget.read(text)


# -------------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ([], "nothing is varied"),
        (["algorithm"], "expected KEY=A,B,C"),
        (["algorithm=grpo"], "has one value"),
        (["algorithm=grpo,"], "expected KEY=A,B,C"),
        (["algorithm=grpo,grpo"], "stands twice"),
        (["kl.coef=0,1", "kl.coef=2,3"], "kl.coef stands twice"),
        (["algorithm=grpo,sft"], "the arms are judged by different figures"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, vary, said):
    with pytest.raises(UserError) as caught:
        plan.make(small.write(tmp_path), QUICK, vary, seeds=2)
    assert said in str(caught.value)


def test_every_fault_of_every_arm_is_found_at_once(tmp_path):
    with pytest.raises(ConfigError) as caught:
        plan.make(small.write(tmp_path), QUICK, ["algorithm=grpo,nonsense,gspo", "kl.coef=abc,0.1"], seeds=2)
    text = str(caught.value)
    assert "nonsense" in text
    assert "(algorithm=gspo, kl.coef=abc)" in text


def test_without_an_evaluation_there_is_nothing_to_compare_by(tmp_path):
    with pytest.raises(UserError, match=r"data\.validation is not set"):
        plan.make(small.write(tmp_path), [*QUICK, "data.validation=null"], ["kl.coef=0,1"], seeds=2)


def test_directories_of_arms_have_plain_names(tmp_path):
    found, _ = plan.make(
        small.write(tmp_path),
        QUICK,
        ["rewards=[{name: length, options: {max_tokens: 4}}],[{name: exact_match}]"],
        seeds=1,
    )
    names = [a.folder for a in found.arms]
    assert len(set(names)) == 2
    assert all(re.fullmatch(r"[A-Za-z0-9._=-]{1,80}", name) for name in names)
    assert statistics.RESAMPLES >= 1000


@pytest.mark.soak
def test_equal_arms_are_told_apart_in_at_most_one_of_twenty_comparisons(tmp_path, capsys):
    """Arms that differ in the order of their prompts alone, other seeds in each comparison."""
    found = []
    for trial in range(20):
        words = ("train.max_steps=4", "eval.every=4", "eval.prompts=60", f"train.seed={100 * trial}")
        vary = [f"data.seed={2 * trial + 1},{2 * trial + 2}"]
        values = carried_out(small.write(tmp_path), tmp_path / f"equal-{trial}", vary, seeds=3, words=words)
        found.append((values["pairs"][0]["better"], round(values["pairs"][0]["p"], 3)))
    with capsys.disabled():
        print(f"\nequal arms: {sum(better is not None for better, _ in found)} of {len(found)} told apart: {found}")
    assert sum(better is not None for better, _ in found) <= 1


@pytest.mark.soak
def test_an_arm_that_is_clearly_better_is_found_better_in_every_comparison(tmp_path, capsys):
    """One arm learns, the other has a learning rate of 0."""
    found = []
    for trial in range(20):
        words = ("train.max_steps=14", "eval.every=14", "eval.prompts=40", f"train.seed={100 * trial}")
        vary = ["optim.learning_rate=1e-3,0.0"]
        values = carried_out(small.write(tmp_path), tmp_path / f"better-{trial}", vary, seeds=3, words=words)
        found.append((values["pairs"][0]["better"], values["pairs"][0]["scores"]))
    with capsys.disabled():
        print(f"\na better arm: found in {sum(better == '1e-3' for better, _ in found)} of {len(found)}: {found}")
    assert all(better == "1e-3" for better, _ in found)
