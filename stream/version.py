"""The version of what is installed or unpacked here."""

from typing import Final

VERSION: Final = "0.1.0"
