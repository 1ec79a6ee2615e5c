"""The SDK: register sources, open streams, ask, read answers, watch budgets; asynchronously or not."""

from stream.client.async_client import AsyncClient
from stream.client.blocking_client import Client

__all__ = ["AsyncClient", "Client"]
