"""Tables of costs: by hand for a product of matrices, and against regions one by one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from tests.search import steps
from tofu_tf.coarsen.coarsening import coarsen
from tofu_tf.coarsen.groups import Coarse, Operator
from tofu_tf.cost.communication import FORBIDDEN, Pricing
from tofu_tf.ops.applicable import Describing
from tofu_tf.plan import transfers
from tofu_tf.plan.layouts import Layout, layout_regions
from tofu_tf.tdl import strategies

F = 4  # bytes of a float32


def coarse_of(graph: object) -> Coarse:
    return coarsen(graph, Describing(graph), small_bytes=0)  # type: ignore[arg-type]


def matmul_of(coarse: Coarse) -> Operator:
    return next(o for o in coarse.operators if o.described and o.described.entry.name == "MatMul")


# a [8, 6] @ w [6, 4] on two workers. Rows: a and w as cut; y is cut by rows, then by columns.
# Cutting i fetches w where w is not whole (every worker lacks half: |w|), and half of a when a lies
# otherwise; cutting k reduces y: each worker sends half of its partial result, |y| in all.
A, W, Y = 8 * 6 * F, 6 * 4 * F, 8 * 4 * F


@pytest.mark.parametrize(
    "a, w, y, bytes",
    [
        (0, 0, 0, W),  # i: all of w is fetched by halves
        (0, 1, 0, W),
        (1, 0, 0, min(Y, A // 2 + W)),  # k: partial results
        (0, 1, 1, min(A, W + Y // 2)),  # j: all of a
        (1, 1, 1, min(A, Y + W // 2)),
        (None, 1, 1, 0),  # j with a whole everywhere
        (0, None, 0, 0),
        (1, 0, None, 2 * Y),  # each worker sends its whole partial result to the other one
    ],
)
def test_product_by_hand(a: int | None, w: int | None, y: int | None, bytes: int) -> None:
    operator = matmul_of(coarse_of(steps.product(8, 6, 4)))
    choices = {
        g: (Layout((c,)),)
        for g, c in zip((*operator.inputs, *operator.outputs), (a, w, y), strict=True)
    }
    assert Pricing().matrices(operator, (2,), choices).table().item() == bytes


def layouts(rank: int, cuts: int) -> Iterator[Layout]:
    for chosen in itertools.product((None, *range(rank)), repeat=cuts):
        yield Layout(chosen)


@pytest.mark.parametrize("factors", [(2,), (3,), (2, 2), (3, 2)])
@pytest.mark.parametrize("sizes", [(8, 6, 4), (7, 13, 5)])
def test_equals_regions_one_by_one(factors: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    operator = matmul_of(coarse_of(steps.product(*sizes)))
    described = operator.described
    assert described is not None
    rng = np.random.default_rng(1)
    every = list(layouts(2, len(factors)))
    for picks in rng.integers(0, len(every), (25, 3)):
        chosen = [every[p] for p in picks]
        slots = (*operator.inputs, *operator.outputs)
        matrices = Pricing().matrices(
            operator, factors, {g: (c,) for g, c in zip(slots, chosen, strict=True)}
        )
        for n, (body, axes) in enumerate(matrices.ways):
            work = strategies.work_of(described.variant(body).description, axes, factors)
            held = [
                layout_regions(layout, shape, factors)
                for layout, shape in zip(
                    chosen, (*operator.input_shapes, *operator.output_shapes), strict=True
                )
            ]
            expected = sum(
                transfers.fetched_elements(h, r) for h, r in zip(held, work.reads, strict=False)
            ) + transfers.route_elements(work.writes[0], work.partials[0], held[-1])
            got = matrices.base[n] + sum(p[n, 0] for p in matrices.parts)
            assert got == expected * F, (axes, chosen)


@pytest.mark.parametrize("factors", [(2,), (3, 2), (2, 2, 2)])
def test_every_way_is_legal_and_leaves_nobody_idle(factors: tuple[int, ...]) -> None:
    for operator in coarse_of(steps.training(16, (32, 24, 16))).operators:
        if operator.described is None or not operator.groups:
            continue
        choices = {g: (Layout((0,) * len(factors)),) for g in operator.groups}
        for body, axes in Pricing().matrices(operator, factors, choices).ways:
            description = operator.described.variant(body).description
            assert strategies.is_legal(description, axes, factors)
            assert strategies.boxes_of(description, axes, factors).present.all()


def test_variables_are_written_where_they_lie() -> None:
    coarse = coarse_of(steps.training(16, (32, 16)))
    writers = [o for o in coarse.operators if o.versions and max(o.outputs) >= 0]
    assert writers
    for operator in writers:
        group = operator.outputs[-1]
        choices = {g: (Layout((0,)), Layout((1,))) for g in operator.groups}
        matrices = Pricing().matrices(operator, (2,), choices)
        written = matrices.parts[operator.groups.index(group)]
        axes = [axes for _, axes in matrices.ways]
        assert {a: list(row >= FORBIDDEN) for a, row in zip(axes, written, strict=True)} == {
            ("i0",): [False, True],
            ("i1",): [True, False],
        }
