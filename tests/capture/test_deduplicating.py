"""Distinct ids in a vector of known size: what becomes static and what must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.rewrite import random_plans
from tofu_tf import errors, pipeline
from tofu_tf.capture.captured import Captured
from tofu_tf.capture.functions import capture_function
from tofu_tf.capture.graph_defs import capture_graph_def
from tofu_tf.graph.attributes import PADDED
from tofu_tf.graph.ir import PADDED_UNIQUE, Graph
from tofu_tf.graph.text import node_text
from tofu_tf.ops.applicable import Describing
from tofu_tf.plan.machine import imagined

V, D, N = 23, 6, 9
R = np.random.RandomState(0)
IDS = np.asarray([4, 22, 4, 0, 7, 22, 4, 11, 0])
VALUES = R.rand(N, D).astype("float32")
Step = Callable[..., Any]


def table() -> tf.Variable:
    return tf.Variable(np.random.RandomState(1).rand(V, D).astype("float32"), name="table")


def captured(step: Step, dynamic: bool = False) -> Captured:
    return capture_function(
        step, [tf.TensorSpec(IDS.shape, tf.int64), tf.TensorSpec((N, D))], (), dynamic
    )


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph]


def summed(ids: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """What optimizers do first: distinct ids and the sum of each one's rows."""
    distinct, places = tf.unique(ids)
    return distinct, tf.math.unsorted_segment_sum(values, places, tf.shape(distinct)[0])


def adding(variable: tf.Variable) -> Step:
    def step(ids, values):
        distinct, rows = summed(ids, values)
        variable.scatter_add(tf.IndexedSlices(-0.1 * rows, distinct))

    return step


def test_the_nodes_of_an_update() -> None:
    graph = captured(adding(table())).graph
    made = {n.op: n for n in graph}
    assert "Unique" not in made
    assert "Shape" not in made
    assert "StridedSlice" not in made
    distinct = made[PADDED_UNIQUE]
    assert [str(s) for s in distinct.outputs] == ["int64[9]", "int32[9]"]
    assert str(made["UnsortedSegmentSum"].outputs[0]) == "float32[9, 6]"
    assert graph.const(made["UnsortedSegmentSum"].inputs[2]) == N
    assert made["ResourceScatterAdd"].attrs[PADDED].b
    assert PADDED in node_text(made["ResourceScatterAdd"])


def looking_up(variable: tf.Variable) -> Step:
    """Rows of distinct ids, looked up once each, and the gradient back through both gathers."""

    def step(ids, values):
        with tf.GradientTape() as tape:
            distinct, places = tf.unique(ids)
            rows = tf.gather(tf.nn.embedding_lookup(variable, distinct), places)
            loss = tf.reduce_sum(rows * values)
        gradient = tape.gradient(loss, variable)
        again, at = tf.unique(gradient.indices)
        sums = tf.math.unsorted_segment_sum(gradient.values, at, tf.shape(again)[0])
        variable.scatter_sub(tf.IndexedSlices(sums, again))
        return loss

    return step


def clipped(variable: tf.Variable) -> Step:
    """The norm is over the rows of distinct ids, and only over these."""

    def step(ids, values):
        distinct, rows = summed(ids, values)
        rows = tf.clip_by_norm(rows, 0.5)
        variable.scatter_sub(tf.IndexedSlices(rows, distinct))

    return step


def reducing(variable: tf.Variable) -> Step:
    """Padding would be 1 in each of these, and counts for nothing."""

    def step(ids, values):
        distinct, rows = summed(ids, values)
        x = tf.exp(rows)
        alive = tf.math.is_finite(1.0 / rows)
        return (
            tf.reduce_sum(x, 0),
            tf.reduce_sum(x),
            tf.reduce_max(-x, 0),
            tf.reduce_min(x, [0, 1]),
            tf.reduce_prod(2.0 * x, 0, keepdims=True),
            tf.nn.l2_loss(x),
            tf.reduce_all(alive, 0),
            tf.reduce_any(tf.logical_not(alive)),
            tf.reduce_min(distinct),
            tf.reduce_max(-distinct),
        )

    return step


def row_by_row(variable: tf.Variable) -> Step:
    """Reductions along the rows leave a value for each distinct id."""

    def step(ids, values):
        distinct, rows = summed(ids, values)
        norms = tf.norm(rows, axis=1, keepdims=True)
        means = tf.expand_dims(tf.reduce_sum(rows, 1), 1)
        grouped = tf.reshape(rows, [-1, 2, D // 2])
        grouped = tf.reshape(grouped * 2.0, [tf.shape(distinct)[0], D])
        variable.scatter_add(tf.IndexedSlices(grouped / norms - means, distinct))

    return step


def gathered(variable: tf.Variable) -> Step:
    """Slots are read by distinct ids, along rows and along columns."""

    def step(ids, values):
        distinct, rows = summed(ids, values)
        wide = tf.gather(tf.transpose(variable), tf.cast(distinct, tf.int32), axis=1)
        variable.scatter_mul(tf.IndexedSlices(tf.gather(variable, distinct) * rows, distinct))
        return tf.reduce_sum(wide, 1), tf.reduce_max(tf.gather(wide, [2, 0]))

    return step


def dense(variable: tf.Variable) -> Step:
    """A whole gradient from rows: some optimizers ask for it."""

    def step(ids, values):
        distinct, rows = summed(ids, values)
        variable.assign_sub(tf.math.unsorted_segment_sum(rows, distinct, V))

    return step


def by_places(variable: tf.Variable) -> Step:
    """Ids as places of one dimension."""

    def step(ids, values):
        distinct, rows = summed(ids, values)
        places = distinct[:, tf.newaxis]
        variable.scatter_nd_update(places, tf.gather_nd(variable, places) - rows)

    return step


def expanded(variable: tf.Variable) -> Step:
    def step(ids, values):
        distinct, rows = summed(ids, values)
        variable.scatter_nd_sub(tf.expand_dims(distinct, 1), rows)

    return step


PADDABLE = [
    adding,
    looking_up,
    clipped,
    reducing,
    row_by_row,
    gathered,
    dense,
    by_places,
    expanded,
]


@pytest.mark.parametrize("make", PADDABLE)
@pytest.mark.parametrize("ids", [IDS, np.arange(N), np.full(N, 3)], ids=["some", "all", "one"])
def test_equal_to_one_device(make: Callable[[tf.Variable], Step], ids: np.ndarray) -> None:
    expected = table()
    results = tf.nest.flatten(make(expected)(tf.constant(ids), tf.constant(VALUES)))
    wanted = [result for result in results if result is not None]
    variable = table()
    step = captured(make(variable))
    assert "Unique" not in ops(step.graph)
    for k in (1, 2):
        plan = pipeline.find_plan(step.graph, imagined(k), undescribed="refuse", small_bytes=8)
        placed = pipeline.apply_plan(step.graph, plan)
        assert PADDED_UNIQUE not in {n.op for n in placed.graph_def.node}
        outputs, after = random_plans.run_placed(placed, step, [ids, VALUES])
        for found, value in zip(outputs, wanted, strict=True):
            np.testing.assert_allclose(found, value, 1e-5)
        for name, value in after.items():
            np.testing.assert_allclose(value, expected, 1e-5, err_msg=name)


def fetched(ids, values):
    return tf.unique(ids)[0]


def counted(ids, values):
    distinct, rows = summed(ids, values)
    return tf.reduce_sum(rows) / tf.cast(tf.size(distinct), tf.float32)


def averaged(ids, values):
    return tf.reduce_mean(summed(ids, values)[1])


def multiplied(ids, values):
    rows = summed(ids, values)[1]
    return tf.reduce_sum(tf.matmul(rows, rows, transpose_a=True))


def shown(ids, values):
    tf.print(summed(ids, values)[1], output_stream="file:///dev/null")
    return values


def hashed(ids, values):
    """Other ids computed from distinct ids: those of padding may be out of range."""
    return tf.reduce_sum(tf.gather(values, tf.minimum(tf.unique(ids)[0], N - 1)))


def joined(ids, values):
    one, other = summed(ids, values)[1], summed(ids // 2, values)[1]
    return tf.reduce_sum(tf.concat([one, other], 0))


def added(ids, values):
    """Only where both have as many distinct ids."""
    one, other = summed(ids, values)[1], summed(-ids, values)[1]
    return tf.reduce_sum(one + other)


def met(ids, values):
    """Rows of distinct ids and rows of ids, where all ids are distinct."""
    return tf.reduce_sum(summed(ids, values)[1] + values)


def some_of_them(ids, values):
    return tf.reduce_sum(summed(ids, values)[1][1:])


def of_some(ids, values):
    """How many ids there are depends on data as well."""
    return tf.reduce_sum(tf.unique(ids[values[:, 0] > 0.5])[0])


def of_words(ids, values):
    return tf.strings.length(tf.strings.reduce_join(tf.unique(tf.as_string(ids))[0]))


def nested(ids, values):
    """The inner one cannot be padded, so that the outer one must not be."""
    return tf.unique(tf.unique(ids)[0])[0]


REFUSED = [
    (fetched, "Unique:0 is fetched"),
    (counted, "takes the number of distinct ids"),
    (averaged, "Mean (Mean): padding would show"),
    (multiplied, "MatMul (MatMul): padding would show"),
    (shown, "padding would show"),
    (hashed, "indices that are no distinct ids"),
    (joined, "padding would show"),
    (added, "joins distinct ids of several vectors"),
    (met, "size of its own along the distinct ids"),
    (some_of_them, "takes some of the distinct ids by their places"),
    (of_some, "how many ids there are depends on data"),
    (of_words, "only vectors of int32 or int64 are padded"),
    (nested, "Unique_1:0 is fetched"),
]


@pytest.mark.parametrize("step, reason", REFUSED)
def test_what_padding_would_change_stays(step: Step, reason: str) -> None:
    graph = captured(step, dynamic=True).graph
    assert PADDED_UNIQUE not in ops(graph)
    left = [node for node in graph if node.op == "Unique"]
    assert left
    describing = Describing(graph)
    for node in left:
        assert reason in describing.why_not(node)


def test_the_reason_is_in_the_refusal() -> None:
    with pytest.raises(errors.CaptureError, match="because of Mean"):
        captured(averaged)


def test_one_of_two_is_padded() -> None:
    variable = table()

    def step(ids, values):
        adding(variable)(ids, values)
        return tf.unique(-ids)[0]

    found = ops(captured(step, dynamic=True).graph)
    assert found.count(PADDED_UNIQUE) == found.count("Unique") == 1


def test_of_a_graph_def() -> None:
    """Ids of an exported graph, whose batch is given later."""
    with tf.Graph().as_default() as exported:
        ids = tf.compat.v1.placeholder(tf.int32, [None], "ids")
        values = tf.compat.v1.placeholder(tf.float32, [None, D], "values")
        tf.reduce_sum(summed(ids, values)[1] ** 2.0, name="norm")
    graph_def = exported.as_graph_def()
    graph = capture_graph_def(graph_def, ["norm"], batch=N).graph
    assert "Unique" not in ops(graph)
    placed, _ = pipeline.partition(graph_def, fetches=["norm"], machine=2, batch=N)
    found = [
        tf.compat.v1.Session(graph=built).run("norm:0", {"ids:0": IDS, "values:0": VALUES})
        for built in (_imported(graph_def), _imported(placed))
    ]
    np.testing.assert_allclose(*found, 1e-6)


def _imported(graph_def: Any) -> tf.Graph:
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
    return graph
