"""The report page and the picture of a run."""

import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import MissingExtraError
from trimtab.observe import completions, record, report
from trimtab.observe.curves import sections
from trimtab.types import Sample

VOID = {"meta", "path", "br"}
PAYLOAD = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


class Page(HTMLParser):
    """What a browser would make of a page: elements, text, and whether every element was closed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.texts = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def named(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, tag=None):
        return "".join(data for within, data in self.texts if tag is None or within == tag)


def row(step, **metrics):
    return {"step": step, "time": 1000.0 + step, "metrics": {k.replace("__", "/"): v for k, v in metrics.items()}}


def sample(prompt_id, completion, reward, *, prompt="47+35=", answer="82"):
    return Sample(
        prompt_id=prompt_id,
        prompt=prompt,
        completion=completion,
        reward=reward,
        reward_parts={},
        is_truncated=False,
        answer=answer,
    )


def a_run(steps=20, **changes):
    rows = [
        row(s, reward__mean=s / 20, reward__std=0.2, loss__policy=-0.01 * s, loss__kl=1e-5 * s, loss__total=0.0,
            coefficient__kl=0.02, coefficient__policy=1.0, kl__reference=0.001 * s, kl__update=1e-4, entropy=1.5,
            length__mean=4.0, length__p50=4.0, length__p95=6.0, length__max=8.0, ratio__mean=1.0, ratio__min=0.8,
            ratio__max=1.3, clip_fraction__low=0.01, grad_norm__total=0.5, learning_rate=1e-5, time__step=1.0,
            time__rollout=0.5, time__forward=0.2, throughput__rollout_tokens_per_second=1234.0, updates__count=4.0)
        for s in range(1, steps + 1)
    ]  # fmt: skip
    given_facts = {
        "name": "addition", "algorithm": "grpo", "outcome": "Finished.", "steps": rows,
        "evaluations": [row(0, eval__reward__mean=0.05), row(steps, eval__reward__mean=0.93)],
        "before": [sample(1, "28", 0.0), sample(2, "9", 1.0)], "after": [sample(1, "82", 1.0), sample(2, "9", 1.0)],
    }  # fmt: skip
    return report.RunRecord(**{**given_facts, **changes})


def figure_titles(text):
    return re.findall(r"<figcaption><strong>(.*?)</strong>", text)


def test_the_page_is_well_formed_and_names_the_run():
    page = Page(report.html(a_run()))
    assert page.open == []
    assert page.text("title") == "addition · grpo · run report"
    descriptions = [m["content"] for m in page.named("meta") if m.get("name") == "description"]
    assert len(descriptions) == 1
    assert "0.05 → 0.93" in descriptions[0] or "0.050 → 0.930" in descriptions[0]


def test_the_page_refers_to_nothing_outside_itself():
    text = report.html(a_run())
    page = Page(text)
    assert not re.search(r"https?:|//[a-z]|url\(|@import", text.replace("</", ""))
    assert {tag for tag, _ in page.elements}.isdisjoint({"link", "img", "iframe", "object", "base"})
    assert all(a["href"].startswith("#") for a in page.named("a"))
    assert all("src" not in attributes for attributes in page.named("script"))


def test_every_link_of_the_contents_leads_to_a_section():
    page = Page(report.html(a_run(config="seed: 1", next_steps=["Go on."])))
    assert {a["href"][1:] for a in page.named("a")} == {s["id"] for s in page.named("section")}


def test_text_of_the_run_cannot_become_markup():
    evil = [sample(1, PAYLOAD, 0.0, prompt=PAYLOAD, answer=PAYLOAD)]
    run = replace(
        a_run(), name=PAYLOAD, algorithm=PAYLOAD, outcome=PAYLOAD, facts={PAYLOAD: PAYLOAD}, config=PAYLOAD, formula=PAYLOAD,
        events=[{"event": PAYLOAD, "time": 1000.0, PAYLOAD: PAYLOAD}], next_steps=[PAYLOAD], before=evil, after=evil,
        samples=evil, steps=[{"step": 1, "time": 1000.0, "metrics": {f"loss/{PAYLOAD}": 1.0, PAYLOAD: 2.0}}],
    )  # fmt: skip
    page, clean = Page(report.html(run)), Page(report.html(a_run()))
    assert page.open == []
    assert len(page.named("script")) == len(clean.named("script")) == 2
    assert page.named("img") == []
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert page.text("pre") == PAYLOAD


def test_only_the_script_of_the_page_may_run():
    text = report.html(a_run())
    policy = next(m["content"] for m in Page(text).named("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]{44}'$", policy)


def test_every_loss_term_has_a_chart_of_its_own_with_its_coefficient():
    rows = [
        row(s, loss__policy=0.1, loss__value=0.2, loss__entropy=1.0, loss__kl=0.0, loss__nll=2.0, loss__new_idea=3.0,
            coefficient__kl=0.1 * s, coefficient__value=0.5)
        for s in (1, 2)
    ]  # fmt: skip
    text = report.html(replace(a_run(), steps=rows))
    titles = figure_titles(text)
    assert {f"loss/{t}" for t in ("policy", "value", "entropy", "kl", "nll", "new_idea")} <= set(titles)
    assert "coefficient/kl" in titles, "a coefficient that changes is drawn"
    assert "coefficient/value" not in titles
    assert "<small>coefficient 0.5</small>" in text


def test_units_and_help_come_from_the_catalogue():
    text = report.html(a_run())
    assert '<strong>entropy</strong> <span class="unit">nats</span>' in text
    assert "mean over tokens of the next-token entropy at the sampling temperature" in text


def test_every_metric_is_shown_somewhere():
    run = a_run()
    shown = Page(report.html(run)).text() + " ".join(
        trace.label
        for section in sections(record.every_curve(run))
        for chart in section.charts
        for trace in chart.traces
    )
    drawn_together = ("reward/std", "length/", "ratio/", "clip_fraction/", "time/", "coefficient/", "eval/")
    for name in record.names(run):
        assert name in shown or name.startswith(drawn_together), name
    assert "updates/count" in figure_titles(report.html(run))


def test_what_only_evaluations_measured_is_shown_once():
    measured = row(0, eval__length__mean=3.0, eval__length__truncated=0.1, eval__reward__mean=0.5, eval__loss__nll=2.0)
    titles = figure_titles(report.html(replace(a_run(), steps=[row(1, loss__nll=2.0)], evaluations=[measured])))
    assert sorted(titles) == ["eval/length/mean", "eval/length/truncated", "loss/nll", "reward/mean"]


def test_evaluation_is_drawn_beside_training():
    charts = [chart for section in sections(record.every_curve(a_run())) for chart in section.charts]
    reward = next(chart for chart in charts if chart.title == "reward/mean")
    dots = next(trace for trace in reward.traces if trace.style == "dots")
    assert dots.points == [(0, 0.05), (20, 0.93)]


def test_read_outs_hold_the_curves_that_are_drawn():
    page = Page(report.html(a_run()))
    holder = json.loads("".join(data for within, data in page.texts if within == "script" and data.startswith("{")))
    assert set(holder) == {figure["id"] for figure in page.named("figure")}
    assert any(trace == {"at": [0, 20], "is": [0.05, 0.93]} for traces in holder.values() for trace in traces)


@pytest.mark.parametrize(
    "run",
    [
        a_run(steps=1),
        a_run(evaluations=[]),
        a_run(steps=0, evaluations=[], before=[], after=[]),
        a_run(before=[], after=[], samples=[sample(3, "", None)]),
        replace(a_run(), steps=[row(1, loss__policy=-5.0), row(2, entropy=1.0), row(3, loss__policy=-7.0)]),
        replace(a_run(), steps=[row(1, loss__policy=float("nan"), loss__kl=float("inf")), row(2, loss__nll=1e30)]),
        replace(a_run(), name="加法 ✓ \udc80", steps=[row(7, entropy=0.0)]),
    ],
    ids=["one step", "no evaluation", "nothing", "unmatched samples", "gaps and negatives", "not finite", "not ASCII"],
)
def test_unusual_runs_give_whole_pages(run):
    text = report.html(run)
    assert Page(text).open == []
    assert not re.search(r"\b(nan|inf)\b", re.sub(r"<(style|script).*?</\1>", "", text, flags=re.S))
    text.encode()


def test_a_long_run_stays_small():
    rows = [
        row(s, loss__policy=float(s % 7), reward__mean=0.5, time__step=1.0, time__rollout=0.5)
        for s in range(1, 100_001)
    ]
    text = report.html(replace(a_run(), steps=rows))
    assert len(text) < 1_000_000
    paths = re.findall(r' d="(M[^"]*)"', text)
    assert max(path.count("L") for path in paths) <= 2 * record.MOST_POINTS


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(4, 60))
def test_thinning_keeps_extremes_ends_and_order(values, most):
    points = list(enumerate(values))
    thin = record.downsample(points, most)
    assert len(thin) <= most
    assert thin == sorted(set(thin))
    assert set(thin) <= set(points)
    assert (thin[0], thin[-1]) == (points[0], points[-1])
    assert min(v for _, v in thin) == min(values)
    assert max(v for _, v in thin) == max(values)


def test_of_two_records_of_a_step_the_later_one_counts():
    assert record.curve([row(2, entropy=1.0), row(1, entropy=3.0), row(2, entropy=2.0)], "entropy") == [
        (1, 3.0),
        (2, 2.0),
    ]


def test_completions_of_a_prompt_stand_side_by_side_with_gains_first():
    before = [sample(1, "a", 1.0), sample(2, "b", 0.0), sample(3, "c", 1.0), sample(4, "d", 1.0)]
    after = [sample(1, "a", 1.0), sample(2, "B", 1.0), sample(3, "C", 0.0), sample(5, "E", 1.0)]
    assert [(b.completion, a.completion) for b, a in completions.pairs(before, after)] == [
        ("b", "B"),
        ("c", "C"),
        ("a", "a"),
    ]
    assert "3 validation prompts: 1 better, 1 worse, 1 with the same reward." in completions.comparison(before, after)


def test_the_rows_at_the_top_do_not_only_flatter():
    before = [sample(i, "x", 1.0 if i < 40 else 0.0) for i in range(120)]
    after = [sample(i, "y", 0.0 if i < 60 else 1.0) for i in range(120)]
    chosen, rest = completions.split(completions.pairs(before, after), 24)
    gains = [completions.gain(pair) for pair in chosen]
    assert (gains.count(1.0), gains.count(-1.0), gains.count(0.0)) == (16, 4, 4)
    assert len(rest) == 120 - 24


def test_white_space_and_control_characters_of_completions_can_be_seen():
    shown = completions.visible("  8\n2\t\x1b[0m\u202e <b> ")
    for mark in ("··", "↵\n", "⇥", "\\x1b", "\\u202e", "&lt;b&gt;"):
        assert mark in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "empty" in completions.visible("")
    assert "500 more characters" in completions.visible("x" * (completions.MOST_CHARACTERS + 500))


def test_alarms_are_told_from_routine():
    events = [{"event": "saved", "time": 1000.0 + s, "step": s} for s in range(50)]
    text = report.html(a_run(events=[*events, {"event": "alarm", "time": 1060.0, "rule": "entropy_low"}]))
    assert "1 of 51 ask for attention" in text
    assert text.count("entropy_low") == 2, "once by itself and once among all"
    assert "No alarms." in report.html(a_run(events=events[:2]))


def test_formula_and_next_steps_are_set_as_text_with_marks():
    text = report.html(a_run(formula="L = L_policy + beta L_kl", next_steps=["Raise `kl.coef`."]))
    assert "<i>L</i> = <i>L</i><sub>policy</sub> + beta <i>L</i><sub>kl</sub>" in text
    assert "<li>Raise <code>kl.coef</code>.</li>" in text


def test_the_picture_has_its_size_and_is_reproducible(tmp_path):
    image = pytest.importorskip("PIL.Image")
    run = a_run(name="a $run$ 加法", before=[], after=[])
    for name in ("one.png", "two.png"):
        report.png(run, tmp_path / name)
    with image.open(tmp_path / "one.png") as picture:
        assert picture.size == (1600, 900)
        assert not {"Software", "Creation Time"} & set(picture.info)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


@pytest.mark.parametrize("steps", [0, 1, 200])
def test_the_picture_can_be_drawn_of_any_run(steps, tmp_path):
    report.png(a_run(steps=steps, evaluations=[]), tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 10_000


def test_a_missing_library_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r'pip install "trimtab\[plots\]"'):
        report.png(a_run(), tmp_path / "run.png")
