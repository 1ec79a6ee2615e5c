"""A witness in PostgreSQL, on a server of this machine: services may only append rows."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream.witnesses.anchor import MAX_ANCHORS_READ, Witness, WitnessError
from stream.witnesses.witness_kinds import open_witnesses
from tests.docs.pages import DOCS
from tests.unit.tables.readers.servers import ADMIN, READER, Database, database_server, let_into_the_database
from tests.unit.witnesses.anchors import anchor


@pytest.fixture(scope="module")
def server() -> Iterator[Database]:
    with database_server() as started:
        started.execute("ALTER ROLE reader SET default_transaction_read_only = off")
        text = (DOCS / "operations.md").read_text(encoding="utf-8")
        created = text.partition("```sql\nCREATE TABLE anchors")[2].partition("```")[0]
        started.execute(f"CREATE TABLE anchors{created}".replace("TO sotto", "TO reader").strip().rstrip(";"))
        yield started


@pytest.fixture
def witness(server: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Witness:
    let_into_the_database(server, tmp_path, monkeypatch)
    server.execute("TRUNCATE anchors")
    [opened] = open_witnesses(server.address("anchors"))
    return opened


def test_table_keeps_the_newest_anchors_first(witness: Witness) -> None:
    """The order within the newest generation is that of the rows, whatever the clocks; installations are separate."""
    assert witness.read_newest("sotto") == []
    for entries in range(MAX_ANCHORS_READ + 2):
        witness.write(anchor(entries, written=1, ends={"state": (entries, 3)}))
    witness.write(anchor(5, generation=1, reason="it's $1; DROP TABLE anchors"))
    witness.write(anchor(200))
    witness.write(anchor(7, installation="sotto2"))
    found = witness.read_newest("sotto")
    assert len(found) == MAX_ANCHORS_READ
    assert [one.head.entries for one in found[:3]] == [5, 200, MAX_ANCHORS_READ + 1]
    assert found[0].reason == "it's $1; DROP TABLE anchors"
    assert found[2].ends == {"state": (MAX_ANCHORS_READ + 1, 3)}
    assert [one.head.entries for one in witness.read_newest("sotto2")] == [7]


@pytest.mark.parametrize(
    "change", ["DELETE FROM anchors", "UPDATE anchors SET generation = 9", "TRUNCATE anchors"]
)
def test_services_cannot_change_written_anchors(server: Database, witness: Witness, change: str) -> None:
    """Services have the rights of the operations page."""
    witness.write(anchor(1))
    command = ["psql", "-X", "-h", "127.0.0.1", "-p", str(server.port), "-U", "reader", "clinic", "-c", change]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "permission denied" in refused.stderr
    assert len(witness.read_newest("sotto")) == 1


def test_invalid_anchor_row_is_an_error(server: Database, witness: Witness) -> None:
    server.execute("INSERT INTO anchors (installation, generation, anchor) VALUES ('sotto', 0, '{}')")
    with pytest.raises(WitnessError, match="1 rows are no anchors"):
        witness.read_newest("sotto")


def test_missing_table_or_server_is_an_error_without_secrets(
    server: Database, witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    del witness
    [missing] = open_witnesses(server.address("nothing"))
    with pytest.raises(WitnessError, match=r"PostgreSQL refused: 42P01 \(the table is missing\)$"):
        missing.write(anchor(1))
    [unreachable] = open_witnesses("postgresql://127.0.0.1:9/clinic/public/anchors")
    monkeypatch.setenv("PGPASSWORD", ADMIN)
    with pytest.raises(
        WitnessError, match=r"refused the login; check the address, PGUSER and PGPASSFILE$"
    ) as refused:
        unreachable.read_newest("sotto")
    assert ADMIN not in str(refused.value)
    assert READER not in str(refused.value)
