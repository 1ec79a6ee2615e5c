"""Runs ``sotto`` as ``python -m stream.cli``: services are started with the current interpreter."""

from stream.cli.app import main

if __name__ == "__main__":
    main()
