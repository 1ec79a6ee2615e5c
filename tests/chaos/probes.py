"""Probes whether a service is ready."""

from __future__ import annotations

from urllib.error import HTTPError
from urllib.request import urlopen


def probe(url: str) -> tuple[int, str]:
    try:
        with urlopen(url) as response:  # noqa: S310  (our own address)
            return response.status, response.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()
