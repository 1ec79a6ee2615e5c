"""Builds record batches byte by byte: batches that decompress to far more bytes, and batches that no client library reads.

A producer's library builds none of these, and any client that may write to a topic can send them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final

import cramjam
from aiokafka import AIOKafkaProducer
from aiokafka.record.util import calc_crc32c

CODECS: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
MEGABYTE: Final = 1_000_000

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH_PLACE, _CHECKSUM_PLACE, _CHECKED = 8, 17, 21

Headers = Iterable[tuple[bytes, bytes]]


def varint(number: int) -> bytes:
    """Encode a number like Kafka's records: in zigzag form, with seven bits per byte."""
    left = (number << 1) ^ (number >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def sized(data: bytes | None) -> bytes:
    """Return bytes after their length; the length is -1 for None."""
    return varint(-1) if data is None else varint(len(data)) + data


def record(delta: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> bytes:
    """Return one record of a batch. Header names are bytes, which need not be text."""
    named = [sized(name) + sized(given) for name, given in headers]
    return sized(
        b"\0" + varint(0) + varint(delta) + sized(key) + sized(value) + varint(len(named)) + b"".join(named)
    )


def long_record(delta: int, length: int, chunk: bytes = b"a" * MEGABYTE) -> Iterator[bytes]:
    """Yield one record with a long value, in pieces."""
    head = b"\0" + varint(0) + varint(delta) + sized(b"key") + varint(length)
    yield varint(len(head) + length + 1) + head
    for _ in range(length // len(chunk)):
        yield chunk
    yield chunk[: length % len(chunk)] + varint(0)


def batch(pieces: Iterable[bytes], count: int, codec: str = "zstd", level: int = 3) -> bytes:
    """Return a batch of ``count`` records from pieces, which are compressed one by one."""
    if codec == "none":
        body = b"".join(pieces)
    elif codec == "snappy":
        body = bytes(cramjam.snappy.compress_raw(b"".join(pieces)))
    else:
        options: dict[str, Any] = {"level": level} if codec == "zstd" else {}
        compressor = getattr(cramjam, codec).Compressor(**options)
        for piece in pieces:
            compressor.compress(piece)
        body = bytes(compressor.finish())
    built = bytearray(_HEADER.pack(0, 0, -1, 2, 0, CODECS[codec], count - 1, 1, 1, -1, -1, -1, count) + body)
    built[_LENGTH_PLACE : _LENGTH_PLACE + 4] = (len(built) - 12).to_bytes(4, "big")
    built[_CHECKSUM_PLACE:_CHECKED] = calc_crc32c(bytes(built[_CHECKED:])).to_bytes(4, "big")
    return bytes(built)


@cache
def large_value(megabytes: int, codec: str = "zstd") -> bytes:
    """Return a batch of one record with a value of so many megabytes; for 9 it has a few kilobytes, and for 400 twelve."""
    return batch(long_record(0, megabytes * MEGABYTE), 1, codec)


@cache
def large_values(count: int, codec: str = "zstd") -> bytes:
    """Return a batch of many records, each with a value of a megabyte."""
    return batch((piece for delta in range(count) for piece in long_record(delta, MEGABYTE)), count, codec)


@cache
def tiny_records(count: int, codec: str = "zstd") -> bytes:
    """Return a batch of many records with an empty key and no value, each of eight or nine bytes."""
    # The same bytes as from ``record``; all parts except the number are made once.
    head, tail = b"\0" + varint(0), sized(b"") + sized(None) + varint(0)
    return batch([b"".join(sized(head + varint(delta) + tail) for delta in range(count))], count, codec, level=3)


def bad_header_names(count: int, stream: str, prefix: str, codec: str = "none") -> bytes:
    """Return a batch of questions to a stream, each with a header whose name is not text."""
    questions = (
        json.dumps({"id": f"{prefix}{number}", "stream": stream, "value": 1.0}).encode() for number in range(count)
    )
    return batch(
        (record(delta, stream.encode(), value, [(b"\xff\xfe", b"x")]) for delta, value in enumerate(questions)),
        count,
        codec,
    )


async def send(bootstrap: str, topic: str, partition: int, built: bytes) -> int:
    """Send a batch unchanged; return the offset of its first record.

    Raises:
        KafkaError: the broker does not take it.
    """
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=2**30) as producer:
        holder = producer.create_batch()
        holder.append(timestamp=1, key=None, value=b"", headers=[])
        holder.close()
        holder._buffer = built
        sent = await (await producer.send_batch(holder, topic, partition=partition))
        return int(sent.offset)
