"""The SDK: register sources, open streams, ask, read answers, watch budgets; asynchronously or not."""

from stream.client.asynchronous import AsyncClient
from stream.client.blocking import Client

__all__ = ["AsyncClient", "Client"]
