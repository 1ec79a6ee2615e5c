"""Answers: what consumers read."""

from __future__ import annotations

from typing import ClassVar, Literal

from schemas.base import Amount, Count, Event, Reason, Version
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
