"""What goes wrong with a statement."""

from __future__ import annotations

from stream.errors import Invalid


class StatementError(Invalid):
    """A statement asks what no stream can be asked; the message says what can be asked in its place.

    It depends on the statement and on declared attributes alone.
    """
