"""GraphDefs partitioned: names at the edge, variables in parts, run by a v1 Session."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tofu_tf
from tofu_tf.errors import GraphError, PlanError, TofuError
from tofu_tf.report.checking import check_placement

v1 = tf.compat.v1


def _inference() -> tuple[tf.compat.v1.GraphDef, np.ndarray, list[np.ndarray]]:
    """A frozen perceptron with an unknown batch, an input, and its outputs."""
    rng = np.random.default_rng(0)
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float64, [None, 48], "x")
        h = tf.nn.relu(x @ tf.constant(rng.normal(size=(48, 64))), "h")
        tf.nn.softmax(h @ tf.constant(rng.normal(size=(64, 33))), name="probabilities")
        tf.math.top_k(h, 3, name="best")
        value = rng.normal(size=(10, 48))
        with v1.Session() as session:
            fetched = session.run(["h:0", "probabilities:0"], {"x:0": value})
    return graph.as_graph_def(), value, fetched


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_a_frozen_graph_in_a_session(workers: int) -> None:
    graph_def, value, expected = _inference()
    placed, plan = tofu_tf.partition(
        graph_def, fetches=["h", "probabilities:0"], machine=workers, batch=10
    )
    assert plan.machine.workers == workers
    assert check_placement(placed) == []
    with tf.Graph().as_default():
        tf.import_graph_def(placed, name="")
        with v1.Session(config=v1.ConfigProto(device_count={"CPU": workers})) as session:
            got = session.run(["h:0", "probabilities:0"], {"x:0": value})
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def _training() -> tf.compat.v1.GraphDef:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float64, [12, 40], "x")
        w = v1.get_variable("w", [40, 30], tf.float64, use_resource=True)
        loss = tf.reduce_mean(tf.square(tf.tanh(x @ w)), name="loss")
        (gradient,) = tf.gradients(loss, [w])
        with tf.control_dependencies([v1.assign_sub(w, 0.1 * gradient)]):
            tf.no_op("step")
    return graph.as_graph_def()


def test_variables_become_shards_that_share_names() -> None:
    rng = np.random.default_rng(1)
    value, weights = rng.normal(size=(12, 40)), rng.normal(size=(40, 30))
    placed, plan = tofu_tf.partition(_training(), fetches=["loss", "step"], machine=2)
    handles = [n for n in placed.node if n.op == "VarHandleOp"]
    (layout,) = {plan.layouts[v.ref] for v in plan.variables.values()}
    axis = layout.cuts[0]
    assert axis is not None
    parts = np.split(weights, 2, axis)
    assert [tuple(d.size for d in n.attr["shape"].shape.dim) for n in handles] == [
        p.shape for p in parts
    ]
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(placed, name="")
        resources = [graph.get_tensor_by_name(f"{n.name}:0") for n in handles]
        fill = [
            tf.raw_ops.AssignVariableOp(resource=r, value=tf.constant(p))
            for r, p in zip(resources, parts, strict=True)
        ]
        read = [tf.raw_ops.ReadVariableOp(resource=r, dtype=tf.float64) for r in resources]
        with v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
            session.run(fill)
            loss, _ = session.run(["loss:0", "step"], {"x:0": value})
            after = np.concatenate(session.run(read), axis)
    with tf.GradientTape() as tape:
        w = tf.Variable(weights)
        expected = tf.reduce_mean(tf.square(tf.tanh(value @ w)))
    np.testing.assert_allclose(loss, expected, rtol=1e-12)
    moved = weights - 0.1 * tape.gradient(expected, w).numpy()
    np.testing.assert_allclose(after, moved, rtol=1e-12)


@pytest.mark.parametrize(
    "wrong, kind, words",
    [
        ({"fetches": ["nothing"]}, GraphError, "nothing"),
        ({"fetches": []}, GraphError, "fetches"),
        ({"machine": 4096}, PlanError, "4096"),
        ({"batch": None}, TofuError, "batch"),
        ({"lowering": "smoke"}, PlanError, "p2p"),
        ({"algorithm": "guessing"}, PlanError, "recursion"),
    ],
)
def test_what_is_refused(wrong: dict[str, object], kind: type[TofuError], words: str) -> None:
    graph_def, _, _ = _inference()
    given = {"fetches": ["h"], "machine": 2, "batch": 10, **wrong}
    with pytest.raises(kind) as caught:
        tofu_tf.partition(graph_def, **given)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) < 40
