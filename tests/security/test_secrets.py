"""A secret is named in a configuration, read at each use, and stands in nothing that is written or shown."""

import base64
import dataclasses
import hashlib
import html
import io
import json
import re
import shlex
import subprocess
import textwrap
import traceback
from types import SimpleNamespace
from urllib.parse import quote, quote_plus

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.runs import small
from tests.security.commands import command
from trimtab import config as configs
from trimtab import secrets
from trimtab.config import secrets as places
from trimtab.config.records import adapter, plain_record
from trimtab.errors import ConfigError
from trimtab.observe.recorders import Recorders
from trimtab.operate import finish
from trimtab.secrets import Secret, redact
from trimtab.store import journal
from trimtab.store.audit import AuditLog
from trimtab.store.recorder import write_samples
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Checkpoint
from trimtab.types import Sample


@pytest.fixture(autouse=True)
def _nothing_known():
    secrets.forget()
    yield
    secrets.forget()


# ------------------------------------------------------------------------------------------------------- the reference
def test_a_secret_is_read_at_each_use_so_it_can_change_while_a_run_goes_on(tmp_path, monkeypatch):
    file, key = Secret(f"${{file:{tmp_path / 'key'}}}"), "checkpoint.encrypt"
    (tmp_path / "key").write_text("the first value\n")
    monkeypatch.setenv("SOME_NAME", "one value here")
    assert (file.read(key), Secret("${env:SOME_NAME}").read(key)) == ("the first value", "one value here")
    (tmp_path / "key").write_text("the second value\r\n")
    monkeypatch.setenv("SOME_NAME", "another value")
    assert (file.read(key), Secret("${env:SOME_NAME}").read(key)) == ("the second value", "another value")


def test_a_secret_shows_its_name_and_holds_nothing_else(monkeypatch):
    monkeypatch.setenv("SOME_NAME", "never to be seen")
    secret = Secret("${env:SOME_NAME}")
    secret.read("a.b")
    record = dataclasses.replace(Checkpoint(), encrypt=secret)
    for shown in (repr(secret), str(secret), f"{secret}", repr(record), json.dumps(plain_record(record))):
        assert "${env:SOME_NAME}" in shown
        assert "never" not in shown


@pytest.mark.parametrize(
    ("reference", "content", "what"),
    [
        ("${env:NOT_SET}", None, "the environment variable is not set"),
        ("${file:FOLDER/none}", None, "the file cannot be read: No such file or directory"),
        ("${file:FOLDER}", None, "the file cannot be read: Is a directory"),
        ("${file:FOLDER/key}", b"short", "has 5 characters, expected 8 or more"),
        ("${file:FOLDER/key}", b"", "has 0 characters, expected 8 or more"),
        ("${file:FOLDER/key}", b"checkpoint", "is a word, which can be guessed; `openssl rand -hex 32` makes a secret"),
        ("${file:FOLDER/key}", b"\xff" * 32, "the file is not UTF-8; write a key as text"),
        ("${file:FOLDER/key}", b"x" * 70_000, "the file has more than 64 KiB, which is no secret"),
    ],
)
def test_a_secret_that_cannot_be_read_is_named_with_its_key(tmp_path, reference, content, what):
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Secret(reference.replace("FOLDER", str(tmp_path))).read("checkpoint.encrypt")
    assert str(caught.value).startswith("checkpoint.encrypt: ${")
    assert what in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "x", "${env:}", "${env:A", "$env:A", "${ENV:A}", "a ${env:A}", "${env:A} b", "${file:a\nb}"]
)
def test_nothing_but_a_whole_reference_is_one(text):
    with pytest.raises(ValueError, match="expected a reference, not the secret itself"):
        Secret(text)


# ---------------------------------------------------------------------------------------------------- the configuration
CONFIG = """\
algorithm: grpo
rewards: [exact_match]
checkpoint:
  encrypt: {value}
"""


def load(folder, text, *words):
    (folder / "a.yaml").write_text(text)
    return configs.load(folder / "a.yaml", words)


def test_the_key_of_a_secret_takes_references_and_shows_only_their_names(tmp_path, monkeypatch):
    monkeypatch.setenv("RUN_KEY", "never to be seen")
    for value in ("${env:RUN_KEY}", "${file:/a/b}", "null", "auto"):
        config = load(tmp_path, CONFIG.format(value=f'"{value}"' if "$" in value else value))
        expected = value if "$" in value else None
        assert config.checkpoint.encrypt == expected
        assert config.resolved["checkpoint"]["encrypt"] == expected
        text = yaml.safe_dump([dict(config.resolved), dict(config.requested)]) + json.dumps(config.resolved)
        assert "never" not in text
    assert load(tmp_path, CONFIG.format(value="null"), "checkpoint.encrypt=${env:RUN_KEY}").checkpoint.encrypt


def test_a_relative_file_is_looked_for_beside_the_configuration_and_resolved_to_the_whole_path(tmp_path, monkeypatch):
    (tmp_path / "run.key").write_text("a key that is long enough")
    monkeypatch.chdir("/")
    config = load(tmp_path, CONFIG.format(value='"${file:run.key}"'))
    assert config.resolved["checkpoint"]["encrypt"] == f"${{file:{tmp_path / 'run.key'}}}"
    assert config.requested["checkpoint"]["encrypt"] == "${file:run.key}"
    assert config.checkpoint.encrypt.read("") == "a key that is long enough"


LITERALS = [
    "hunter2hunter2",
    "${env:A",
    "$RUN_KEY",
    "[hunter2hunter2]",
    "{a: hunter2hunter2}",
    "12345678",
    "https://u:hunter2hunter2@h/",  # pragma: allowlist secret
]


@pytest.mark.parametrize("value", LITERALS)
def test_a_secret_itself_in_the_place_of_its_name_is_refused_at_its_line_and_not_repeated(tmp_path, value):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, CONFIG.format(value=value))
    message = str(caught.value)
    assert len(caught.value.findings) == 1
    assert message.startswith(f"{tmp_path}/a.yaml:4: checkpoint.encrypt: ")
    assert "write ${env:NAME} or ${file:PATH}" in message
    assert "hunter2" not in message
    assert "12345678" not in message


def test_on_the_command_line_and_among_an_algorithms_overrides_it_is_refused_likewise(tmp_path):
    with pytest.raises(ConfigError, match=r"^command line: checkpoint\.encrypt: holds a secret itself"):
        load(tmp_path, CONFIG.format(value="null"), "checkpoint.encrypt=hunter2hunter2")
    text = CONFIG.format(value="null") + "overrides:\n  grpo:\n    checkpoint: {encrypt: hunter2hunter2}\n"
    with pytest.raises(ConfigError, match=r"a\.yaml:7: overrides\.grpo\.checkpoint\.encrypt: holds a secret itself"):
        load(tmp_path, text)


REFERENCE_PLACES = {
    "policy.model": ("policy: {model: '${env:A}'}", "policy.model"),
    "a list": ("data: {allow: [a, '${file:/etc/passwd}']}", "data.allow.1"),
    "a name in a text": ("data: {train: 'rows-${env:A}.jsonl'}", "data.train"),
    "a mapping": ("data: {columns: {prompt: '${env:A}'}}", "data.columns.prompt"),
    "a mixed part": ("mix: [{algorithm: sft, data: '${env:A}'}]", "mix.0.data"),
    "an override": ("overrides: {grpo: {policy: {model: '${env:A}'}}}", "overrides.grpo.policy.model"),
    "an unknown key": ("policy: {modell: '${env:A}'}", "policy.modell"),
    "an unread key": ("preference: {beta: '${env:A}'}", "preference.beta"),
    "a reward": ("rewards: [{name: regex, options: {pattern: '${env:A}'}}]", "rewards.0.options.pattern"),
}


@pytest.mark.parametrize("where", REFERENCE_PLACES)
def test_a_reference_in_any_other_key_is_refused_with_the_keys_that_may(tmp_path, where):
    line, key = REFERENCE_PLACES[where]
    text = f"algorithm: grpo\n{'' if 'rewards' in line else 'rewards: [exact_match]'}\n{line}\n"
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    found = [f for f in caught.value.findings if "no secret may be named here" in f.what]
    assert [(f.place, f.what.split(":")[0]) for f in found] == [(f"{tmp_path}/a.yaml:3", key)]
    assert "only in checkpoint.encrypt" in found[0].hint


@pytest.mark.parametrize(
    "url",
    [
        "https://me:hunter2hunter2@example.org/x",  # pragma: allowlist secret
        "s3://hunter2hunter2@host/b",
        "https://a:hunter2hunter2@b:c/",  # pragma: allowlist secret
    ],
)
def test_a_password_in_a_url_is_refused_in_any_key(tmp_path, url):
    with pytest.raises(ConfigError, match=r"a\.yaml:3: data\.train: the URL has a user or password in it") as caught:
        load(tmp_path, f"algorithm: grpo\nrewards: [exact_match]\ndata: {{train: '{url}'}}\n")
    assert "hunter2" not in str(caught.value)


def test_a_url_without_one_and_a_dollar_sign_alone_are_as_good_as_any_text(tmp_path):
    text = "algorithm: grpo\nrewards: [{name: regex, options: {pattern: 'a@b \\$5 ${x}'}}]\ndata: {train: 'https://example.org/@x'}\n"
    assert load(tmp_path, text).data.train == "https://example.org/@x"


def test_a_secret_under_a_misspelt_section_is_not_shown_by_whoever_quotes_it(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "algorithm: grpo\nrewards: [exact_match]\ncheckpoint: [{encrypt: hunter2hunter2}]\n")
    assert "hunter2" not in redact(str(caught.value))


@dataclasses.dataclass(frozen=True)
class Inner:
    token: Secret | None = None
    other: str = ""


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner = dataclasses.field(default_factory=Inner)
    webhook: Secret | None = None


def test_one_annotation_makes_a_key_of_any_record_one_that_may_name_a_secret():
    assert set(places.of_record(Outer)) == {("inner", "token"), ("webhook",)}
    made = adapter(Outer).validate_python({"webhook": "${env:B}", "inner": {"token": "${file:c}"}})
    assert (type(made.webhook), made.inner.token) == (Secret, "${file:c}")
    text, _ = adapter(Outer).json_schema()["properties"]["webhook"]["anyOf"]
    assert text["pattern"].startswith("^\\$\\{(env|file)")


def test_the_keys_of_secrets_are_these():
    of_a_hook = {("observe", "webhook", *place, name) for place in ((), ("*",)) for name in ("url", "secret")}
    assert places.keys() == {("checkpoint", "encrypt"), ("observe", "prometheus_token"), *of_a_hook}


# ----------------------------------------------------------------------------------------------------------- redaction
def shapes(value):
    """A value in the spellings in which messages, files and programs have it."""
    basic = base64.b64encode(f"user:{value}".encode()).decode()
    return {
        "plain": value,
        "json": json.dumps({"a": value}),
        "json as it is": json.dumps({"a": value}, ensure_ascii=False),
        "json in json": json.dumps({"error": json.dumps([value])}),
        "repr": repr({"a": [value]}),
        "url": f"cannot reach https://user:{quote(value, safe='')}@example.org:8080/x?y=1",
        "query": f"https://example.org/?token={quote_plus(value)}&x=1",
        "html": f"<p>{html.escape(value)}</p>",
        "bearer": f"Authorization: Bearer {quote(value)}",
        "basic": f"{{'Authorization': 'Basic {basic}', 'Accept': '*/*'}}",
        "tuple": repr(("Authorization", f"Basic {basic}")),
        "base64": base64.b64encode(value.encode()).decode(),
        "shell": shlex.join(["program", "--token", value]),
        "exception": str(subprocess.CalledProcessError(1, ["program", "--token", value])),
        "yaml": yaml.safe_dump({"a": {"b": value}}, width=10_000, allow_unicode=True),
    }


def absent(value, text):
    marks = {
        value,
        json.dumps(value)[1:-1],
        quote(value, safe=""),
        html.escape(value),
        base64.b64encode(value.encode()).decode(),
    }
    return not [m for m in marks if m in text]


CHARACTERS = st.characters(
    codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="*'\x85\u2028\u2029\ufeff"
)


def may_be_learnt(value):
    """Short texts of letters alone may be words or names of files: they are left in."""
    return value == value.strip() and len(set(value)) > 5 and not re.fullmatch(r"[A-Za-z_./:-]{,15}", value)


@given(st.text(CHARACTERS, min_size=12, max_size=60).filter(may_be_learnt))
@example("A:b/C_d-E.fGhIjK")
@example('quo"te\\back slash <&> ünïcödé 秘密 100%')
@example("https://hooks.example.org/services/T0/B0/abcdefgh")
@settings(max_examples=100, deadline=None)
def test_a_known_value_is_in_no_spelling_of_any_text(value):
    secrets.forget()
    secrets.learn(value, "${env:NAME}")
    for shape, text in shapes(value).items():
        found = redact(f"before {text} after")
        assert absent(value, found), shape
        assert found.startswith("before"), shape
        assert found.endswith("after"), shape
        if shape.startswith("json"):
            json.loads(found.removeprefix("before ").removesuffix(" after"))


def test_what_stands_in_a_values_place_is_its_name(monkeypatch):
    monkeypatch.setenv("RUN_KEY", "the value of it")
    secrets.watch(Secret("${env:RUN_KEY}"))
    assert redact("bad key: the value of it!") == "bad key: ${env:RUN_KEY}!"
    monkeypatch.setenv("RUN_KEY", "another value of it")
    assert redact("the value of it, another value of it") == "${env:RUN_KEY}, ${env:RUN_KEY}"


def test_a_value_that_a_message_has_cut_is_taken_out_as_far_as_it_goes():
    value = hashlib.sha256(b"a").hexdigest()
    secrets.learn(value)
    assert redact(f"expected a number, found {value[:40]!r}...") == "expected a number, found '***'..."


def test_no_word_is_taken_out_of_texts_since_it_may_be_a_key_in_them(monkeypatch):
    for word in ("auto", "checkpoint", "optimizer", "12345", "policy.model"):
        secrets.learn(word)
    monkeypatch.setenv("DATABASE_PASSWORD", "metrics/x")
    text = '{"checkpoint": {"optimizer": "auto"}, "metrics/x": 12345, "policy.model": 1}'
    assert redact(text) == text


def test_lines_of_a_value_with_several_are_taken_out_one_by_one(tmp_path):
    lines = [hashlib.sha256(bytes([n])).hexdigest() for n in range(3)]
    (tmp_path / "key").write_text("\n".join(lines) + "\n")
    secrets.watch(Secret(f"${{file:{tmp_path / 'key'}}}"))
    assert not [line for line in lines if line in redact("\n".join(f"| {line}" for line in lines))]


def test_an_environment_variable_that_says_it_is_secret_is_one(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abc4efghij9kl")
    monkeypatch.setenv("TOKEN_COUNT_MODE", "very ordinary")
    monkeypatch.setenv("GIT_PASSWORD", "/path/to/a/file")
    text = "hf_abc4efghij9kl, very ordinary, /path/to/a/file"
    assert redact(text) == "${env:HF_TOKEN}, very ordinary, /path/to/a/file"


@pytest.mark.parametrize(
    "text",
    [
        "mail me@example.org",
        "https://example.org/@user/x",
        "see http://h/a?b=c@d",
        "authorization is needed",
        "a: b, cookie: c",
        "ratio 1://2",
    ],
)
def test_ordinary_text_stays_as_it_is(text):
    assert redact(text) == text


def test_the_console_redacts_and_is_otherwise_the_stream_that_it_was():
    under = io.StringIO()
    stream = secrets.RedactingStream(under)
    secrets.learn("the secret value")
    print("a", "the secret value", file=stream)
    traceback.print_exception(ValueError("the secret value"), file=stream)
    stream.writelines(["the secret value\n"])
    assert under.getvalue() == "a ***\nValueError: ***\n***\n"
    assert stream.isatty() is under.isatty()
    assert not hasattr(stream, "buffer")


# ------------------------------------------------------------------------------------------------------------ whole runs
LEAKY = textwrap.dedent("""
    import json, os, subprocess, sys
    from pathlib import Path

    SEEDS = json.loads(Path(__file__).with_name("seeds.json").read_text())
    CALLS = iter(range(10**9))

    def error(kind, value):
        if kind == "env":
            return RuntimeError("key " + value + " of " + os.environ.get("RUN_KEY", "nothing"))
        if kind == "url":
            return ConnectionError(f"cannot reach https://user:{value}@example.org/score")
        if kind == "header":
            return ValueError({"Authorization": f"Bearer {value}"})
        return subprocess.CalledProcessError(1, ["curl", "-H", f"Authorization: Bearer {value}", f"--key={value}"])

    def judge(prompts, completions, **_):
        first = 8 * next(CALLS) % len(SEEDS)
        print("printed", *(value for kind, value in SEEDS if kind == "env"), file=sys.stderr)
        raise RuntimeError([error(kind, value) for kind, value in (SEEDS + SEEDS)[first : first + 8]])

    def stop(prompts, completions, **_):
        raise RuntimeError([error(kind, value) for kind, value in SEEDS])
""")


def seeded(number):
    return hashlib.sha256(f"seed {number}".encode()).hexdigest()[: 20 + number]


def test_thirty_secrets_stand_in_no_file_of_a_run_and_in_nothing_that_it_shows(tmp_path, monkeypatch, capfd):
    values = {n: seeded(n) for n in range(30)}
    kinds = {n: ("env", "url", "header")[n // 8] for n in range(24)}
    for n in range(8):
        monkeypatch.setenv(f"SERVICE_{n}_TOKEN", values[n])
    monkeypatch.setenv("RUN_KEY", values[24])
    (tmp_path / "run.key").write_text(values[25] + "\n")
    (tmp_path / "leaky.py").write_text(LEAKY)
    path = small.write(tmp_path, "grpo", steps=1)
    outputs = []
    for number, (reference, name, key) in enumerate((("${env:RUN_KEY}", "judge", 24), ("${file:run.key}", "stop", 25))):
        seeds = [*((kinds[n], values[n]) for n in kinds), ("args", values[key])]
        (tmp_path / "seeds.json").write_text(json.dumps(seeds))
        rewards = f"rewards=[{{name: 'leaky:{name}', on_error: {'penalty' if name == 'judge' else 'stop'}}}]"
        few = ("sampling.group_size=2", "train.prompts_per_step=2", "data.validation=null")
        words = (rewards, *few, f"checkpoint.encrypt={reference}", "--run-dir", tmp_path / f"run-{number}")
        outputs.append(command(monkeypatch, capfd, "train", path, *words))
    for n, word in (
        (26, "checkpoint.encrypt={}"),
        (27, "data.train=https://me:{}@h/x"),
        (28, "checkpoint=[{{encrypt: {}}}]"),
        (29, "checkpoint.encrypt=${{env:{}"),
    ):
        outputs.append(
            command(monkeypatch, capfd, "train", path, word.format(values[n]), "--run-dir", tmp_path / f"run-{n}")
        )
    outputs.append(command(monkeypatch, capfd, "config", "show", path, "checkpoint.encrypt=${env:RUN_KEY}"))
    assert [code for code, _ in outputs] == [0, 2, 2, 2, 2, 2, 0]
    assert (
        "cannot reach https://***@example.org/score"
        in json.loads((tmp_path / "run-1" / "failure.json").read_text())["cause"]
    )
    assert "encrypt: ${env:RUN_KEY}" in outputs[-1][1]
    files = [p for run in tmp_path.glob("run-*") for p in run.rglob("*") if p.is_file()]
    assert len(files) > 20
    texts = {str(p): p.read_bytes().decode("latin-1") for p in files} | {
        str(n): text for n, (_, text) in enumerate(outputs)
    }
    assert "printed" in texts["0"]
    for value in values.values():
        for spelling in (value, value[: len(value) // 2 + 8], base64.b64encode(value.encode()).decode()[:-4]):
            assert not [name for name, text in texts.items() if spelling in text]
    assert journal.read(RunDirectory(tmp_path / "run-0").journal).damaged_lines == ()
    assert RunDirectory(tmp_path / "run-0").newest_config()["requested"]["checkpoint"]["encrypt"] == "${env:RUN_KEY}"


def test_a_reward_function_does_not_find_the_runs_secrets_in_its_environment(tmp_path, monkeypatch):
    from trimtab.rewards.pool import Call, Pool

    monkeypatch.setenv("RUN_KEY", "the key of the run")
    monkeypatch.setenv("OTHER", "the other")
    secrets.watch(Secret("${env:RUN_KEY}"))
    (tmp_path / "looks.py").write_text(
        "import os\ndef at(prompts, completions, **_):\n"
        "    raise ValueError(str([name in os.environ for name in ('RUN_KEY', 'OTHER')]))\n"
    )
    pool = Pool(1, paths=[str(tmp_path)])
    try:
        call = Call(name="looks:at", options={}, timeout_seconds=20, prompts=["a"], completions=["b"], columns={})
        assert pool.run([call])[0].error == "ValueError: [False, True]"
    finally:
        pool.close()


def test_whatever_writes_text_into_a_run_or_tells_others_takes_secrets_out(tmp_path):
    """The doors one by one: a run goes through all of them, but not with a secret through each."""
    value = "a value that nobody may see"
    secrets.learn(value, "${env:RUN_KEY}")
    run = RunDirectory(tmp_path / "run")
    run.create()
    run.describe(id="a", reason=value)
    run.add_config({"a": value}, {"a": value}, why=value)
    journal.Journal(run.journal).append("event", event="failed", reason=value)
    finish.write_failure(run, code=1, cause=value, place=value, advice="none")
    sample = Sample(prompt_id=1, prompt=value, completion=value, reward=1.0, reward_parts={}, is_truncated=False)
    write_samples(run.samples / "a.jsonl", [sample])
    AuditLog(run.audit).write("train", reason=value)
    told = []
    monitor = SimpleNamespace(event=lambda kind, **facts: told.append(facts))
    Recorders(None, [monitor]).event("failed", reason=value)
    files = [p for p in run.root.rglob("*") if p.is_file()]
    assert len(files) == 6
    assert [p for p in files if "${env:RUN_KEY}" not in p.read_text()] == []
    assert [p for p in files if value in p.read_text()] == []
    assert told == [{"reason": "${env:RUN_KEY}"}]
    assert journal.read(run.journal).damaged_lines == ()
