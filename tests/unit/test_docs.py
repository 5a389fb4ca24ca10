"""The pages in docs/ say what the code says: settings, names, metrics, keys."""

import doctest
import re

import pytest

from scripts import docs, site
from trimtab import algorithms, catalogue
from trimtab.config import sections

GUIDES = [*sorted((docs.DOCS / "algorithms").glob("*.md")), docs.DOCS / "choosing.md", docs.DOCS / "choosing.zh.md"]
REMEDY = "run `make docs-text`, which writes what the code says"


def test_the_marked_parts_of_every_page_are_what_the_code_says():
    stale = [str(path.relative_to(docs.DOCS)) for path in docs.outdated()]
    assert not stale, f"{stale}: {REMEDY}"


def test_every_name_has_a_page_and_a_line_in_the_index():
    pages, index = docs.pages(), (docs.DOCS / "algorithms" / "index.md").read_text()
    for name in algorithms.MODULES:
        assert name in pages, f"no page in docs/algorithms has a place `<!-- settings:{name} -->`"
        assert re.search(rf"^\| `{name}`.*\({pages[name].name}\) \|$", index, re.MULTILINE), f"{name}: {REMEDY}"
    assert set(pages) <= set(docs.records())


def test_every_page_has_the_parts_that_a_reader_looks_for():
    for path in set(docs.pages().values()):
        heads = re.findall(r"^## (.*)$", path.read_text(), re.MULTILINE)
        for wanted in ("Idea", "Equation", "Settings", "Metrics", "When to use it", "How others differ", "Measured"):
            assert any(wanted.lower() in head.lower() for head in heads), f"{path.name} has no part `{wanted}`"
        assert "(learning.md)" in path.read_text(), f"{path.name} does not point to what was measured"


@pytest.mark.parametrize("name", algorithms.MODULES)
def test_a_page_explains_each_figure_that_the_algorithm_reports(name):
    text = docs.pages()[name].read_text()
    for metric in docs.records()[name].reports:
        assert metric in _spelt_out(text), f"{docs.pages()[name].name} does not explain {metric}"


def _spelt_out(text):
    """Every metric name of a page, `a/{b,c}` as two."""
    found = set()
    for stem, choices, single in re.findall(r"`([a-z_/]+/)(?:\{([a-z_,0-9]+)\}|([a-z_0-9]+))`", text):
        found.update(stem + end for end in (choices.split(",") if choices else [single]))
    return found


def test_no_guide_names_a_metric_that_there_is_not():
    known = {name.split("/")[0] for name in catalogue.METRICS}
    reported = {name for algorithm in docs.records().values() for name in algorithm.reports}
    for path in GUIDES:
        for name in _spelt_out(path.read_text()):
            if name.split("/")[0] in known and name not in reported and not _is_path(name):
                catalogue.find(name)


def _is_path(name):
    return (docs.DOCS.parent / name).exists() or name.startswith(("docs/", "src/", "examples/"))


def test_no_guide_names_a_key_that_there_is_not():
    known = {section: set(keys) for section, keys in sections.known_keys().items()}
    for algorithm in docs.records().values():
        for owner in sections.of_algorithm(algorithm):
            known.setdefault(owner.section, set()).update(owner.key_names())
    for path in GUIDES:
        for section, key in re.findall(r"`([a-z]+)\.([a-z_]+)", path.read_text()):
            if section in known and key not in ("md", "py"):
                assert key in known[section], f"{path.name}: {section}.{key} is no key"


def test_the_metrics_page_has_every_metric():
    text = (docs.DOCS / "metrics.md").read_text()
    assert [name for name in catalogue.METRICS if f"| `{name}` |" not in text] == []


def test_the_shown_examples_of_the_generators_are_right():
    for module in (docs, site):
        result = doctest.testmod(module)
        assert result.attempted
        assert not result.failed


def test_a_link_of_the_repository_becomes_a_link_of_the_site():
    class Place:
        def __init__(self, src_uri):
            self.file = self
            self.src_uri = src_uri

    def moved(text, place):
        return site.on_page_markdown(text, Place(place), None, None)

    assert moved("[a](docs/algorithms/ppo.md#idea)", "README.md") == "[a](algorithms/ppo.md#idea)"
    assert moved("[a](../SECURITY.md)", "plugins.md") == "[a](SECURITY.md)"
    assert moved("[a](../data.md)", "algorithms/ppo.md") == "[a](../data.md)"
    assert moved("[the demo](../examples/demo/grpo.yaml)", "data.md") == "the demo (`examples/demo/grpo.yaml`)"
    assert moved("[a](nowhere.md)", "data.md") == "[a](nowhere.md)"
    assert moved("```\n[a](../SECURITY.md)\n```", "algorithms/ppo.md") == "```\n[a](../SECURITY.md)\n```"
    assert moved("[a](https://b.example/c)", "data.md") == "[a](https://b.example/c)"
