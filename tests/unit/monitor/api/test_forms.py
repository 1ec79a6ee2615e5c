"""The page's forms offer each mechanism, field and source option of the contract."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

import stream.monitor
from schemas import Mechanism, RecordsSource, TableSource, ValuesSource

STATIC = Path(stream.monitor.__file__).parent / "static"
MODELS: dict[str, Any] = {
    get_args(model.model_fields["kind"].annotation)[0]: model for model in get_args(get_args(Mechanism)[0])
}


def offered_fields() -> dict[str, set[str]]:
    text = (STATIC / "mechanisms.js").read_text()
    compares = re.search(r"const COMPARES = \[(.*?)\]", text)
    assert compares
    found = {}
    for kind, fields in re.findall(
        r"^  (\w+): \{ on: \[[^]]*\], fields: (COMPARES|\[[^]]*\])", text, re.MULTILINE
    ):
        names = fields.replace("...COMPARES", compares[1]).replace("COMPARES", compares[1])
        found[kind] = set(re.findall(r'"(\w+)"', names))
    return found


def test_forms_offer_every_field_of_every_mechanism() -> None:
    assert offered_fields() == {kind: set(model.model_fields) - {"kind"} for kind, model in MODELS.items()}


def test_forms_have_control_for_every_field() -> None:
    text = (STATIC / "mechanisms.js").read_text().split("export const FIELDS")[1]
    described = set(re.findall(r"^  (\w+): \{ text:", text, re.MULTILINE))
    assert described >= {name for fields in offered_fields().values() for name in fields}


@pytest.mark.parametrize("model", [TableSource, ValuesSource, RecordsSource])
def test_register_form_has_every_option_of_source(model: type[BaseModel]) -> None:
    text = (STATIC / "views" / "register.js").read_text()
    sent = text[text.index("function source()") : text.index("const body = ")]
    assert set(model.model_fields) <= set(re.findall(r"(\w+):", sent))
