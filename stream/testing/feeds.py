"""The role of feeds in memory: a task for each partition of each live topic, and merging."""

from __future__ import annotations

from stream.processors.feeds.definitions import Definitions
from stream.processors.feeds.merging import MergeProcessor
from stream.processors.feeds.processor import FeedProcessor
from stream.processors.topics import Topics
from stream.testing.tasks import Logs, Task


class Feeds:
    """Restored when made. Live topics have as many partitions as the installation."""

    def __init__(self, topics: Topics, logs: Logs) -> None:
        self._topics = topics
        self._logs = logs
        self._definitions = Definitions()
        self._heard = dict.fromkeys(range(topics.partitions), 0)
        self._tasks: dict[tuple[str, int], tuple[FeedProcessor, Task]] = {}
        self._merging = [
            Task(MergeProcessor(topics, number, self._definitions), number, logs) for number in self._heard
        ]

    def step(self) -> bool:
        """Let every task take in what is new; whether there was anything."""
        moved = self._hear()
        for _, task in self._tasks.values():
            moved |= task.step()
        for task in self._merging:
            moved |= task.step()
        return moved

    def idle(self, now: float) -> bool:
        """Close the windows that are due at a time, since there is no event left; whether there was anything."""
        moved = False
        for processor, task in self._tasks.values():
            processor.reached_end(now)
            moved |= task.idle(now)
            while processor.behind:
                moved |= task.idle(now)
        for task in self._merging:
            moved |= task.idle(now)
        return moved

    def _hear(self) -> bool:
        """Take in what control tells, and begin with sources that are new."""
        moved = False
        for number, at in self._heard.items():
            if news := self._logs.log((self._topics.control, number))[at:]:
                self._definitions.take(news)
                self._heard[number] = at + len(news)
                moved = True
        for name, source in self._definitions.sources().items() if moved else ():
            # There is but one clock here, and everybody hears at once: nobody need wait for those who are slow.
            prompt = source.model_copy(update={"idle": "0s"})
            for number in range(self._topics.partitions):
                if (name, number) not in self._tasks:
                    processor = FeedProcessor(
                        self._topics, prompt, number, self._topics.partitions, self._definitions
                    )
                    self._tasks[name, number] = (processor, Task(processor, number, self._logs))
        return moved
