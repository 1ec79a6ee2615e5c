"""``Driver``, an in-memory installation for tests: the services' processors without a broker."""

from stream.testing.driver import Driver, NotReproducibleError

__all__ = ["Driver", "NotReproducibleError"]
