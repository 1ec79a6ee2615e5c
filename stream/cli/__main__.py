"""``python -m stream.cli``, for starting services with the interpreter at hand."""

from stream.cli.app import main

if __name__ == "__main__":
    main()
