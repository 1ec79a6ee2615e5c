"""After one charge, any number of questions are answered from one noisy release, which is not stored."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from schemas import Answer, ReleaseCalibration
from sotto import Driver
from stream.privacy.accuracy.release_accuracy import release_law
from stream.privacy.mechanisms.releases import cell_bytes, matrix_columns, matrix_seed, project
from stream.privacy.noise.keyed_noise import DrawRole, cell_words
from tests.builders import KEY, source, stream
from tests.unit.installation import worker_of

ATTRIBUTES: dict[str, Any] = {"age": 12, "sex": ["F", "M"], "ward": 5}
SHAPE = (12, 2, 5)
ROWS: dict[str, list[Any]] = {
    "age": [row % 7 for row in range(300)],
    "sex": ["F" if row % 3 else "M" for row in range(300)],
    "ward": [row % 2 for row in range(300)],
}
HUGE: dict[str, Any] = {f"a{number}": 1 << 20 for number in range(4)}
"""Attributes that have 2^80 cells together."""

MECHANISMS: dict[str, dict[str, Any]] = {
    "histogram": {"kind": "histogram"},
    "lazy_histogram": {"kind": "lazy_histogram"},
    "sparse_project": {"kind": "sparse_project", "projections": 300},
}
KINDS = sorted(MECHANISMS)


def installation(
    *kinds: str, neighbors: str = "add-remove", epsilon: float = 1.0, partitions: int = 1, **changes: Any
) -> Driver:
    """Return a driver with a small table and a stream of each kind, which is its name."""
    driver = Driver(KEY, partitions=partitions)
    driver.register(source("people", "table", neighbors=neighbors, epsilon=1000.0, attributes=ATTRIBUTES), ROWS)
    for kind in kinds:
        mechanism = {**MECHANISMS[kind], "attributes": list(ATTRIBUTES), **changes}
        driver.open(stream(kind, "people", mechanism=mechanism, epsilon=epsilon), acknowledge=True)
    return driver


def at(cell: Sequence[int]) -> dict[str, Any]:
    age, sex, ward = cell
    return {"at": {"age": age, "sex": "FM"[sex], "ward": ward}}


def build_question(stream: str, **question: Any) -> dict[str, Any]:
    return {"id": "q", "stream": stream, **question}


def ask(driver: Driver, stream: str, **question: Any) -> Answer:
    [answer] = driver.ask_many([build_question(stream, **question)])
    return answer


def exact_counts() -> np.ndarray[Any, np.dtype[np.int64]]:
    counts = np.zeros(SHAPE, dtype=np.int64)
    for age, sex, ward in zip(*ROWS.values(), strict=True):
        counts[age, "FM".index(sex), ward] += 1
    return counts


def whole_noise(driver: Driver, stream: str, names: Sequence[bytes]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the noise of a stream for all these cells, drawn at once."""
    streams = worker_of(driver).streams
    slot = streams.slots[stream]
    calibration = streams.terms_at(slot).calibration
    assert isinstance(calibration, ReleaseCalibration)
    law = release_law(calibration)
    return law.draw(*cell_words(streams.noise.subkey(slot, DrawRole.RELEASE), names, law.words))


def whole_histogram(driver: Driver, stream: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    names = cell_bytes(list(product(*map(range, SHAPE))))
    return exact_counts() + whole_noise(driver, stream, names).reshape(SHAPE)


@pytest.mark.parametrize("kind", ["histogram", "lazy_histogram"])
def test_cells_in_any_order_are_those_of_the_whole_histogram(kind: str) -> None:
    """This holds for any groups of cells, also after a crash."""
    driver = installation(kind)
    release = whole_histogram(driver, kind)
    cells = list(product(*map(range, SHAPE)))
    random.Random(7).shuffle(cells)
    groups = [cells[start : start + 1 + start % 7] for start in range(0, len(cells), 7)]
    answers = driver.ask_many([build_question(kind, cells=[at(cell) for cell in group]) for group in groups])
    assert [answer.estimate for answer in answers] == [sum(int(release[c]) for c in group) for group in groups]
    driver.crash()
    again = [ask(driver, kind, cells=[at(cell)]).estimate for cell in cells[:20]]
    assert again == [release[cell] for cell in cells[:20]]


def test_histogram_answers_are_sums_of_one_release() -> None:
    """This covers counts, groups and cells."""
    driver = installation("histogram")
    release = whole_histogram(driver, "histogram")
    asked = [
        build_question("histogram", where="TRUE"),
        build_question("histogram", where="age BETWEEN 2 AND 5 AND sex = 'M'"),
        build_question("histogram", group_by=["ward", "age"]),
        build_question("histogram", group_by=["sex"], where="age < 3"),
        build_question("histogram", group_by=list(ATTRIBUTES)),
        build_question("histogram", cells=[{**at((1, 0, 1)), "weight": 0.25}, at((11, 1, 4))]),
        build_question("histogram", where="age < 0"),
    ]
    whole, some, groups, within, everything, weighted, nobody = driver.ask_many(asked)
    assert whole.estimate == release.sum()
    assert some.estimate == release[2:6, 1].sum()
    assert groups.estimates == tuple(release.sum(axis=1).T.ravel().tolist())
    assert within.estimates == tuple(release[:3].sum(axis=(0, 2)).tolist())
    assert everything.estimates == tuple(release.ravel().tolist())
    assert weighted.estimate == 0.25 * int(release[1, 0, 1]) + int(release[11, 1, 4])
    assert (nobody.estimate, nobody.alpha) == (0.0, 0.0)


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_every_released_number_is_within_its_alpha(neighbors: str) -> None:
    driver = installation("histogram", "lazy_histogram", neighbors=neighbors)
    counts = exact_counts()
    everything, some = driver.ask_many(
        [build_question("histogram", group_by=list(ATTRIBUTES)), build_question("histogram", where="age < 4")]
    )
    errors = np.abs(np.array(everything.estimates).reshape(SHAPE) - counts)
    assert 0 < errors.max() <= (everything.alpha or 0.0)
    assert abs((some.estimate or 0.0) - counts[:4].sum()) <= (some.alpha or 0.0)
    cells = list(product(*map(range, SHAPE)))
    answers = driver.ask_many([build_question("lazy_histogram", cells=[at(cell)]) for cell in cells])
    beyond = sum(
        abs((answer.estimate or 0.0) - counts[cell]) > (answer.alpha or 0.0)
        for answer, cell in zip(answers, cells, strict=True)
    )
    # At least one of 120 errors is beyond α with probability β·120/1000, at least two with 10⁻⁵.
    assert beyond <= 1


@pytest.mark.parametrize("kind", ["histogram", "lazy_histogram"])
def test_release_errors_fall_with_epsilon(kind: str) -> None:
    """The mean error of 120 cells falls like 1/ε, and so does their α, until counts are exact."""
    truth = Counter(zip(*ROWS.values(), strict=True))
    cells = list(product(*map(range, SHAPE)))
    errors, alphas = [], []
    for epsilon in (0.1, 1.0, 30.0):
        driver = installation(kind, epsilon=epsilon)
        answers = driver.ask_many([{**build_question(kind, cells=[at(cell)]), "id": str(cell)} for cell in cells])
        true = [truth[age, "FM"[sex], ward] for age, sex, ward in cells]
        errors.append(
            np.mean([abs((answer.estimate or 0) - count) for answer, count in zip(answers, true, strict=True)])
        )
        alphas.append(answers[0].alpha or 0.0)
    # The mean of 120 errors of Laplace noise is 10 at ε = 0.1, with a standard deviation of 0.9.
    assert 6 < errors[0] < 14
    assert 0.5 < errors[1] < 1.4
    assert errors[2] == 0
    assert alphas[0] > 5 * alphas[1] > 5 * alphas[2]


@pytest.mark.parametrize("kind", ["histogram", "lazy_histogram"])
def test_cells_without_rows_have_noise_like_all_others(kind: str) -> None:
    driver = installation(kind)
    empty = [cell for cell in product(*map(range, SHAPE)) if exact_counts()[cell] == 0]
    answers = driver.ask_many([build_question(kind, cells=[at(cell)]) for cell in empty])
    bare = sum(answer.estimate == 0.0 for answer in answers)
    # A draw is 0 with probability 0.46.
    assert 0.2 * len(empty) < bare < 0.7 * len(empty)


def test_projection_answers_from_its_noisy_rows() -> None:
    driver = installation("sparse_project", partitions=1)
    streams = worker_of(driver).streams
    seed = matrix_seed(streams.incarnations[streams.slots["sparse_project"]])
    codes = np.array([[age, "FM".index(sex), ward] for age, sex, ward in zip(*ROWS.values(), strict=True)])
    noise = whole_noise(driver, "sparse_project", cell_bytes(np.arange(300)[:, None]))
    release = project(seed, codes, 300) + noise
    cells = [(1, 0, 1), (3, 1, 0), (11, 1, 4)]
    signs = 2 * matrix_columns(seed, cell_bytes(cells), 300).astype(np.int64) - 1
    expected = float(np.array([512, 1024, 256]) @ (signs @ release)) / (1024 * 300)
    weighted = [{**at(cell), "weight": weight} for cell, weight in zip(cells, (0.5, 1.0, 0.25), strict=True)]
    assert ask(driver, "sparse_project", cells=weighted).estimate == expected


def test_projection_with_little_noise_keeps_the_alpha_of_cross_talk() -> None:
    driver = installation("sparse_project", neighbors="replace", epsilon=900.0, projections=20000)
    counts = exact_counts()
    for cell in [(1, 0, 1), (2, 1, 0), (11, 1, 4)]:
        answer = ask(driver, "sparse_project", cells=[at(cell)])
        assert answer.alpha is not None
        assert answer.alpha < 40.0
        assert abs((answer.estimate or 0.0) - counts[cell]) <= answer.alpha
        assert answer.basis == "release"


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_projection_alpha_covers_the_whole_error_under_both_neighbors(neighbors: str) -> None:
    driver = installation("sparse_project", neighbors=neighbors, projections=1024)
    counts = exact_counts()
    for cell in product(range(12), range(2), range(5)):
        answer = ask(driver, "sparse_project", cells=[at(cell)])
        assert answer.alpha is not None
        assert abs((answer.estimate or 0.0) - counts[cell]) <= answer.alpha
        assert answer.basis == "release"


def test_projection_has_no_alpha_if_its_number_of_rows_is_too_noisy() -> None:
    driver = installation("sparse_project", projections=8)
    assert ask(driver, "sparse_project", cells=[at((1, 0, 1))]).alpha is None
    public = ask(
        installation("sparse_project", projections=8, neighbors="replace"), "sparse_project", cells=[at((1, 0, 1))]
    )
    assert public.alpha is not None


@pytest.mark.parametrize("kind", KINDS)
def test_first_answer_of_a_release_is_charged_for_all(kind: str) -> None:
    driver = installation(kind)
    assert driver.budget("people").spent.epsilon == 0.0
    question = build_question(kind, cells=[at((1, 0, 1))])
    answers = driver.ask_many([question] * 500)
    assert {answer.outcome for answer in answers} == {"answer"}
    assert [answer.index for answer in answers] == list(range(500))
    assert {answer.spent.epsilon for answer in answers if answer.spent} == {1.0}
    assert {answer.tops_left for answer in answers} == {None}
    assert {answer.estimate for answer in answers} == {answers[0].estimate}
    assert driver.budget("people").spent.epsilon == 1.0
    driver.close("people", kind)
    assert driver.budget("people").refunded.epsilon == 0.0
    assert ask(driver, kind, cells=[at((1, 0, 1))]).outcome == "halted"


@pytest.mark.parametrize("kind", KINDS)
def test_redelivery_and_restart_give_the_same_release(kind: str) -> None:
    driver = installation(kind, partitions=2)
    cells = list(product(*map(range, SHAPE)))[::7]
    questions = [build_question(kind, cells=[at(cell)]) for cell in cells]
    first = driver.ask_many(questions)
    driver.redeliver()
    driver.crash()
    second = driver.ask_many(questions)
    assert [answer.estimate for answer in first] == [answer.estimate for answer in second]
    assert len({answer.estimate for answer in first}) > 3


@pytest.mark.parametrize("kind", KINDS)
def test_streams_of_equal_definitions_have_separate_releases(kind: str) -> None:
    driver = installation(kind)
    mechanism = {**MECHANISMS[kind], "attributes": list(ATTRIBUTES)}
    driver.open(stream("twin", "people", mechanism=mechanism))
    cells = list(product(*map(range, SHAPE)))
    ours, twins = (
        [one.estimate for one in driver.ask_many([build_question(name, cells=[at(cell)]) for cell in cells])]
        for name in (kind, "twin")
    )
    assert sum(mine != other for mine, other in zip(ours, twins, strict=True)) > len(cells) / 3


@pytest.mark.parametrize("kind", ["lazy_histogram", "sparse_project"])
def test_universe_of_any_size_accepts_questions_about_cells(kind: str) -> None:
    driver = Driver(KEY, partitions=1)
    driver.register(source("huge", "table", path="huge.csv", attributes=HUGE), {name: [5] * 400 for name in HUGE})
    mechanism = {**MECHANISMS[kind], "attributes": list(HUGE), "sparsity": 2}
    driver.open(stream(kind, "huge", mechanism=mechanism, epsilon=5.0))
    full = {"at": dict.fromkeys(HUGE, 5)}
    empty = {"at": dict.fromkeys(HUGE, (1 << 20) - 1)}
    found = ask(driver, kind, cells=[full, empty])
    assert found.alpha is not None
    assert abs((found.estimate or 0.0) - 400.0) <= found.alpha


REJECTED: list[tuple[str, Mapping[str, Any], str]] = [
    ("histogram", {"value": 3.0}, "value: this stream's mechanism does not take it; send where"),
    (
        "histogram",
        {"sum": "age"},
        "sum: this stream's mechanism does not take it; send where, fraction, group_by, cells, rate, quantile, iqr, variance, stddev, or ask a stream of laplace or pmw",
    ),
    ("histogram", {"mean": "age"}, "mean: this stream's mechanism does not take it"),
    ("histogram", {"where": "height < 3"}, "where: "),
    ("histogram", {"where": "age <"}, "where: "),
    ("histogram", {"where": "age < 3", "threshold": 4.0}, "threshold: "),
    (
        "histogram",
        {"group_by": ["height"]},
        "group_by: name 1 is no attribute of the stream's histogram, which has 'age', 'sex'",
    ),
    ("histogram", {"group_by": ["age", "age"]}, "group_by: an attribute is named twice"),
    ("histogram", {"cells": [{"at": {"age": 3}}]}, "cells: the cell has no value for 'sex'"),
    ("lazy_histogram", {"where": "age < 3"}, "where: this stream's mechanism does not take it; send cells"),
    ("lazy_histogram", {"group_by": ["age"]}, "group_by: this stream's mechanism does not take it; send cells"),
    ("lazy_histogram", {"cells": [at((1, 0, 0)), at((1, 0, 0))]}, "cells: one cell is named twice"),
    ("lazy_histogram", {"cells": [{**at((1, 0, 0)), "weight": 0.3}]}, "cells: weights are multiples of 1/"),
    ("lazy_histogram", {"cells": [{**at((1, 0, 0)), "weight": 0.0}]}, "cells: no weight is above 0"),
    ("lazy_histogram", {"cells": [at((12, 0, 0))]}, "cells: 'age' holds whole numbers from 0 to 11"),
    (
        "lazy_histogram",
        {"cells": [at((age, 0, ward)) for age in range(12) for ward in range(2)]},
        "cells: 24 cells",
    ),
    (
        "sparse_project",
        {"cells": [at((age, 0, ward)) for age in range(12) for ward in range(2)]},
        "cells: 24 cells",
    ),
    ("sparse_project", {"where": "age < 3"}, "where: this stream's mechanism does not take it; send cells"),
    (
        "sparse_project",
        {"cells": [{"at": {"age": 1, "sex": "X", "ward": 0}}]},
        "cells: this text is not a declared value of 'sex'",
    ),
]


@pytest.mark.parametrize(("kind", "question", "reason"), REJECTED)
def test_invalid_question_to_a_release_is_refused_by_its_field(
    kind: str, question: Mapping[str, Any], reason: str
) -> None:
    """It costs nothing."""
    driver = installation(kind)
    wrong, right = driver.ask_many([build_question(kind, **question), build_question(kind, cells=[at((1, 0, 1))])])
    assert wrong.outcome == "rejected"
    assert (wrong.reason or "").partition(": ")[2].startswith(reason)
    assert (wrong.spent, wrong.index) == (None, None)
    assert (right.outcome, right.index) == ("answer", 0)
    other = installation(kind)
    assert ask(other, kind, **question).outcome == "rejected"
    assert other.budget("people").spent.epsilon == 0.0


def test_group_by_is_refused_if_it_has_too_many_cells_to_list() -> None:
    driver = Driver(KEY, partitions=1)
    wide = source("wide", "table", path="wide.csv", attributes={"a": 70, "b": 70})
    driver.register(wide, {"a": [1, 2], "b": [3, 4]})
    mechanism = {"kind": "histogram", "attributes": ["a", "b"]}
    driver.open(stream("wide", "wide", mechanism=mechanism))
    assert ", and at most 4,096 are allowed; group by fewer" in (
        ask(driver, "wide", group_by=["a", "b"]).reason or ""
    )
    assert len(ask(driver, "wide", group_by=["b"]).estimates or ()) == 70


def test_shares_are_counts_over_the_public_number_of_rows() -> None:
    driver = installation("histogram", neighbors="replace")
    count, share = driver.ask_many(
        [build_question("histogram", where="age < 4"), build_question("histogram", where="age < 4", fraction=True)]
    )
    assert share.estimate == (count.estimate or 0.0) / 300
    assert share.alpha == (count.alpha or 0.0) / 300


def test_zero_weights_and_the_order_of_cells_change_no_answer() -> None:
    driver = installation("lazy_histogram")
    first, second, third = driver.ask_many(
        [
            build_question("lazy_histogram", cells=[at((1, 0, 1)), at((2, 1, 0))]),
            build_question("lazy_histogram", cells=[at((2, 1, 0)), at((1, 0, 1))]),
            build_question(
                "lazy_histogram", cells=[at((2, 1, 0)), {**at((9, 0, 0)), "weight": 0.0}, at((1, 0, 1))]
            ),
        ]
    )
    assert first.estimate == second.estimate == third.estimate
    assert first.alpha == third.alpha


@pytest.mark.parametrize("cells", [30_000, 40_000])
def test_release_drawn_in_parts_equals_one_drawn_at_once(cells: int) -> None:
    driver = Driver(KEY, partitions=1)
    driver.register(source("long", "table", path="long.csv", attributes={"a": cells}), {"a": [1, 1]})
    mechanism = {"kind": "histogram", "attributes": ["a"]}
    driver.open(stream("long", "long", mechanism=mechanism))
    noise = whole_noise(driver, "long", cell_bytes(np.arange(cells)[:, None]))
    assert ask(driver, "long", where="TRUE").estimate == noise.sum() + 2
    assert ask(driver, "long", cells=[{"at": {"a": cells - 1}}]).estimate == noise[-1]
