"""First mistakes, as a user makes them: what is said, with which exit code, and that nothing is lost."""

import errno
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from tests.runs import small
from trimtab.cli import app
from trimtab.errors import TrimtabError
from trimtab.models import policy as policies
from trimtab.rewards.pool import Call, Pool
from trimtab.store import writer
from trimtab.store.checkpoints import CheckpointStore
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Checkpoint

CONFIG = """algorithm: grpo
policy: {model: builtin:tiny}
data: {train: rows.jsonl}
rewards: [{name: length, options: {max_tokens: 4}}]
sampling: {group_size: 2, max_length: 12}
optim: {learning_rate: 1e-3}
train: {max_steps: 2, prompts_per_step: 2}
checkpoint: {rolling_every: 1, rolling_keep: 10}
"""
ROWS = '{"prompt": "1+1=", "answer": "2"}\n{"prompt": "2+2=", "answer": "4"}\n{"prompt": "3+4=", "answer": "7"}\n'

JUDGES = """
import sys, time

def one_for_all(prompts, completions, **_):
    return [1.0]

def one_too_few(prompts, completions, **_):
    return [1.0] * (len(completions) - 1)

def one_too_many(prompts, completions, **_):
    return [1.0] * (len(completions) + 1)

def nothing(prompts, completions, **_):
    return None

def none_for_one(prompts, completions, **_):
    return [None if place == 1 else float(len(text)) for place, text in enumerate(completions)]

def none_for_all(prompts, completions, **_):
    return [None for _ in completions]

def nan(prompts, completions, **_):
    return [float("nan") for _ in completions]

def huge(prompts, completions, **_):
    return [1e308 for _ in completions]

def text(prompts, completions, **_):
    return ["good" for _ in completions]

def raises(prompts, completions, **_):
    return [1.0 / 0 for _ in completions]

def hangs(prompts, completions, **_):
    while True:
        time.sleep(60)

def leaves(prompts, completions, **_):
    sys.exit(3)

def good(prompts, completions, **_):
    return [float(len(text)) for text in completions]
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A configuration, its data, reward functions, and a finished run of two steps."""
    folder = tmp_path_factory.mktemp("template")
    (folder / "a.yaml").write_text(CONFIG)
    (folder / "rows.jsonl").write_text(ROWS)
    (folder / "judges.py").write_text(JUDGES)
    small.train(folder / "a.yaml", folder / "run")
    return folder


@pytest.fixture
def folder(template, tmp_path):
    """The template's files, its run too."""
    shutil.copytree(template, tmp_path / "x")
    return tmp_path / "x"


@pytest.fixture
def empty(template, tmp_path):
    """The template's files without its run."""
    shutil.copytree(template, tmp_path / "y", ignore=shutil.ignore_patterns("run"))
    return tmp_path / "y"


def train(folder, *words, run="run"):
    command = ["train", folder / "a.yaml", "--run-dir", folder / run, *words]
    return CliRunner().invoke(app, list(map(str, command)))


def refusal(result):
    """The exit code and the message of a command that failed on purpose."""
    assert isinstance(result.exception, TrimtabError), result.output
    return result.exception.exit_code, str(result.exception)


def failure(folder, run="run"):
    found = json.loads((folder / run / "failure.json").read_text())
    assert set(found) >= {"code", "cause", "place", "last_checkpoint", "what_to_do"}
    assert found["cause"]
    assert found["place"]
    assert found["what_to_do"]
    return found


def digests(folder):
    """SHA-256 of every file of a run but those that say who is there now, who was, and why the last start failed."""
    passing = {"lock", "audit.jsonl", "failure.json"}
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in passing
    }


# ------------------------------------------------------------------------------------------------------------- the data
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "rows.jsonl:1: has no rows; expected one JSON object a line"),
        (
            b'{"question": "1+1="}\n',
            "rows.jsonl:1: no column `prompt`, found 'question'; "
            "name the column that holds it: data.columns: {prompt: question}",
        ),
        (
            ROWS.encode() + '{"prompt": "你"}'.encode("gbk"),
            "rows.jsonl:4: not UTF-8: byte 0xc4 at offset 12 of the line; convert it",
        ),
        (b'{"prompt": "a"} {"prompt": "b"}\n', "rows.jsonl:1:16: more than one value on the line"),
        (ROWS.encode() + b'{"prompt": "a", "prompt": "b"}', "rows.jsonl:4: key 'prompt' stands twice in one object"),
        (b'{"prompt": "a", "x": NaN}', "rows.jsonl:1: NaN is not JSON; write a number or null"),
        (b'{"prompt": "a", "x": 9223372036854775808}', "rows.jsonl:1: the integer 9223372036854775808 does not fit into 64 bits"),
        (None, "rows.jsonl: no such file"),
    ],
    ids=["empty", "no column", "not UTF-8", "two values", "key twice", "NaN", "large integer", "no file"],
)  # fmt: skip
def test_a_file_that_is_spoilt_is_refused_before_a_model_is_loaded_and_its_run_stays(folder, monkeypatch, data, said):
    before, audit = digests(folder / "run"), (folder / "run" / "audit.jsonl").read_bytes()
    (folder / "rows.jsonl").unlink()
    if data is not None:
        (folder / "rows.jsonl").write_bytes(data)
    monkeypatch.setattr(policies, "load", None)
    code, message = refusal(train(folder, "train.max_steps=3"))
    assert code == 2
    assert said in message
    assert message.startswith(str(folder) if data is not None else "rows.jsonl")
    assert digests(folder / "run") == before
    assert (folder / "run" / "audit.jsonl").read_bytes().startswith(audit)
    written = failure(folder)
    assert (written["code"], written["last_checkpoint"]) == (2, 2)
    assert message in written["cause"]
    assert written["place"].startswith(message.split(": ")[0])
    (folder / "rows.jsonl").write_text(ROWS)
    monkeypatch.undo()
    assert train(folder, "train.max_steps=3").exit_code == 0
    assert not (folder / "run" / "failure.json").exists()


def test_all_faults_of_a_file_are_said_at_once(empty):
    (empty / "rows.jsonl").write_text('{"prompt": 1}\n' + ROWS + "nonsense\n")
    _, message = refusal(train(empty))
    places = [line.split(": ")[0].rsplit("/", 1)[-1] for line in message.splitlines()]
    assert places == ["rows.jsonl:1", "rows.jsonl:5:1"]


@pytest.mark.parametrize("what", ["drop", "truncate"])
def test_a_prompt_that_is_too_long_is_counted_in_a_notice(empty, what):
    (empty / "rows.jsonl").write_text(ROWS + '{"prompt": "100000000+2="}\n')
    result = train(empty, "train.max_steps=1", "sampling.max_prompt_length=5", f"sampling.long_prompts={what}")
    assert result.exit_code == 0, result.exception
    counted = {"drop": "1 left out", "truncate": "1 cut"}[what]
    assert f"data.train: of 4 rows {counted}, since they are too long" in result.output


def test_a_prompt_that_is_too_long_is_refused_with_its_line_if_that_is_asked_for(empty):
    (empty / "rows.jsonl").write_text(ROWS + '{"prompt": "100000000+2="}\n')
    code, message = refusal(train(empty, "sampling.max_prompt_length=5", "sampling.long_prompts=refuse"))
    assert code == 2
    assert "rows.jsonl:4: the prompt has 12 tokens, allowed are 5" in message


def test_it_is_a_fault_if_no_row_is_left(empty):
    (empty / "rows.jsonl").write_text('{"prompt": "100000000+2="}\n{"prompt": "100000000+3="}\n')
    code, message = refusal(train(empty))
    assert code == 2
    assert "rows.jsonl:1: all 2 prompts are longer than 11 tokens; raise sampling.max_prompt_length" in message
    assert failure(empty)["code"] == 2


# ---------------------------------------------------------------------------------------------------------- the rewards
@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("one_for_all", "returned 1 values for 4 completions"),
        ("one_too_few", "returned 3 values for 4 completions"),
        ("one_too_many", "returned 5 values for 4 completions"),
        ("nothing", "returned NoneType, expected a list of 4 numbers"),
        ("nan", "value 0 is nan, expected a finite number or None"),
        ("huge", "value 0 is 1e+308, expected a number of at most 3.4e+38 or None"),
        ("text", "value 0 is str 'good', expected a number or None"),
        ("raises", "ZeroDivisionError: float division by zero"),
        ("hangs", "took longer than 0.3 s and was killed"),
        ("leaves", "ended with exit code 3 and took its process"),
    ],
)
def test_a_reward_function_that_fails_ends_the_run_before_an_update_and_once_mended_it_goes_on(empty, function, said):
    limit = 0.3 if function == "hangs" else 20
    words = [f"rewards=[{{name: 'judges:{function}', timeout_seconds: {limit}}}]", "train.max_steps=1"]
    code, message = refusal(train(empty, *words))
    assert code == 2
    assert message.startswith(f"rewards: judges:{function}: ")
    assert said in message
    assert "(batch of 4 completions); mend the function, or set on_error to skip or penalty" in message
    run = RunDirectory(empty / "run")
    assert small.steps(run) == []
    written = failure(empty)
    assert (written["code"], written["place"], written["last_checkpoint"]) == (2, "step 0", 0)
    if function in ("one_for_all", "leaves"):
        (empty / "judges.py").write_text(JUDGES + f"\n{function} = good\n")
        assert train(empty, *words).exit_code == 0
        assert [s["step"] for s in small.steps(run)] == [1]


@pytest.mark.parametrize(("function", "share"), [("none_for_one", 0.25), ("none_for_all", 1.0)])
def test_a_completion_without_a_reward_is_left_out_and_counted(empty, function, share):
    result = train(empty, f"rewards=['judges:{function}']", "train.max_steps=1")
    assert result.exit_code == 0, result.exception
    step = small.steps(RunDirectory(empty / "run"))[0]
    assert step["metrics"]["reward/unscored"] == share
    assert step["metrics"]["reward/errors"] == 0
    assert ("reward/mean" in step["metrics"]) == (share < 1.0)


def test_after_a_hundred_calls_without_end_the_pool_is_as_large_as_before(empty):
    def call(name, limit=0.05):
        return Call(
            name=f"judges:{name}", options={}, timeout_seconds=limit, prompts=["p"], completions=["abc"], columns={}
        )

    pool = Pool(2, paths=[str(empty)])
    started = time.monotonic()
    found = [outcome for _ in range(20) for outcome in pool.run([call("hangs")] * 5)]
    assert [outcome.error for outcome in found] == ["took longer than 0.05 s and was killed"] * 100
    assert (pool.kills, pool.size) == (100, 2)
    assert time.monotonic() - started < 60
    assert pool.run([call("good", 20.0)] * 4)[3].values == [3.0]
    assert len(pool._idle) <= 2
    pool.close()


# ---------------------------------------------------------------------------------------------------- the configuration
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("polcy: {}", "a.yaml:9: unknown key `polcy`; did you mean `policy`?"),
        ("eval: {evry: 3}", "a.yaml:9: unknown key `eval.evry`; did you mean `every`?"),
        ("eval: {early_stop: {patiens: 3}}", "a.yaml:9: unknown key `eval.early_stop.patiens`; did you mean `patience`?"),
        ("observe: {samples: {evry: 3}}", "a.yaml:9: unknown key `observe.samples.evry`; did you mean `every`?"),
        ("kl: {coef: {schedule: linear, from: 1, until: 0, steps: 3}}", "a.yaml:9: unknown key `kl.coef.until`"),
        ("overrides: {grpo: {kl: {coeff: 1}}}", "unknown key `kl.coeff`; did you mean `coef`?"),
        ("overrides: {gpro: {kl: {coef: 1}}}", "a.yaml:9: unknown key `overrides.gpro`; did you mean `grpo`?"),
    ],
)  # fmt: skip
def test_an_unknown_key_is_refused_at_every_level_and_the_run_stays(folder, text, said):
    before = digests(folder / "run")
    (folder / "a.yaml").write_text(CONFIG + text + "\n")
    code, message = refusal(train(folder, "train.max_steps=3"))
    assert code == 2
    assert said in message
    assert digests(folder / "run") == before
    assert failure(folder)["code"] == 2


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{name: length, options: {max_tokns: 4}}", "reward length has no option `max_tokns`; it has max_tokens"),
        ("{name: length, wieght: 1.0}", "unknown key `rewards.0.wieght`; did you mean `weight`?"),
        ("lenght", "no reward is called `lenght`; did you mean `length`?"),
    ],
)
def test_an_unknown_key_of_a_reward_is_refused(empty, entry, said):
    code, message = refusal(train(empty, f"rewards=[{entry}]"))
    assert (code, said in message) == (2, True), message


def test_a_group_of_one_is_refused_where_completions_are_compared(empty):
    (empty / "a.yaml").write_text(CONFIG.replace("group_size: 2", "group_size: 1"))
    code, message = refusal(train(empty))
    assert code == 2
    assert message == (
        f"{empty}/a.yaml:5: sampling.group_size: 1, but grpo compares completions of one prompt; use 2 or more"
    )


@pytest.mark.parametrize("written", ["1e-6", "1E-6", "1.e-6", "+1e-6", "0.000001"])
def test_a_small_number_may_be_written_in_every_way(empty, written):
    (empty / "a.yaml").write_text(CONFIG.replace("1e-3", written))
    result = CliRunner().invoke(app, ["config", "show", str(empty / "a.yaml"), "--json"])
    assert json.loads(result.output)["optim"]["learning_rate"] == 1e-6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("eval: {early_stop: {patience: true}}", "a.yaml:9: eval.early_stop.patience: true; expected a number"),
        ("kl: {coef: {schedule: linear, from: true, to: 0, steps: 3}}", "a.yaml:9: kl.coef.from: true; expected a number"),
        ("advantage: {ddof: false}", "a.yaml:9: advantage.ddof: false; expected a number"),
    ],
)  # fmt: skip
def test_true_and_false_are_no_numbers(empty, text, said):
    (empty / "a.yaml").write_text(CONFIG + text + "\n")
    code, message = refusal(train(empty))
    assert (code, said in message) == (2, True), message
    code, message = refusal(train(empty, "rewards=[{name: exact_match, weight: true}]"))
    assert "rewards.0.weight: true; expected a number" in message


@pytest.mark.parametrize("written", ["'1e-6x'", "1e-6x", "fast", "[1e-6]", "true"])
def test_what_is_no_number_is_refused_at_its_key(empty, written):
    (empty / "a.yaml").write_text(CONFIG.replace("1e-3", written))
    code, message = refusal(train(empty))
    assert code == 2
    assert message.startswith(f"{empty}/a.yaml:6: optim.learning_rate: ")
    assert "expected a number" in message


# ------------------------------------------------------------------------------------------------------------ the model
def test_a_model_without_a_tokenizer_is_refused_with_the_way_out(empty):
    policies.load("builtin:tiny", seed=0).model.save_pretrained(empty / "model")
    code, message = refusal(train(empty, f"policy.model={empty / 'model'}"))
    assert code == 2
    assert f"policy.model: {empty / 'model'}: has no tokenizer that can be read" in message
    assert "tokenizer.save_pretrained" in message
    assert failure(empty)["code"] == 2


# ----------------------------------------------------------------------------------------------------------- the storage
def good_steps(run):
    store = CheckpointStore(run / "checkpoints", Checkpoint(), max_steps=9)
    return [step for step in store.steps() if store.fault(step) is None]


def goes_on(folder):
    """The same command again: the run reaches step 3, and nothing says any more that it failed."""
    result = train(folder, "train.max_steps=3")
    assert result.exit_code == 0, result.exception
    assert not (folder / "run" / "failure.json").exists()
    assert [s["step"] for s in small.steps(RunDirectory(folder / "run"))] == [1, 2, 3]
    assert good_steps(folder / "run") == [0, 1, 2, 3]


def test_a_disk_that_is_full_while_a_checkpoint_is_written_costs_nothing_that_is_there(folder):
    before = digests(folder / "run" / "checkpoints")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))  # no file may be larger than 1 MiB
    try:
        result = train(folder, "train.max_steps=3", "guard.rules.kl_update.then=warn")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    code, message = refusal(result)
    assert code == 4
    assert message.startswith(f"checkpoint of step 3: cannot write to {folder / 'run' / 'checkpoints'}: ")
    after = digests(folder / "run" / "checkpoints")
    assert {name: after[name] for name in before} == before
    assert good_steps(folder / "run") == [0, 1, 2]
    written = failure(folder)
    assert (written["code"], written["last_checkpoint"]) == (4, 2)
    assert "free space" in written["what_to_do"]
    goes_on(folder)


@pytest.mark.parametrize("operation", ["write_bytes", "append"])
def test_a_disk_that_takes_no_byte_more_ends_the_run_with_the_code_of_storage(folder, monkeypatch, operation):
    """Where not even failure.json can be written, that hides nothing."""

    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = digests(folder / "run" / "checkpoints")
    with monkeypatch.context() as patch:
        patch.setattr(writer, operation, full)
        code, message = refusal(train(folder, "train.max_steps=3"))
    assert code == 4
    assert "No space left on device" in message
    assert digests(folder / "run" / "checkpoints").items() >= before.items()
    goes_on(folder)


def test_a_checkpoint_with_one_bit_changed_is_named_and_the_one_before_is_used(folder):
    file = folder / "run" / "checkpoints" / "2" / "policy" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    whole = small.steps(RunDirectory(folder / "run"))
    result = train(folder, "train.max_steps=3")
    assert result.exit_code == 0, result.exception
    assert f"checkpoint 2 is not used: {file} has SHA-256 " in result.output
    after = small.steps(RunDirectory(folder / "run"))
    assert [s["step"] for s in after] == [1, 2, 3]
    assert [s["weights"] for s in after[:2]] == [s["weights"] for s in whole]
    assert good_steps(folder / "run") == [0, 1, 2, 3]


@pytest.mark.parametrize("place", ["rows.jsonl", "rows.jsonl/run"])
def test_a_run_that_would_have_to_live_in_a_file_is_refused(empty, place):
    code, message = refusal(train(empty, run=place))
    assert code == 2
    assert message.startswith(f"{empty / place}: no run can be kept here: ")
    assert (empty / "rows.jsonl").read_text() == ROWS


# --------------------------------------------------------------------------------------------------- a second process
HOLDER = """
import sys
from pathlib import Path
from trimtab.store.run_directory import RunDirectory
with RunDirectory(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("flags", [[], ["--fresh"]], ids=["continue", "fresh"])
def test_a_second_process_is_refused_with_the_first_one_s_number_and_touches_nothing(folder, flags):
    before = digests(folder)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder / "run")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "locked\n"
        code, message = refusal(train(folder, "train.max_steps=3", *flags))
        assert holder.poll() is None
        holder.stdin.close()
    assert code == 2
    assert f"another process trains here: pid {holder.pid} on " in message
    assert digests(folder) == before
    assert not (folder / "run" / "failure.json").exists()


# --------------------------------------------------------------------------------------------------------- the program
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["optim.learning_rate=1e-6x"], "error: command line: optim.learning_rate: '1e-6x'; expected a number"),
        (["data.train=none.jsonl"], "error: none.jsonl: no such file; give a JSONL file, or builtin:addition"),
    ],
)
def test_the_program_says_it_in_one_line_without_a_traceback(empty, words, said):
    command = [sys.executable, "-m", "trimtab", "train", "a.yaml", "--run-dir", "run", *words]
    done = subprocess.run(
        command, cwd=empty, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [said]
    assert failure(empty)["code"] == 2
