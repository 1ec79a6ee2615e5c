"""The version of what is installed or unpacked here, and its name for strangers."""

from typing import Final

VERSION: Final = "0.1.0"

SERVER_NAME: Final = "sotto"
"""The ``Server`` header of all that answers HTTP: which versions run there is nothing for strangers."""
