"""Parses the documentation's pages into code blocks, code within text, and links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

PROJECT = Path(__file__).parents[2]
DOCS = PROJECT / "docs"
PAGES = [PROJECT / "README.md", *sorted(DOCS.rglob("*.md"))]
"""The README, and all pages of the site."""

_COMMAND = re.compile(r"^(\$ )?(\w+=\S+ )*(\.venv/bin/)?sotto\b")
_LONGEST_COMMAND = 40
_NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
_CELL = re.compile(rf"(?<![\w.,]){_NUMBER}(?!\w)")
_BESIDE_BOUND = re.compile(
    rf"(?<![\w.,]){_NUMBER}(?= \(?±)|(?<=±){_NUMBER}|(?<=95 %: ){_NUMBER}(?= to )|(?<=\d to ){_NUMBER}(?=[,)])"
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the text of a ``text`` block directly after it, if there is one."""

    place: str
    language: str
    text: str
    output: str | None = None


@dataclass(frozen=True)
class Page:
    """The parts of a page that can be checked."""

    blocks: tuple[Block, ...]
    inline: tuple[str, ...]
    links: tuple[str, ...]

    def of_language(self, *languages: str) -> list[Block]:
        """Return the blocks in any of these languages."""
        return [block for block in self.blocks if block.language in languages]


def needs_installation(code: str) -> bool:
    """Return whether a piece of Python connects to an installation on Kafka."""
    return re.search(r"\b(Async)?Client\(", code) is not None


def needs_broker(code: str) -> bool:
    """Return whether a piece of Python writes to Kafka by a client that is not Sotto's."""
    return re.search(r"\bProducer\(|\bAIOKafkaProducer\(", code) is not None


def take_apart(text: str, name: str = "page") -> Page:
    """Return a page's blocks, code and links."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inside = [child for token in tokens for child in token.children or ()]
    return Page(
        tuple(_blocks(tokens, name)),
        tuple(" ".join(token.content.split()) for token in inside if token.type == "code_inline"),
        tuple(str(token.attrs["href"]) for token in inside if token.type == "link_open"),
    )


@cache
def page(path: Path) -> Page:
    """Return a page of the project."""
    return take_apart(path.read_text(), str(path.relative_to(PROJECT)))


def label(path: Path) -> str:
    """Return a page's name in the list of tests."""
    return str(path.relative_to(PROJECT))


def commands(text: str) -> Iterator[str]:
    """Return each ``sotto`` command of a shell block; commands of several lines are joined."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if not _COMMAND.match(line):
            continue
        for end in range(number + 1, min(number + _LONGEST_COMMAND, len(lines)) + 1):
            command = "\n".join(lines[number:end])
            if not command.endswith("\\") and is_complete(command):
                yield command.removeprefix("$ ")
                break
        else:
            raise ValueError(f"a quotation mark is missing in: {line}")


def is_complete(command: str) -> bool:
    """Return whether all quotation marks are closed."""
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


def matches(output: str, wanted: str) -> bool:
    """Return whether an output equals the output on a page, where ``…`` stands for any text."""
    pattern = ".*".join(re.escape(part) for part in wanted.strip().split("…"))
    return re.fullmatch(pattern, output.strip()) is not None


def agrees(output: str, wanted: str) -> bool:
    """Return whether an output with noisy numbers agrees with the one on a page.

    A number before a ±, in a 95 % interval or in a row of a table may differ by twice the largest ± of the page's output.
    A ± may differ by a tenth.
    Lines and spaces of tables may be longer or shorter. A last line … stands for one or more lines of an output without
    ±. All else must match.
    """
    if "±" not in wanted:
        lines, shown = output.splitlines(), wanted.splitlines()
        if shown[-1:] == ["…"]:
            lines = lines[: len(shown)]
        return len(lines) == len(shown) and all(map(matches, lines, shown))
    bounds = [_number(found) for found in re.findall(rf"± ?({_NUMBER})", wanted)]
    pattern, numbers = _noisy_pattern(wanted.strip())
    found = re.fullmatch(pattern, output.strip())
    return found is not None and all(
        abs(_number(printed) - number) <= (number / 10 if is_bound else 2 * max(bounds))
        for printed, (number, is_bound) in zip(found.groups(), numbers, strict=True)
    )


def _noisy_pattern(wanted: str) -> tuple[str, list[tuple[float, bool]]]:
    """Return a pattern that captures noisy numbers, with each number of the page and whether it is a ±."""
    pattern, shown = [], []
    for line in wanted.splitlines():
        noisy = _CELL if "│" in line else _BESIDE_BOUND
        place = 0
        for found in noisy.finditer(line):
            pattern += [_literal(line[place : found.start()]), f"({_NUMBER})"]
            shown.append((_number(found[0]), line[: found.start()].rstrip().endswith("±")))
            place = found.end()
        pattern += [_literal(line[place:]), r"\s*\n"]
    return "".join(pattern[:-1]), shown


def _literal(text: str) -> str:
    parts = re.split(r"(…|[━─]+|\s+)", text)
    kinds = {"…": r"[^\n]*", "━": "━+", "─": "─+", " ": r"[^\S\n]+"}
    return "".join(kinds.get(part[:1]) or re.escape(part) for part in parts)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _blocks(tokens: list[Token], name: str) -> Iterator[Block]:
    for number, token in enumerate(tokens):
        if token.type != "fence":
            continue
        following = tokens[number + 1] if number + 1 < len(tokens) else None
        shown = following is not None and following.type == "fence" and following.info == "text"
        line = token.map[0] + 1 if token.map else 0
        yield Block(
            f"{name}:{line}", token.info, token.content, following.content if shown and following else None
        )
