"""An S3 of this computer: uploads, going on from it, two who want one place, and what fails.

pip install 'trimtab[s3-test]'
python -m pytest -m system tests/system/test_object_store.py
"""

import json
import shutil
import threading

import pytest

from tests.runs import small
from tests.unit.store.stores import Kept, files
from trimtab import config as configs
from trimtab.errors import StorageError
from trimtab.operate import finish
from trimtab.store import remote as remotes
from trimtab.store.remote import Remote, StoreError
from trimtab.store.remote_fetch import bring_back
from trimtab.store.remote_owner import Owner, TakenError
from trimtab.store.run_directory import RunDirectory

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    found = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    found.start()
    yield "http://{}:{}".format(*found.get_host_and_port())
    found.stop()


@pytest.fixture
def bucket(server, monkeypatch):
    """A new bucket; who may write there says the environment alone."""
    import boto3

    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "EXAMPLE" * 3)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "example-example-example-example-00000000")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    client = boto3.client("s3")
    name = f"bucket-{len(client.list_buckets()['Buckets'])}"
    client.create_bucket(Bucket=name)
    return name


def test_a_run_goes_on_from_s3_bit_for_bit(tmp_path, bucket, monkeypatch):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])
    path, store = small.write(tmp_path), f"checkpoint.store=s3://{bucket}/runs/a"
    whole = small.train(path, tmp_path / "whole")
    small.train(path, tmp_path / "run", store, "train.max_steps=2")
    shutil.rmtree(tmp_path / "run")
    again = small.train(path, tmp_path / "run", store)
    assert small.evidence(again) == small.evidence(whole)
    contents = Remote(f"s3://{bucket}/runs/a").contents()
    assert sorted(u.step for u in contents.uploads) == [0, 1, 2, 3, 4]
    assert (dict(contents.faults), contents.unfinished) == ({}, ())
    written = "".join(p.read_text(errors="replace") for p in again.root.rglob("*") if p.is_file())
    assert "AKIAEXAMPLE" not in written
    assert "example-example" not in written


def test_bytes_and_checksums_are_those_of_the_disk(tmp_path, bucket):
    kept = Kept(tmp_path / "run", f"s3://{bucket}/a", rolling_keep=2)
    for step in range(4):
        kept.save(step)
    assert kept.said == []
    assert kept.remote._has_md5
    assert sorted(u.step for u in kept.remote.contents().uploads) == [0, 2, 3]
    new = RunDirectory(tmp_path / "new")
    new.create()
    assert bring_back(kept.remote, kept.remote.contents(), new, print, lambda _: None) == 3
    assert files(new.checkpoints) == files(kept.directory.checkpoints)
    kept.remote._fs.pipe_file(
        f"{bucket}/a/3/state.json", b"x" * len((kept.directory.checkpoints / "3/state.json").read_bytes())
    )
    newer, said = RunDirectory(tmp_path / "newer"), []
    newer.create()
    assert bring_back(kept.remote, kept.remote.contents(), newer, said.append, lambda _: None) == 2
    assert any(f"s3://{bucket}/a/3/state.json has SHA-256" in line for line in said)


def test_an_object_of_several_parts_is_compared_by_its_size(tmp_path, bucket):
    path = tmp_path / "large"
    path.write_bytes(b"0123456789abcdef" * (4 << 20))
    remote = Remote(f"s3://{bucket}/a")
    remote._fs.s3_additional_kwargs = {}
    remote._fs.put_file(str(path), f"{bucket}/a/large", chunksize=16 << 20)
    assert "-" in remote._fs.info(f"{bucket}/a/large")["ETag"]
    remote.put(path, "large")
    assert remote.sizes() == {"large": 64 << 20}


def test_of_many_that_want_an_empty_place_one_gets_it(bucket):
    barrier, won, lost = threading.Barrier(8), [], []

    def claim(number):
        owner = Owner(Remote(f"s3://{bucket}/a"), run_id=f"run-{number}")
        barrier.wait(30)
        try:
            owner.claim()
            won.append(number)
        except TakenError as error:
            lost.append(str(error))

    threads = [threading.Thread(target=claim, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(won) == 1
    assert len(lost) == 7
    assert json.loads(Remote(f"s3://{bucket}/a").bytes_of(remotes.OWNER))["id"] == f"run-{won[0]}"


def test_a_bucket_that_is_not_there_and_a_key_that_is_none_are_said(tmp_path, bucket, monkeypatch):
    with pytest.raises((StoreError, StorageError)) as caught:
        Remote("s3://nowhere-at-all/a").is_writable()
    assert "s3://nowhere-at-all/a" in str(caught.value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreError) as caught:
        Remote(f"s3://{bucket}/a").is_writable()
    assert f"s3://{bucket}/a" in str(caught.value)
    assert "example-example" not in str(caught.value)
    config = configs.load(small.write(tmp_path), [f"checkpoint.store=s3://{bucket}/a"])
    assert config.checkpoint.store == f"s3://{bucket}/a"
