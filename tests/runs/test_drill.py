"""A drill restores a run elsewhere, trains on, and tells whether the numbers are those of the journal."""

import json
import shutil
import zlib

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from tests.runs import small
from trimtab.cli import app
from trimtab.errors import StorageError, UserError
from trimtab.operate.drill import drill
from trimtab.store import checkpoints, manifests
from trimtab.store.run_directory import RunDirectory


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drill")
    return small.train(small.write(folder, steps=3, more="kl: {coef: 0.1}\n"), folder / "run").root


@pytest.fixture
def run(trained, tmp_path):
    """A copy that may be spoilt."""
    return RunDirectory(shutil.copytree(trained, tmp_path / "run"))


def call(*words):
    return CliRunner().invoke(app, list(map(str, words)), catch_exceptions=True)


def files(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def rewrite(run, step, **changes):
    """Another record of a step, with a length and CRC that fit it."""
    lines = []
    for line in run.journal.read_bytes().splitlines():
        record = json.loads(line)["record"]
        if record["kind"] == "step" and record["step"] == step:
            for name, value in changes.items():
                record = {**record, **value} if name == "record" else {**record, name: {**record[name], **value}}
        body = json.dumps(record, ensure_ascii=False).encode()
        lines.append(b'{"length": %d, "crc": "%08x", "record": %s}\n' % (len(body), zlib.crc32(body), body))
    run.journal.write_bytes(b"".join(lines))


def reseal(place):
    """A manifest that fits the files as they are now."""
    manifest = json.loads((place / "manifest.json").read_bytes())
    for name in manifest["files"]:
        manifest["files"][name] = {"bytes": (place / name).stat().st_size, "sha256": checkpoints.sha256(place / name)}
    manifest["checksum"] = manifests.checksum(manifest)
    (place / "manifest.json").write_bytes(checkpoints._json(manifest))


def change(file, name):
    tensors = load_file(file)
    tensors[name].view(-1)[0] += 1
    save_file(tensors, file, metadata={"format": "pt"})


def test_a_good_run_passes_while_it_trains_and_nothing_of_it_is_touched(run):
    before = files(run.root)
    with run.locked():
        before |= {"lock": (run.root / "lock").read_bytes()}
        result = call("drill", run.root)
    assert result.exit_code == 0, result.output
    assert "restored  checkpoint 2 in " in result.output
    assert "compared  step 3 with the journal, bit for bit" in result.output
    after = files(run.root)
    assert after.pop("audit.jsonl").startswith(before.pop("audit.jsonl"))
    assert {name: data for name, data in after.items() if name != "drill.json"} == before
    written = json.loads(run.drill.read_bytes())
    assert written["passed"]
    assert written["drill/last_success"] == written["time"]
    assert "drill                                    passed " in call("status", run.root).output


def test_an_older_checkpoint_is_taken_if_the_newest_is_damaged_and_that_is_told(run):
    (run.checkpoints / "3" / "state.json").unlink()
    outcome = drill(run.root, steps=1)
    assert (outcome.checkpoint, outcome.newest, outcome.steps) == (2, 2, [3])
    assert outcome.findings == [f"checkpoint 3 is damaged: {run.checkpoints / '3' / 'state.json'} is missing"]


def test_a_changed_record_is_told(run):
    rewrite(run, 3, metrics={"loss/policy": 0.5}, record={"weights": "0" * 16})
    result = call("drill", run.root, "--json")
    assert result.exit_code == 1
    found = json.loads(result.output)
    assert found["passed"] is False
    assert any(f.startswith("step 3: loss/policy is ") and f.endswith("journal says 0.5") for f in found["findings"])
    assert any(f.startswith("step 3: the weights sum to ") for f in found["findings"])
    assert "FAILED" in call("status", run.root).output
    assert "last passed never" in call("status", run.root).output


@pytest.mark.parametrize("step", [2, 3], ids=["that it starts from", "that is the newest"])
def test_a_changed_weight_under_a_manifest_that_fits_is_told(run, step):
    place = run.checkpoints / str(step)
    weights = place / "policy" / "model.safetensors"
    change(weights, next(iter(load_file(weights))))
    reseal(place)
    outcome = drill(run.root, steps=1)
    assert any(f.startswith(f"checkpoint {step}: its weights sum to ") for f in outcome.findings)
    assert any(f.startswith("step 3: ") for f in outcome.findings) == (step == 2)


def test_a_changed_moment_of_the_newest_checkpoint_is_told(run):
    file = run.checkpoints / "3" / "optimizer.safetensors"
    name = next(iter(load_file(file)))
    change(file, name)
    reseal(file.parent)
    assert drill(run.root, steps=1).findings == [f"checkpoint 3: {name} in its optimiser is not what training gives"]


def test_where_equal_numbers_are_not_promised_a_loss_may_be_a_little_off_and_no_more(run):
    run.describe(ranks=2)
    loss = small.steps(run)[-1]["metrics"]["loss/policy"]
    rewrite(run, 3, metrics={"loss/policy": loss + 5e-4})
    outcome = drill(run.root, steps=1)
    assert (outcome.findings, outcome.is_exact) == ([], False)
    assert outcome.notes == ["equal numbers are not promised here: processes 2 -> 1"]
    rewrite(run, 3, metrics={"loss/policy": loss + 0.1 * abs(loss) + 0.01})
    assert [f.split(" is ")[0] for f in drill(run.root, steps=1).findings] == ["step 3: loss/policy"]


def test_without_a_step_to_compare_with_or_a_good_checkpoint_it_says_so(run):
    for step in (0, 1, 2):
        shutil.rmtree(run.checkpoints / str(step))
    with pytest.raises(UserError, match="no step behind checkpoint 3, so there is nothing to compare with"):
        drill(run.root, steps=1)
    (run.checkpoints / "3" / "manifest.json").write_bytes(b"{}")
    with pytest.raises(StorageError, match="no checkpoint is good; checkpoint 3 is damaged"):
        drill(run.root, steps=1)
    assert not run.drill.exists()


def test_a_run_that_cannot_go_on_has_failed_its_drill(run):
    facts = run.facts()
    run.describe(data_fingerprints=dict.fromkeys(facts["data_fingerprints"], "0"))
    outcome = drill(run.root, steps=1)
    assert not outcome.has_passed
    assert "the run cannot go on from checkpoint 2" in outcome.findings[0]


def test_a_timetable_for_cron_and_systemd(run):
    from trimtab.cli.drill import timetable

    strange = timetable(run.root / "50% off", 1)
    assert "/50\\% off' --steps 1 2>&1) ||" in strange
    assert "/50%% off' --steps 1\n" in strange
    text = call("drill", run.root, "--schedule").output
    assert f" drill {run.root} --steps 2 2>&1) ||" in text
    assert "ExecStart=" in text
    assert "OnCalendar=Mon" in text
    assert not run.drill.exists()
