"""What goes wrong in Kafka or on the wire, as one of the family that clients raise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aiokafka.errors import KafkaError

from schemas.wire import MalformedEventError
from stream.errors import Forbidden, Invalid, SottoError, Unreachable
from stream.kafka.differences import TopicsError
from stream.kafka.security import advice, is_refusal


@contextmanager
def translated() -> Iterator[None]:
    """Raise a SottoError in place of what Kafka's client or the contract raises."""
    try:
        yield
    except MalformedEventError as error:
        raise Invalid(str(error)) from error
    except TopicsError as error:
        raise Unreachable(str(error)) from error
    except KafkaError as error:
        raise translation(error) from error


def translation(error: KafkaError) -> SottoError:
    """The member of the family that an error of Kafka's is."""
    return (Forbidden if is_refusal(error) else Unreachable)(advice(error))
