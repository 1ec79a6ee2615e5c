"""Why a feed goes on with a partition no more, in words that may be logged and shown."""

from __future__ import annotations

from stream.processors.base import InputRefusedError


class FeedRefusedError(InputRefusedError):
    """A live topic is not as its source says, and what is counted of it would not be what was promised."""


class UnstampedError(FeedRefusedError):
    """The topic does not stamp events itself: when they came is whatever their writers say."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"{topic}: holds events with their writers' time; set message.timestamp.type=LogAppendTime on it, and delete the records "
            "that it holds (they keep their time) or register another source for another topic, or with clock 'marks'"
        )


class RecreatedError(FeedRefusedError):
    """The topic was deleted and created again: what it held and was not counted is gone, and may come a second time."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"{topic}: was deleted and created again while windows were open, whose counts would be wrong; close the streams of "
            "this source, and register another source for the topic as it is"
        )


class RecutError(FeedRefusedError):
    """The topic has another number of partitions than when counting began: people are in other partitions now."""

    def __init__(self, topic: str, before: int, now: int) -> None:
        super().__init__(
            f"{topic}: has {now} partitions, and had {before} when its first stream began; close the streams of this "
            "source, and register another source for the topic as it is"
        )
