"""Laplace streams: the noise fits each question, and each answer is charged."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from schemas import Answer, AnswersCalibration, Control
from sotto import Driver, Invalid
from stream.privacy.noise.keyed_noise import DrawRole, event_words, stream_subkey
from stream.privacy.noise.keys import NoiseKey
from stream.privacy.noise.samplers import gaussian, sampler
from tests.builders import KEY, source, stream

AGES = [index % 100 for index in range(2000)]
SEXES = ["F", "M", "F", "F"] * 500
EPSILON = 8.0
ANSWERS = 8


def table(neighbors: str = "add-remove") -> dict[str, Any]:
    return source(
        "people",
        "table",
        path="in memory",
        neighbors=neighbors,
        epsilon=100.0,
        delta=0.01,
        attributes={"age": {"kind": "integers", "minimum": 0, "maximum": 99}, "sex": ["F", "M"]},
    )


FEED = source(epsilon=100.0, delta=0.01, grid=0.25)


def laplace(source: str = "people", **mechanism: Any) -> dict[str, Any]:
    mechanism = {"kind": "laplace", "answers": ANSWERS, **mechanism}
    return stream("s", source, mechanism=mechanism, epsilon=EPSILON, beta=1e-6)


def driver_with(stream: dict[str, Any], neighbors: str = "add-remove") -> Driver:
    driver = Driver(KEY, partitions=1)
    driver.register(table(neighbors), {"age": AGES, "sex": SEXES})
    driver.register(FEED)
    driver.open(stream)
    return driver


def ask(driver: Driver, *questions: dict[str, Any]) -> Sequence[Answer]:
    return driver.ask_many(
        [{"id": str(place), "stream": "s", **question} for place, question in enumerate(questions)]
    )


WOMEN = [age for age, sex in zip(AGES, SEXES, strict=True) if sex == "F"]
QUESTIONS: list[tuple[dict[str, Any], float]] = [
    ({"where": "age < 50"}, 1000.0),
    ({"fraction": True, "where": "sex = 'F'"}, 0.75),
    ({"sum": "age"}, float(sum(AGES))),
    ({"sum": "age", "where": "sex = 'F'"}, float(sum(WOMEN))),
    ({"mean": "age"}, float(np.mean(AGES))),
    ({"mean": "age", "where": "sex = 'F'"}, float(np.mean(WOMEN))),
    ({"mean": "age", "where": "age > 90"}, float(np.mean([age for age in AGES if age > 90]))),
]


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_laplace_answers_are_within_their_alpha(neighbors: str) -> None:
    """No α is much larger than needed."""
    driver = driver_with(laplace(), neighbors)
    for answer, (_, truth) in zip(ask(driver, *(one for one, _ in QUESTIONS)), QUESTIONS, strict=True):
        assert answer.estimate is not None
        assert answer.alpha is not None
        assert abs(answer.estimate - truth) <= answer.alpha
        assert 0 < answer.alpha <= max(40.0, truth)
        assert answer.basis == "noisy"


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_noise_fits_the_values_that_the_predicate_leaves(neighbors: str) -> None:
    driver = driver_with(laplace(), neighbors)
    count, whole, few, one = ask(
        driver,
        {"where": "age < 10"},
        {"sum": "age"},
        {"sum": "age", "where": "age < 10 AND sex = 'F'"},
        {"mean": "age", "where": "age = 30 AND sex = 'F'"},
    )
    assert count.alpha is not None
    assert whole.alpha == pytest.approx(99 * count.alpha, rel=0.02)
    assert few.alpha == pytest.approx(9 * count.alpha, rel=0.1)
    assert (one.estimate, one.alpha) == (30.0, 0.0)


def test_share_of_private_rows_is_as_exact_as_of_public_rows() -> None:
    question = {"fraction": True, "where": "sex = 'F'"}
    [public] = ask(driver_with(laplace(), "replace"), question)
    [private] = ask(driver_with(laplace(), "add-remove"), question)
    assert public.alpha is not None
    assert private.alpha is not None
    assert private.alpha <= 1.1 * public.alpha


@pytest.mark.parametrize("rows", [0, 1])
def test_quotients_of_counts_that_are_not_positive_are_in_range(rows: int) -> None:
    """A mean or fraction whose noisy count is 0 or negative is within the public range, and its α reaches the truth."""
    driver = Driver(KEY, partitions=1)
    driver.register(table(), {"age": [99] * rows, "sex": ["F"] * rows})
    driver.open(laplace(answers=100))
    questions: list[dict[str, Any]] = [{"mean": "age"}, {"fraction": True, "where": "sex = 'F'"}] * 40
    counts = [answer.estimate or 0 for answer in ask(driver, *[{"where": "TRUE"}] * 20)]
    assert min(counts) <= 0, "the noise is large enough for what is tested"
    for question, answer in zip(questions, ask(driver, *questions), strict=True):
        high, truth = (99, 99) if "mean" in question else (1, 1)
        assert answer.estimate is not None
        assert answer.alpha is not None
        assert 0 <= answer.estimate <= high
        if rows:
            assert abs(answer.estimate - truth) <= answer.alpha


@pytest.mark.parametrize(("low", "where"), [(0, "TRUE"), (7, "TRUE"), (0, "sex = 'F'")])
def test_sums_of_a_constant_attribute_have_noise(low: int, where: str) -> None:
    """A sum whose sensitivity would be 0 or that of one value is charged and has noise; without bounds there is no sum."""
    source = table()
    source["attributes"]["age"] = {"kind": "integers", "minimum": low, "maximum": low}
    driver = Driver(KEY, partitions=1)
    driver.register(source, {"age": [low] * 10, "sex": ["F"] * 10})
    driver.open(laplace())
    answers = ask(driver, *[{"sum": "age", "where": where}] * ANSWERS)
    assert len({answer.estimate for answer in answers}) > 1
    assert all(answer.alpha for answer in answers)
    assert driver.grant("people", "s").answered == ANSWERS
    for bounds in ({}, {"minimum": 0}, {"maximum": 9}):
        source["attributes"]["age"] = {"kind": "integers", **bounds}
        with pytest.raises(Invalid, match=r"attributes\.age\.(minimum|maximum): is missing; give it"):
            Driver(KEY).register(source)


@pytest.mark.parametrize(("neighbors", "wider"), [("add-remove", 1), ("replace", 2)])
def test_laplace_groups_are_in_row_major_order(neighbors: str, wider: int) -> None:
    """The noise fits the groups together."""
    [answer] = ask(driver_with(laplace(), neighbors), {"group_by": ["sex", "age"], "where": "age < 2"})
    assert answer.estimates is not None
    truths = np.zeros((2, 100))
    for age, sex in zip(AGES, SEXES, strict=True):
        truths["FM".index(sex), age] += age < 2
    assert answer.alpha is not None
    assert answer.alpha <= 25 * wider
    assert np.abs(np.array(answer.estimates) - truths.ravel()).max() <= answer.alpha


def test_laplace_charges_every_answer_until_the_stream_halts() -> None:
    driver = driver_with(laplace())
    answers = ask(driver, *[{"where": "TRUE"}] * (ANSWERS + 2))
    assert [answer.tops_left for answer in answers[:ANSWERS]] == list(range(ANSWERS - 1, -1, -1))
    assert [answer.spent.epsilon for answer in answers[:ANSWERS] if answer.spent] == pytest.approx(
        [EPSILON / ANSWERS * number for number in range(1, ANSWERS + 1)],
    )
    assert [answer.outcome for answer in answers[ANSWERS:]] == ["halted"] * 2
    assert "8 answers of the grant" in (answers[-1].reason or "")
    assert driver.budget("people").spent.epsilon == EPSILON


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (
            {"value": 1.0},
            "send where, people, fraction, sum, mean, group_by, rate, people with group_by, person_sum, quantile, iqr, variance, stddev",
        ),
        ({"category": "F"}, "category: this stream's mechanism does not take it"),
        ({"where": "age < 3", "threshold": 1.0}, "threshold: this stream's mechanism has no threshold"),
        ({"where": "height < 3"}, "predicate: where: "),
        ({"sum": "sex"}, "sum: attribute 'sex' is no attribute of integers or decimals; declared are 'age'"),
        ({"mean": "height"}, "mean: this name is no attribute of integers or decimals; declared are 'age'"),
        ({"group_by": ["height"]}, "group_by: "),
        ({"group_by": ["sex", "sex"]}, "group_by: "),
    ],
)
def test_laplace_rejects_an_invalid_question_without_a_charge(question: dict[str, Any], words: str) -> None:
    driver = driver_with(laplace())
    rejected, answered = ask(driver, question, {"where": "TRUE"})
    assert rejected.outcome == "rejected"
    assert words in (rejected.reason or "")
    assert answered.index == 0
    assert answered.tops_left == ANSWERS - 1


def test_vector_of_trusted_values_has_noise_for_all_of_them() -> None:
    driver = driver_with(laplace("feed", dimensions=3))
    three, one, four = ask(driver, {"values": [1.0, 2.0, 3.0]}, {"value": 5.0}, {"values": [0.0] * 4})
    assert three.estimates is not None
    assert len(three.estimates) == 3
    assert three.alpha is not None
    assert one.alpha is not None
    assert 2.5 < three.alpha / one.alpha < 4.0
    assert four.outcome == "rejected"
    assert "values: 4 values, and the stream takes at most 3" in (four.reason or "")


def test_noise_of_a_vector_is_drawn_in_order_from_the_events_words() -> None:
    driver = driver_with(laplace("feed", dimensions=3))
    [answer] = ask(driver, {"values": [1.0, 2.0, 3.0]})
    definition = definition_of(driver)
    calibration = definition.calibration
    assert isinstance(calibration, AnswersCalibration)
    assert calibration.sensitivity_steps == 4
    law = sampler("two_sided", Fraction(calibration.epsilon_answer) / (3 * 4))
    subkey = stream_subkey(
        NoiseKey(KEY) if isinstance(KEY, bytes) else KEY,
        incarnation=definition.identity.incarnation,
        definition=bytes.fromhex(definition.identity.digest),
        role=DrawRole.ANSWER,
    )
    [event] = driver.records(driver.topics.queries)
    words, low = event_words([subkey], event.topic, 0, [event.offset], [event.value or b""], 3 * law.words)
    draws = law.draw(words.reshape(3, law.words), lambda row: low(0).reshape(3, law.words)[row])
    assert answer.estimates == tuple(((np.array([4, 8, 12]) + draws) * 0.25).tolist())


def definition_of(driver: Driver) -> Control:
    adapter: TypeAdapter[Control] = TypeAdapter(Control)
    return adapter.validate_json(driver.records(driver.topics.control)[-1].value or b"")


def test_laplace_answers_do_not_depend_on_batches_and_restarts() -> None:
    questions = [one for one, _ in QUESTIONS]
    together = ask(driver_with(laplace()), *questions)
    driver = driver_with(laplace())
    apart: list[Answer] = []
    for place, question in enumerate(questions):
        apart += driver.ask_many([{"id": str(place), "stream": "s", **question}])
        assert driver.redeliver() == apart[-1:]
        driver.crash()
    assert apart == together


def test_noise_too_wide_for_the_sampler_is_refused_uncharged() -> None:
    driver = Driver(KEY, partitions=1)
    wide = {"kind": "integers", "minimum": 0, "maximum": 1_000_000}
    driver.register({**table(), "attributes": {"age": wide}}, {"age": AGES})
    driver.open({**laplace(answers=100_000), "epsilon": 1e-6})
    rejected, counted = ask(driver, {"sum": "age"}, {"where": "age < 3"})
    assert "query: its noise would not fit" in (rejected.reason or "")
    assert counted.index == 0


def many(source: str = "people") -> dict[str, Any]:
    """Return a stream with δ > 0 and so many answers that Gaussian noise errs less than Laplace noise."""
    return {**laplace(source, answers=400, dimensions=3), "delta": 1e-3}


def gaussian_noise(driver: Driver, variances: Sequence[int | Fraction]) -> list[int]:
    """Return the noise of the first answer's numbers, from the key; variances are multiples of that of a number that moves by one step."""
    definition = definition_of(driver)
    calibration = definition.calibration
    assert isinstance(calibration, AnswersCalibration)
    assert (calibration.method, calibration.moved) == ("gaussian", 3)
    assert driver.budget(definition.spec.source).spent.delta == calibration.delta > 0.0
    subkey = stream_subkey(
        KEY,
        incarnation=definition.identity.incarnation,
        definition=bytes.fromhex(definition.identity.digest),
        role=DrawRole.ANSWER,
    )
    laws = [gaussian(Fraction(calibration.deviation) ** 2 * variance) for variance in variances]
    [event] = driver.records(driver.topics.queries)
    count = sum(law.words for law in laws)
    words, low = event_words([subkey], event.topic, 0, [event.offset], [event.value or b""], count)
    found, start = [], 0
    for law in laws:
        part = slice(start, start + law.words)
        found.append(int(law.draw(words[:, part], lambda row, part=part: low(row)[part])[0]))  # type: ignore[misc]
        start += law.words
    return found


@pytest.mark.parametrize(
    ("neighbors", "question", "variances"),
    [
        ("add-remove", {"where": "age < 50"}, [1]),
        ("replace", {"where": "age < 50"}, [1]),
        ("add-remove", {"sum": "age"}, [99**2]),
        ("add-remove", {"group_by": ["sex"]}, [1, 1]),
        # A replaced row moves two groups by 1.
        ("replace", {"group_by": ["sex"]}, [2, 2]),
    ],
)
def test_gaussian_noise_of_counts_fits_the_move_of_one_person(
    neighbors: str, question: dict[str, Any], variances: list[int]
) -> None:
    driver = driver_with(many(), neighbors)
    [answer] = ask(driver, question)
    truths = {"where": [1000], "sum": [sum(AGES)], "group_by": [1500, 500]}[next(iter(question))]
    estimates = [answer.estimate] if answer.estimates is None else list(answer.estimates)
    noise = gaussian_noise(driver, variances)
    assert estimates == [truth + drawn for truth, drawn in zip(truths, noise, strict=True)]
    assert max(map(abs, noise)) <= (answer.alpha or 0.0)


def test_gaussian_noise_of_a_vector_fits_its_root() -> None:
    driver = driver_with(many("feed"))
    [answer] = ask(driver, {"values": [1.0, 2.0, 3.0]})
    # Three values move by 4 steps each.
    noise = gaussian_noise(driver, [3 * 4**2] * 3)
    assert answer.estimates == tuple(((np.array([4, 8, 12]) + noise) * 0.25).tolist())


def test_gaussian_quotient_gives_half_the_precision_to_each_number() -> None:
    driver = driver_with(many())
    [answer] = ask(driver, {"mean": "age"})
    # The sum of distances from 49 moves by up to 50.
    top, bottom = gaussian_noise(driver, [2 * 50**2, 2])
    assert answer.estimate == pytest.approx(49 + (sum(AGES) - 49 * 2000 + top) / (2000 + bottom))


def test_gaussian_noise_of_hits_and_misses_is_that_of_one_count() -> None:
    driver = driver_with(many())
    [answer] = ask(driver, {"fraction": True, "where": "sex = 'F'"})
    hits, misses = gaussian_noise(driver, [1, 1])
    assert answer.estimate == (1500 + hits) / (2000 + hits + misses)
    assert abs((answer.estimate or 0.0) - 0.75) <= (answer.alpha or 0.0)


def test_gaussian_answers_all_cost_the_same() -> None:
    """An alpha changes neither the price nor the noise; one that is too small is refused."""
    loose, tight = ask(driver_with(many()), {"where": "age < 50", "alpha": 1e6}, {"where": "TRUE", "alpha": 1.0})
    assert (loose.outcome, loose.price) == ("answer", None)
    assert (loose.alpha or 0.0) < 1e6
    assert "all answers of a stream with delta above 0 cost the same" in (tight.reason or "")
