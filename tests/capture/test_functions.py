"""Functions over plain variables: nests, Python leaves, captured tensors, effects, calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.graph.running import Running
from tofu_tf.capture.captured import Captured, flatten_inputs, pack_outputs
from tofu_tf.capture.functions import capture_function
from tofu_tf.errors import CaptureError


def run(captured: Captured, *arguments: Any) -> tuple[Any, dict[str, np.ndarray]]:
    state = {name: v.numpy() for name, v in captured.variables.items()}
    fed = flatten_inputs(captured, arguments)
    outputs, state = Running(captured.graph, captured.library).step(
        [np.asarray(value) for value in fed], state
    )
    return pack_outputs(captured, outputs), state


def test_nests_python_leaves_and_none() -> None:
    def function(pair: Any, scale: int, flag: Any) -> Any:
        assert flag is None
        return {"sum": pair["a"] + scale, "none": None, "list": [pair["b"], (pair["a"] * 2,)]}

    spec = tf.TensorSpec((2,))
    captured = capture_function(function, ({"b": spec, "a": spec}, 3, None))
    result, _ = run(captured, {"b": np.ones(2, np.float32), "a": np.zeros(2, np.float32)}, 3, None)
    assert result["none"] is None
    np.testing.assert_array_equal(result["sum"], [3, 3])
    np.testing.assert_array_equal(result["list"][0], [1, 1])
    np.testing.assert_array_equal(result["list"][1][0], [0, 0])


def test_tape_loop_over_plain_variables_equals_the_function() -> None:
    w = tf.Variable([[1.0, 2.0], [3.0, 4.0]], name="w")
    same_name = tf.Variable(1.0, name="w")
    outside = tf.constant([0.5, 0.25])
    rate = 0.1

    @tf.function
    def inner(x: Any) -> Any:
        return tf.tanh(x @ w) * same_name + outside

    @tf.function(jit_compile=False)
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(inner(x) ** 2)
        for v, g in zip([w, same_name], tape.gradient(loss, [w, same_name]), strict=True):
            v.assign_sub(rate * g)
        return loss, w.read_value()

    captured = capture_function(step, (tf.TensorSpec((3, 2)),))
    assert set(captured.variables) == {"w", "w_1"}
    assert [t.numpy().tolist() for t in captured.captures.values()] == [[0.5, 0.25]]
    assert not {n.op for n in captured.graph} & {"PartitionedCall", "StatefulPartitionedCall"}
    x = np.arange(6, dtype=np.float32).reshape(3, 2) / 7
    result, state = run(captured, x)
    expected = step(tf.constant(x))
    for got, wanted in zip(result, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)  # Grappler fuses in the original
    for name, variable in captured.variables.items():
        np.testing.assert_allclose(state[name], variable.numpy(), rtol=1e-6)


def test_variables_made_by_the_first_call() -> None:
    made: list[tf.Variable] = []

    @tf.function
    def counting(x: Any) -> Any:
        if not made:
            made.append(tf.Variable(tf.zeros([]), name="count"))
        return x + made[0].assign_add(1.0)

    captured = capture_function(counting, (tf.TensorSpec(()),))
    assert list(captured.variables.values()) == made
    assert made[0].numpy() == 0
    result, state = run(captured, np.float32(5))
    assert (result, state["count"]) == (6, 1)


def test_effects_without_outputs() -> None:
    v = tf.Variable(0.0)

    def function(x: Any) -> Any:
        tf.debugging.assert_greater(x, 0.0)
        v.assign(x)
        return {}

    captured = capture_function(function, (tf.TensorSpec(()),))
    ops = [captured.graph.nodes[name].op for name in captured.graph.effects]
    assert "AssignVariableOp" in ops
    result, state = run(captured, np.float32(2))
    assert result == {}
    assert list(state.values()) == [2]
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(captured, np.float32(-2))


def test_loops_stay_and_conditionals_go() -> None:
    v = tf.Variable(1.0, name="v")

    def function(x: Any) -> Any:
        if x > 0.0:
            v.assign_add(x)
        total = tf.constant(0.0)
        for i in tf.range(3):
            total += v * tf.cast(i, tf.float32)
        return total

    captured = capture_function(function, (tf.TensorSpec(()),))
    ops = {n.op for n in captured.graph}
    assert "If" not in ops
    assert ops & {"While", "StatelessWhile"}
    for x, expected in [(2.0, 9.0), (-2.0, 3.0)]:
        result, _ = run(captured, np.float32(x))
        assert result == expected


def test_where_unknown_dimensions_come_from_is_listed() -> None:
    def function(x: Any) -> Any:
        return tf.exp(tf.boolean_mask(x, x > 0))

    with pytest.raises(CaptureError) as error:
        capture_function(function, (tf.TensorSpec((4,)),))
    assert "Where:0 (Where, int64[-1, 1])" in str(error.value)
    assert "1 tensors with unknown dimensions (-1), and 3 that follow from them" in str(error.value)
    assert "Exp" not in str(error.value)


def test_many_unknown_dimensions_are_one_screen() -> None:
    def function(x: Any) -> Any:
        return [tf.where(x > i) for i in range(30)]

    with pytest.raises(CaptureError, match="30 tensors with unknown dimensions") as error:
        capture_function(function, (tf.TensorSpec((4,)),))
    assert "; and 22 more" in str(error.value)


def test_other_arguments_than_those_traced() -> None:
    captured = capture_function(lambda x: x, (tf.TensorSpec(()),))
    with pytest.raises(CaptureError, match="structure"):
        flatten_inputs(captured, ([1.0, 2.0],))
