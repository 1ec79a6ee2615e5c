"""The mechanisms that pay for a number of charged answers."""

from __future__ import annotations

from stream.privacy.planning.choices import MODELS
from stream.privacy.planning.inverse_plans import cutoff_field

ONCE = {"lazy_histogram", "randomized_response", "running_count", "sparse_project"}


def test_a_mechanism_pays_for_charged_answers_by_one_field_or_is_charged_once() -> None:
    fields = {kind: cutoff_field(kind, model, standing=False) for kind, model in MODELS.items()}
    assert {kind for kind, field in fields.items() if field is None} == {*ONCE, "histogram"}
    assert all(field in MODELS[kind].model_fields for kind, field in fields.items() if field is not None)


def test_a_histogram_is_charged_for_each_window_and_once_for_a_table() -> None:
    assert cutoff_field("histogram", MODELS["histogram"], standing=True) == "answers"
    assert cutoff_field("histogram", MODELS["histogram"], standing=False) is None
