"""Every piece of code in the documentation does what its page says."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schemas import EventsSource
from stream.cli.app import app
from stream.questions.live_events import Replay
from stream.settings import ALL_VARIABLES
from tests.docs.checks import check_command, check_json, check_mention, check_python
from tests.docs.pages import (
    PAGES,
    PROJECT,
    Block,
    agrees,
    commands,
    label,
    needs_broker,
    needs_installation,
    page,
    take_apart,
)

each_page = pytest.mark.parametrize("path", PAGES, ids=label)


def on_kafka(block: Block) -> bool:
    return needs_installation(block.text) or needs_broker(block.text)


@each_page
def test_python_prints_the_shown_output(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_python(block for block in page(path).of_language("python") if not on_kafka(block))


@each_page
def test_json_is_accepted_by_the_contract(path: Path) -> None:
    for block in page(path).of_language("json"):
        check_json(block.text)


@each_page
def test_commands_parse(path: Path) -> None:
    for block in page(path).of_language("", "sh", "bash", "console"):
        for command in commands(block.text):
            check_command(command)


@each_page
def test_commands_named_in_text_exist_with_their_options(path: Path) -> None:
    for code in page(path).inline:
        if code.startswith("sotto "):
            check_mention(code)


@each_page
def test_plans_named_in_text_run(path: Path) -> None:
    for code in page(path).inline:
        if re.match(r"sotto plan --mechanism [a-z_]+ ", code) and "…" not in code:
            result = CliRunner().invoke(app, shlex.split(code)[1:])
            assert result.exit_code == 0, (code, result.exception)


@each_page
def test_marks_of_replays_fit_the_source_beside_them(path: Path) -> None:
    """They are no further apart than the source allows."""
    for block in page(path).of_language("sh"):
        words = [shlex.split(command, comments=True) for command in commands(block.text)]
        added = [json.loads(one[3]) for one in words if one[1:3] == ["source", "add"] and one[3].startswith("{")]
        sources = {one["source"]: one for one in added}
        for one in words:
            if one[1:3] == ["events", "publish"] and "--marks" in one and one[3] in sources:
                source = EventsSource.model_validate_json(json.dumps(sources[one[3]]))
                Replay(source, one[one.index("--marks") + 1])


@each_page
def test_variables_are_ones_that_sotto_reads(path: Path) -> None:
    named = set(re.findall(r"\bSOTTO_[A-Z_]*[A-Z]\b(?!…)", path.read_text()))
    assert named <= ALL_VARIABLES


@each_page
def test_make_targets_and_modules_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (PROJECT / "Makefile").read_text(), flags=re.MULTILINE))
    code = [*page(path).inline, *(line for block in page(path).blocks for line in block.text.splitlines())]
    for line in map(str.strip, code):
        if found := re.match(r"make ([a-z]+)", line):
            assert found[1] in targets, line
        if found := re.match(r"(?:\.venv/bin/)?python -m ([a-z_.]+)", line):
            assert importlib.util.find_spec(found[1]) is not None, line


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_developer_documents_name_existing_paths(document: str) -> None:
    code = page(PROJECT / document).inline
    paths = [one for one in code if re.fullmatch(r"(stream|schemas|tests|docs)(/[a-z_.]+)+", one)]
    assert len(paths) > 20
    assert [path for path in paths if not (PROJECT / path).exists()] == []


RIGHT = """
`sotto plan --mechanism KIND …`

```python
print(1 + 1)
```

```text
2
```

```json
{"id": "1", "stream": "s", "value": 1}
{"stream": "s", "source": "v", "epsilon": 1, "mechanism": {"kind": "laplace", "answers": 3}}
```

```sh
A=b sotto source add '{"source": "v", "kind": "values",
  "neighbors": "replace", "epsilon": 1, "sensitivity": 1}'   # with its budget
```
"""


def check_everything(text: str) -> None:
    found = take_apart(text)
    check_python(found.of_language("python"))
    for block in found.of_language("json"):
        check_json(block.text)
    for block in found.of_language("sh"):
        for command in commands(block.text):
            check_command(command)
    for code in found.inline:
        check_mention(code)


def test_correct_page_passes() -> None:
    check_everything(RIGHT)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("\n2\n", "\n3\n"),
        ("1 + 1", "1 +"),
        ("1 + 1", "one"),
        ('"value": 1', '"value": "one"'),
        ('"value": 1', '"valve": 1'),
        ('"answers": 3', '"answers": 0'),
        ('"id": "1", "stream"', '"name"'),
        ('"mechanism": {', '"mechanics": {'),
        ("source add", "source put"),
        ("source add", "source add --quickly"),
        ('"sensitivity": 1}', '"sensitivity": -1}'),
        ("1}'   #", "1}   #"),
        ("--mechanism", "--mechanics"),
        ("sotto plan", "sotto plot"),
    ],
)
def test_wrong_page_fails(right: str, wrong: str) -> None:
    assert RIGHT.count(right) == 1
    with pytest.raises(Exception, match=r"."):
        check_everything(RIGHT.replace(right, wrong))


SHOWN = """
counts … answer 1,204 (±53, 95 %: 1,174 to 1,234, fresh), 9 charged answers left
┏━━━━━━┳━━━━━━━┓
┃ site ┃ n     ┃
┡━━━━━━╇━━━━━━━┩
│ a 1  │ 980 ± 53.1 │
└──────┴───────┘
"""
PRINTED = """
counts 3f2c answer 1,150 (±53, 95 %: 1,119 to 1,181, fresh), 9 charged answers left
┏━━━━━┳━━━━━━━━━┓
┃ site ┃ n       ┃
┡━━━━━╇━━━━━━━━━┩
│ a 1  │ 1,010 ± 54 │
└─────┴─────────┘
"""


def test_agrees_allows_twice_the_bound() -> None:
    assert agrees(SHOWN.replace("…", "3f2c"), SHOWN)
    assert agrees(PRINTED, SHOWN)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("1,150", "1,050"),
        ("1,181", "1,481"),
        ("1,010", "1,310"),
        ("9 charged", "8 charged"),
        ("±53", "±83"),
        ("fresh", "gap"),
        ("site", "n"),
    ],
)
def test_agrees_refuses_other_outputs(right: str, wrong: str) -> None:
    assert PRINTED.count(right) == 1
    assert not agrees(PRINTED.replace(right, wrong), SHOWN)
