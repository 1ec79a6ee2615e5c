"""Named members of consumer groups: whoever comes back under its name gets its partitions back at once (KIP-345).

Kafka keeps a name's partitions until its holder leaves, or is silent for a session. aiokafka sends the name along when it joins, and leaves three
things to be said: a member that stops in good order leaves, name or no name; one whose name somebody else has joined under
does not take it back, or the two would take turns for ever; and one whose session the group does not take is none, name or no name.
"""

from __future__ import annotations

from typing import Any, Final

from aiokafka.consumer import consumer
from aiokafka.consumer.group_coordinator import GroupCoordinator

from stream.kafka.refused_times import INVALID_SESSION_TIMEOUT

FENCED_INSTANCE_ID: Final = 82
"""Kafka's word to a member whose name has gone to another; aiokafka knows no error of this number."""


class NamedCoordinator(GroupCoordinator):  # type: ignore[misc]  # aiokafka is not typed
    """aiokafka's side of a group, with names as the module says; without a name it is aiokafka's own."""

    displaced = False
    """Whether another process has joined under this one's name. Nothing brings it back then."""
    session_refused = False
    """Whether the group takes no member with this one's session. aiokafka tells only whoever fetches."""

    _former = ""
    _group_instance_id: str | None

    def reset_generation(self) -> None:
        """Forget the place in the group, but under which id it was held: Kafka tells by it whether the name has gone to another."""
        if self._group_instance_id is not None and self.generation > 0:
            self._former = self.member_id
        super().reset_generation()

    async def _do_rejoin_group(self, subscription: Any) -> Any:
        if self._former:
            self.member_id, self._former = self._former, ""
        return await super()._do_rejoin_group(subscription)

    async def _send_req(self, request: Any) -> Any:
        response = await super()._send_req(request)
        code = getattr(response, "error_code", 0)
        self.displaced |= code == FENCED_INSTANCE_ID
        self.session_refused |= code == INVALID_SESSION_TIMEOUT
        return response

    async def _maybe_leave_group(self) -> None:
        name, self._group_instance_id = self._group_instance_id, None
        try:
            await super()._maybe_leave_group()
        finally:
            self._group_instance_id = name


def install() -> None:
    """Have every consumer of this process take part in its group so."""
    consumer.GroupCoordinator = NamedCoordinator
