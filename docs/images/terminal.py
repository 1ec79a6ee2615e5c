"""Draw what a command prints as a picture: ``python docs/images/terminal.py docs/images/demo.svg sotto demo``.

The command runs for real, and the picture shows what it printed.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import rich
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

COLUMNS = 112
"""Width of the terminal that the command sees."""

_CONTROL = re.compile(r"\x1b\[\?\d+[hl]|\r")
_FONT_FACE = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
_FONT = "font-family: Fira Code, monospace"
_OWN_FONT = "font-family: Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def record(command: list[str]) -> str:
    """What a command prints to a terminal, on both outputs; CalledProcessError if it fails."""
    terminal = {"COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TTY_INTERACTIVE": "0", "TERM": "xterm-256color"}
    own = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        command,
        env={**os.environ, **terminal, "PATH": own},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
    )
    return result.stdout.decode()


def draw(printed: str, command: str) -> str:
    """A terminal in which a command printed this, as SVG."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.assemble(("$ ", "dim"), (command, "bold")))
    for line in _CONTROL.sub("", printed).splitlines():
        console.print(Text.from_ansi(line))
    picture = console.export_svg(title=command, theme=DIMMED_MONOKAI, unique_id="terminal")
    return _FONT_FACE.sub("", picture).replace(_FONT, _OWN_FONT)  # a page loads no fonts from elsewhere


def main() -> None:
    """Draw the command of the second argument and those after it into the file of the first."""
    target, *command = sys.argv[1:]
    printed = record(command)
    Path(target).write_text(draw(printed, shlex.join(command)))
    rich.print(f"{target}: {len(printed.splitlines())} lines")


if __name__ == "__main__":
    main()
