"""Every example of docs/contract.md is valid by the contract, and its figures are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from schemas import MAX_DEFINITION_BYTES, MAX_EVENT_BYTES, Answer, Query, Request, form_of
from schemas.answers import ANSWER_TYPE
from schemas.queries import Form
from stream.dev.contract_events import EVENTS, standalone_schema
from stream.processing.topic_names import partition_of

PAGE = (Path(__file__).parents[3] / "docs" / "contract.md").read_text(encoding="utf-8")
EXAMPLES = [line for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


def model_of(example: dict[str, Any]) -> Any:
    if "request" in example:
        return Request
    return Answer if "outcome" in example else Query


@pytest.mark.parametrize("text", EXAMPLES)
def test_contract_page_examples_are_valid(text: str) -> None:
    example = json.loads(text)
    event = TypeAdapter(model_of(example)).validate_json(text)
    schema = next(standalone_schema(kind) for kind in EVENTS if kind.model is type(event))
    Draft202012Validator(schema).validate(example)


def test_contract_page_has_example_of_each_form_kind_and_outcome() -> None:
    examples = [json.loads(text) for text in EXAMPLES]
    forms = {form_of(Query.model_validate(one)) for one in examples if model_of(one) is Query}
    assert forms == set(get_args(Form))
    kinds = {one["kind"] for one in examples if "request" in one}
    assert kinds == {
        *("register", "open", "extend", "halt", "close", "halt_source", "refresh"),
        *("register_population", "join", "allot"),
    }
    outcomes = {one["outcome"] for one in examples if "outcome" in one}
    assert outcomes == {"above", "below", "answer", "halted", "rejected"}


def test_contract_page_has_correct_partitions_of_keys() -> None:
    rows = re.findall(r"^\| `(\S+)` \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 3
    for name, of_4, of_12 in rows:
        assert (partition_of(name.encode(), 4), partition_of(name.encode(), 12)) == (int(of_4), int(of_12))


def test_contract_page_has_limits_and_names_of_code() -> None:
    for figure in (
        f"{MAX_EVENT_BYTES:,} bytes",
        f"{MAX_DEFINITION_BYTES:,} bytes",
        f"`{ANSWER_TYPE.decode()}`",
    ):
        assert figure in PAGE.replace("\n", " "), figure
