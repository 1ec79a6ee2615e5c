"""The pictures of terminals show what commands print."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

from schemas import Mechanism
from tests.docs.pages import DOCS

IMAGES = DOCS / "images"
SVG = "{http://www.w3.org/2000/svg}"
PLAN = shlex.split("sotto plan --mechanism above_threshold --epsilon 1 --queries 1000")


@pytest.fixture(scope="module")
def terminal() -> ModuleType:
    spec = importlib.util.spec_from_file_location("terminal", IMAGES / "terminal.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def letters(text: str) -> str:
    """Return a text without its spaces, because their places depend on line breaks."""
    return "".join(text.split())


def shown(picture: str) -> str:
    """Return all letters of a picture, in order."""
    return letters("".join(text.text or "" for text in ET.fromstring(picture).iter(f"{SVG}text")))  # noqa: S314  (drawn here)


def test_picture_shows_all_output_and_loads_nothing(terminal: ModuleType) -> None:
    printed = terminal.record(PLAN)
    picture = terminal.draw(printed, "sotto plan")
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed)
    assert "\x1b[" in printed, "the command saw no terminal"
    assert letters(plain) in shown(picture)
    assert "url(" not in re.sub(r"url\(#", "", picture)


def test_drawing_a_failing_command_is_an_error(terminal: ModuleType) -> None:
    with pytest.raises(Exception, match="non-zero exit status"):
        terminal.record(["sotto", "plan", "--mechanism", "nonsense"])


def test_demo_picture_has_a_line_for_every_mechanism() -> None:
    """All promises hold in it."""
    picture = shown(Path(IMAGES / "demo.svg").read_text())
    for model in Mechanism.__args__[0].__args__:
        kind = model.model_fields["kind"].annotation.__args__[0]
        if kind == "running_count":
            continue  # the demo's questions are about a table, without live topics
        assert letters(f"{kind} keeps its promise") in picture
    assert letters("$ sotto demo") in picture
    assert "FAILS" not in picture
    assert letters("20,000 asked, 20,000 answered, 0 missing, 0 twice") in picture
