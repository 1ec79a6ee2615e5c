"""Times of the settings that a broker refuses: it has bounds of its own, which only it knows."""

from __future__ import annotations

from typing import Final

from aiokafka.errors import InvalidSessionTimeoutError, KafkaError

from stream.settings import variable

INVALID_SESSION_TIMEOUT: Final[int] = InvalidSessionTimeoutError.errno
"""Kafka's word to a member with such a session."""


class RefusedTimeError(KafkaError):  # type: ignore[misc]  # aiokafka is not typed
    """A broker refuses one of our times, today and tomorrow; one line that names the setting, and the broker's."""

    def __str__(self) -> str:
        return str(self.args[0])


def refused_session(milliseconds: int) -> RefusedTimeError:
    """The error of a member whose session is too short or too long for the group's coordinator."""
    return RefusedTimeError(
        f"{variable('session_timeout_ms')}: Kafka refuses a session of {milliseconds} ms; set one between the brokers' "
        "group.min.session.timeout.ms and group.max.session.timeout.ms, or change those"
    )


def refused_transaction(milliseconds: int) -> RefusedTimeError:
    """The error of a producer whose transactions may last too long for their coordinator."""
    return RefusedTimeError(
        f"{variable('transaction_timeout_ms')}: Kafka refuses transactions of {milliseconds} ms; set no more than the "
        "brokers' transaction.max.timeout.ms, or raise that"
    )
