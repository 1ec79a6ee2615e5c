"""Time stamps prove that a stamped head existed at the time, and no other head can use its stamp."""

from __future__ import annotations

import subprocess
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas import TrailHead
from stream.cli.manage.ledger_commands import WitnessChecks
from stream.settings import Settings
from stream.witnesses.anchor import Anchor, TimeStampVerifier, WitnessError, stamped_statement
from stream.witnesses.witness_kinds import FileWitness, TimeStamper
from tests.unit.witnesses.anchors import anchor
from tests.unit.witnesses.time_stamp_authority import TimeStampAuthority, time_stamp_authority


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[TimeStampAuthority]:
    with time_stamp_authority(tmp_path / "authority") as made:
        yield made


def stamp_heads(authority: TimeStampAuthority, folder: Path, *entries: int) -> list[Anchor]:
    """Stamp heads with these numbers of entries, and return the file's anchors."""
    stamper = TimeStamper(authority.address, folder / "stamps.jsonl")
    for number in entries:
        stamper.write(anchor(number))
    return FileWitness(folder / "stamps.jsonl").read_all()


def test_stamp_proves_a_head_to_anyone_who_trusts_the_authority(
    authority: TimeStampAuthority, tmp_path: Path
) -> None:
    """OpenSSL verifies the stamp too, from the name and the head alone; another head or authority is refused."""
    [found] = stamp_heads(authority, tmp_path, 5)
    verifier = TimeStampVerifier(authority.roots)
    time = verifier.find_time(found)
    assert time is not None
    assert time.endswith(" UTC")
    assert verifier.find_time(found.model_copy(update={"head": anchor(6).head})) is None
    assert verifier.find_time(found.model_copy(update={"installation": "another"})) is None
    for wrong in (None, "", "AAAA", "no base64"):
        assert verifier.find_time(found.model_copy(update={"stamp": wrong})) is None
    with time_stamp_authority(tmp_path / "other") as other:
        assert TimeStampVerifier(other.roots).find_time(found) is None

    statement, reply = tmp_path / "statement", tmp_path / "reply"
    statement.write_bytes(stamped_statement(found.installation, found.head))
    reply.write_bytes(b64decode(found.stamp or ""))
    command = [
        "openssl",
        "ts",
        "-verify",
        "-data",
        str(statement),
        "-in",
        str(reply),
        "-CAfile",
        str(authority.roots),
    ]
    done = subprocess.run([*command, "-partial_chain"], capture_output=True, check=False)
    assert b"Verification: OK" in done.stdout + done.stderr, done.stderr


def test_stamps_with_certificates_in_any_order_are_kept(authority: TimeStampAuthority, tmp_path: Path) -> None:
    """OpenSSL adds certificates as its file has them; DER, and the decoder, want the lesser one first."""
    own, more = authority.roots, authority.folder / "more.pem"
    with time_stamp_authority(tmp_path / "other") as other:
        chains = [one.roots.read_text() for one in (authority, other)]
    configuration = authority.folder / "authority.cnf"
    configuration.write_text(configuration.read_text().replace(f"certs = {own}", f"certs = {more}"))
    verifier = TimeStampVerifier(own)
    for number, chain in enumerate((chains, chains[::-1]), 5):
        more.write_text("".join(chain))
        found = stamp_heads(authority, tmp_path, number)[-1]
        assert verifier.find_time(found) is not None


def test_stamper_refuses_answers_to_other_requests(authority: TimeStampAuthority, tmp_path: Path) -> None:
    """A replayed stamp, garbage and a refusal are errors, and nothing is written."""
    stamper = TimeStamper(authority.address, tmp_path / "stamps.jsonl")
    stamper.write(anchor(5))
    for wrong in (authority.latest, b"garbage", b"0" * 70_000):
        authority.replay = wrong
        with pytest.raises(WitnessError, match=r"no stamp of the request|too large"):
            stamper.write(anchor(5))
    authority.is_down = True
    with pytest.raises(WitnessError, match="the authority refused: 503"):
        stamper.write(anchor(6))
    assert len(FileWitness(tmp_path / "stamps.jsonl").read_all()) == 1


def test_verification_compares_all_stamps_with_the_trail(authority: TimeStampAuthority, tmp_path: Path) -> None:
    """The output has the time from which stamps prove the trail; a rewritten trail lacks a stamped head."""
    found = stamp_heads(authority, tmp_path, 2, 5)
    file = tmp_path / "stamps.jsonl"
    settings = Settings(timestamp_file=str(file), timestamp_roots=str(authority.roots))

    def verified(*heads: TrailHead) -> WitnessChecks:
        checks = WitnessChecks.open(settings, is_copy=False)
        for head in heads:
            checks.note_head(head)
        return checks

    true = verified(*(anchor(number).head for number in range(7)))
    assert true.findings() == []
    [line] = true.matches()
    first = TimeStampVerifier(authority.roots).find_time(found[0])
    assert line.startswith(f"time stamps in {file}: the trail contains 2 anchors")
    assert line.endswith(f"; the first time stamp proves 2 entries at {first}")

    other = TrailHead(entries=5, digest="f" * 64, time=5)
    [finding] = verified(anchor(2).head, other).findings()
    assert "the trail lacks the head 5:" in finding

    FileWitness(file).write(anchor(6, stamp=found[0].stamp))
    [finding] = verified(*(anchor(number).head for number in range(7))).findings()
    assert "the stamp of 6 entries is invalid" in finding
    file.unlink()
    [finding] = verified(anchor(0).head).findings()
    assert finding.startswith("time stamps not checked: ")


@pytest.mark.parametrize(
    "address", ["http://tsa.example.org/", "ftp://tsa.example.org", "https://user:word@host/"]
)
def test_address_without_tls_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(WitnessError, match="SOTTO_TIMESTAMP_AUTHORITY: is no https address") as refused:
        TimeStamper(address, tmp_path / "stamps.jsonl")
    assert "word" not in str(refused.value)


def test_verifier_names_the_setting_that_is_missing_or_wrong(tmp_path: Path) -> None:
    with pytest.raises(WitnessError, match="SOTTO_TIMESTAMP_ROOTS: is not set; give a PEM file"):
        TimeStampVerifier(Path())
    with pytest.raises(WitnessError, match=f"SOTTO_TIMESTAMP_ROOTS: {tmp_path} has no certificates"):
        TimeStampVerifier(tmp_path)
