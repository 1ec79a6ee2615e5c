"""The read-only DB-API 2.0 module (PEP 249) of Sotto: ``connect``, and the names that the standard requires."""

from sotto import require_own_packages

require_own_packages()

from stream.dbapi import *  # noqa: E402, F403
from stream.dbapi import __all__ as __all__  # noqa: E402, PLC0414
