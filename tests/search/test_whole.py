"""What nothing is known of runs whole on worker 0, listed with its reason; the rest is cut."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.rewrite.random_plans import run_placed
from tofu_tf import errors
from tofu_tf.capture.functions import capture_function
from tofu_tf.graph import traversal
from tofu_tf.ops.registry import REGISTRY
from tofu_tf.pipeline import apply_plan, check_plan, find_plan
from tofu_tf.plan import files
from tofu_tf.plan.machine import imagined
from tofu_tf.report import checking, counting

R = np.random.RandomState(0)
X = R.rand(12, 40)


class Weights:
    def __init__(self) -> None:
        self.first = tf.Variable(R.rand(40, 36) - 0.5)
        self.second = tf.Variable(R.rand(36, 20) - 0.5)

    @property
    def all(self) -> list[tf.Variable]:
        return [self.first, self.second]


def _trained(w: Weights, middle: Callable[[Any], Any], x: Any) -> Any:
    """A training step with `middle` between two layers."""
    with tf.GradientTape() as tape:
        y = tf.matmul(middle(tf.tanh(tf.matmul(x, w.first))), w.second)
        loss = tf.reduce_mean(tf.square(y))
    for v, g in zip(w.all, tape.gradient(loss, w.all), strict=True):
        v.assign_sub(0.1 * g)
    return loss, y


def unheard(w: Weights) -> Callable[..., Any]:
    # an op that nobody has described
    return lambda x: _trained(w, lambda h: tf.raw_ops.BesselJ0(x=h) * 0 + tf.sort(h, 1), x)


def shape_operand(w: Weights) -> Callable[..., Any]:
    def shifted(h: Any) -> Any:
        # where to cut depends on data, which cannot be known beforehand
        start = tf.cast(tf.reduce_sum(h) > 0, tf.int32)
        return h + tf.pad(tf.slice(h, tf.stack([0, start]), [12, 30]), [[0, 0], [6, 0]])

    return lambda x: _trained(w, shifted, x)


def dynamic_size(w: Weights) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        loss, y = _trained(w, lambda h: h, x)
        kept = tf.boolean_mask(y, tf.reduce_sum(y, 1) > tf.reduce_mean(tf.reduce_sum(y, 1)))
        return loss, y, kept, tf.reduce_sum(kept, 0)

    return step


def loop(w: Weights) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        loss, _ = _trained(w, lambda h: h, x)

        # reads a variable that the step has written, and which is cut nowhere then
        def again(i: Any, h: Any) -> Any:
            return i + 1, tf.tanh(tf.matmul(h, w.second)) @ u

        _, last = tf.while_loop(lambda i, h: i < 3, again, (0, x @ w.first))
        return loss, last

    u = tf.constant(R.rand(20, 36))
    return step


def branch(w: Weights) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        loss, _ = _trained(w, lambda h: h, x)

        def halved() -> Any:
            tf.print(loss, output_stream="file:///dev/null")  # what keeps it a conditional
            w.second.assign(w.second * 0.5)
            return tf.constant(1)

        done = tf.cond(loss > 0, halved, lambda: tf.constant(0))
        return loss, done, tf.reduce_sum(w.second)

    return step


def strings(w: Weights) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        loss, y = _trained(w, lambda h: h, x)
        words = tf.strings.join([tf.strings.as_string(y[:, 0]), tf.constant("!")])
        tf.print(loss, output_stream="file:///dev/null")
        return loss, tf.strings.length(words), words

    return step


def table(w: Weights) -> Callable[..., Any]:
    keys = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1, 2], tf.int64), [5.0, 6.0, 7.0])
    found = tf.lookup.StaticHashTable(keys, -1.0)

    def step(x: Any) -> Any:
        loss, y = _trained(w, lambda h: h, x)
        step.table = found  # type: ignore[attr-defined]
        return loss, y + tf.cast(found.lookup(tf.argmax(y, 1))[:, None], tf.float64)

    return step


CASES = {
    "unheard": (unheard, {"BesselJ0": 1}),
    "shape_operand": (shape_operand, {}),
    "dynamic_size": (dynamic_size, {"Where": 1}),
    "loop": (loop, {"While": 1}),
    "branch": (branch, {"If": 1}),
    "strings": (strings, {"AsString": 1, "PrintV2": 1}),
    "table": (table, {"LookupTableFindV2": 1}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("k", [2, 3])
def test_equals_one_device(name: str, k: int) -> None:
    make, expected = CASES[name]
    weights = Weights()
    step = make(weights)
    before = [v.numpy() for v in weights.all]
    outputs = [t.numpy() for t in tf.nest.flatten(tf.function(step)(tf.constant(X)))]
    after = [v.numpy() for v in weights.all]
    for v, value in zip(weights.all, before, strict=True):
        v.assign(value)

    captured = capture_function(step, [tf.TensorSpec(X.shape, X.dtype)], dynamic=True)
    graph, machine = captured.graph, imagined(k)
    plan = find_plan(graph, machine, undescribed="whole")
    check_plan(plan, graph, machine)
    assert files.plan_from_json(files.plan_to_json(plan)).whole == plan.whole
    ops = [w.op for w in plan.whole.values()]
    assert ops
    assert {op: ops.count(op) for op in expected} == expected
    for node, whole in plan.whole.items():
        assert plan.strategies[node].home
        assert whole.reason
        assert f"{node} ({whole.op}): {whole.reason}" in str(plan)

    placed = apply_plan(graph, plan)
    assert not checking.check_placement(placed.graph_def)
    moved = counting.count_communication(placed.graph_def, placed.feed_nodes, placed.result_nodes)
    assert moved.total == plan.predicted_bytes
    got, variables = run_placed(placed, captured, [X])
    for a, b in zip(got, outputs, strict=True):
        if a.dtype == object:
            assert list(a) == list(b)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    named = {v.ref(): n for n, v in captured.variables.items()}
    for v, value in zip(weights.all, after, strict=True):
        np.testing.assert_allclose(variables[named[v.ref()]], value, rtol=1e-10, atol=1e-12)


def planned(make: Callable[[Weights], Any], **given: Any) -> Any:
    captured = capture_function(make(Weights()), [tf.TensorSpec(X.shape, X.dtype)], dynamic=True)
    return captured.graph, find_plan(captured.graph, imagined(2), **given)


def test_neighbours_stay_cut() -> None:
    graph, plan = planned(unheard, undescribed="whole")
    products = [n.name for n in graph if n.op == "MatMul"]
    assert len(products) >= 4
    assert all(any(plan.strategies[n].axes) for n in products)
    assert all(None not in plan.layouts[v.ref].cuts for v in graph.variables.values())


def test_cost_is_what_is_brought_and_sent_back() -> None:
    graph, plan = planned(unheard, undescribed="whole")
    assert [w.op for w in plan.whole.values()] == ["BesselJ0", "BesselJ1"]
    for name, whole in plan.whole.items():
        # halves of 12 x 36 numbers of 8 bytes: one comes, one goes
        assert whole.nbytes == 12 * 36 * 8
        assert whole.reason == "no description"
        assert graph.nodes[name].op == whole.op


def test_a_variable_whose_handle_is_taken_is_whole_and_says_so() -> None:
    graph, plan = planned(loop, undescribed="whole")
    kept = {v for n in plan.whole for v in graph.nodes[n].variables.values()}
    assert len(kept) == 1
    for name, refs in traversal.versions(graph).items():
        for ref in refs:
            assert plan.layouts[ref].home == (name in kept)
    (ref,) = (graph.variables[v].ref for v in kept)
    assert "which runs whole" in plan.reasons[ref]
    # its gradient, which has the same shape, is cut as before
    shape = graph.spec(ref).shape
    others = [r for r in graph.refs() if graph.spec(r).shape == shape and r not in plan.reasons]
    assert others
    assert all(not plan.layouts[r].home for r in others)


def test_such_a_variable_cannot_be_asked_to_be_cut() -> None:
    with pytest.raises(errors.ConstraintError, match=r"takes its handle"):
        planned(loop, undescribed="whole", constraints={"Variable*": ("d0", None)})


@pytest.mark.parametrize(
    "make, text",
    [
        (unheard, r"BesselJ0 \(1 node, such as \w+\)"),
        (shape_operand, r"Slice \(1 node, such as Slice: input 1 comes from \S+ and is not a cons"),
        (dynamic_size, r"the size of input 1 depends on data"),
        (loop, r"While \(1 node"),
        (branch, r"If \(1 node"),
    ],
)
def test_refused_unless_asked_for(make: Callable[[Weights], Any], text: str) -> None:
    with pytest.raises(errors.UndescribedError, match=text) as caught:
        planned(make, undescribed="refuse")
    assert "undescribed='whole'" in str(caught.value)


def test_an_unknown_choice_lists_the_known() -> None:
    with pytest.raises(errors.PlanError, match="one of 'refuse', 'whole'"):
        planned(unheard, undescribed="ignore")


def test_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    said: set[str] = set()
    with caplog.at_level(logging.WARNING, "tofu_tf"):
        for _ in range(2):
            planned(unheard, undescribed="whole", announced=said)
    (record,) = caplog.records
    assert "BesselJ0" in record.getMessage()
    assert "no description" in record.getMessage()


def test_a_plan_does_not_hang_on_names_of_functions() -> None:
    prints = [planned(loop, undescribed="whole")[1].fingerprint for _ in range(2)]
    assert prints[0] == prints[1]


def test_a_known_op_made_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(REGISTRY, "Tanh")
    _, plan = planned(unheard, undescribed="whole")
    assert {w.op for w in plan.whole.values()} == {"Tanh", "BesselJ0", "BesselJ1"}
