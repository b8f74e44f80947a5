"""Who reads which tensors, and what looks alike."""

from __future__ import annotations

import tensorflow as tf

from tests.graph.building import fed, graph_of
from tests.search import steps
from tofu_tf.coarsen.coarsening import coarsen
from tofu_tf.coarsen.folding import folds_of, unfolded
from tofu_tf.coarsen.groups import Coarse
from tofu_tf.coarsen.sharing import readings_of, weights_of
from tofu_tf.graph.ir import Graph
from tofu_tf.ops.applicable import Describing


def coarse_of(graph: Graph) -> Coarse:
    return coarsen(graph, Describing(graph))


def described_readers(coarse: Coarse) -> list[tuple[int, list[tuple[str, int]], int]]:
    return [
        (
            reading.at,
            [(coarse.operators[o].nodes[0], i) for o, i in reading.readers],
            reading.count,
        )
        for reading in readings_of(coarse)
    ]


def test_a_tensor_with_two_readers() -> None:
    def build() -> list[tf.Tensor]:
        x = fed("x", (64, 48))
        v = steps.read(steps.variable("v", (48, 40)), (48, 40))
        w = steps.read(steps.variable("w", (64, 56)), (64, 56))
        return [tf.matmul(x, v, name="a"), tf.matmul(x, w, transpose_a=True, name="b")]

    coarse = coarse_of(graph_of(build, ["x"], ["a", "b"]))
    found = described_readers(coarse)
    (shared,) = [f for f in found if len(f[1]) > 1]
    assert shared[1:] == ([("a", 0), ("b", 0)], 1)
    assert sorted(f[1] for f in found if len(f[1]) == 1) == [[("a", 1)], [("b", 1)]]
    weights = dict(
        zip(
            (o.nodes[0] for o in coarse.operators),
            weights_of(coarse, readings_of(coarse)),
            strict=True,
        )
    )
    assert weights == {"a": (0, 1), "b": (0, 1)}


def test_equal_nodes_count_the_tensors_that_they_read() -> None:
    """Two equal products read one weight: it moves once; each reads an input of its own."""

    def build() -> tf.Tensor:
        x = fed("x", (64, 48))
        w = steps.read(steps.variable("w", (48, 48)), (48, 48))
        a, b = tf.matmul(tf.sin(x), w), tf.matmul(tf.cos(x), w)
        return tf.add(a, b, name="out")

    coarse = coarse_of(graph_of(build, ["x"], ["out"]))
    (o,) = [n for n, op in enumerate(coarse.operators) if len(op.nodes) == 2]
    assert weights_of(coarse, readings_of(coarse))[o] == (2, 1)


def test_what_looks_alike() -> None:
    graph = steps.inference(64, (80, 96, 96, 96, 96, 80))
    coarse = coarse_of(graph)
    weights = weights_of(coarse, readings_of(coarse))
    sizes = [
        len(set(folds.groups))
        for folds in (unfolded(coarse), *(folds_of(coarse, weights, n) for n in (3, 1, 0)))
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == len(coarse.groups)
    alike = folds_of(coarse, weights, 1).groups
    first = {g: coarse.groups[g].shape for g in set(alike)}
    for group in coarse.groups:
        assert first[alike[group.id]] == group.shape
    # the three square weights in the middle are one
    squares = {alike[g.id] for g in coarse.groups if g.shape == (96, 96)}
    assert len(squares) < 3
