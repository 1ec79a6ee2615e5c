"""Views that are watched: each is made once for all connections that ask for the same, within a share of the event loop's time.

A view is made in the event loop, which has readers and other askers to serve. So views are made one at a time, in turns between
the names that watch, and after each the loop is free of them for a multiple of what it took: what costs much comes less often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final

from pydantic import BaseModel

from stream.monitor.models import ViewName
from stream.monitor.monitor import Monitor
from stream.monitor.problems import ProblemError
from stream.monitor.turns import GoneError, Turns

INTERVAL = 1.0
"""Shortest time between two makings of one view, in seconds."""
REFRESH = 5.0
"""Longest time that a view goes unchecked: rates change with time alone."""
REST: Final = 3.0
"""How often as long as making a view took no other is made: a quarter of the time goes to them at most."""


@dataclass(eq=False)
class LiveView:
    """One view for one query; ``edition`` grows whenever its text changes."""

    name: ViewName
    key: Hashable
    make: Callable[[], BaseModel]
    text: str = field(default="", repr=False)
    edition: int = 0
    watchers: int = 0
    version: int = -1
    made: float = float("-inf")
    making: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """By the name that it is made for: nobody waits behind what else another one watches."""
    failure: Exception | None = None


class LiveViews:
    """All views that somebody watches."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._turns = Turns(rest=REST)
        self._views: dict[Hashable, LiveView] = {}

    def watch(self, name: ViewName, query: Hashable, make: Callable[[], BaseModel]) -> LiveView:
        """A view with one watcher more."""
        key = (name, query)
        view = self._views.setdefault(key, LiveView(name, key, make))
        view.watchers += 1
        view.failure = None
        return view

    def leave(self, view: LiveView) -> None:
        """A view has one watcher less."""
        view.watchers -= 1
        if not view.watchers:
            del self._views[view.key]

    def close(self) -> None:
        """Make nothing more."""
        for view in self._views.values():
            for task in view.making.values():
                task.cancel()

    async def refresh(self, views: Iterable[LiveView], who: str) -> None:
        """Make what may be shown otherwise now; what takes longer than an interval is there another time."""
        tasks = []
        for view in views:
            if view.failure is not None:
                raise view.failure
            if who in view.making:
                tasks.append(view.making[who])
            elif not self._is_fresh(view):
                view.making[who] = asyncio.create_task(self._in_turn(view, who))
                tasks.append(view.making[who])
        if tasks:
            await asyncio.wait(tasks, timeout=INTERVAL)

    def _is_fresh(self, view: LiveView) -> bool:
        age = asyncio.get_running_loop().time() - view.made
        return age < INTERVAL or (age < REFRESH and view.version == self._monitor.version(view.name))

    async def _in_turn(self, view: LiveView, who: str) -> None:
        try:
            async with self._turns.turn(who, lambda: not view.watchers):
                if not self._is_fresh(view):
                    self._make(view)
        except GoneError:
            pass
        except Exception as error:  # noqa: BLE001  (whoever watches ends with it)
            view.failure = error
        finally:
            del view.making[who]

    def _make(self, view: LiveView) -> None:
        view.version, view.made = self._monitor.version(view.name), asyncio.get_running_loop().time()
        try:
            text = f"event: {view.name}\ndata: {view.make().model_dump_json()}"
        except ProblemError as error:
            text = f"event: problem\ndata: {error.problem.model_dump_json()}"
        if text != view.text:
            view.text = text
            view.edition += 1
