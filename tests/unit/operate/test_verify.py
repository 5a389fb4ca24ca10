"""A run's files are damaged in every way that comes to mind, and each is named."""

import json
import random
import shutil
import zlib

import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from tests.runs import small
from trimtab.cli import app
from trimtab.errors import UserError
from trimtab.operate import verify
from trimtab.store.checkpoints import _json, sha256
from trimtab.store.manifests import checksum
from trimtab.store.run_directory import RunDirectory


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    return small.train(small.write(folder, "ppo", steps=3), folder / "run")


@pytest.fixture
def run(trained, tmp_path):
    """A copy that a test may damage."""
    shutil.copytree(trained.root, tmp_path / "run")
    return RunDirectory(tmp_path / "run")


def found(run):
    verdict = verify.verify(run.root)
    return verdict.exit_code, [f"{part}: {f}" for part, some in verdict.findings.items() for f in some]


def only(run):
    code, findings = found(run)
    assert len(findings) == 1, findings
    return code, findings[0]


def lines(run):
    return run.journal.read_bytes().splitlines(keepends=True)


def line_of(run, step):
    return next(i for i, line in enumerate(lines(run)) if b'"kind": "step"' in line and b'"step": %d,' % step in line)


def written(record):
    body = json.dumps(record).encode()
    return b'{"length": %d, "crc": "%08x", "record": %s}\n' % (len(body), zlib.crc32(body), body)


def change(run, step, **facts):
    """A record of a step with other facts, and a CRC that is right."""
    all_lines, place = lines(run), line_of(run, step)
    record = json.loads(all_lines[place])["record"] | facts
    run.journal.write_bytes(b"".join([*all_lines[:place], written(record), *all_lines[place + 1 :]]))


def record_of(run, step):
    return json.loads(lines(run)[line_of(run, step)])["record"]


# ------------------------------------------------------------------------------------------------------------ as it is
def test_a_run_as_it_was_written_is_clean(run):
    verdict = verify.verify(run.root)
    assert (verdict.exit_code, verdict.findings, verdict.notes) == (0, {}, [])
    assert [part for part, _ in verdict.lines] == ["config", "checkpoints", "journal", "weights", "final", "audit"]
    assert "1, 2, 3: the sums" in dict(verdict.lines)["weights"]


@pytest.mark.parametrize("algorithm", ["grpo", "sft"])
def test_runs_of_other_algorithms_are_clean_too(tmp_path, algorithm):
    run = small.train(small.write(tmp_path, algorithm, steps=2), tmp_path / "run")
    assert found(run) == (0, [])


def test_a_run_that_goes_over_its_data_more_than_once_is_clean(tmp_path):
    rows = [json.dumps({"prompt": f"{n}+1=", "answer": str(n)}) for n in range(7)]
    (tmp_path / "data.jsonl").write_text("\n".join(rows))
    path = small.write(tmp_path, steps=6)
    run = small.train(path, tmp_path / "run", f"data.train={tmp_path / 'data.jsonl'}", "data.validation=null")
    assert found(run) == (0, [])


def test_a_resumed_run_is_clean_though_steps_stand_twice(tmp_path):
    run = small.train(small.write(tmp_path, steps=3), tmp_path / "run")
    shutil.rmtree(run.checkpoints / "3")
    shutil.rmtree(run.checkpoints / "2")
    small.train(tmp_path / "grpo.yaml", run.root, "train.max_steps=4")
    assert [json.loads(line)["record"].get("step") for line in lines(run)].count(2) > 1
    assert found(run) == (0, [])


def test_where_there_is_no_run_that_is_said(tmp_path):
    with pytest.raises(UserError, match="no run was started here"):
        verify.verify(tmp_path)


# --------------------------------------------------------------------------------------------------------- checkpoints
def test_one_bit_of_a_checkpoint_is_found_and_the_one_to_go_on_from_is_named(run):
    file = run.checkpoints / "3" / "optimizer.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    code, finding = only(run)
    assert code == 4
    assert finding.startswith(f"checkpoints: {file}: has SHA-256")
    assert verify.verify(run.root).advice == "the same `trimtab train` would go on from checkpoint 2"


def test_without_a_good_checkpoint_the_run_cannot_go_on(run):
    for step in (0, 1, 2, 3):
        (run.checkpoints / str(step) / "state.json").unlink()
    code, findings = found(run)
    assert code == 4
    assert any("none of 4 checkpoints is good" in f for f in findings)
    assert "--fresh" in verify.verify(run.root).advice


def test_a_run_without_checkpoints_has_nothing_to_go_on_from(run):
    shutil.rmtree(run.checkpoints)
    code, findings = found(run)
    assert code == 4
    assert any("there is no checkpoint" in f for f in findings)


def test_a_file_that_no_manifest_names_is_found(run):
    stranger = run.checkpoints / "2" / "policy" / "more.safetensors"
    stranger.write_bytes(b"")
    code, finding = only(run)
    assert (code, finding.startswith(f"checkpoints: {stranger}: is not in the manifest")) == (1, True)


def test_weights_of_another_run_under_a_right_checksum_do_not_sum_to_what_the_journal_says(run):
    place = run.checkpoints / "2"
    file = place / "value" / "model.safetensors"
    weights = load_file(file)
    weights["head.output.bias"] = weights["head.output.bias"] + 1
    save_file(weights, file)
    manifest = json.loads((place / "manifest.json").read_bytes())
    manifest["files"]["value/model.safetensors"] = {"bytes": file.stat().st_size, "sha256": sha256(file)}
    (place / "manifest.json").write_bytes(_json(manifest | {"checksum": checksum(manifest)}))
    code, finding = only(run)
    assert code == 1
    assert finding.startswith(f"weights: {place}: the weights sum to ")


def test_tied_weights_are_summed_once(tmp_path):
    import torch
    import transformers

    from trimtab.models import builtin

    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True, max_position_embeddings=32, eos_token_id=2, bos_token_id=1,
    )  # fmt: skip
    transformers.Qwen2ForCausalLM(config).save_pretrained(tmp_path / "model")
    builtin.tokenizer().save_pretrained(tmp_path / "model")
    run = small.train(small.write(tmp_path, "ppo", steps=1), tmp_path / "run", f"policy.model={tmp_path / 'model'}")
    verdict = verify.verify(run.root)
    assert (verdict.exit_code, verdict.notes) == (0, [])
    assert "weights" in dict(verdict.lines)


# ------------------------------------------------------------------------------------------------------------- journal
def test_a_dropped_line_is_a_missing_step(run):
    all_lines = lines(run)
    del all_lines[line_of(run, 2)]
    run.journal.write_bytes(b"".join(all_lines))
    code, findings = found(run)
    assert code == 1
    assert any("step 3 follows step 1; missing: step 2" in f for f in findings)
    assert any("step 2 has a checkpoint, but no record" in f for f in findings)


def test_a_dropped_last_step_is_missed_too(run):
    all_lines = lines(run)
    run.journal.write_bytes(b"".join(all_lines[: line_of(run, 3)]))
    code, findings = found(run)
    assert code == 1
    assert any("ends at step 2, but run.json says that all 3 steps are done" in f for f in findings)


def test_a_line_that_stands_twice_is_a_step_done_twice(run):
    all_lines, place = lines(run), line_of(run, 2)
    run.journal.write_bytes(b"".join([*all_lines[: place + 1], *all_lines[place:]]))
    code, finding = only(run)
    assert code == 1
    assert f"{run.journal}:{place + 2}: step 2 stands here again" in finding


def test_an_altered_line_is_named_by_its_number(run):
    all_lines, place = lines(run), line_of(run, 1)
    all_lines[place] = all_lines[place].replace(b'"step": 1', b'"step": 9')
    run.journal.write_bytes(b"".join(all_lines))
    code, findings = found(run)
    assert code == 1
    assert any(
        f.startswith(f"journal: {run.journal}:{place + 1}: the record is not as it was written") for f in findings
    )


def test_a_line_that_a_crash_cut_at_the_end_is_no_fault(run):
    with run.journal.open("ab") as file:
        file.write(b'{"length": 500, "crc": "00000000", "record": {"kind": "st')
    verdict = verify.verify(run.root)
    assert verdict.exit_code == 0
    assert "a crash cut this line" in str(verdict.notes[0])


def test_prompts_and_completions_must_be_of_equal_number(run):
    change(run, 2, completions=["ab"])
    assert only(run) == (1, f"journal: {run.journal}: step 2: 16 prompt ids, but 1 completions")


def test_a_prompt_with_half_a_group_is_found(run):
    ids = record_of(run, 2)["prompt_ids"]
    change(run, 2, prompt_ids=[999, *ids[1:]])
    code, finding = only(run)
    assert code == 1
    assert "has no whole group of 4 completions" in finding


def test_a_prompt_that_is_drawn_twice_in_a_pass_is_found(run):
    ids = record_of(run, 1)["prompt_ids"]
    change(run, 2, prompt_ids=ids)
    code, finding = only(run)
    assert code == 1
    assert f"step 2: prompt {ids[0]} is drawn 2 times in 1 pass over the data" in finding


# ------------------------------------------------------------------------------------------- under dynamic sampling
@pytest.fixture(scope="module")
def trained_dynamically(tmp_path_factory):
    """Steps with fewer groups than prompts_per_step, and skipped prompts in more than one pass over the data."""
    folder = tmp_path_factory.mktemp("verify-dynamic")
    rows = [json.dumps({"prompt": f"{n}+1=", "answer": str(n)}) for n in range(7)]
    (folder / "data.jsonl").write_text("\n".join(rows))
    words = [f"data.train={folder / 'data.jsonl'}", "data.validation=null", "sampling.group_size=2"]
    words += ["sampling.dynamic={enabled: true, max_refills: 1}", "rewards=[{name: length, options: {max_tokens: 1}}]"]
    return small.train(small.write(folder, "grpo", steps=4), folder / "run", *words)


@pytest.fixture
def dynamic_run(trained_dynamically, tmp_path):
    shutil.copytree(trained_dynamically.root, tmp_path / "run")
    return RunDirectory(tmp_path / "run")


def test_a_run_that_leaves_groups_out_is_clean(dynamic_run):
    records = [record_of(dynamic_run, step) for step in (1, 2, 3, 4)]
    assert any(0 < r["metrics"]["sampling/kept"] < 4 for r in records), "the fixture no longer tests what it is for"
    assert records[-1]["metrics"]["data/prompts"] > sum(len(r["prompt_ids"]) // 2 for r in records)
    assert found(dynamic_run) == (0, [])


def test_a_step_that_lost_a_group_is_found_though_its_number_of_groups_varies(dynamic_run):
    step = next(n for n in (1, 2, 3, 4) if 1 < record_of(dynamic_run, n)["metrics"]["sampling/kept"] < 4)
    record = record_of(dynamic_run, step)
    change(dynamic_run, step, prompt_ids=record["prompt_ids"][2:], completions=record["completions"][2:])
    code, finding = only(dynamic_run)
    assert code == 1
    kept = len(record["prompt_ids"])
    assert f"step {step}: {kept - 2} completions, sampling/kept is {kept // 2} groups, that is {kept}" in finding


def test_a_prompt_that_is_trained_on_more_often_than_it_was_drawn_is_found(dynamic_run):
    for step in (1, 2, 3, 4):
        record = record_of(dynamic_run, step)
        change(dynamic_run, step, prompt_ids=[3] * len(record["prompt_ids"]))
    code, finding = only(dynamic_run)
    assert code == 1
    assert "prompt 3 is drawn" in finding


def test_fewer_prompts_drawn_than_trained_on_are_found(dynamic_run):
    record = record_of(dynamic_run, 4)
    change(dynamic_run, 4, metrics=record["metrics"] | {"data/prompts": 1.0})
    code, finding = only(dynamic_run)
    assert code == 1
    assert "step 4: 1 prompts are drawn by then, but" in finding


# ------------------------------------------------------------------------------------------------------ the other files
def test_a_swapped_final_is_not_the_policy_that_run_json_names(run):
    step = run.facts()["final_step"]
    other = next(s for s in (0, 1, 2, 3) if s != step)
    shutil.copy(run.checkpoints / str(other) / "policy" / "model.safetensors", run.final / "model.safetensors")
    code, finding = only(run)
    assert code == 1
    assert finding == (
        f"final: {run.final / 'model.safetensors'}: is not that of checkpoint {step}, which run.json names"
    )


def test_a_lost_final_and_a_lost_file_of_it_are_found(run):
    (run.final / "config.json").unlink()
    assert "config.json: is missing" in only(run)[1]
    shutil.rmtree(run.final)
    assert f"{run.final}: is missing" in only(run)[1]


def test_a_lost_and_an_unreadable_configuration_are_found(run):
    first = run.config_versions()[0]
    first.write_text("a: [")
    assert f"config: {first}: cannot be read" in only(run)[1]
    first.rename(first.with_name("0002.yaml"))
    assert "0001.yaml: is missing" in found(run)[1][0]
    shutil.rmtree(run.config)
    assert "holds no configuration" in only(run)[1]


@pytest.mark.parametrize("seed", range(40))
def test_no_damage_ends_in_a_traceback(run, seed):
    """Bytes of a file flipped, cut, emptied, doubled, or the file a directory: findings or none, but an answer."""
    dice = random.Random(seed)
    files = sorted(
        p for p in run.root.rglob("*") if p.is_file() and p.name not in ("lock", "report.png", "report.html")
    )
    for file in dice.sample(files, 3):
        data = file.read_bytes()
        place = dice.randrange(max(1, len(data)))
        damaged = dice.choice(
            [
                data[:place],
                b"",
                data + data,
                data[:place] + bytes([dice.randrange(256)]) + data[place + 1 :],
                b"[]",
                None,
            ]
        )
        if damaged is not None:
            file.write_bytes(damaged)
        else:
            file.unlink()
            file.mkdir()
    if not run.exists:
        return
    assert verify.verify(run.root).exit_code in (0, 1, 4)


JUNK = [None, 3, -1, "x", [], {}, [1, "a"], {"a": 1}, True, [[]]]


@pytest.mark.parametrize("key", ["kind", "step", "prompt_ids", "completions", "weights", "metrics"])
def test_a_record_of_wrong_types_under_a_right_crc_is_no_traceback(run, key):
    all_lines, place = lines(run), line_of(run, 2)
    record = json.loads(all_lines[place])["record"]
    for junk in JUNK:
        changed = written(record | {key: junk})
        run.journal.write_bytes(b"".join([*all_lines[:place], changed, *all_lines[place + 1 :]]))
        assert verify.verify(run.root).exit_code in (0, 1)


@pytest.mark.parametrize("key", ["data", "final_step", "outcome", "ended"])
def test_facts_of_wrong_types_are_no_traceback(run, key):
    for junk in JUNK:
        run.describe(**{key: junk})
        assert verify.verify(run.root).exit_code in (0, 1)


# ------------------------------------------------------------------------------------------------------- the command
def call(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def test_the_command_ends_with_the_code_and_shows_every_finding(run):
    assert call("verify", run.root).exit_code == 0
    (run.checkpoints / "1" / "state.json").write_text("{}")
    shutil.rmtree(run.final)
    result = call("verify", run.root)
    assert result.exit_code == 4
    assert "FAIL  checkpoints" in result.output
    assert "FAIL  final" in result.output
    assert result.output.splitlines()[-1].startswith("2 findings; ")
    told = json.loads(call("verify", run.root, "--json").output)
    assert (told["ok"], told["exit_code"], len(told["findings"])) == (False, 4, 2)
