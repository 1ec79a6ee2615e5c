"""The one error of the local broker."""

__all__ = ["BrokerError"]


class BrokerError(RuntimeError):
    """The local broker cannot do what was asked; the message is one line that says what to do."""
