"""The mechanisms that pay for a number of charged answers."""

from __future__ import annotations

from stream.privacy.planning.choices import MODELS
from stream.privacy.planning.inverse_plans import cutoff_field

ONCE = {"lazy_histogram", "randomized_response", "running_count", "sparse_project"}


def test_cutoff_field_exists_unless_mechanism_is_charged_once() -> None:
    fields = {kind: cutoff_field(kind, model, standing=False) for kind, model in MODELS.items()}
    assert {kind for kind, field in fields.items() if field is None} == {*ONCE, "histogram"}
    assert all(field in MODELS[kind].model_fields for kind, field in fields.items() if field is not None)


def test_cutoff_field_of_histogram_is_answers_only_if_standing() -> None:
    """A histogram is charged for each window of a live topic, and once for a table."""
    assert cutoff_field("histogram", MODELS["histogram"], standing=True) == "answers"
    assert cutoff_field("histogram", MODELS["histogram"], standing=False) is None
