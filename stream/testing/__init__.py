"""An in-memory installation for tests, with the services' processors and without a broker."""

from stream.testing.driver import Driver, NotReproducibleError

__all__ = ["Driver", "NotReproducibleError"]
