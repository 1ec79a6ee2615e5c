"""Clients that ask for topics, and never make one by asking.

Brokers with ``auto.create.topics.enable``, which is Kafka's default, make a topic as soon as somebody asks for it by its name: with the brokers'
own configuration, by which a ledger loses its beginning after a week. aiokafka always lets them, and has no option that says
otherwise. What is said here is said for the product's own clients, one by one: a program that uses the client library has others.
"""

from __future__ import annotations

from typing import Any

from stream.kafka import connections

connections.install()


def only_looking(client: Any) -> Any:
    """Have all that an ``AIOKafkaClient`` asks about topics make none; gives it back.

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

    client._get_conn = looking  # noqa: SLF001
    return client
