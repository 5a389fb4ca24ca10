"""A run in an object store: what is there after whatever happened, and whether it is as it was written."""

import base64
import hashlib
import json
import shutil
import threading

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.store.stores import METRIC, Between, Broken, Kept, copied, files, new_url, steps
from tests.unit.store.test_checkpoints import FakeRun
from trimtab import config as configs
from trimtab.errors import ConfigError, MissingExtraError, StorageError
from trimtab.store import disk, retention
from trimtab.store.remote import Remote, StoreError, line_of
from trimtab.store.remote_fetch import bring_back
from trimtab.store.remote_owner import TakenError
from trimtab.store.run_directory import RunDirectory


@pytest.fixture(autouse=True)
def no_sync(monkeypatch):
    """Thousands of files are written here, and no power is lost."""
    monkeypatch.setattr(disk, "sync", lambda _: None)
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


def brought(url, folder):
    """The directory that a new machine has from a store, the step it goes on from, and what was said."""
    directory, said = RunDirectory(folder), []
    directory.create()
    remote = Remote(url)
    return directory, bring_back(remote, remote.contents(), directory, said.append, lambda _: None), said


def remote_file(url, name):
    fs, root = fsspec.core.url_to_fs(url)
    return fs, f"{root}/{name}"


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_what_is_good_on_the_disk_is_in_the_store_byte_for_byte_and_comes_back_so(tmp_path, kind):
    url = new_url() if kind == "memory" else f"file://{tmp_path}/store/a"
    kept = Kept(tmp_path / "run", url)
    for step in range(3):
        kept.save(step)
    assert steps(url) == [0, 1, 2]
    assert kept.mirror.figures()["checkpoint/store_failed"] == 0
    assert kept.directory.last_upload()["step"] == 2
    directory, step, said = brought(url, tmp_path / "new")
    assert step == 2
    assert any("checkpoint 2 comes from" in line for line in said)
    there = files(directory.root)
    here = {n: data for n, data in files(kept.directory.root).items() if n != "store.json"}
    assert there == here
    assert not list(directory.root.glob(".incoming"))


def test_data_comes_first_and_the_manifest_last(tmp_path):
    kept = Kept(tmp_path / "run", new_url())
    between = kept.between()
    kept.save(0)
    names = [path.split("/a/", 1)[1] for kind, path in between.log if kind != "rm_file"]
    assert names[0] == "owner.json"
    assert names[-2:] == ["run/0/files.json", "0/manifest.json"]
    data = [n for n in names if n.startswith("0/") and n != "0/manifest.json"]
    assert data == names[1 : 1 + len(data)]
    assert {"0/optimizer.safetensors", "0/state.json"} <= set(data)


def test_nothing_is_uploaded_before_it_is_good_on_the_disk(tmp_path, monkeypatch):
    kept = Kept(tmp_path / "run", new_url())
    kept.save(0)
    monkeypatch.setattr(kept.store, "_save", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(StorageError):
        kept.save(1)
    assert steps(kept.url) == [0]


@pytest.mark.parametrize("how", ["before", "after", "cut"])
def test_wherever_an_upload_is_cut_off_a_reader_finds_the_old_or_the_new_and_the_next_one_mends_it(tmp_path, how):
    base = Kept(tmp_path / "base", new_url(), rolling_keep=2)
    for step in range(3):
        base.save(step)
    counted = copied(base, tmp_path / "counted", rolling_keep=2)
    between = counted.between()
    counted.save(3)
    assert {kind for kind, _ in between.log} == {"put_file", "pipe_file", "rm_file"}
    found = set()
    assert len(between.log) >= 20
    for at in range(len(between.log)):
        kept = copied(base, tmp_path / f"{at}", rolling_keep=2)
        kept.between(at, how)
        kept.save(3)
        # that the mark is there already is how a claim begins
        failed = 0 if at == 0 else 1
        assert kept.mirror.figures()["checkpoint/store_failed"] == failed, at
        assert len([x for x in kept.said if "the store is away" in x and "training goes on" in x]) == failed, at
        directory, step, _ = brought(kept.url, tmp_path / f"{at}-new")
        found.add(step)
        assert step in (2, 3), at
        assert files(directory.checkpoints / str(step)) == files(kept.directory.checkpoints / str(step)), at
        assert len([p for p in directory.checkpoints.iterdir() if p.name.isdigit()]) >= 2, at
        kept.plain()
        kept.save(4)
        contents = kept.remote.contents()
        assert sorted(u.step for u in contents.uploads) in ([0, 2, 4], [0, 3, 4]), at
        assert (contents.unfinished, dict(contents.faults)) == ((), {}), at
        assert kept.mirror.figures()["checkpoint/store_failed"] == 0, at
        shutil.rmtree(directory.root)
        kept.forget()
    assert found == {2, 3}


@pytest.mark.parametrize(
    "name", ["2/optimizer.safetensors", "2/state.json", "2/manifest.json", "run/2/journal.jsonl", "run/2/files.json"]
)
@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path, name, damage):
    kept = Kept(tmp_path / "run", new_url())
    for step in range(3):
        kept.save(step)
    fs, path = remote_file(kept.url, name)
    data = fs.cat_file(path)
    if damage == "missing":
        fs.rm_file(path)
    else:
        middle = len(data) // 2
        fs.pipe_file(
            path, data[:middle] + (bytes([data[middle] ^ 1]) + data[middle + 1 :] if damage == "flipped" else b"")
        )
    directory, step, said = brought(kept.url, tmp_path / "new")
    assert step == 1
    assert files(directory.checkpoints / "1") == files(kept.directory.checkpoints / "1")
    line = next(line for line in said if "is not used" in line)
    assert f"{kept.url}/{name}" in line
    if damage == "flipped" and name != "run/2/files.json":
        found = hashlib.sha256(fs.cat_file(path)).hexdigest()
        assert (found[:16] in line) == ("SHA-256" in line) == (hashlib.sha256(data).hexdigest()[:16] in line)
        assert "SHA-256" in line
    assert not (directory.checkpoints / "2").exists()


def test_if_no_checkpoint_is_good_nothing_is_placed(tmp_path):
    kept = Kept(tmp_path / "run", new_url())
    kept.save(0)
    fs, path = remote_file(kept.url, "0/state.json")
    fs.pipe_file(path, fs.cat_file(path)[:-1] + b" ")
    with pytest.raises(StorageError, match="none of 1 checkpoints is good"):
        brought(kept.url, tmp_path / "new")
    assert not RunDirectory(tmp_path / "new").exists
    assert list((tmp_path / "new" / "checkpoints").iterdir()) == []


def test_a_manifest_that_leads_elsewhere_writes_nowhere(tmp_path):
    kept = Kept(tmp_path / "run", new_url())
    kept.save(0)
    kept.save(1)
    from trimtab.store import manifests

    fs, path = remote_file(kept.url, "1/manifest.json")
    manifest = json.loads(fs.cat_file(path))
    manifest["files"]["../../../evil"] = {"bytes": 4, "sha256": "0" * 64}
    manifest["checksum"] = manifests.checksum(manifest)
    data = json.dumps(manifest).encode()
    fs.pipe_file(path, data)
    seal_path = remote_file(kept.url, "run/1/files.json")[1]
    seal = json.loads(fs.cat_file(seal_path))
    seal["manifest"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    seal["checksum"] = manifests.checksum(seal)
    fs.pipe_file(seal_path, json.dumps(seal).encode())
    fs.pipe_file(remote_file(kept.url, "1/../../../evil")[1], b"evil")
    _, step, _ = brought(kept.url, tmp_path / "new")
    assert step == 0
    assert not list(tmp_path.rglob("evil"))


def test_another_runs_store_is_left_alone(tmp_path):
    url = new_url()
    kept = Kept(tmp_path / "run", url)
    kept.save(0)
    before = Remote(url).sizes()
    other = Kept(tmp_path / "other", url, run_id="b")
    other.save(0)
    assert other.mirror.failed == 1
    assert any("is of run a" in line and "another prefix" in line for line in other.said)
    assert Remote(url).sizes() == before
    with pytest.raises(TakenError):
        other.mirror.owner.claim()


def test_a_process_that_was_followed_by_another_one_writes_no_more(tmp_path):
    url = new_url()
    first = Kept(tmp_path / "run", url)
    first.save(0)
    second = Kept(tmp_path / "second", url)
    second.save(1)
    before = Remote(url).sizes()
    first.save(2)
    assert any("no longer by this process" in line for line in first.said)
    assert first.mirror.finish(5.0, pause=0.0) is False
    assert Remote(url).sizes() == before


def test_while_the_store_fails_it_is_said_once_and_counted_and_kept_ones_come_later(tmp_path):
    kept = Kept(tmp_path / "run", new_url(), every=2, keep=5, rolling_keep=2)
    kept.save(0)
    between = kept.between()
    between._do = lambda *_: (_ for _ in ()).throw(Broken("the store is away"))
    for step in range(1, 6):
        kept.save(step)
    assert kept.mirror.figures()["checkpoint/store_failed"] == 5
    assert len([line for line in kept.said if "the store is away" in line]) == 1
    assert steps(kept.url) == [0]
    kept.plain()
    kept.save(6)
    assert steps(kept.url) == [0, 2, 4, 6]
    assert kept.mirror.figures()["checkpoint/store_failed"] == 0
    assert any("uploads had failed" in line for line in kept.said)
    assert not list((kept.directory.root / ".store").iterdir())


def test_a_newer_one_takes_the_place_of_a_waiting_one_that_only_its_age_keeps(tmp_path):
    kept = Kept(tmp_path / "run", new_url(), every=3, rolling_keep=2)
    gate, reached, real = threading.Event(), threading.Event(), kept.remote.put

    def put(path, name):
        reached.set()
        assert gate.wait(30)
        real(path, name)

    kept.remote.put = put
    stalls = []
    for step in range(6):
        stalls.append(kept.store.save_if_due(step, FakeRun(float(step)), {}, last=True))
        assert reached.wait(30)
    assert None not in stalls
    gate.set()
    assert kept.mirror.finish(30.0)
    # 0 was under way; 3 is kept; of 1, 2, 4 and 5 the newest
    assert steps(kept.url) == [0, 3, 5]


def test_what_the_run_removes_meanwhile_is_uploaded_whole(tmp_path):
    kept = Kept(tmp_path / "run", new_url(), rolling_keep=2)
    kept.save(0)
    gate, reached, real = threading.Event(), threading.Event(), kept.remote.put

    def put(path, name):
        reached.set()
        assert gate.wait(30)
        real(path, name)

    kept.remote.put = put
    kept.store.save_if_due(1, FakeRun(1.0), {}, last=True)
    assert reached.wait(30)
    for step in (2, 3, 4):
        kept.store.save_if_due(step, FakeRun(float(step)), {}, last=True)
    assert not (kept.directory.checkpoints / "1").exists()
    gate.set()
    assert kept.mirror.finish(30.0)
    assert steps(kept.url) == [0, 1, 4]


def test_the_end_waits_says_so_tries_again_and_gives_up(tmp_path):
    kept = Kept(tmp_path / "run", new_url())
    kept.save(0)
    between = kept.between()
    tried = []
    between._do = lambda name, *_: tried.append(name) or (_ for _ in ()).throw(Broken("the store is away"))
    kept.save(1)
    assert kept.mirror.finish(30.0, pause=0.0) is False
    assert len(tried) == 4  # with the save, and three times at the end
    kept.plain()
    assert kept.mirror.finish(30.0) is True
    assert steps(kept.url) == [0, 1]


def test_ctrl_c_ends_the_wait(tmp_path, monkeypatch):
    kept = Kept(tmp_path / "run", new_url())
    gate = threading.Event()
    kept.remote.put = lambda *_: gate.wait(30)
    kept.store.save_if_due(0, FakeRun(), {}, last=True)
    monkeypatch.setattr(kept.mirror._changed, "wait", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    try:
        assert kept.mirror.finish(600.0) is False
    finally:
        gate.set()
    assert "the upload is not waited for any longer" in kept.said


def test_behind_a_rollback_the_left_line_does_not_come_back(tmp_path):
    kept = Kept(tmp_path / "run", new_url(), rolling_keep=9)
    for step in range(5):
        kept.save(step)
    for step in (3, 4):
        shutil.rmtree(kept.directory.checkpoints / str(step))
    kept.save(2)  # the run went back there, and saves it anew
    assert steps(kept.url) == [0, 1, 2]
    directory, step, _ = brought(kept.url, tmp_path / "new")
    assert step == 2
    assert files(directory.checkpoints / "2") == files(kept.directory.checkpoints / "2")
    kept.save(3)
    assert brought(kept.url, tmp_path / "newer")[1] == 3


SAVES = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.sampled_from([None, 0.1, 0.5, 0.9]),
        st.integers(0, 25),
        st.sampled_from(["before", "after", "cut"]),
    ),
    min_size=1,
    max_size=7,
)


@given(saves=SAVES, keep=st.integers(1, 2), rolling_keep=st.integers(1, 3))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_fails_two_good_ones_the_best_and_the_newest_stay(tmp_path, saves, keep, rolling_keep):
    folder = tmp_path / new_url()[9:]
    kept = Kept(folder, new_url(), every=4, keep=keep, rolling_keep=rolling_keep)
    kept.save(0, 0.2)
    kept.save(1, 0.2)
    step, stored = 1, {0: 0.2, 1: 0.2}
    for stride, reward, at, how in saves:
        step += stride
        kept.between(at, how)
        kept.save(step, reward)
        good = line_of(Remote(kept.url).contents().uploads)
        assert len(good) >= 2
        stored |= {s: u.manifest["metrics"].get(METRIC, -1.0) for s, u in good.items()}
        best = max(stored, key=lambda s: (stored[s], s))
        assert {0, best, max(stored)} <= good.keys()
    kept.plain()
    kept.save(step + 1)
    good = line_of(Remote(kept.url).contents().uploads)
    manifests = {s: u.manifest for s, u in good.items()}
    assert retention.superfluous(manifests, kept.store.settings, 1, METRIC) == []
    assert step + 1 in good
    kept.forget()


def test_the_policys_weights_alone_stay_in_the_store_as_on_the_disk(tmp_path):
    kept = Kept(tmp_path / "run", new_url(), weights_every=2, rolling_keep=2)
    for step in range(6):
        kept.save(step)
    contents = kept.remote.contents()
    alone = {u.step for u in contents.uploads if not u.is_resumable}
    assert alone == {2}
    assert {u.step for u in contents.uploads if u.is_resumable} == {0, 4, 5}
    _, step, _ = brought(kept.url, tmp_path / "new")
    assert step == 5
    assert files(tmp_path / "new/checkpoints/2") == files(kept.directory.checkpoints / "2")


@pytest.mark.parametrize("how", ["etag", "md5Hash"])
def test_what_the_store_says_of_an_objects_bytes_is_compared(tmp_path, how):
    remote, path = Remote(new_url()), tmp_path / "x"
    path.write_bytes(b"weights")
    right, wrong = hashlib.md5(b"weights"), hashlib.md5(b"weighty")
    said = {}

    class Telling(Between):
        def info(self, path):
            return {**self.fs.info(path), **said}

    remote._fs = Telling(remote._fs)

    def say(md5):
        said.update(
            {"ETag": f'"{md5.hexdigest()}"'} if how == "etag" else {"md5Hash": base64.b64encode(md5.digest()).decode()}
        )

    say(right)
    remote.put(path, "x")
    real = remote._fs.fs.put_file
    remote._fs.fs = fsspec.filesystem("memory")
    remote._fs.put_file = lambda local, to: (real(local, to), remote._fs.fs.pipe_file(to, b"weighty"))
    say(wrong)
    with pytest.raises(StoreError, match="other bytes than were written"):
        remote.put(path, "y")
    remote._fs.put_file = real
    remote.put(path, "z")  # a store whose ETag is no MD5: the object is read, and is as it was written
    assert remote._has_md5 is False


@pytest.mark.parametrize(
    "url",
    ["bucket/a", "s3://key" + ":word@bucket/a", "s3://", "s3://bucket/../b", "zip://a::s3://bucket/b", "s3://b/a?x=1"],
)
def test_a_url_that_is_none_is_refused_and_a_secret_in_it_is_not_repeated(tmp_path, url):
    path = tmp_path / "c.yaml"
    path.write_text(
        f"algorithm: grpo\npolicy: {{model: builtin:tiny}}\ndata: {{train: builtin:addition}}\ncheckpoint: {{store: '{url}'}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        configs.load(path)
    assert "checkpoint.store" in str(caught.value)
    assert "key:word" not in str(caught.value)


def test_a_kind_of_store_whose_library_is_missing_names_the_extra(monkeypatch):
    def missing(*_, **__):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(MissingExtraError, match=r"trimtab\[s3\]"):
        Remote("s3://bucket/a")
