"""The clients: register sources, open streams, ask questions, read answers and budgets."""

from stream.client.async_client import AsyncClient
from stream.client.blocking_client import Client

__all__ = ["AsyncClient", "Client"]
