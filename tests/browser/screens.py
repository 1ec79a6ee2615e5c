"""Sizes of the screens on which pictures are taken."""

from __future__ import annotations

from typing import Any

DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 1030}}
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2}
SCREENS: dict[str, dict[str, Any]] = {
    "light": DESKTOP,
    "dark": {**DESKTOP, "color_scheme": "dark"},
    "phone": PHONE,
    "phone-dark": {**PHONE, "color_scheme": "dark"},
}
