"""An engine looks after itself: what its tasks do, whether it is a member, and what it says of that."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from stream.kafka.health import Health, Part
from stream.kafka.membership import Membership
from stream.kafka.partition import PartitionTask
from stream.kafka.roles import ServiceName
from stream.kafka.steps import ON_KAFKA
from stream.log import get_logger

FAILING_SECONDS: Final = 60.0
"""A partition that has started over for so long, or whose restore has not gone on, makes its service not ready."""
LONG_SECONDS: Final = 60.0
"""A step that takes so long is worth a line in the log."""
STALLED_SECONDS: Final = 300.0
"""A wait for Kafka that is over in moments, and has lasted so long while Kafka answers, will never end."""

log = get_logger("supervision")


class StalledError(RuntimeError):
    """A partition's task hangs, or has gone without being told to stop."""


class Supervision:
    """Looks at everything once a second, at an engine's behest."""

    def __init__(self, role: ServiceName, membership: Membership, health: Health | Part) -> None:
        self._role = role
        self._membership = membership
        self._health = health
        self._long: dict[int, float] = {}

    def look(self, partitions: Iterable[PartitionTask], refused: Iterable[int] = (), refusal: str = "") -> None:
        """Take figures, and say what is lacking; partitions that are ``refused`` count among those that fail.

        Raises:
            MembershipLostError: another process has this one's name.
            RefusedTimeError: the group takes no member with this one's session.
            StalledError: a task waits for Kafka for good; its process must end, for others to take over.
        """
        self._membership.require_place()
        now, longest, failing = time.monotonic(), 0.0, [*refused]
        refusals = {refusal} if refusal else set[str]()
        for task in partitions:
            name, since = task.step.name, task.step.since
            if name == "resting":
                continue
            longest = max(longest, now - since)
            self._tell_if_long(task, now)
            health = task.health
            if health.refusal:
                refusals.add(health.refusal)
            restoring_since = since if name == "restoring" else None
            begun = (one for one in (health.failing_since, restoring_since) if one is not None)
            if any(now - one > FAILING_SECONDS for one in begun):
                failing.append(task.partition)
            contact = self._membership.contact
            if name in ON_KAFKA and contact is not None and now - max(since, contact) > STALLED_SECONDS:
                raise StalledError(
                    f"partition {task.partition} has been {name} for {now - since:.0f} s, though Kafka answers; this "
                    "process ends so that its supervisor starts it again"
                )
        metrics = self._health.metrics
        metrics.member.set(self._membership.joined)
        metrics.failing.set(len(failing))
        metrics.step_seconds.set(longest)
        if not self._membership.joined:
            self._health.tell(f"this {self._role} {self._membership.absence}")
        elif refusals:
            self._health.tell("; ".join(sorted(refusals)))
        elif failing:
            self._health.tell(
                f"partitions start over again and again, or their restore does not go on, see the log: {sorted(failing)}"
            )
        else:
            self._health.tell("")

    def _tell_if_long(self, task: PartitionTask, now: float) -> None:
        step = task.step
        if now - step.since > LONG_SECONDS and self._long.get(task.partition) != step.since:
            self._long[task.partition] = step.since
            log.warning(
                "long step",
                role=self._role,
                partition=task.partition,
                step=step.name,
                seconds=int(now - step.since),
            )
