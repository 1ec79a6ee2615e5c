"""Sotto in memory, for tests: the very processors, codecs and restore path of the services, without a broker."""

from stream.testing.driver import Driver, NotReproducibleError

__all__ = ["Driver", "NotReproducibleError"]
