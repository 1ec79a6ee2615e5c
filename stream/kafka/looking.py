"""Clients that ask for topics, and never make one by asking.

Brokers with ``auto.create.topics.enable``, which is Kafka's default, make a topic as soon as somebody asks for it by its name: with the brokers'
own configuration, by which a ledger loses its beginning after a week. aiokafka always lets them, and has no option that says
otherwise. What is said here is said for the product's own clients, one by one: a program that uses the client library has others.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from stream.kafka import connections

connections.install()

_BOOTSTRAP_SECONDS: Final = 2
"""Longest delay of a cancellation; a broker that does not answer must not hold up a stop."""


def only_looking(client: Any) -> Any:
    """Stop the metadata requests of an ``AIOKafkaClient`` from creating topics, and return it.

    A cancelled start is given time to end before the cancellation is raised: aiokafka would leave its connection open.

    Raises:
        RuntimeError: the client library is of a version that connects in another way.
    """
    if not hasattr(client, "_get_conn"):
        raise RuntimeError("aiokafka connects in another way; install the aiokafka that Sotto was tested with")
    connect = client._get_conn  # noqa: SLF001

    async def looking(*arguments: Any, **named: Any) -> Any:
        connection = await connect(*arguments, **named)
        if connection is not None:
            connection.makes_topics = False
        return connection

    bootstrap = client.bootstrap

    async def bootstrap_to_the_end() -> None:
        connecting = asyncio.ensure_future(bootstrap())
        try:
            await asyncio.shield(connecting)
        except asyncio.CancelledError:
            await asyncio.wait([connecting], timeout=_BOOTSTRAP_SECONDS)
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
            raise

    client._get_conn = looking  # noqa: SLF001
    client.bootstrap = bootstrap_to_the_end
    return client
