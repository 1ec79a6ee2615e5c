"""Addresses of tables in object stores and databases.

Each place has one canonical address. Addresses are public: no user, password or parameter is
accepted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, cast

Scheme = Literal["s3", "postgresql"]

WILDCARDS: Final = frozenset("*")
_POSTGRESQL_PORT: Final = 5432
_POSTGRESQL_PARTS: Final = 3

_ADDRESS_PATTERN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)", re.DOTALL)
_bucket = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_host = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_port = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_key_part = re.compile(r"[A-Za-z0-9._=+,~$-]+", re.ASCII)
_pattern_part = re.compile(r"[A-Za-z0-9._=+,~$*-]+", re.ASCII)
_database_part = re.compile(r"[A-Za-z0-9_$.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    """A place in an object store (bucket, key) or a server (database, schema, table).

    ``is_folder`` is true if the address ends in ``/``. Parts are case-sensitive.
    """

    scheme: Scheme
    host: str
    port: int | None
    parts: tuple[str, ...]
    is_folder: bool

    @classmethod
    def parse_table(cls, text: str) -> Address | None:
        """Parse a source's address, with wildcards; None if it is a path in a file system.

        A ValueError never quotes the text.
        """
        address = cls._parse(text, _pattern_part)
        if address is None:
            return None
        if address.scheme == "postgresql" and (len(address.parts) != _POSTGRESQL_PARTS or address.is_folder):
            raise ValueError("give a PostgreSQL table as postgresql://HOST[:PORT]/DATABASE/SCHEMA/TABLE")
        if not address.parts and not address.is_folder:
            raise ValueError(
                "give a bucket's objects as s3://BUCKET/KEY, and a folder of them with '/' at its end"
            )
        return address

    @classmethod
    def parse_root(cls, text: str) -> Address:
        """Parse the address of an allowed folder, without wildcards.

        A ValueError never quotes the text.
        """
        address = cls._parse(text, _key_part)
        if address is None:
            raise ValueError("no address; begin with s3:// or postgresql://")
        if address.scheme == "postgresql" and len(address.parts) > _POSTGRESQL_PARTS:
            raise ValueError("postgresql:// takes HOST[:PORT], a database, a schema and a table, and no more")
        return address

    @classmethod
    def _parse(cls, text: str, part: re.Pattern[str]) -> Address | None:
        if (found := _ADDRESS_PATTERN.fullmatch(text)) is None:
            if "://" in text:
                raise ValueError("no '://' within a path; an address begins with s3:// or postgresql://")
            return None
        scheme, authority, rest = found.groups()
        if "@" in authority:
            raise ValueError(
                "no user and no password in an address, because it is public; give them to the services as PGUSER and "
                "PGPASSFILE, or in AWS's own settings"
            )
        if "%" in text or "?" in text or "#" in text:
            raise ValueError("an address takes no '%', no parameters ('?') and no '#'; write names as they are")
        if scheme not in {"s3", "postgresql"}:
            raise ValueError("an address begins with s3:// or postgresql://; files have paths without a scheme")
        host, port = (authority, None) if scheme == "s3" else _split_host_and_port(authority)
        if not (_bucket if scheme == "s3" else _host).fullmatch(host):
            raise ValueError(
                "after s3:// give a bucket's name, after postgresql:// a host's, in lower case"
                + (" and without a port" if scheme == "s3" else "")
            )
        is_folder = rest.endswith("/")
        names = rest.removeprefix("/").removesuffix("/").split("/") if rest not in {"", "/"} else []
        allowed = part if scheme == "s3" else _database_part
        if any(name in {"", ".", ".."} or allowed.fullmatch(name) is None for name in names):
            raise ValueError(
                "parts of an address are letters, digits and '._-=+,~$', of ASCII, and neither empty nor '.' or '..'"
            )
        return cls(cast("Scheme", scheme), host, port, tuple(names), is_folder)

    @property
    def fixed_parts(self) -> tuple[str, ...]:
        """The parts before the first wildcard; every match lies below them."""
        index = next((at for at, name in enumerate(self.parts) if WILDCARDS & set(name)), len(self.parts))
        return self.parts[:index]

    def is_below(self, root: Address) -> bool:
        """Return True if the address, with all matches of its wildcards, lies below ``root``."""
        return (self.scheme, self.host, self.port) == (root.scheme, root.host, root.port) and self.fixed_parts[
            : len(root.parts)
        ] == root.parts


def _split_host_and_port(authority: str) -> tuple[str, int]:
    host, colon, port = authority.partition(":")
    if colon and not (_port.fullmatch(port) and int(port) < 1 << 16):
        raise ValueError("a port is a number from 1 to 65535, without zeros before it")
    return host, int(port) if colon else _POSTGRESQL_PORT
