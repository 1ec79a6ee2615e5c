"""Supervises an engine: the steps of its tasks, its group membership and its readiness."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final, NoReturn

from aiokafka.errors import GroupAuthorizationFailedError, KafkaConnectionError, KafkaError

from stream.diagnostics import LoggableError, get_logger
from stream.engine.health import EngineHealth, ServiceHealth, ServiceName
from stream.engine.partition_task import PartitionTask
from stream.engine.session import STEPS_WAITING_FOR_KAFKA, EngineRole
from stream.kafka.client.adapter import Clients, Consumer
from stream.kafka.client.broker_connections import connection_options, raise_if_refused
from stream.kafka.client.client_patches import session_timeout_error
from stream.settings import Settings, variable_of

MEMBERS_SECONDS: Final = 2.0
"""Seconds between two requests for the group's members."""
REJOIN_SECONDS: Final = 60.0
"""Seconds after which membership counts as lost if the process is absent from the group and Kafka answers."""

membership_log = get_logger("membership")


class MembershipLostError(LoggableError):
    """Membership is lost for good: another process has the name, or rejoining failed."""


class Membership:
    """Asks Kafka regularly if ``consumer`` is in the group of its role.

    While a running batch delays rejoining (``is_delayed``), the process reports that it is not a member,
    but the membership does not count as lost.
    """

    def __init__(
        self,
        role: EngineRole,
        settings: Settings,
        consumer: Consumer,
        clients: Clients,
        is_delayed: Callable[[], bool],
    ) -> None:
        self.joined = False
        """True if Kafka's last answer listed this process; it is at most a session timeout old."""
        self.absence = "has not joined its group yet"
        """The reason why this process is not a member; empty if it is one."""
        self.kafka_answers_since: float | None = None
        """Monotonic time since which Kafka has answered each request; None if it does not answer."""
        self._settings = settings
        self._role = role
        self._consumer = consumer
        self._is_delayed = is_delayed
        self._session_ms = settings.session_timeout_ms
        self._observer = clients.observer(
            **connection_options(settings),
            client_id=f"{role.member}-watch",
            request_timeout_ms=settings.session_timeout_ms,
        )
        self._last_answer_at = time.monotonic()
        self._absent_since: float | None = None

    def require_not_excluded(self) -> None:
        """Raise if the group has excluded this process for good.

        Raises:
            MembershipLostError: another process has joined with this process's name.
            RefusedTimeError: the group does not accept its session timeout.
        """
        if self._consumer.session_refused:
            raise session_timeout_error(self._session_ms)
        if self._consumer.displaced:
            raise MembershipLostError(
                f"another process has joined group {self._role.group} under the name {self._settings.instance} and has its "
                f"partitions; give each process of a role its own {variable_of('instance')}, or set none"
            )

    async def watch(self) -> NoReturn:
        """Ask for the group's members until cancelled.

        Raises:
            MembershipLostError: Kafka has not listed this process for ``REJOIN_SECONDS``.
            GroupAuthorizationFailedError: this principal may not join the group.
        """
        try:
            while True:
                await self._poll_membership()
                await asyncio.sleep(MEMBERS_SECONDS)
        finally:
            await self._observer.close()

    async def _describe_cause(self, error: Exception) -> str:
        """Name what a broker refuses, such as a user that was removed while the service runs."""
        if isinstance(error, KafkaConnectionError) and self._settings.security_protocol != "PLAINTEXT":
            try:
                await raise_if_refused(self._settings)
            except KafkaError as refused:
                return str(refused)
        return type(error).__name__

    async def _poll_membership(self) -> None:
        session_seconds = self._session_ms / 1000
        try:
            async with asyncio.timeout(session_seconds):
                members = await self._observer.members(self._role.group)
        except GroupAuthorizationFailedError:
            raise
        except (KafkaError, OSError, TimeoutError) as error:
            self.kafka_answers_since = self._absent_since = None
            # A single lost answer is no reason to act; after a session timeout Kafka has removed the member.
            if time.monotonic() - self._last_answer_at > session_seconds:
                cause = await self._describe_cause(error)
                self._set_membership(joined=False, absence=f"gets no answer about its group from Kafka ({cause})")
            return
        now = self._last_answer_at = time.monotonic()
        if self.kafka_answers_since is None:
            self.kafka_answers_since = now
        if self._consumer.member_id in members:
            self._absent_since = None
            self._set_membership(joined=True, absence="")
            return
        self._set_membership(joined=False, absence="is not in its group, according to Kafka")
        if self._absent_since is None or self._is_delayed():
            self._absent_since = now
        elif now - self._absent_since > REJOIN_SECONDS:
            raise MembershipLostError(
                f"not a member of group {self._role.group} for {REJOIN_SECONDS:.0f} s, though Kafka answers; this "
                "process ends, and its supervisor must restart it"
            )

    def _set_membership(self, *, joined: bool, absence: str) -> None:
        changed = joined is not self.joined
        self.joined, self.absence = joined, absence
        if changed and joined:
            membership_log.info("member", role=self._role.name, group=self._role.group)
        elif changed:
            membership_log.warning("not a member", role=self._role.name, group=self._role.group, reason=absence)


FAILING_SECONDS: Final = 60.0
"""Seconds of failures, or of a restore without progress, after which a partition counts as failing."""
LONG_STEP_SECONDS: Final = 60.0
"""Seconds after which a step is logged as long."""
STALLED_SECONDS: Final = 300.0
"""Seconds after which a step that only waits for Kafka has stalled, if Kafka answers."""

log = get_logger("supervision")


class StalledError(LoggableError):
    """A partition's task hangs, or ended without an order to stop."""


class Supervision:
    """Checks an engine's tasks and membership; the engine calls ``check_tasks`` about once a second."""

    def __init__(self, role: ServiceName, membership: Membership, health: ServiceHealth | EngineHealth) -> None:
        self._role = role
        self._membership = membership
        self._health = health
        self._logged_steps: dict[int, float] = {}
        """The start of each partition's last long step."""

    def check_tasks(
        self, partitions: Iterable[PartitionTask], refused: Iterable[int] = (), refusal: str = ""
    ) -> None:
        """Set metrics and readiness; ``refused`` partitions count as failing.

        Raises:
            MembershipLostError: another process has joined with this process's name.
            RefusedTimeError: the group does not accept this process's session timeout.
            StalledError: a task waits for Kafka forever; another process must take over.
        """
        self._membership.require_not_excluded()
        now, longest, failing = time.monotonic(), 0.0, [*refused]
        refusals = {refusal} if refusal else set[str]()
        for task in partitions:
            name, since = task.step.name, task.step.since
            if name == "resting":
                continue
            longest = max(longest, now - since)
            if now - since > LONG_STEP_SECONDS and self._logged_steps.get(task.partition) != since:
                self._logged_steps[task.partition] = since
                seconds = int(now - since)
                log.warning("long step", role=self._role, partition=task.partition, step=name, seconds=seconds)
            health = task.health
            if health.stop_reason:
                refusals.add(health.stop_reason)
            restoring_since = since if name == "restoring" else None
            starts = (one for one in (health.failing_since, restoring_since) if one is not None)
            if any(now - one > FAILING_SECONDS for one in starts):
                failing.append(task.partition)
            waits, answers_since = name in STEPS_WAITING_FOR_KAFKA, self._membership.kafka_answers_since
            if waits and answers_since is not None and now - max(since, answers_since) > STALLED_SECONDS:
                raise StalledError(
                    f"partition {task.partition} has been {name} for {now - since:.0f} s, though Kafka answers; this "
                    "process ends, and its supervisor must restart it"
                )
        metrics = self._health.metrics
        metrics.member.set(self._membership.joined)
        metrics.failing.set(len(failing))
        metrics.step_seconds.set(longest)
        if not self._membership.joined:
            self._health.set_not_ready_reason(f"this {self._role} {self._membership.absence}")
        elif refusals:
            self._health.set_not_ready_reason("; ".join(sorted(refusals)))
        elif failing:
            self._health.set_not_ready_reason(
                f"partitions are failing or stuck in their restore; see the log: {sorted(failing)}"
            )
        else:
            self._health.set_not_ready_reason("")
