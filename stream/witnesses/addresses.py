"""Opens the witnesses of the setting ``SOTTO_WITNESSES``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from schemas import Address
from stream.witnesses.anchor import Witness, WitnessError
from stream.witnesses.file_witness import FileWitness
from stream.witnesses.postgresql_witness import PostgresqlWitness
from stream.witnesses.s3_witness import S3Witness

_FILE: Final = "file://"
_POSTGRESQL_PARTS: Final = 3


def open_witnesses(addresses: str) -> list[Witness]:
    """Return the witness of each address, separated by commas.

    Raises:
        WitnessError: an address is none of a witness; the message does not quote it.
    """
    return [
        _open_witness(address.strip(), number)
        for number, address in enumerate(addresses.split(","), 1)
        if address.strip()
    ]


def _open_witness(text: str, number: int) -> Witness:
    if text.startswith(_FILE):
        path = Path(text.removeprefix(_FILE))
        if not path.is_absolute() or text.endswith("/"):
            raise _address_error(
                number, "a file's address has no absolute path to a file; give file:///FOLDER/FILE"
            )
        return FileWitness(path)
    try:
        address = Address.parse_root(text)
    except ValueError as error:
        raise _address_error(number, f"{error}; a witness begins with file:///, s3:// or postgresql://") from None
    if address.scheme == "s3":
        return S3Witness(address)
    if len(address.parts) != _POSTGRESQL_PARTS or address.is_folder:
        raise _address_error(number, "names no table; give postgresql://HOST[:PORT]/DATABASE/SCHEMA/TABLE")
    return PostgresqlWitness(address)


def _address_error(number: int, problem: str) -> WitnessError:
    return WitnessError(f"SOTTO_WITNESSES: address {number}: {problem}")
