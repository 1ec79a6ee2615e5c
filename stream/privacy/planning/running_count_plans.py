"""Planner of running_count: the tree of sums and the width of their noise.

All sums of all groups are one release, which is charged once and from which every answer is
computed. Proofs: docs/proofs/running-count.md.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from schemas import RunningCount, RunningCountCalibration, StreamSpec
from schemas.queries import MAX_CANDIDATES
from stream.privacy.accuracy.counting_trees import CountingTree, dyadic
from stream.privacy.accuracy.noise_laws import sum_alpha
from stream.privacy.accuracy.source_facts import Movement, Setting
from stream.privacy.composition.gaussian_losses import least_multiple
from stream.privacy.composition.losses import losses
from stream.privacy.noise import Symmetric, gaussian, sampler
from stream.privacy.planning.noise_layouts import HEADROOM, LARGEST_NOISE, PlanError


def candidates(spec: StreamSpec, setting: Setting) -> tuple[RunningCountCalibration, ...]:
    """Return every calibration: the papers' dyadic tree, and the best tree per noise law.

    ``alpha`` bounds the errors of all answers together; the textbook's is its theorem's, or the
    exact one if that is larger.

    Raises:
        PlanError: the noise does not fit the integers; the message names the parameter to change.
    """
    mechanism = spec.mechanism
    if not isinstance(mechanism, RunningCount):
        raise TypeError(f"{mechanism.kind} is not a running count")
    trees = _trees(mechanism.steps)
    drafts = [_draft(spec, setting, "basic", tree) for tree in trees]
    narrowest = min(_scale(draft) for draft in drafts)
    if not _fits(narrowest):
        raise PlanError(
            f"noise of scale {narrowest:.3g} does not fit 52 binary digits; raise epsilon, or register a source with a smaller "
            "total or attributes of smaller ranges"
        )
    basic = min((_finished(draft) for draft in drafts if _fits(_scale(draft))), key=lambda one: one.alpha)
    return (*_textbook(spec, setting, mechanism.steps), basic, *_gaussian(spec, setting, trees))


def tree_of(calibration: RunningCountCalibration) -> CountingTree:
    """Return the tree whose nodes have the noise."""
    return CountingTree(calibration.steps, calibration.levels, calibration.tree)


def node_law(calibration: RunningCountCalibration) -> Symmetric:
    """Return the law of each node's noise."""
    if calibration.method == "gaussian":
        return gaussian(Fraction(calibration.deviation) ** 2)
    return sampler(
        "two_sided", Fraction(calibration.epsilon) / (calibration.levels * calibration.sensitivity_steps)
    )


@lru_cache(maxsize=4096)
def answer_alpha(calibration: RunningCountCalibration, nodes: int) -> float:
    """Return the error of an answer that sums ``nodes`` nodes.

    With probability 1 − β every answer of the horizon and of every group keeps to its α; exact
    except for the union bound.
    """
    each = calibration.beta / calibration.expected_queries
    return sum_alpha(node_law(calibration), nodes, 1, each, whole=True) * calibration.grid


def _draft(
    spec: StreamSpec, setting: Setting, method: Literal["basic", "textbook", "gaussian"], tree: CountingTree
) -> RunningCountCalibration:
    moved, groups = _moved(setting), setting.universe or 1
    answers = tree.steps * groups
    return RunningCountCalibration(
        method=method,
        tree=tree.shape,
        steps=tree.steps,
        groups=groups,
        levels=tree.levels,
        nodes=tree.most,
        moved=moved.numbers,
        spread=moved.spread,
        epsilon=spec.epsilon,
        delta=0.0,
        grid=1.0,
        sensitivity_steps=moved.together,
        cutoff=answers,
        expected_queries=answers,
        beta=spec.beta,
        alpha=0.0,
    )


def _moved(setting: Setting) -> Movement:
    if setting.horizon is not None:
        return setting.horizon
    people = 2 if setting.neighbors == "replace" else 1
    together = people * setting.sensitivity_steps
    return Movement(each=setting.sensitivity_steps, together=together, spread=people, numbers=together)


def _trees(steps: int) -> list[CountingTree]:
    """Return the trees with the fewest nodes per answer for each number of levels."""
    trees = [CountingTree(steps, levels) for levels in range(1, steps.bit_length() + 1)]
    return [tree for tree in trees if tree.most <= MAX_CANDIDATES]


def _finished(draft: RunningCountCalibration) -> RunningCountCalibration:
    return draft.model_copy(update={"alpha": answer_alpha(draft, draft.nodes)})


def _textbook(spec: StreamSpec, setting: Setting, steps: int) -> tuple[RunningCountCalibration, ...]:
    draft = _draft(spec, setting, "textbook", dyadic(steps))
    if not _fits(_scale(draft)):
        return ()
    exact = answer_alpha(draft, draft.nodes)
    return (draft.model_copy(update={"alpha": max(exact, _theorem(draft))}),)


def _gaussian(
    spec: StreamSpec, setting: Setting, trees: list[CountingTree]
) -> tuple[RunningCountCalibration, ...]:
    if spec.delta <= 0.0:
        return ()
    # An answer's deviation is proportional to √(levels·nodes).
    tree = min(trees, key=lambda one: one.levels * one.most)
    draft = _draft(spec, setting, "gaussian", tree).model_copy(update={"delta": spec.delta, "deviation": 1.0})
    deviation = least_multiple(losses(draft).gaussian, Fraction(draft.epsilon), Fraction(spec.delta))
    if not _fits(deviation):
        return ()
    return (_finished(draft.model_copy(update={"deviation": deviation})),)


def _theorem(calibration: RunningCountCalibration) -> float:
    """Return the error bound of Chan, Shi and Song 2011 (Lemma 2.8) for all answers.

    It is b·√(8 ln(2/γ))·max(√m, √ln(2/γ)) with the scale b of a node's noise, m = ⌊log₂ T⌋ + 1
    and γ = β over the number of answers.
    """
    scale = _scale(calibration)
    failing = math.log(2.0 * calibration.expected_queries / calibration.beta)
    return scale * math.sqrt(8.0 * failing * max(calibration.levels, failing))


def _scale(calibration: RunningCountCalibration) -> float:
    """The scale 1/λ of a node's Laplace noise."""
    return calibration.levels * calibration.sensitivity_steps / calibration.epsilon


def _fits(scale: float) -> bool:
    return HEADROOM * scale <= LARGEST_NOISE
