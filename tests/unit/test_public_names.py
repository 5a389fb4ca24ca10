"""The names that others import: a change here is a change for them."""

import importlib
import inspect
import pkgutil
import subprocess
import sys

import trimtab
from trimtab import errors, testing

NAMES = {
    "__version__", "prepare", "PreparedRun",
    "TrimtabError", "UserError", "ConfigError", "DataError", "ModelError", "RewardError", "GuardError", "StorageError",
    "Preempted",
}  # fmt: skip
ERRORS = {
    "nearest",
    "shown",
    "TrimtabError", "UserError", "Finding", "ConfigError", "DataError", "ModelError", "RewardError", "LockError",
    "MissingExtraError", "OutOfMemoryError", "UnmetNeedError", "NumericalError", "GuardError", "StorageError", "WorkerError",
    "RewardUnavailableError", "Preempted",
}  # fmt: skip
SUITES = {"algorithms", "engines", "recorders", "rewards"}


def test_the_names_of_trimtab():
    assert set(trimtab.__all__) == NAMES
    assert set(dir(trimtab)) >= NAMES
    for name in NAMES:
        assert getattr(trimtab, name) is not None
    assert trimtab.ConfigError is errors.ConfigError


def test_a_name_that_is_not_there_is_an_attribute_error():
    assert not hasattr(trimtab, "prepair")


def test_what_prepare_and_the_run_it_returns_offer():
    assert list(inspect.signature(trimtab.prepare).parameters) == [
        "config", "overrides", "model", "tokenizer", "prompts", "validation", "rewards", "run_dir", "fresh", "recorders",
        "quiet",
    ]  # fmt: skip
    offered = {name for name in dir(trimtab.PreparedRun) if not name.startswith("_")}
    assert offered == {"close", "evaluate", "metrics", "model", "report", "samples", "state", "tokenizer", "train"}


def test_the_names_of_errors():
    own = {name for name, what in vars(errors).items() if getattr(what, "__module__", "") == errors.__name__}
    assert {name for name in own if not name.startswith("_")} == ERRORS


def test_the_suites_of_testing():
    found = {module.name: importlib.import_module(f"trimtab.testing.{module.name}") for module in _modules()}
    assert {name for name, module in found.items() if hasattr(module, "CHECKS")} == SUITES
    for name in SUITES:
        assert found[name].CHECKS
        assert all(map(callable, found[name].CHECKS))
    assert hasattr(found["engines"], "EngineUnderTest")
    assert hasattr(found["rewards"], "RewardUnderTest")


def _modules():
    return list(pkgutil.iter_modules(testing.__path__))


def test_importing_trimtab_loads_nothing_of_it_and_nothing_heavy():
    code = "import sys; before = set(sys.modules); import trimtab; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name.partition(".")[0] == "trimtab"] == ["trimtab"]
    assert not {"torch", "transformers", "pydantic", "yaml", "numpy", "rich", "dataclasses"} & set(loaded)
