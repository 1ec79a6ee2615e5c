"""The errors of the local broker."""

__all__ = ["BrokerError", "PortTakenError"]


class BrokerError(RuntimeError):
    """The local broker cannot do what was asked; the message is one line that says what to do."""


class PortTakenError(BrokerError):
    """Somebody else took a port between our look at it and the broker's."""
