"""Starts the command line for ``sotto`` and ``python -m sotto``."""

from __future__ import annotations

import sys

from sotto import require_own_packages


def main() -> None:
    """Run the command line; print one line if another module hides a package of Sotto."""
    try:
        require_own_packages()
    except ImportError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)
    from stream.cli import main as run  # noqa: PLC0415  (only after the check)

    run()


if __name__ == "__main__":
    main()
