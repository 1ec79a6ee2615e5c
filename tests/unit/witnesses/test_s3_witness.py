"""A witness in a bucket, in a store of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from stream.witnesses.anchor import Witness, WitnessError, read_undamaged
from stream.witnesses.witness_kinds import open_witnesses
from tests.unit.tables.readers.servers import STORE_SECRET, let_into_the_store, object_store
from tests.unit.witnesses.anchors import anchor

BUCKET = "evidence"


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    with object_store() as address:
        yield address


@pytest.fixture
def client(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    import boto3  # noqa: PLC0415  (an optional package)

    let_into_the_store(store, tmp_path, monkeypatch)
    return boto3.Session().client("s3")


def locked_bucket_witness(client: Any, bucket: str, *, retains: bool = True) -> Witness:
    """A witness in a new bucket with Object Lock."""
    client.create_bucket(
        Bucket=bucket,
        ObjectLockEnabledForBucket=True,
        CreateBucketConfiguration={"LocationConstraint": "eu-west-1"},
    )
    if retains:
        rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 400}}
        client.put_object_lock_configuration(
            Bucket=bucket, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
        )
    [witness] = open_witnesses(f"s3://{bucket}/sotto/anchors/")
    return witness


def test_bucket_keeps_the_newest_anchors_first(client: Any) -> None:
    """The order also holds across generations, whatever the clocks; installations are separate."""
    witness = locked_bucket_witness(client, BUCKET)
    assert witness.read_newest("sotto") == []
    with capture_logs() as logged:
        for entries in range(12):
            witness.write(anchor(entries, written=1_000 * entries + 1))
    assert logged == []
    witness.write(anchor(5, generation=1, written=3, reason="restored"))
    witness.write(anchor(99, installation="sotto2"))
    assert [one.head.entries for one in witness.read_newest("sotto")] == [5, *range(11, 2, -1)]
    assert [one.head.entries for one in witness.read_newest("sotto2")] == [99]
    assert len(client.list_objects_v2(Bucket=BUCKET)["Contents"]) == 14


def test_bucket_without_retention_is_reported_once(client: Any) -> None:
    witness = locked_bucket_witness(client, "open-bucket", retains=False)
    with capture_logs() as logged:
        witness.write(anchor(1))
        witness.write(anchor(2))
    assert [one["event"] for one in logged].count("witness without object lock") == 1


def test_invalid_anchor_object_is_an_error(client: Any) -> None:
    witness = locked_bucket_witness(client, "mixed")
    client.put_object(Bucket="mixed", Key="sotto/anchors/sotto/0.json", Body=json.dumps({"a": 1}))
    with pytest.raises(WitnessError, match=r"no anchor in object sotto/anchors/sotto/0\.json; remove it"):
        witness.read_newest("sotto")


def test_invalid_anchor_object_hides_no_others(client: Any) -> None:
    """An object that is too large and an object of another kind are damage, and skipped."""
    witness = locked_bucket_witness(client, "partly-mixed")
    for entries in range(12):
        witness.write(anchor(entries))
    for number, text in enumerate(("{}", anchor(99).encode().decode() + " " * (1 << 20))):
        client.put_object(Bucket="partly-mixed", Key=f"sotto/anchors/sotto/0{number}.json", Body=text)
    found, damage = read_undamaged(witness, "sotto")  # as services do, which then raise an alert
    assert [one.head.entries for one in found] == list(range(11, 1, -1))
    assert "no anchor in object sotto/anchors/sotto/00.json, sotto/anchors/sotto/01.json; remove" in damage
    for number in range(2):
        client.delete_object(Bucket="partly-mixed", Key=f"sotto/anchors/sotto/0{number}.json")
    assert read_undamaged(witness, "sotto") == (found, "")


def test_missing_bucket_or_store_is_an_error_without_secrets(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    del client
    [missing] = open_witnesses("s3://nowhere/sotto/")
    with pytest.raises(WitnessError, match=r"^s3://nowhere/sotto/: the store refused: NoSuchBucket$"):
        missing.read_newest("sotto")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    [unreachable] = open_witnesses("s3://nowhere/sotto/")
    with pytest.raises(WitnessError, match="the store was not reached: EndpointConnectionError") as refused:
        unreachable.write(anchor(1))
    assert STORE_SECRET not in str(refused.value)
