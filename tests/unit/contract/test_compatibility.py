"""A change that breaks a reader is found; one that breaks nobody passes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.dev.contract.asyncapi import document
from stream.dev.contract.contract_events import CONTRACT_VERSION
from stream.dev.contract.contract_files import DOCUMENT, VERSIONS, UnknownKeywordError, breaks, broken
from tests.unit.contract import changes
from tests.unit.contract.changes import Json, Seed

CURRENT = document()
FOLDER = Path(__file__).parents[3] / "contract"


def seeds(sow: Callable[[Json], Iterator[Seed]]) -> st.SearchStrategy[Seed]:
    return st.sampled_from(list(sow(CURRENT)))


def test_the_contract_breaks_no_released_version() -> None:
    assert broken(FOLDER) == []


def test_there_is_a_released_version_to_compare_with() -> None:
    major = CONTRACT_VERSION.split(".")[0]
    assert list((FOLDER / VERSIONS).glob(f"{major}.*/{DOCUMENT}"))


def test_the_contract_does_not_break_itself() -> None:
    assert breaks(CURRENT, CURRENT) == []


@settings(deadline=None, max_examples=60)
@given(seeds(changes.breaking_outputs) | seeds(changes.breaking_inputs))
def test_a_change_that_breaks_a_reader_is_found(seed: Seed) -> None:
    assert breaks(CURRENT, seed.sown(CURRENT)) != []


@settings(deadline=None, max_examples=60)
@given(seeds(changes.harmless_outputs) | seeds(changes.harmless_inputs))
def test_a_change_that_breaks_nobody_passes(seed: Seed) -> None:
    assert breaks(CURRENT, seed.sown(CURRENT)) == []


@settings(deadline=None, max_examples=60)
@given(seeds(changes.unreadable_pasts))
def test_what_an_earlier_version_wrote_and_this_one_does_not_read_is_found(seed: Seed) -> None:
    assert any("as earlier versions wrote it" in one for one in breaks(seed.sown(CURRENT), CURRENT))


def edited(*path: str, **changed: Any) -> Json:
    other = copy.deepcopy(CURRENT)
    changes.at(other, path).update(changed)
    return other


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (edited("channels", "queries", address="{prefix}.questions"), "queries: its address has changed"),
        (edited("channels", "answers", **{"x-key": "the query's id"}), "answers: its key has changed"),
        (edited("channels", "queries", **{"x-partitioner": "crc32"}), "queries: its partitioner has changed"),
        (
            edited("components", "messages", "Query", **{"x-max-bytes": 100}),
            "Query: at most 100 bytes are accepted",
        ),
        (edited("components", "messages", "Answer", **{"x-max-bytes": 10**9}), "Answer: may have 1e+09 bytes"),
        (edited("components", "schemas", "StreamStatus", type="array"), "StreamStatus: "),
    ],
)
def test_a_change_of_topics_and_limits_is_found_and_named(other: Json, problem: str) -> None:
    assert any(one.startswith(problem) for one in breaks(CURRENT, other))


def test_a_topic_or_an_event_that_goes_away_is_found() -> None:
    other = copy.deepcopy(CURRENT)
    del other["channels"]["status"]
    del other["channels"]["requests"]["messages"]["HaltSource"]
    assert set(breaks(CURRENT, other)) == {"status: the topic is gone", "requests: HaltSource is gone"}


def test_a_topic_or_an_event_that_is_new_breaks_nobody() -> None:
    other = copy.deepcopy(CURRENT)
    other["channels"]["receipts"] = other["channels"]["ledger"]
    other["channels"]["ledger"]["messages"]["Audit"] = {"$ref": "#/components/messages/Receipt"}
    assert breaks(CURRENT, other) == []


def test_a_form_of_question_may_be_added_but_not_taken_away() -> None:
    fewer = copy.deepcopy(CURRENT)
    gone = fewer["components"]["schemas"]["Query"]["oneOf"].pop()
    assert breaks(fewer, CURRENT) == []
    assert any(one.startswith("Query") for one in breaks(CURRENT, fewer)), gone["title"]


def test_a_header_of_answers_may_be_added_but_not_changed() -> None:
    place = ("components", "messages", "Answer", "headers", "properties")
    assert breaks(CURRENT, edited(*place, ce_dataschema={"type": "string"})) == []
    assert breaks(CURRENT, edited(*place, ce_type={"type": "string", "const": "io.sotto.answer.v2"})) != []


def test_a_new_kind_of_mechanism_breaks_readers_of_the_ledger_no_more_than_a_new_event() -> None:
    other = copy.deepcopy(CURRENT)
    mechanisms = other["components"]["schemas"]["StreamSpec-Output"]["properties"]["mechanism"]["oneOf"]
    mechanisms.append({"type": "object", "properties": {"kind": {"const": "median"}}, "required": ["kind"]})
    assert breaks(CURRENT, other) == []


def test_a_kind_that_is_called_otherwise_breaks_its_readers() -> None:
    other = edited("components", "schemas", "Receipt", "properties", kind={"const": "note", "type": "string"})
    assert breaks(CURRENT, other) != []


@pytest.mark.parametrize(
    ("other", "keyword"),
    [
        (edited("components", "schemas", "Answer", **{"if": {"required": ["estimate"]}}), "if"),
        (edited("components", "schemas", "Query", required=["id"]), "required"),
        (edited("components", "schemas", "Answer", "properties", "spent", minProperties=3), "minProperties"),
    ],
)
def test_keywords_that_cannot_be_judged_are_not_passed_over(other: Json, keyword: str) -> None:
    with pytest.raises(UnknownKeywordError, match=f"cannot compare {keyword}"):
        breaks(CURRENT, other)


def test_problems_name_the_event_and_the_field() -> None:
    other = copy.deepcopy(CURRENT)
    del other["components"]["schemas"]["Answer"]["properties"]["tops_left"]
    assert breaks(CURRENT, other) == ["Answer.tops_left: is gone"]
