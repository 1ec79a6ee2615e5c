"""Answers: what consumers read."""

from __future__ import annotations

from typing import ClassVar, Literal

from schemas.base import (
    Amount,
    Count,
    Event,
    Identifier,
    Incarnation,
    Position,
    Reason,
    SparingEvent,
    Surplus,
    Version,
)
from schemas.checkpoints import StreamState
from schemas.queries import Group
from schemas.windows import Window

Outcome = Literal["above", "below", "answer", "halted", "rejected"]


class Answer(Event):
    """The one answer to one query. Fields that are null are left out of the JSON.

    ``index`` counts the stream's answered queries from 0; it is null for ``halted`` and ``rejected``, which use
    up nothing. ``estimate`` is the number asked for, ``estimates`` several of them in the order asked (cells in row-major
    order), ``choice`` a category or a candidate's name; ``alpha`` bounds the error of each number with the stream's
    probability 1 − β, and ``basis`` says what it rests on. ``spent`` is the stream's realised privacy loss so far,
    ``tops_left`` how many more charged answers (⊤s, updates, noisy answers) its grant pays for, null where one charge
    pays for all; both are null for ``rejected``, which never reaches its stream. ``price`` is the ε that an answer to a question
    with an ``alpha`` was charged, 0 where what it asks for was known; of one ``rejected`` for its price, the ε that is asked; null
    where Gaussian noise was charged, which has no ε of its own. ``version`` is that of the data which the answer is about, null for the
    first. ``window`` and ``group`` say what an answer of a standing stream is about.
    """

    wire_omits_defaults: ClassVar[bool] = True

    id: str
    stream: str
    outcome: Outcome
    index: Count | None = None
    estimate: float | None = None
    basis: str | None = None
    reason: Reason | None = None
    spent: Amount | None = None
    tops_left: Count | None = None
    estimates: tuple[float, ...] | None = None
    choice: str | None = None
    alpha: float | None = None
    price: float | None = None
    version: Version | None = None
    window: Window | None = None
    group: Group | None = None


class StreamStatus(SparingEvent):
    """A stream's totals at ``position``, the last query that it answered; the latest wins.

    ``refused`` says why its worker does not answer for it now, though the stream has not ended: its table is another, or the
    noise key is not there.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"surplus"})

    stream: Identifier
    source: Identifier
    incarnation: Incarnation
    state: StreamState
    answered: Count
    tops: Count
    tops_left: Count | None
    spent: Amount
    alpha: float
    position: Position
    refused: Reason | None = None
    surplus: Surplus = 0


class PartitionStatus(Event):
    """How far a service has restored one input partition; the latest wins.

    Written while a partition is restored and once when it is ready, under a key that no stream's name can be
    (``@role|partition``). ``records`` are read so far, of at most ``total`` offsets.
    """

    role: Literal["worker", "budget", "feed"]
    partition: Count
    member: str
    phase: Literal["restoring", "ready"]
    records: Count
    total: Count
    seconds: float


class MemberStatus(Event):
    """A service process that runs; the latest wins.

    Written every ten seconds under a key that no stream's name can be (``@member|NAME``), and taken back when the process
    leaves; that of one that was killed stays. ``started`` is in seconds since the epoch, ``memory`` what it takes up, in bytes.
    """

    role: Literal["worker", "budget", "feed"]
    member: str
    version: str
    started: float
    memory: Count
