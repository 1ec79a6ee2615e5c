"""The ``sotto`` command, and ``python -m sotto``."""

from __future__ import annotations

import sys

from sotto import require_own_packages


def main() -> None:
    """Run the command line; one line where a module of another's hides one of Sotto's packages."""
    try:
        require_own_packages()
    except ImportError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)
    from stream.cli import main as run  # noqa: PLC0415  (it is the right one only now)

    run()


if __name__ == "__main__":
    main()
