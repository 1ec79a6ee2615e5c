"""How the budget service tells a stream's worker what it may do."""

from __future__ import annotations

from schemas import MAX_RECORD_BYTES, Control
from schemas.wire import Codec
from stream.accounting.accounts import Account
from stream.accounting.grants import Grant
from stream.processors.base import Message, Outputs
from stream.processors.budget.openings import control_event
from stream.processors.topics import Topics, partition_of

_control_codec: Codec[Control] = Codec(Control, limit=MAX_RECORD_BYTES)


class Workers:
    """The workers, as the budget service reaches them."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def tell(self, account: Account, grant: Grant, outputs: Outputs) -> None:
        """Tell the stream's worker what it may do now."""
        control = control_event(account, grant)
        key = grant.spec.stream.encode()
        message: Message = (key, _control_codec.encode(control), ())
        outputs.add(self._topics.control, partition_of(key, self._topics.partitions), message)
