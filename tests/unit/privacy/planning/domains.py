"""Domains of the tests of estimates."""

from __future__ import annotations

FIVE = (85, 2, 16, 5, 2)
FOURTEEN = (85, 2, 9, 100, 16, 7, 15, 6, 5, 100, 100, 99, 42, 2)
