"""Checkpoints encrypted at rest: nothing plain stays, no byte can be changed, and a wrong key is known before it is used."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise

import pytest
import safetensors.torch
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from tests.faults.shim import FAULTS, LOSSES
from tests.faults.test_crash_points import cells, operations_of
from tests.runs import small
from tests.security.commands import command
from trimtab import secrets
from trimtab.errors import ConfigError, LockError, MissingExtraError, StorageError, UserError
from trimtab.models import loading
from trimtab.operate import drill, finish, rekey, verify
from trimtab.operate.export import export
from trimtab.secrets import Secret
from trimtab.store import audit, disk, encryption
from trimtab.store.checkpoints import CheckpointStore
from trimtab.store.encryption import PIECE, TAG, Vault
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Checkpoint

MASTER = bytes(range(32))
HEAD = len(encryption.MAGIC) + encryption.SALT


@pytest.fixture(autouse=True)
def _keys(monkeypatch, tmp_path):
    secrets.forget()
    for name in ("ONE", "TWO", "THREE"):
        monkeypatch.setenv(f"KEY_{name}", f"the key of number {name}, long enough")
    (tmp_path / "plain").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "plain"))
    monkeypatch.setattr("tempfile.tempdir", None)


def vault(name="ONE"):
    return Vault(Secret(f"${{env:KEY_{name}}}"))


# --------------------------------------------------------------------------------------------------------------- a file
def encrypted(data, master=MASTER, name="1/a"):
    out = io.BytesIO()
    cuts = sorted({0, 3 % (len(data) + 1), len(data) // 2, len(data)})
    encryption.encrypt((data[a:b] for a, b in pairwise(cuts)), out, master, name)
    return out.getvalue()


def decrypted(data, master=MASTER, name="1/a"):
    out = io.BytesIO()
    encryption.decrypt(io.BytesIO(data), out, master, name)
    return out.getvalue()


@pytest.mark.parametrize("size", [0, 1, 15, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 7])
def test_what_was_encrypted_comes_back(size):
    data = os.urandom(size)
    found = encrypted(data)
    assert decrypted(found) == data
    assert len(found) == HEAD + size + TAG * max(1, -(-size // PIECE))
    assert data[:64] not in found or size < 16
    assert encrypted(data) != found


@given(st.binary(max_size=400), st.data())
@settings(max_examples=100, deadline=None)
def test_no_byte_can_be_changed_left_out_or_added(data, draw):
    whole = encrypted(data)
    place = draw.draw(st.integers(0, len(whole) - 1))
    for changed in (
        whole[:place] + bytes([whole[place] ^ draw.draw(st.integers(1, 255))]) + whole[place + 1 :],
        whole[:place],
        whole[:place] + whole[place + 1 :],
        whole[:place] + b"x" + whole[place:],
        whole + b"x",
    ):
        if changed != whole:
            with pytest.raises(StorageError, match="cannot be decrypted: it is not as it was written"):
                decrypted(changed)


def pieces(whole):
    body = whole[HEAD:]
    return [body[n : n + PIECE + TAG] for n in range(0, len(body), PIECE + TAG)]


def test_no_piece_can_be_moved_left_out_or_be_the_last_before_its_time():
    whole = encrypted(os.urandom(3 * PIECE))
    one, two, three = pieces(whole)
    for changed in (
        [two, one, three],
        [one, three],
        [one, two],
        [one],
        [one, two, three, three],
        [one, one, two, three],
    ):
        with pytest.raises(StorageError):
            decrypted(whole[:HEAD] + b"".join(changed))
    other = encrypted(os.urandom(3 * PIECE))
    with pytest.raises(StorageError):
        decrypted(other[:HEAD] + whole[HEAD:])


def test_a_file_opens_under_its_own_name_step_and_key_alone():
    whole = encrypted(b"weights")
    for master, name in ((MASTER, "1/b"), (MASTER, "2/a"), (bytes(32), "1/a")):
        with pytest.raises(StorageError):
            decrypted(whole, master, name)


def test_ten_thousand_files_have_ten_thousand_salts_and_no_piece_is_like_another():
    found = [encrypted(b"the same") for _ in range(10_000)]
    assert len({data[len(encryption.MAGIC) : HEAD] for data in found}) == 10_000
    assert len({data[HEAD:] for data in found}) == 10_000
    whole = encrypted(bytes(3 * PIECE))
    assert len(set(pieces(whole))) == 3


@pytest.mark.parametrize("kind", encryption.KINDS)
def test_tensors_are_the_file_that_safetensors_writes(kind):
    made = {"b": torch.arange(7), "a": torch.ones(2, 3), "c": torch.zeros(0, 2), "d": torch.tensor(3.5)}
    tensors = {name: tensor.to(getattr(torch, kind)) for name, tensor in made.items()} | {"e": torch.ones(3)}
    tensors["f"] = torch.arange(12.0).reshape(3, 4).t()
    found = safetensors.torch.load(b"".join(bytes(part) for part in encryption.parts_of_tensors(tensors)))
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor)


def test_a_key_that_can_be_guessed_is_refused(monkeypatch):
    monkeypatch.setenv("KEY_ONE", "only 15 letters")
    with pytest.raises(
        ConfigError, match=r"^checkpoint\.encrypt: .*has 15 characters, expected 16 or more; `openssl rand"
    ):
        vault().entry()


def test_the_identifier_of_a_key_is_that_of_no_other_and_not_the_key():
    entry = vault().entry()
    assert vault().opens(entry)
    assert not vault("TWO").opens(entry)
    assert re.fullmatch("[0-9a-f]{16}", entry["key_id"])
    assert os.environ["KEY_ONE"].encode().hex() not in json.dumps(entry)
    for part, value in (("cipher", "none"), ("salt", "zz"), ("salt", "00"), ("salt", None)):
        with pytest.raises(StorageError, match="which is not known here"):
            vault().opens({**entry, part: value})


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'trimtab\[encryption\]'"):
        vault()


def test_plain_copies_that_a_killed_process_has_left_are_taken_away_by_the_next(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    child.kill()
    child.wait()
    left = tmp_path / "plain" / f"{encryption.PREFIX}{child.pid}-abc"
    mine = tmp_path / "plain" / f"{encryption.PREFIX}{os.getpid()}-abc"
    for folder in (left, mine):
        folder.mkdir()
    with encryption.private_folder(1) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.parent == tmp_path / "plain"
        assert (left.exists(), mine.exists()) == (False, True)
    assert not folder.exists()


def test_plain_copies_are_in_memory_if_nobody_says_otherwise_and_it_has_room(tmp_path, monkeypatch):
    monkeypatch.setattr(encryption, "SHARED_MEMORY", tmp_path)
    assert encryption._base(1) == tmp_path / "plain"
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "disk"))
    assert encryption._base(1) == tmp_path
    assert encryption._base(1e18) == tmp_path / "disk"


# --------------------------------------------------------------------------------------------------------------- a run
ENCRYPT = "checkpoint.encrypt=${env:KEY_ONE}"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The same run of four steps, plain and encrypted."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEY_ONE", "the key of number ONE, long enough")
        patch.setattr(finish, "write_report", lambda *_, **__: [])
        path = small.write(folder, "sft", steps=4)
        plain = small.train(path, folder / "plain")
        encrypted = small.train(path, folder / "encrypted", ENCRYPT)
    return path, plain, encrypted


@pytest.fixture
def run(made, tmp_path, monkeypatch):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])
    shutil.copytree(made[2].root, tmp_path / "run")
    return RunDirectory(tmp_path / "run")


def good_pieces(plain):
    """Bytes that stand in the plain checkpoints and say something of the run."""
    place = plain.checkpoints / "4"
    weights, moments = [(place / name).read_bytes() for name in ("policy/model.safetensors", "optimizer.safetensors")]
    return [weights[n : n + 64] for n in (1 << 20, 2 << 20)] + [moments[1 << 20 : (1 << 20) + 64], b"model.layers.0"]


def test_an_encrypted_run_is_the_plain_one_to_the_last_bit_and_has_none_of_its_bytes(made):
    _, plain, run = made
    assert small.evidence(run) == small.evidence(plain)
    wanted = good_pieces(plain)
    files = [p for p in run.root.rglob("*") if p.is_file()]
    assert not [(p, piece) for p in files for piece in wanted if piece in p.read_bytes()]
    assert not run.final.exists()
    for place in run.checkpoints.iterdir():
        manifest = json.loads((place / "manifest.json").read_bytes())
        assert manifest["encryption"]["key_id"]
        for name in manifest["files"]:
            assert (place / name).read_bytes().startswith(encryption.MAGIC)
        with encryption.opened(place, vault()) as found:
            for name in manifest["files"]:
                same = plain.checkpoints / place.name / name
                assert name == "state.json" or (found / name).read_bytes() == same.read_bytes()


def test_it_is_continued_drilled_and_verified(run, made, tmp_path, monkeypatch, capfd):
    path, _, _ = made
    code, text = command(monkeypatch, capfd, "train", path, ENCRYPT, "train.max_steps=5", "--run-dir", run.root)
    assert code == 0
    assert "model   checkpoint 5, encrypted; `trimtab export" in text
    assert drill.drill(run.root, steps=1).findings == []
    verdict = verify.verify(run.root)
    assert (verdict.exit_code, verdict.notes) == (0, [])
    assert {"weights", "final", "checkpoints"} <= dict(verdict.lines).keys()
    assert list((tmp_path / "plain").iterdir()) == []


def test_it_is_evaluated_and_exported_as_a_plain_model(run, made, tmp_path, monkeypatch, capfd):
    plain = made[1]
    assert command(monkeypatch, capfd, "eval", run.root)[0] == 0
    done = export(run.root, tmp_path / "out", checkpoint=4, dtype=None, as_adapter=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", use_safetensors=True)
    wanted = load_file(plain.final / "model.safetensors")
    assert all((model.state_dict()[name] == tensor).all() for name, tensor in wanted.items())
    assert done.source == run.checkpoints / "4" / "policy"
    export(run.root, tmp_path / "newest", checkpoint=None, dtype="bfloat16", as_adapter=False)
    assert (tmp_path / "newest" / "model.safetensors").is_file()
    assert list((tmp_path / "plain").iterdir()) == []


CASES = {
    "another key": (
        ["checkpoint.encrypt=${env:KEY_TWO}"],
        r"checkpoint\.encrypt: \$\{env:KEY_TWO\}: is another key \(id ",
    ),
    "no key": ([], r"checkpoint\.encrypt: null, but .*/4 is encrypted with the key of id [0-9a-f]{16}; set it to"),
    "a key that is gone": (["checkpoint.encrypt=${env:GONE}"], r"checkpoint\.encrypt: \$\{env:GONE\}: the environment"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_key_is_known_before_anything_is_decrypted_or_changed(run, made, monkeypatch, case):
    words, message = CASES[case]
    before = {p: p.read_bytes() for p in run.checkpoints.rglob("*") if p.is_file()}
    for name in ("decrypt", "private_folder"):
        monkeypatch.setattr(encryption, name, lambda *_: pytest.fail("something was decrypted"))
    monkeypatch.setattr(loading, "load", lambda *_, **__: pytest.fail("a model was read"))
    with pytest.raises(ConfigError, match=message) as caught:
        small.train(made[0], run.root, *words, "train.max_steps=5")
    assert caught.value.exit_code == 2
    assert "trimtab rekey" in str(caught.value) or case != "another key"
    assert {p: p.read_bytes() for p in run.checkpoints.rglob("*") if p.is_file()} == before


def test_without_its_key_a_run_is_verified_but_for_its_weights_and_not_exported_or_used(run, tmp_path, monkeypatch):
    monkeypatch.delenv("KEY_ONE")
    verdict = verify.verify(run.root)
    assert verdict.exit_code == 0
    assert {"checkpoints", "journal"} <= dict(verdict.lines).keys()
    assert "weights" not in dict(verdict.lines)
    assert "is encrypted, and the sum of its weights is not compared" in str(verdict.notes[0])
    with pytest.raises(ConfigError, match="the environment variable is not set"):
        export(run.root, tmp_path / "out", checkpoint=None, dtype=None, as_adapter=False)
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match=r"the weights of .*run are encrypted; `trimtab export .* --to DIR`"):
        loading.load(str(run.root), seed=0)


def test_a_changed_byte_is_found_by_its_hash_without_the_key_and_by_its_proof_if_the_hash_was_made_anew(run):
    from tests.security.hostile import sealed

    place = run.checkpoints / "4"
    file = place / "policy/model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:500_000] + bytes([whole[500_000] ^ 1]) + whole[500_001:])
    store = CheckpointStore(run.checkpoints, Checkpoint(), max_steps=9)
    assert "policy/model.safetensors has SHA-256" in store.fault(4)
    sealed(place)
    assert store.fault(4) is None
    with pytest.raises(StorageError, match=r"4/policy/model\.safetensors cannot be decrypted"), store_opened(store, 4):
        pytest.fail("it was opened")


def store_opened(store, step):
    store.vault = vault()
    return store.opened(step)


def test_a_key_whose_value_changes_while_a_run_goes_on_is_said_and_what_was_saved_stays_under_the_old_one(
    tmp_path, monkeypatch, capfd
):
    from trimtab.train import loop

    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])
    save = loop._save

    def saved(run, report, **more):
        if report.step == 2:
            run.checkpoints.wait()
            monkeypatch.setenv("KEY_ONE", "another value of the same name")
        save(run, report, **more)

    monkeypatch.setattr(loop, "_save", saved)
    run = small.train(small.write(tmp_path, "sft", steps=3), tmp_path / "run", ENCRYPT)
    assert "${env:KEY_ONE} has another value: what was saved before stays under the old key" in capfd.readouterr().out
    entries = {int(p.name): encryption.entry_of(p) for p in run.checkpoints.iterdir()}
    assert {step for step, entry in entries.items() if vault().opens(entry)} == {2, 3}


def test_a_plain_run_can_be_given_a_key_on_the_way(made, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])
    shutil.copytree(made[1].root, tmp_path / "run")
    run = small.train(made[0], tmp_path / "run", ENCRYPT, "train.max_steps=5")
    assert (
        "checkpoints up to 4 were saved before there was a key, and are plain; `trimtab rekey" in capfd.readouterr().out
    )
    assert {p.name for p in run.checkpoints.iterdir() if encryption.is_encrypted(p)} == {"5"}
    assert not run.final.exists()
    assert rekey.rekey(run.root, "${env:KEY_ONE}").changed == 5
    assert all(encryption.is_encrypted(p) for p in run.checkpoints.iterdir())


# ------------------------------------------------------------------------------------------------------------- a new key
def keys_of(root):
    """Under which of the keys each checkpoint is."""
    vaults = {name: vault(name) for name in ("ONE", "TWO", "THREE")}
    found = {}
    for place in sorted(p for p in RunDirectory(root).checkpoints.iterdir() if p.name.isdigit()):
        entry = encryption.entry_of(place)
        found[int(place.name)] = next((n for n, v in vaults.items() if entry and v.opens(entry)), "plain")
    return found


def test_every_checkpoint_is_under_the_new_key_and_the_run_goes_on_with_it(run, made, monkeypatch):
    branch = run.root / "branches" / "1" / "checkpoints"
    branch.mkdir(parents=True)
    shutil.copytree(run.checkpoints / "4", branch / "4")
    done = rekey.rekey(run.root, "${env:KEY_TWO}")
    assert (done.changed, done.already) == (6, 0)
    assert set(keys_of(run.root).values()) == {"TWO"}
    assert vault("TWO").opens(encryption.entry_of(branch / "4"))
    monkeypatch.delenv("KEY_ONE")
    assert verify.verify(run.root).exit_code == 0
    newest = run.newest_config()
    assert [newest[part]["checkpoint"]["encrypt"] for part in ("requested", "resolved")] == ["${env:KEY_TWO}"] * 2
    assert newest["why"] == "rekeyed"
    assert audit.read(run.audit).lines[-1]["action"] == "rekey"
    small.train(made[0], run.root, "checkpoint.encrypt=${env:KEY_TWO}", "train.max_steps=5")
    assert small.steps(run)[-1]["step"] == 5
    assert rekey.rekey(run.root, "${env:KEY_TWO}").changed == 0


def test_what_cannot_be_rekeyed_is_refused_and_stays_as_it_was(run, monkeypatch, tmp_path):
    before = {p: p.read_bytes() for p in run.root.rglob("*") if p.is_file()}
    cases = [
        (UserError, "--to: expected a reference", {"to": "the key itself, in plain"}),
        (ConfigError, "--to: .*the environment variable is not set", {"to": "${env:GONE}"}),
        (ConfigError, r"--from: .* is under the key of id \w+, which is not .*KEY_TWO.* and not .*KEY_THREE", {
            "to": "${env:KEY_TWO}", "old": "${env:KEY_THREE}"}),
    ]  # fmt: skip
    for kind, message, words in cases:
        with pytest.raises(kind, match=message):
            rekey.rekey(run.root, **words)
    with run.locked(), pytest.raises(LockError):
        rekey.rekey(run.root, "${env:KEY_TWO}")
    (run.checkpoints / "1" / "state.json").write_bytes(b"damaged")
    with pytest.raises(StorageError, match=r"checkpoint 1 is damaged: .*state\.json has 7 bytes"):
        rekey.rekey(run.root, "${env:KEY_TWO}")
    (run.checkpoints / "1" / "state.json").write_bytes(before[run.checkpoints / "1" / "state.json"])
    assert {p: p.read_bytes() for p in run.root.rglob("*") if p.is_file() and p.name != "lock"} == {
        p: data for p, data in before.items() if p.name != "lock"
    }


def test_a_key_whose_value_was_changed_in_its_place_is_named_by_from(run, monkeypatch):
    monkeypatch.setenv("OLD", os.environ["KEY_ONE"])
    monkeypatch.setenv("KEY_ONE", "a new value under the same name")
    with pytest.raises(ConfigError, match="name its key: --from"):
        rekey.rekey(run.root, "${env:KEY_ONE}")
    assert rekey.rekey(run.root, "${env:KEY_ONE}", old="${env:OLD}").changed == 5
    assert (
        CheckpointStore(run.checkpoints, Checkpoint(encrypt=Secret("${env:KEY_ONE}")), max_steps=9).newest_good() == 4
    )


@pytest.mark.parametrize(
    "faults", [("killed after", LOSSES[0]), pytest.param(FAULTS, marks=pytest.mark.soak)], ids=["two faults", "all"]
)
def test_a_rekeying_that_is_cut_anywhere_leaves_whole_checkpoints_and_goes_on(tmp_path, monkeypatch, faults):
    """Two checkpoints of two small files: every operation times every fault."""
    from tests.faults.test_crash_points import State

    quick = lambda value, salt: hashlib.sha256(value.encode() + salt).digest()  # noqa: E731 - the real one takes 0.1 s
    monkeypatch.setattr(encryption, "_stretched", quick)
    monkeypatch.setattr(disk, "sync", lambda path: path.stat())

    def prepare(root):
        directory = RunDirectory(root)
        directory.create()
        directory.describe(id="a", algorithm="sft")
        named = {"checkpoint": {"encrypt": "${env:KEY_ONE}"}}
        directory.add_config(named, named, why="started")
        store = CheckpointStore(directory.checkpoints, Checkpoint(encrypt=Secret("${env:KEY_ONE}")), max_steps=9)
        for step in (1, 2):
            store.save_if_due(step, State(step), {}, last=True)
        directory.final.mkdir()
        (directory.final / "model.safetensors").write_bytes(b"plain")

    def action(root):
        rekey.rekey(root, "${env:KEY_TWO}")

    count = 0
    for name, root in cells(tmp_path, prepare, action, faults):
        directory = RunDirectory(root)
        store = CheckpointStore(directory.checkpoints, Checkpoint(), max_steps=9)
        store._recover()
        assert keys_of(root).keys() == {1, 2}, name
        for step, key in keys_of(root).items():
            assert store.fault(step) is None, name
            store.vault = vault(key)
            state = State()
            with store.opened(step) as plain:
                state.weights = load_file(plain / "policy/model.safetensors")
                assert state.weights["w"].tolist() == [float(step)] * 3, name
        named = directory.newest_config()["resolved"]["checkpoint"]["encrypt"]
        assert named == "${env:KEY_ONE}" or set(keys_of(root).values()) == {"TWO"}, name
        action(root)
        assert keys_of(root) == {1: "TWO", 2: "TWO"}, name
        assert directory.newest_config()["resolved"]["checkpoint"]["encrypt"] == "${env:KEY_TWO}", name
        assert not directory.final.exists(), name
        assert all(p.name.isdigit() for p in directory.checkpoints.iterdir()), name
        assert not audit.read(directory.audit).faults, name
        count += 1
    operations = len(operations_of(tmp_path / "before", action))
    assert operations > 40
    assert count >= min(len(faults), 6) * operations


def test_the_command_says_what_it_has_done(run, monkeypatch, capfd):
    code, text = command(monkeypatch, capfd, "rekey", run.root, "--to", "${env:KEY_TWO}")
    assert code == 0
    assert "5 checkpoints are under the key of ${env:KEY_TWO} now; the run's configuration names it" in text
    code, text = command(monkeypatch, capfd, "rekey", run.root, "--to", "hunter2hunter2hunter2")
    assert code == 2
    assert "--to: expected a reference" in text
