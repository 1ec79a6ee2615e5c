"""Asking Kafka who is in a consumer group: what a client library believes of itself may be wrong."""

from __future__ import annotations

from typing import Any, NamedTuple

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import for_code

from stream.kafka.looking import only_looking


class GroupMember(NamedTuple):
    """One member of a group, as the group's coordinator describes it."""

    member_id: str
    client_id: str
    host: str
    metadata: bytes
    assignment: bytes


async def group_members(admin: AIOKafkaAdminClient, group: str) -> list[GroupMember]:
    """Everybody whom a group's coordinator has in it, in the middle of a rebalance too.

    Raises:
        KafkaError: the coordinator does not answer, or may not.
    """
    members = []
    for described in (
        one for response in await admin.describe_consumer_groups([group]) for one in response.groups
    ):
        if described[0]:
            raise for_code(described[0])
        members += [GroupMember(*member[:5]) for member in described[5]]
    return members


class GroupObserver:
    """Asks over a connection of its own, made anew after each failure. Takes aiokafka's options by name."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._admin: AIOKafkaAdminClient | None = None

    async def members(self, group: str) -> frozenset[str]:
        """The ids of a group's members.

        Raises:
            KafkaError: Kafka does not answer, or may not.
        """
        try:
            if self._admin is None:
                self._admin = AIOKafkaAdminClient(**self._options)
                only_looking(self._admin._client)  # noqa: SLF001
                await self._admin.start()
            return frozenset(member.member_id for member in await group_members(self._admin, group))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Let go of the connection."""
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()
