"""Two thousand mixed questions about the Adult table to one stream, beside what Laplace noise for each would have cost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from schemas import Answer, Laplace, StreamSpec
from stream.accounting.inverse import needed_epsilon
from stream.accounting.setting import Setting
from stream.data import adult

QUESTIONS: Final = 2_000
EPSILON: Final = 1.0
ATTRIBUTES: Final = ("age", "sex", "education-num", "race", "income>50K")
MECHANISM: Final[dict[str, Any]] = {"kind": "pmw", "attributes": list(ATTRIBUTES), "beyond": "unpromised"}

_GROUPS: Final = (("sex", 2), ("race", 5))


@dataclass(frozen=True)
class Mixed:
    """Questions and their true answers, from plain array comparisons."""

    questions: tuple[dict[str, Any], ...]
    truths: tuple[tuple[float, ...], ...]
    rows: int


def mixed(seed: int) -> Mixed:
    """Counts, shares, sums, means and groups over ranges and cells; the same seed gives the same ones."""
    chance = random.Random(seed)  # noqa: S311  (what is asked, not noise)
    frame = pl.read_csv(adult.PATH)
    columns = {name: frame[name].to_numpy() for name in ATTRIBUTES}
    asked = [_one(chance, columns) for _ in range(QUESTIONS)]
    return Mixed(tuple(question for question, _ in asked), tuple(truth for _, truth in asked), frame.height)


def judged(asked: Mixed, answers: Sequence[Answer], spec: StreamSpec, alpha: float) -> tuple[str, bool]:
    """What was promised, reached and spent, and whether every answer kept to the α that it named."""
    held, counts, silent = True, [], 0
    for question, truth, answer in zip(asked.questions, asked.truths, answers, strict=True):
        told = answer.estimates or (() if answer.estimate is None else (answer.estimate,))
        if len(told) != len(truth):
            silent += 1
            continue
        errors = [abs(number - true) for number, true in zip(told, truth, strict=True)]
        held &= answer.alpha is None or max(errors) <= answer.alpha
        if set(question) == {"where"}:
            counts.append(max(errors))
    if not counts:
        return f"none of {len(answers):,} questions was answered: {answers[0].reason}", False
    spent = max(answer.spent.epsilon for answer in answers if answer.spent is not None)
    bases = Counter(answer.basis for answer in answers)
    seen = (
        f"{len(answers):,} questions for ε {spent:.3g} of {spec.epsilon:g}, {bases['noisy']} of them measured; counts within "
        f"±{alpha:.0f} ({alpha / asked.rows:.1%} of the rows) promised, off by {max(counts):.0f} at most and "
        f"{np.mean(counts):.0f} on average; Laplace noise for each would have cost ε {_laplace(spec, alpha):.3g} for that promise"
    )
    unpromised = sum(answer.alpha is None for answer in answers) - silent
    seen += f"; {unpromised} answers without a promise" if unpromised else ""
    return seen + (f"; {silent} questions without an answer" if silent else ""), held and silent == 0


def _laplace(spec: StreamSpec, alpha: float) -> float:
    """The ε at which fresh noise for each question keeps to α."""
    each = Laplace(kind="laplace", answers=QUESTIONS)
    return needed_epsilon(spec.model_copy(update={"mechanism": each}), Setting(disjoint=True), alpha)


def _one(chance: random.Random, columns: dict[str, npt.NDArray[Any]]) -> tuple[dict[str, Any], tuple[float, ...]]:
    low, high = sorted(chance.randint(16, 90) for _ in range(2))
    inside = (columns["age"] >= low) & (columns["age"] <= high)
    where = f"age BETWEEN {low} AND {high}"
    if chance.random() < 0.5:
        sex = chance.choice("FM")
        inside, where = inside & (columns["sex"] == sex), f"{where} AND sex = '{sex}'"
    if chance.random() < 0.5:
        rich = chance.randint(0, 1)
        inside, where = inside & (columns["income>50K"] == rich), f'{where} AND "income>50K" = {rich}'
    count = float(inside.sum())
    match chance.randrange(10):
        case 0:
            return {"where": where, "fraction": True}, (count / len(inside),)
        case 1:
            return {"sum": "age", "where": where}, (float(columns["age"][inside].sum()),)
        case 2 if count > 0:
            return {"mean": "education-num", "where": where}, (float(columns["education-num"][inside].mean()),)
        case 3:
            name, size = chance.choice(_GROUPS)
            values = columns[name][inside]
            cells = [values == value for value in (("F", "M") if name == "sex" else range(size))]
            return {"group_by": [name], "where": where}, tuple(float(cell.sum()) for cell in cells)
        case _:
            return {"where": where}, (count,)
