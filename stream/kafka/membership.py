"""Whether this process is a member of its consumer group, as the group's coordinator says.

A client library may leave a group and go on as if nothing had happened. So membership is not taken from the library: Kafka is asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, NoReturn

from aiokafka.errors import GroupAuthorizationFailedError, KafkaError

from stream.kafka.clients import Clients, Consumer
from stream.kafka.refused_times import refused_session
from stream.kafka.roles import Role
from stream.kafka.security import connection
from stream.log import get_logger
from stream.settings import Settings, variable

INTERVAL: Final = 2.0
"""Seconds between two questions."""
REJOIN_SECONDS: Final = 60.0
"""A process that Kafka does not list for so long, while it answers, has lost its group for good."""

log = get_logger("membership")


class MembershipLostError(RuntimeError):
    """This process is in its group no more, for good: another has its name, or the client library has not brought it back."""


class Membership:
    """Asks Kafka again and again whether ``consumer`` is in the group of its role.

    ``held_up`` says whether a batch in hand keeps the process from joining again: for so long it is not a member, and
    says so, but is not lost.
    """

    def __init__(
        self, role: Role, settings: Settings, consumer: Consumer, clients: Clients, held_up: Callable[[], bool]
    ) -> None:
        self.joined = False
        """Whether Kafka has listed this process at the last answer, which is no older than a session."""
        self.absence = "has not joined its group yet"
        """Why it is not a member, while it is none."""
        self.contact: float | None = None
        """Since when Kafka has answered every question, on the monotonic clock; None while it does not."""
        self._name = settings.instance
        self._role = role
        self._consumer = consumer
        self._held_up = held_up
        self._session_ms = settings.session_timeout_ms
        self._session = self._session_ms / 1000
        self._observer = clients.observer(
            **connection(settings),
            client_id=f"{role.member}-watch",
            request_timeout_ms=settings.session_timeout_ms,
        )
        self._answered = time.monotonic()
        self._away: float | None = None

    def require_place(self) -> None:
        """Make sure that the group has not turned this process away for good.

        Raises:
            MembershipLostError: another process has joined under its name, and has the partitions.
            RefusedTimeError: the group takes no member with its session.
        """
        if self._consumer.session_refused:
            raise refused_session(self._session_ms)
        if self._consumer.displaced:
            raise MembershipLostError(
                f"another process has joined group {self._role.group} under the name {self._name}, and has its partitions; "
                f"give each process of a role a name of its own ({variable('instance')}), or none"
            )

    async def watch(self) -> NoReturn:
        """Ask until cancelled.

        Raises:
            MembershipLostError: Kafka answers and has not listed this process for ``REJOIN_SECONDS``.
            GroupAuthorizationFailedError: this principal may not be in the group.
        """
        try:
            while True:
                await self._ask()
                await asyncio.sleep(INTERVAL)
        finally:
            await self._observer.close()

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(self._session):
                members = await self._observer.members(self._role.group)
        except GroupAuthorizationFailedError:
            raise
        except (KafkaError, OSError, TimeoutError) as error:
            self.contact = self._away = None
            # One lost answer says nothing; after a session Kafka has given up whoever it does not hear from.
            if time.monotonic() - self._answered > self._session:
                self._become(
                    joined=False, absence=f"hears nothing of its group from Kafka ({type(error).__name__})"
                )
            return
        now = self._answered = time.monotonic()
        if self.contact is None:
            self.contact = now
        if self._consumer.member_id in members:
            self._away = None
            self._become(joined=True, absence="")
            return
        self._become(joined=False, absence="is not in its group, as Kafka says")
        if self._away is None or self._held_up():
            self._away = now
        elif now - self._away > REJOIN_SECONDS:
            raise MembershipLostError(
                f"not a member of group {self._role.group} for {REJOIN_SECONDS:.0f} s, though Kafka answers; this "
                "process ends so that its supervisor starts it again"
            )

    def _become(self, *, joined: bool, absence: str) -> None:
        changed = joined is not self.joined
        self.joined, self.absence = joined, absence
        if changed and joined:
            log.info("member", role=self._role.name, group=self._role.group)
        elif changed:
            log.warning("not a member", role=self._role.name, group=self._role.group, reason=absence)
