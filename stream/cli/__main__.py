"""Runs ``sotto`` as ``python -m stream.cli``, so that services can be started with the current interpreter."""

from stream.cli.app import main

if __name__ == "__main__":
    main()
