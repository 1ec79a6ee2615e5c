"""Asking everything until it is answered: a question that came too soon is asked again, as docs/contract.md has it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from schemas import Answer, Query
from stream.processors.rejections import BUSY

ATTEMPTS: Final = 100
"""So often a question is asked at most; each time some of those that are left find room."""

AskAll = Callable[[Sequence[Query]], Awaitable[Sequence[Answer]]]
Sleep = Callable[[float], Awaitable[object]]

_seconds = re.compile(r"ask it again in (\d+) s")


async def answered(ask_all: AskAll, queries: Sequence[Query], sleep: Sleep = asyncio.sleep) -> list[Answer]:
    """The answers, in the order of the questions; those that were busy are asked again, each time with a new id."""
    found = list(await ask_all(queries))
    for attempt in range(1, ATTEMPTS):
        early = [place for place, answer in enumerate(found) if _is_busy(answer)]
        if not early:
            break
        await sleep(min(_wait(found[place]) for place in early))
        again = [queries[place].model_copy(update={"id": f"{queries[place].id}/{attempt}"}) for place in early]
        for place, answer in zip(early, await ask_all(again), strict=True):
            found[place] = answer
    return found


def _is_busy(answer: Answer) -> bool:
    return answer.outcome == "rejected" and (answer.reason or "").startswith(f"{BUSY}:")


def _wait(answer: Answer) -> float:
    """In how many seconds there is room again, as the answer says."""
    said = _seconds.search(answer.reason or "")
    return float(said[1]) if said else 1.0
