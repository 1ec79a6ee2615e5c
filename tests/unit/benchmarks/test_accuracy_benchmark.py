"""The accuracy benchmark: its questions, its peers' algorithms, its caches and its output."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.accuracy import parts, report
from benchmarks.accuracy.questions import Boxes, few, marginal_of, where, wide
from benchmarks.accuracy.runs import Case, Measured, Run, median
from benchmarks.accuracy.streamed import STREAMED
from benchmarks.accuracy.tables import table
from benchmarks.accuracy.tasks import DEEP, FEW, WIDE, Workload, make
from benchmarks.peers import gaussian, mwem, pmw_bypass
from stream.tables.store import TableStore

SIZES = (5, 2, 4)


@pytest.fixture(scope="module")
def codes() -> Any:
    generator = np.random.default_rng(1)
    return np.stack([generator.integers(0, size, 500) ** 2 % size for size in SIZES], axis=1)


def boxes_of(ask: Any, count: int = 40) -> Boxes:
    generator = random.Random(3)
    return Boxes.of(SIZES, [ask(generator, SIZES, (0, 2)) for _ in range(count)])


@pytest.mark.parametrize("ask", [few, wide])
def test_sums_of_boxes_are_counts_of_rows(ask: Any, codes: Any) -> None:
    boxes = boxes_of(ask)
    found = boxes.sums(marginal_of(codes, SIZES))
    inside = (codes[None] >= boxes.lows[:, None]) & (codes[None] <= boxes.highs[:, None])
    assert found.tolist() == inside.all(axis=2).sum(axis=1).tolist()
    assert boxes.named.sum(axis=1).min() >= 1
    assert boxes.named.sum(axis=1).max() <= 4


@pytest.mark.parametrize(("name", "queries"), [(FEW, 60), (DEEP, 40), (WIDE, 40)])
def test_questions_mean_the_same_to_streams_and_peers(name: str, queries: int) -> None:
    task = make(Workload(name, queries))
    assert task is not None
    store = TableStore(bytes(32))
    source = task.table.source
    counts = store.get(source).counts([store.predicate(source, one) for one in task.wheres])
    assert counts.tolist() == task.truth.tolist()
    named = task.boxes.named.sum(axis=1)
    assert named.min() >= (3 if name == DEEP else 1)
    assert named.max() <= (5 if name == DEEP else 4)
    assert task.errors(task.truth).max() == 0.0
    assert task.errors(task.truth - 1e9).max() <= 1.0


def test_sampled_table_has_rows_of_its_original() -> None:
    task = make(Workload(FEW, 10, 700))
    adult = table("adult")
    assert task is not None
    assert adult is not None
    assert task.rows == 700
    assert {tuple(row) for row in task.codes.tolist()} <= {tuple(row) for row in adult.codes.tolist()}
    domains = list(adult.domains.items())
    question = {0: (3, 9), 1: (1, 1)}
    assert where(domains, question) == '"age" BETWEEN 19 AND 25 AND "sex" = \'M\''


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-6), (8.0, 1e-3)])
def test_gaussian_noise_has_the_width_for_its_privacy_loss(epsilon: float, delta: float) -> None:
    scale = gaussian.gaussian_scale(epsilon, delta, 3.0)
    assert gaussian.delta_of(scale, 3.0, epsilon) <= delta < gaussian.delta_of(0.999 * scale, 3.0, epsilon)
    # The loss, integrated: E[(1 − e^{ε − L})⁺], L normal with mean s²/2 and variance s², s = Δ/σ.
    ratio = 3.0 / scale
    loss = 0.5 * ratio**2 + ratio * np.linspace(-12.0, 12.0, 400_001)
    mass = np.exp(-0.5 * ((loss - 0.5 * ratio**2) / ratio) ** 2) / (ratio * math.sqrt(2.0 * math.pi))
    expected = np.trapezoid(np.clip(-np.expm1(epsilon - loss), 0.0, None) * mass, loss)
    assert gaussian.delta_of(scale, 3.0, epsilon) == pytest.approx(expected, rel=1e-4)


def test_gaussian_answers_are_within_their_promise() -> None:
    truth = np.zeros(2_000)
    worse = 0
    for number in range(40):
        estimates, alpha = gaussian.answers(truth, 1.0, 1e-6, 0.5, np.random.default_rng(number))
        worse += bool(np.abs(estimates).max() > alpha)
    assert 8 <= worse <= 32


def test_pmw_bypass_pays_as_published(codes: Any) -> None:
    boxes = boxes_of(few, 600)
    truth = boxes.sums(marginal_of(codes, SIZES))
    run = pmw_bypass.answers(boxes, truth, 500, 0.1, 0.001, np.random.default_rng(5))
    assert run.each == 4 * math.log(1000) / (500 * 0.1)
    assert run.epsilon() == pytest.approx(run.each * (run.paid + 3 * run.started))
    assert run.rho() == pytest.approx(0.5 * (run.paid * run.each**2 + run.started * (3 * run.each) ** 2))
    different = {repr(boxes.slices(place)) for place in range(600)}
    assert 5 <= run.paid <= len(different)
    assert np.abs(run.estimates - truth).max() <= 0.1 * 500
    # A repeated question, which is paid for already, has the same answer.
    [axes] = [axes for axes, places in boxes.by_axes() if 0 in places]
    question = {axis: (int(boxes.lows[0, axis]), int(boxes.highs[0, axis])) for axis in axes}
    twice = Boxes.of(SIZES, [question] * 3)
    again = pmw_bypass.answers(twice, np.repeat(truth[:1], 3), 500, 0.1, 0.001, np.random.default_rng(5))
    assert again.paid == 1
    assert len(set(again.estimates.tolist())) == 1


def test_mwem_learns_its_measurements(codes: Any) -> None:
    boxes = boxes_of(few)
    truth = boxes.sums(marginal_of(codes, SIZES))
    errors = [
        float(np.abs(mwem.answers(boxes, truth, 500, 1000.0, rounds, np.random.default_rng(2)) - truth).max())
        for rounds in (1, 30)
    ]
    assert errors[1] < 0.1 * errors[0]


def test_measured_runs_are_kept_and_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    case = Case(Workload(FEW, 10), 1.0, 0.0, "pmw")
    runs = [Run.of(np.array([0.1, error]), spent=0.5, promised=0.2) for error in (0.2, 0.4, 0.3)]
    for number, run in enumerate(runs):
        Measured(path).put(case, number, run)
    kept = Measured(path)
    assert kept.of(case) == runs
    assert median(kept.of(case), "largest") == 0.3
    assert kept.of(Case(Workload(FEW, 10, 500), 1.0, 0.0, "pmw")) == []
    # Two processes that measure at the same time lose no result of each other.
    first, second = Measured(path), Measured(path)
    first.put(case, 3, runs[0])
    second.put(case, 4, runs[1])
    assert len(Measured(path).of(case)) == 5


@pytest.mark.parametrize("contender", ["pmw", "Laplace per query"])
def test_streamed_contenders_answer_from_the_processors(contender: str) -> None:
    task = make(Workload(FEW, 60))
    assert task is not None
    run = STREAMED[contender].run(task, 5.0, 0.0, 1)
    assert run.answered == 60
    assert run.promised is not None
    assert run.largest <= 2 * run.promised  # the promise itself may fail, in one of twenty runs
    assert run.spent <= 5.0
    assert run.charged == (60 if contender.startswith("Laplace") else run.charged)
    assert STREAMED[contender].run(task, 5.0, 0.0, 2).mean != run.mean


def test_every_case_has_an_existing_contender() -> None:
    cases = [case for part in parts.PARTS.values() for case in part()]
    assert {case.contender for case in cases} <= set(parts.CONTENDERS)
    assert len(set(cases)) == len(cases)
    assert len({case.key(0) for case in cases}) == len(cases)


def test_write_replaces_the_table_between_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = tmp_path / "accuracy.md"
    document.write_text("before\n<!-- excerpt -->\nstale rows\n<!-- end of excerpt -->\nafter")
    for name, path in (("DOCUMENT", document), ("BARS", tmp_path / "a.svg"), ("CURVES", tmp_path / "b.svg")):
        monkeypatch.setattr(report, name, path)
    measured = Measured(tmp_path / "runs.json")
    for case in [*parts.main_table(), *parts.questions_curve(), *parts.rows_curve()]:
        measured.put(case, 0, Run.of(np.array([0.25, 0.5]), spent=1.0))
    report.write(measured)
    text = document.read_text()
    assert "stale rows" not in text
    assert (text.count("before"), text.count("after")) == (1, 1)
    assert "| pmw |" + " 0.5000 / 0.37500 |" * 2 in text
    assert "PMW-Bypass" in (tmp_path / "a.svg").read_text()
    assert (tmp_path / "b.svg").stat().st_size > 10_000
    document.write_text("no marks")
    with pytest.raises(ValueError, match="<!-- excerpt -->"):
        report.write(measured)
