"""How often Python looks for garbage: by default every 700 objects, of which a batch makes hundreds of thousands that live but a moment."""

from __future__ import annotations

import gc


def look_rarely() -> None:
    """Look for garbage rarely, and never among what is there already: all that is imported stays."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
