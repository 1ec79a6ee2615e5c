"""Planner of mechanisms that release something once, and the trees of running counts.

These mechanisms are histogram, lazy_histogram, sparse_project and running_count. The *parts* of a release are composed
by basic or optimal composition (Kairouz, Oh & Viswanath 2015). A histogram is one part, with Laplace noise or, if δ >
0, Gaussian noise. A projection (sparse_project) has one part for each row of its matrix. A running count is one release
of all sums of all groups. Proofs: docs/proofs/histogram.md, sparse-project.md and running-count.md.

A running count of T windows has a binary tree with one leaf for each number of windows t = 0 … T. Each branching, with
the leaves a … b − 1 on its left and b … c − 1 on its right, has a *node*: the sum of the windows a … b − 1, numbered
from 0. The answers for all t on the right use this node. So the answer for t uses one node for each right turn on the
path to leaf t, and window w is in one node for each left turn on the path to leaf w.

Consider all trees in which no window is in more than z nodes, and no answer sums more than m nodes. The
largest of them has T = C(z + m, z) − 1 windows: its left part is the largest tree for z − 1 and m, its
right part the largest tree for z and m − 1. The dyadic tree of Dwork, Naor, Pitassi and Rothblum (2010) and of
Chan, Shi and Song (2011) has z = m = ⌊log₂ T⌋ + 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from schemas import (
    MAX_UNIVERSE,
    Histogram,
    LazyHistogram,
    ReleaseCalibration,
    RunningCount,
    RunningCountCalibration,
    SparseProject,
    StreamSpec,
)
from schemas.queries import MAX_CANDIDATES
from stream.privacy.accuracy.noise_laws import least_passing, scale_fits, sum_alpha
from stream.privacy.accuracy.release_accuracy import cell_alpha, lazy_alpha, noise_alpha, projection_alpha
from stream.privacy.accuracy.source_facts import GroupSensitivity, SourceFacts
from stream.privacy.composition.gaussian_losses import least_noise_factor
from stream.privacy.composition.losses import losses
from stream.privacy.noise.samplers import Symmetric, gaussian, sampler
from stream.privacy.planning.answer_plans import PartsMethod, equal_parts
from stream.privacy.planning.noise_layouts import PlanError, require_fit
from stream.privacy.planning.unknown_groups_plans import most_texts_within


@dataclass(frozen=True, slots=True)
class Node:
    """The sum of the windows ``start`` … ``end`` − 1, numbered from 0."""

    start: int
    end: int


@dataclass(frozen=True)
class CountingTree:
    """The tree of a horizon of ``steps`` windows, each in at most ``levels`` nodes.

    Among all trees with the same ``levels``, a ``balanced`` tree has the fewest nodes per answer, both at
    most and on average. The ``levels`` of a ``dyadic`` tree follow from its horizon.
    """

    steps: int
    levels: int
    shape: Literal["dyadic", "balanced"] = "balanced"

    @property
    def max_nodes(self) -> int:
        """Largest number of nodes in one answer."""
        # The answer for t has a node for each binary digit 1 of t. Among t ≤ T, the largest 2^k − 1 has the most.
        return (self.steps + 1).bit_length() - 1 if self.shape == "dyadic" else _min_nodes_per_answer(self)

    def nodes(self, windows: int) -> tuple[Node, ...]:
        """Return the nodes that add up to the first ``windows`` windows, in order."""
        if not 0 <= windows <= self.steps:
            raise ValueError(f"the horizon is {self.steps} windows, not {windows}")
        found = []
        start, size, levels, most = 0, self.steps + 1, self.levels, _min_nodes_per_answer(self)
        while size > 1:
            left = self._left_leaves(size, levels, most)
            if windows - start < left:
                size, levels = left, levels - 1
            else:
                found.append(Node(start, start + left))
                start, size, most = start + left, size - left, most - 1
        return tuple(found)

    def count_kept_nodes(self, windows: int) -> int:
        """Count the nodes that are also in the answer for ``windows - 1``; only the last node is not."""
        return len(self.nodes(windows)) - 1

    def _left_leaves(self, size: int, levels: int, right_turns: int) -> int:
        if self.shape == "dyadic":
            return 1 << ((size - 1).bit_length() - 1)
        # The left part gets as many leaves as it can have, before answers on the right need ``right_turns`` nodes.
        return min(_leaves(levels - 1, right_turns), size - max(1, _leaves(levels, right_turns - 2)))


def dyadic_tree(steps: int) -> CountingTree:
    """Return the dyadic tree, in which t windows have one node for each binary digit 1 of t."""
    return CountingTree(steps, steps.bit_length(), "dyadic")


def _leaves(levels: int, right_turns: int) -> int:
    """Return the most leaves of a tree with at most ``levels`` left and ``right_turns`` right turns in a path."""
    return math.comb(levels + right_turns, levels) if right_turns >= 0 else 0


@lru_cache(maxsize=4096)
def _min_nodes_per_answer(tree: CountingTree) -> int:
    """Return the fewest nodes per answer (right turns) with which a tree has enough leaves."""
    if tree.shape == "dyadic":
        return tree.levels
    return least_passing(lambda most: _leaves(tree.levels, most) > tree.steps, 0, tree.steps)


def next_node_sums(sums: Sequence[int], kept: int, count: int) -> list[int]:
    """Return the node sums of t windows from the node sums of t − 1 windows and the t-th count.

    ``kept`` is ``tree.count_kept_nodes(t)``. The node sums are the only state that a running count needs.
    """
    if len(sums) < kept:
        raise ValueError(f"{kept} node sums are needed, and there are {len(sums)}")
    return [*sums[:kept], sum(sums[kept:]) + count]


def window_number(start_ms: int, first_ms: int, every_ms: int) -> int:
    """Return the number (from 1) of the window that begins at ``start_ms``; 0 if there is none."""
    number, rest = divmod(start_ms - first_ms, every_ms)
    return number + 1 if rest == 0 and number >= 0 else 0


def node_name(group: int, node: Node) -> bytes:
    """Return the canonical bytes of a group's node, from which its noise is derived."""
    return b"".join(number.to_bytes(8, "big") for number in (group, node.start, node.end))


def text_node_names(text: bytes, nodes: Sequence[Node]) -> list[bytes]:
    """Return the canonical bytes of a text's nodes, from which their noise is derived."""
    return [node.start.to_bytes(8, "big") + node.end.to_bytes(8, "big") + text for node in nodes]


_LEADING_CONSTANT = 4 * 64**2


def plan_calibrations(spec: StreamSpec, facts: SourceFacts) -> tuple[ReleaseCalibration, ...]:
    """Return every calibration that applies, the simplest first.

    ``alpha`` bounds the error of every cell of a histogram; for the other mechanisms, of every question
    about ``sparsity`` cells. The textbook's ``alpha`` is the bound of its theorem, or the exact bound if
    this is larger. If the row count is private, the ``alpha`` of a projection bounds its noise alone
    (``noise_only``), otherwise its whole error for the worst table.
    """
    match spec.mechanism:
        case Histogram():
            universe = _require_universe(facts)
            if universe > MAX_UNIVERSE:
                raise PlanError(
                    f"mechanism.attributes: their {universe} cells exceed the {MAX_UNIVERSE} of a histogram; "
                    "name fewer or smaller ones, or use lazy_histogram"
                )
            # Source: Wang, lecture 3, Section 3.3, for all cells at once.
            return _one_release(spec, facts, lambda draft: cell_alpha(draft, universe), universe, 1)
        case LazyHistogram(sparsity=sparsity):
            _require_universe(facts)
            # The same theorem for all named cells; a question sums up to ``sparsity`` of them.
            named = sparsity * spec.expected_queries
            return _one_release(spec, facts, lambda draft: lazy_alpha(draft, sparsity), named, sparsity)
        case SparseProject() as mechanism:
            return _sparse_project(spec, facts, mechanism)
        case _:
            raise TypeError(f"{spec.mechanism.kind} has no release of a table")


def theorem_projections(rows: int, sparsity: int, queries: int, beta: float) -> int:
    """Return the number T of matrix rows in the accuracy theorem of Blum & Roth 2011 (Tutunov).

    T = 4·64²·ln(1/τ)·(m^{3/2}/2 + n⁴/(2√m) + √m·n²) with τ = β/4k, n rows, sparsity m and k
    questions; for n = 1000 and m = 100 it is about 10¹⁶. Privacy does not need so many rows.
    """
    root = math.sqrt(sparsity)
    polynomial = 0.5 * root**3 + 0.5 * rows**4 / root + root * rows**2
    return math.ceil(_LEADING_CONSTANT * math.log(4.0 * queries / beta) * polynomial)


def _sparse_project(
    spec: StreamSpec, facts: SourceFacts, mechanism: SparseProject
) -> tuple[ReleaseCalibration, ...]:
    _require_universe(facts)
    # The paper's noise scale 1/σ with σ = ε/√(8 ln(1/δ)) is for entries ±1/√T. For entries ±1 it is
    # the textbook's composition, with ε/√(8 T ln(1/δ)) for each of the T rows.
    parts = mechanism.projections
    stated, *better = equal_parts(spec.epsilon, spec.delta if parts > 1 else 0.0, parts)
    calibrations = []
    for part in (*better, stated):
        draft = _draft_release(spec, facts, parts, *part)
        if facts.rows is None:
            # The error due to other cells depends on the table; each answer includes it in its alpha.
            error = {"alpha": noise_alpha(draft, mechanism.sparsity), "noise_only": True}
        else:
            error = {"alpha": projection_alpha(draft, mechanism.sparsity, float(facts.rows))}
        calibrations.append(draft.model_copy(update=error))
    return tuple(calibrations)


def _one_release(
    spec: StreamSpec, facts: SourceFacts, alpha: Callable[[ReleaseCalibration], float], cells: int, summed: int
) -> tuple[ReleaseCalibration, ...]:
    """Return the calibrations of one release of ``cells`` cells.

    The textbook's theorem bounds the error of questions that sum ``summed`` cells.
    """
    basic = _draft_release(spec, facts, 1, "basic", spec.epsilon, 0.0)
    theorem = summed * math.log(cells / basic.beta) * basic.sensitivity_steps / basic.epsilon
    calibrations = [basic.model_copy(update={"alpha": alpha(basic)})]
    noise = {"moved": basic.sensitivity_steps, "contribution": facts.contribution, "epsilon_part": 0.0}
    unit_noise = basic.model_copy(update={"method": "gaussian", "deviation": 1.0, "delta": spec.delta, **noise})
    deviation = least_noise_factor(losses(unit_noise).gaussian, Fraction(basic.epsilon), Fraction(spec.delta))
    if scale_fits(deviation):
        gaussian = unit_noise.model_copy(update={"deviation": deviation})
        calibrations.append(gaussian.model_copy(update={"alpha": alpha(gaussian)}))
    textbook = {"method": "textbook", "alpha": max(calibrations[0].alpha, theorem)}
    return (*calibrations, basic.model_copy(update=textbook))


def _draft_release(
    spec: StreamSpec, facts: SourceFacts, parts: int, method: PartsMethod, epsilon_part: float, delta: float
) -> ReleaseCalibration:
    return ReleaseCalibration(
        method=method,
        parts=parts,
        epsilon_part=epsilon_part,
        epsilon=spec.epsilon,
        delta=delta,
        grid=1.0,
        # A table row changes one cell, or the sum of each matrix row, by 1; replacing it changes twice as much.
        sensitivity_steps=facts.groups_steps,
        cutoff=0,
        expected_queries=spec.expected_queries,
        beta=spec.beta,
        alpha=0.0,
    )


def _require_universe(facts: SourceFacts) -> int:
    if facts.universe is None:
        raise PlanError("mechanism: needs the cells of a table's attributes; open the stream on a table source")
    return facts.universe


def plan_running_counts(spec: StreamSpec, facts: SourceFacts) -> tuple[RunningCountCalibration, ...]:
    """Return calibrations with the papers' dyadic tree, and with the best tree for each noise law.

    ``alpha`` bounds the error of every answer. The textbook's ``alpha`` is the bound of its theorem, or the
    exact bound if this is larger.
    """
    if not isinstance(spec.mechanism, RunningCount):
        raise TypeError(f"{spec.mechanism.kind} is not a running count")
    steps = spec.mechanism.steps
    trees = [CountingTree(steps, levels) for levels in range(1, steps.bit_length() + 1)]
    trees = [tree for tree in trees if tree.max_nodes <= MAX_CANDIDATES]
    drafts = [draft_tree(spec, facts, "basic", tree) for tree in trees]
    remedy = ", or register a source with a smaller total or attributes of smaller ranges"
    require_fit(min(_node_scale(draft) for draft in drafts), remedy)
    basic = min(
        (with_alpha(draft) for draft in drafts if scale_fits(_node_scale(draft))), key=lambda one: one.alpha
    )
    textbook = draft_tree(spec, facts, "textbook", dyadic_tree(steps))
    stated = (
        (with_alpha(textbook, least_alpha=theorem_alpha(textbook)),) if scale_fits(_node_scale(textbook)) else ()
    )
    return (*stated, basic, *_gaussian_tree(spec, facts, trees))


def tree_of(calibration: RunningCountCalibration) -> CountingTree:
    """Return the tree of a calibration; each of its nodes is a sum of windows with separate noise."""
    return CountingTree(calibration.steps, calibration.levels, calibration.tree)


def node_law(calibration: RunningCountCalibration) -> Symmetric:
    """Return the law of each node's noise."""
    if calibration.method == "gaussian":
        return gaussian(Fraction(calibration.deviation) ** 2)
    return sampler("two_sided", node_rate(calibration))


def node_rate(calibration: RunningCountCalibration) -> Fraction:
    """Return the rate of each node's Laplace noise."""
    counting = Fraction(calibration.epsilon) - Fraction(calibration.epsilon_size)
    return counting / (calibration.levels * calibration.sensitivity_steps)


@lru_cache(maxsize=4096)
def answer_alpha(calibration: RunningCountCalibration, nodes: int) -> float:
    """Return the error of an answer that sums ``nodes`` nodes.

    With probability 1 − β no answer of any window and group is wrong by more than its bound. The bound is
    exact except for the union bound over the answers.
    """
    each = calibration.beta / _count_numbers(calibration)
    return sum_alpha(node_law(calibration), nodes, 1, each, full_weights=True) * calibration.grid


def _count_numbers(calibration: RunningCountCalibration) -> int:
    """Return the largest number of numbers in all answers together, for the largest number of texts."""
    texts = 1 if calibration.most_bytes is None else most_texts_within(calibration.most_bytes)
    return calibration.expected_queries * texts


def draft_tree(
    spec: StreamSpec, facts: SourceFacts, method: Literal["basic", "textbook", "gaussian"], tree: CountingTree
) -> RunningCountCalibration:
    """Return a calibration of a tree, with Laplace noise and no error bound yet."""
    sensitivity, groups = _horizon_sensitivity(facts), facts.universe or 1
    answers = tree.steps * groups
    return RunningCountCalibration(
        method=method,
        tree=tree.shape,
        steps=tree.steps,
        groups=groups,
        levels=tree.levels,
        nodes=tree.max_nodes,
        moved=sensitivity.numbers,
        spread=sensitivity.spread,
        epsilon=spec.epsilon,
        delta=0.0,
        grid=facts.grid,
        sensitivity_steps=sensitivity.together,
        cutoff=answers,
        expected_queries=answers,
        beta=spec.beta,
        alpha=0.0,
    )


def _horizon_sensitivity(facts: SourceFacts) -> GroupSensitivity:
    if facts.horizon is not None:
        return facts.horizon
    people = 2 if facts.neighbors == "replace" else 1
    together = people * facts.sensitivity_steps
    return GroupSensitivity(each=facts.sensitivity_steps, together=together, spread=people, numbers=together)


def with_alpha(draft: RunningCountCalibration, least_alpha: float = 0.0) -> RunningCountCalibration:
    """Return the calibration with its exact error bound, or with ``least_alpha`` if this is larger."""
    return draft.model_copy(update={"alpha": max(least_alpha, answer_alpha(draft, draft.nodes))})


def _gaussian_tree(
    spec: StreamSpec, facts: SourceFacts, trees: list[CountingTree]
) -> tuple[RunningCountCalibration, ...]:
    if spec.delta <= 0.0:
        return ()
    # An answer's deviation is proportional to √(levels·nodes).
    tree = min(trees, key=lambda one: one.levels * one.max_nodes)
    draft = draft_tree(spec, facts, "gaussian", tree).model_copy(update={"delta": spec.delta, "deviation": 1.0})
    deviation = least_noise_factor(losses(draft).gaussian, Fraction(draft.epsilon), Fraction(spec.delta))
    if not scale_fits(deviation):
        return ()
    return (with_alpha(draft.model_copy(update={"deviation": deviation})),)


def theorem_alpha(calibration: RunningCountCalibration) -> float:
    """Return the error bound of Chan, Shi and Song 2011 (Lemma 2.8) for all answers.

    The bound is b·√(8 ln(2/γ))·max(√m, √ln(2/γ)) with the scale b of a node's noise, m = ⌊log₂ T⌋ + 1, and
    γ = β divided by the number of answers.
    """
    scale = _node_scale(calibration)
    failing = math.log(2.0 * _count_numbers(calibration) / calibration.beta)
    return scale * math.sqrt(8.0 * failing * max(calibration.levels, failing)) * calibration.grid


def _node_scale(calibration: RunningCountCalibration) -> float:
    """Return the scale of a node's Laplace noise."""
    counting = calibration.epsilon - calibration.epsilon_size
    return calibration.levels * calibration.sensitivity_steps / counting
