"""Conditionals of tf.functions, captured: both branches in a straight line, or whole and why."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import function_pb2

from tests.graph.running import Running
from tofu_tf.capture.captured import Captured, flatten_inputs, pack_outputs
from tofu_tf.capture.functions import capture_function
from tofu_tf.capture.graph_defs import capture_graph_def
from tofu_tf.graph.attributes import WHY_WHOLE, attribute

NAMES = ("v", "w", "n", "slot", "table")
CONDITIONALS = {"If", "StatelessIf", "Case", "StatelessCase"}
X = np.asarray([[1.5, -2.0, 0.5], [3.0, 0.25, -1.0]], np.float32)


class Held:
    """Variables that the functions below read and write."""

    def __init__(self) -> None:
        self.v = tf.Variable([[1.0, 2.0, -0.0], [0.5, 4.0, 8.0]], name="v")
        self.w = tf.Variable([[0.5, 1.0], [2.0, -1.0], [1.0, 1.0]], name="w")
        self.slot = tf.Variable(tf.ones([2, 3]), name="slot")
        self.n = tf.Variable(3, dtype=tf.int64, name="n")
        self.table = tf.Variable(np.arange(10.0).reshape(5, 2).astype("float32"), name="table")
        self.generator = tf.random.Generator.from_seed(7)

    def values(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name).numpy() for name in NAMES} | {
            "generator": self.generator.state.numpy()
        }


Function = Callable[[Held, Any, Any], Any]


def pure(held: Held, x: Any, p: Any) -> Any:
    return tf.cond(p > 0, lambda: x * 2, lambda: tf.tanh(x) - 1)


def several_outputs(held: Held, x: Any, p: Any) -> Any:
    return tf.cond(p > 0, lambda: (x, x @ held.w, 3), lambda: (-x, tf.zeros([2, 2]), 4))


def nested(held: Held, x: Any, p: Any) -> Any:
    def inner() -> Any:
        held.n.assign_add(1)
        return tf.cond(p > 1, lambda: held.v.assign_add(x), lambda: held.v.assign_sub(x))

    return tf.cond(p > 0, inner, lambda: held.v * 3)


def switch_case(held: Held, x: Any, p: Any) -> Any:
    def third() -> Any:
        held.v.assign(x)
        return held.v + x

    branches = [lambda: x, lambda: x * held.v, third]
    return tf.switch_case(tf.cast(p, tf.int32), branches)


def case_with_writes(held: Held, x: Any, p: Any) -> Any:
    def write(i: int) -> Any:
        held.v.assign_add(x * i)
        held.n.assign(i)
        return held.v * 2

    return tf.switch_case(tf.cast(p, tf.int32), [functools.partial(write, i) for i in range(4)])


def writes_in_both(held: Held, x: Any, p: Any) -> Any:
    def then() -> Any:
        held.v.assign(x * held.v)
        held.v.assign_add(x)
        return held.v + 0

    def otherwise() -> Any:
        held.v.assign_sub(x)
        before = held.v + 0
        held.v.assign(before * before)
        return before

    given = tf.cond(p > 0, then, otherwise)
    return given, held.v + 1


def reads_around(held: Held, x: Any, p: Any) -> Any:
    before = held.v * 1
    if p > 0:
        held.v.assign(x)
    between = held.v * 1
    held.v.assign_add(x)
    if p > 1:
        held.v.assign_sub(before)
    return before, between, held.v * 1


def not_numbers(held: Held, x: Any, p: Any) -> Any:
    """What the branch that is not taken would have written must leave no trace."""
    bad = tf.math.log(x) / 0.0

    def then() -> Any:
        held.v.assign_add(bad)
        held.table.scatter_nd_add([[1]], [[np.nan, np.inf]])
        return held.v + 0

    return tf.cond(p > 5, then, lambda: held.v.assign_sub(x) * 2)


def rows(held: Held, x: Any, p: Any) -> Any:
    at = tf.clip_by_value(tf.cast(p, tf.int64), 0, 2)
    ids = tf.stack([at, at + 1])
    rows = tf.IndexedSlices(x[:, :2], ids)

    def then() -> Any:
        held.table.scatter_add(rows)
        held.table.scatter_update(tf.IndexedSlices(x[:, 1:], ids + 1))
        held.table.scatter_mul(rows)
        return held.table.sparse_read(ids)

    def otherwise() -> Any:
        held.table.scatter_max(rows)
        held.table.scatter_nd_update(ids[:, None], x[:, 1:])
        return held.table.sparse_read(ids) * 2

    return tf.cond(p > 0, then, otherwise)


def guarded_rows(held: Held, x: Any, p: Any) -> Any:
    """The other branch's rows are not there, its divisor is 0, its labels are none."""
    inside = (p > 1) & (p < 5) & (p != 4)
    index = tf.cast(p, tf.int32)

    def then() -> Any:
        labels = tf.stack([index, index])
        found = tf.gather(held.table, labels) + tf.gather_nd(held.table, labels[:, None])
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels - 2, x)
        found += x[index - 2][:2] + tf.slice(x, [0, index - 2], [2, 2])
        return found + entropy[:, None] + x[:, :2] / tf.cast(12 // (4 - index), tf.float32)

    def otherwise() -> Any:
        checked = tf.debugging.check_numerics(x / (p - 4), "not finite")
        return checked[:, :2] + tf.cast(7 // (index - 4), tf.float32)

    return tf.cond(inside, then, otherwise)


def fused_update(held: Held, x: Any, p: Any) -> Any:
    def then() -> Any:
        tf.raw_ops.ResourceApplyAdagradV2(
            var=held.v.handle,
            accum=held.slot.handle,
            lr=0.5,
            epsilon=1e-3,
            grad=x,
        )
        held.v.assign(held.v + 1)
        return 1.0

    if p > 0:
        then()
    return held.v + 0


def gradient(held: Held, x: Any, p: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.cond(p > 0, lambda: tf.tanh(x @ held.w) ** 2, lambda: tf.exp(x[:, :2]) * held.w[0])
        loss = tf.reduce_sum(y * y)
    return [tf.convert_to_tensor(g) for g in tape.gradient(loss, [x, held.w])]


def gradient_of_nested(held: Held, x: Any, p: Any) -> Any:
    with tf.GradientTape() as tape:
        y = tf.cond(
            p > 0,
            lambda: tf.cond(
                p > 1, lambda: tf.sin(x @ held.w) ** 3, lambda: tf.sigmoid(x @ held.w) ** 2
            ),
            lambda: x[:, 1:] * held.w[1] ** 2,
        )
        loss = tf.reduce_sum(y * y)
    return tape.gradient(loss, held.w)


def gradient_of_switch(held: Held, x: Any, p: Any) -> Any:
    with tf.GradientTape() as tape:
        branches = [lambda: tf.sin(held.v) * x, lambda: held.v**3, lambda: x]
        loss = tf.reduce_sum(tf.switch_case(tf.cast(p, tf.int32), branches) ** 2)
    return tape.gradient(loss, held.v)


def asserting(held: Held, x: Any, p: Any) -> Any:
    tf.debugging.assert_less(p, 100.0, "too large")
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(x < 50), [x, "x"])]):
        return x * p


def asserting_inside(held: Held, x: Any, p: Any) -> Any:
    def then() -> Any:
        tf.debugging.assert_less(p, 100.0, "too large")
        return x

    return tf.cond(p > 0, then, lambda: x * 2)


def numbers_as_predicates(held: Held, x: Any, p: Any) -> Any:
    then, otherwise = held_branch(lambda z: z * 2), held_branch(lambda z: z + 1)
    operands = {"Tout": [tf.float32], "then_branch": then, "else_branch": otherwise}
    whole = tf.raw_ops.StatelessIf(cond=tf.cast(p, tf.int32), input=[x], **operands)
    real = tf.raw_ops.StatelessIf(cond=p / 2, input=[x], **operands)
    return whole[0], real[0]


def held_branch(function: Callable[[Any], Any]) -> Any:
    return tf.function(function).get_concrete_function(tf.TensorSpec((2, 3)))


def constant_predicate(held: Held, x: Any, p: Any) -> Any:
    """Only the branch that is taken is there: the other's effects are none."""

    def then() -> Any:
        held.n.assign_add(1)
        return tf.cond(p > 0, lambda: held.v.assign_add(x), lambda: x * 2)

    def never() -> Any:
        tf.print("never")
        return x

    three = tf.shape(tf.concat([x, tf.zeros([tf.shape(x)[0], 1])], 1))[1]
    return tf.cond(tf.not_equal(three, 4), never, then), tf.cond(tf.constant(1) > 2, never, then)


def calls_inside(held: Held, x: Any, p: Any) -> Any:
    @tf.function
    def inner(z: Any) -> Any:
        held.n.assign_add(2)
        return tf.tanh(z) + held.v

    return tf.cond(p > 0, lambda: inner(inner(x)), lambda: inner(x) * 2)


def conditional_in_a_call(held: Held, x: Any, p: Any) -> Any:
    @tf.function
    def inner(z: Any) -> Any:
        return tf.cond(p > 1, lambda: held.v.assign_add(z), lambda: z * 2)

    return tf.cond(p > 0, lambda: inner(inner(x)), lambda: inner(x) + 1)


def own_generator(held: Held, x: Any, p: Any) -> Any:
    def then() -> Any:
        return held.generator.uniform([2, 3])

    first = tf.cond(p > 0, then, lambda: x)
    return first, held.generator.uniform([2])


def one_of_two_tensors(held: Held, x: Any, p: Any) -> Any:
    """Both branches give the same; nothing is to be chosen."""
    return tf.cond(p > 0, lambda: tf.identity(x), lambda: x)


def sizes(held: Held, x: Any, p: Any) -> Any:
    """Sizes that depend on data stay inside a branch."""
    return tf.cond(
        p > 0, lambda: tf.reduce_sum(tf.boolean_mask(x, x > 0)), lambda: tf.constant(1.0)
    )


STRAIGHT: dict[str, Function] = {
    f.__name__: f
    for f in (
        *(pure, several_outputs, nested, switch_case, case_with_writes, writes_in_both),
        *(reads_around, not_numbers, rows, guarded_rows, fused_update, gradient),
        *(gradient_of_nested, gradient_of_switch, asserting, asserting_inside),
        *(numbers_as_predicates, constant_predicate, calls_inside, own_generator),
        *(conditional_in_a_call, one_of_two_tensors, sizes),
    )
}
DYNAMIC = ("sizes",)
CHOICES = (-1.0, 0.0, 1.0, 2.0, 3.0, 7.0)


def captured_of(function: Function, held: Held, dynamic: bool = False) -> Captured:
    arguments = (tf.TensorSpec((2, 3)), tf.TensorSpec(()))
    named = [(name, getattr(held, name)) for name in NAMES]
    named.append(("generator", held.generator.state))
    return capture_function(lambda x, p: function(held, x, p), arguments, named, dynamic=dynamic)


class Run:
    """A captured function on one device, its variables held outside."""

    def __init__(self, captured: Captured) -> None:
        self.captured = captured
        library = function_pb2.FunctionDefLibrary(function=captured.graph.functions.values())
        self.running = Running(captured.graph, library)
        self.state = {name: v.numpy() for name, v in captured.variables.items()}

    def __call__(self, *arguments: Any) -> Any:
        fed = [np.asarray(value) for value in flatten_inputs(self.captured, arguments)]
        outputs, after = self.running.step(fed, self.state)
        self.state |= after
        return pack_outputs(self.captured, outputs)


def assert_runs_alike(function: Function, dynamic: bool = False) -> Captured:
    """One call after the other: what they give, and all variables after each."""
    held = Held()
    captured = captured_of(function, Held(), dynamic)
    run = Run(captured)
    original = tf.function(lambda x, p: function(held, x, p))
    for p in CHOICES:
        expected, found = original(X, np.float32(p)), run(X, np.float32(p))
        for got, wanted in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
            # Grappler fuses and reorders in the original
            np.testing.assert_allclose(got, wanted, rtol=1e-6, err_msg=f"p = {p}")
        for key, value in held.values().items():
            if key in run.state:
                np.testing.assert_allclose(run.state[key], value, rtol=1e-6, err_msg=key)
                assert (np.signbit(run.state[key]) == np.signbit(value)).all()
    return captured


@pytest.mark.parametrize("name", STRAIGHT)
def test_both_branches_run_and_one_counts(name: str) -> None:
    captured = assert_runs_alike(STRAIGHT[name], name in DYNAMIC)
    assert not {n.op for n in captured.graph} & CONDITIONALS


def prints(held: Held, x: Any, p: Any) -> Any:
    if p > 0:
        tf.print(p, output_stream="file:///dev/null")
    return x


def python_inside(held: Held, x: Any, p: Any) -> Any:
    return tf.cond(p > 0, lambda: tf.numpy_function(np.sin, [x], tf.float32), lambda: x)


def loops(held: Held, x: Any, p: Any) -> Any:
    def then() -> Any:
        return tf.while_loop(lambda i, y: i < p, lambda i, y: (i + 1, y * 2), (0.0, x))[1]

    return tf.cond(p > 0, then, lambda: x)


def matrices(held: Held, x: Any, p: Any) -> Any:
    def then() -> Any:
        return tf.linalg.inv(p * tf.eye(2)) @ x

    return tf.cond(p > 0, then, lambda: x)


def strings(held: Held, x: Any, p: Any) -> Any:
    return tf.strings.length(tf.cond(p > 0, lambda: "positive", lambda: "none"))


def other_shapes(held: Held, x: Any, p: Any) -> Any:
    return tf.reduce_sum(tf.cond(p > 0, lambda: x, lambda: x[:1]))


def other_optionals(held: Held, x: Any, p: Any) -> Any:
    optional = tf.experimental.Optional

    def empty() -> Any:
        return optional.empty(tf.TensorSpec((2, 3)))

    return tf.cond(p > 0, lambda: optional.from_value(x), empty).has_value()


def nested_print(held: Held, x: Any, p: Any) -> Any:
    """All or nothing: the outer one stays with what is inside."""

    def then() -> Any:
        held.n.assign_add(1)
        return tf.cond(p > 1, lambda: prints(held, x, p), lambda: x * 2)

    return tf.cond(p > 0, then, lambda: x)


def gradient_of_a_whole_one(held: Held, x: Any, p: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(matrices(held, x, p) ** 2)
    return tape.gradient(loss, x)


WHOLE: dict[str, tuple[Function, str]] = {
    "prints": (prints, "side effect .(StringFormat|PrintV2)"),
    "python_inside": (python_inside, "side effect .(EagerPyFunc|PyFunc)"),
    "loops": (loops, "holds a loop"),
    "matrices": (matrices, "may fail on some data"),
    "strings": (strings, "different strings"),
    "other_shapes": (other_shapes, "shapes"),
    "other_optionals": (other_optionals, "optional"),
    "nested_print": (nested_print, "side effect"),
    "gradient_of_a_whole_one": (gradient_of_a_whole_one, "may fail on some data"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_stays_whole_and_says_why(name: str) -> None:
    function, why = WHOLE[name]
    captured = assert_runs_alike(function, dynamic=True)
    left = [n for n in captured.graph if n.op in CONDITIONALS]
    assert left
    said = [attribute(node, WHY_WHOLE) for node in left]
    assert re.search(why, str(said[0])), said


@pytest.mark.parametrize("function", [asserting, asserting_inside])
def test_a_check_raises_what_it_raised(function: Function) -> None:
    run = Run(captured_of(function, Held()))
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        run(X, np.float32(200))


def test_a_branch_that_is_not_taken_does_not_check() -> None:
    def function(held: Held, x: Any, p: Any) -> Any:
        return tf.cond(p > 300, lambda: asserting(held, x, p), lambda: x)

    np.testing.assert_array_equal(Run(captured_of(function, Held()))(X, np.float32(200)), X)


def test_a_branch_that_is_not_taken_draws_nothing() -> None:
    def drawing(held: Held, x: Any, p: Any) -> Any:
        def then() -> Any:
            return tf.random.uniform([2, 3], seed=3) + tf.random.normal([3], seed=4)

        return tf.cond(p > 0, then, lambda: x)

    tf.random.set_seed(5)
    held = Held()
    run = Run(captured_of(drawing, held))
    tf.random.set_seed(5)
    original = tf.function(lambda x, p: drawing(held, x, p))
    for p in (0.0, 1.0, 1.0, 0.0, 1.0):
        expected = original(X, np.float32(p))
        np.testing.assert_allclose(run(X, np.float32(p)), expected, rtol=1e-6)


def test_a_big_variable_is_neither_copied_nor_read_twice() -> None:
    """What a write might leave as it is refers to the version before: no other node, no copy."""
    captured = captured_of(writes_in_both, Held())
    ops = [n.op for n in captured.graph]
    assert "ReadVariableOp" not in ops
    assert ops.count("SelectV2") == ops.count("AssignVariableOp") + 2 + 1


def test_a_predicate_that_folding_finds_leaves_one_branch() -> None:
    captured = captured_of(constant_predicate, Held())
    ops = {n.op for n in captured.graph}
    assert not ops & {"PrintV2", "StringFormat", "NotEqual", "Equal"}


@contextlib.contextmanager
def control_flow_v2() -> Iterator[None]:
    """Graphs made inside hold If, not Switch and Merge."""
    before = tf.compat.v1.control_flow_v2_enabled()
    tf.compat.v1.enable_control_flow_v2()
    try:
        yield
    finally:
        if not before:
            tf.compat.v1.disable_control_flow_v2()


def test_conditionals_of_a_graph_def() -> None:
    """Handles of variables that the graph itself makes; what is fetched keeps its name."""
    with control_flow_v2(), tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (None, 3), "x")
        p = tf.compat.v1.placeholder(tf.bool, (), "p")
        v = tf.compat.v1.get_variable("v", (3,), use_resource=True)

        def then() -> Any:
            with tf.control_dependencies([v.assign_add([1.0, 2.0, 3.0])]):
                return tf.reduce_sum(x, 0) + v.read_value()

        tf.cond(p, then, lambda: v * 2, name="choice")
    captured = capture_graph_def(graph.as_graph_def(), ["choice:0"], batch=2)
    assert not {n.op for n in captured.graph} & CONDITIONALS
    running = Running(captured.graph, captured.library)
    before = {"v": np.ones(3, np.float32)}
    for p_value, given, after in [
        (True, X.sum(0) + np.arange(2, 5), [2, 3, 4]),
        (False, [2, 2, 2], [1, 1, 1]),
    ]:
        fed = {"x": X, "p": np.asarray(p_value)}
        found, state = running.step([fed[name] for name in captured.graph.inputs], before)
        np.testing.assert_allclose(found[0], given)
        np.testing.assert_allclose(state["v"], after)


def test_random_ops_of_a_graph_def_keep_a_conditional_whole() -> None:
    """Nobody holds a state for them: the op's kernel does, and it must not draw in vain."""
    with control_flow_v2(), tf.Graph().as_default() as graph:
        p = tf.compat.v1.placeholder(tf.bool, (), "p")
        tf.cond(p, lambda: tf.random.uniform([2]), lambda: tf.zeros([2]), name="choice")
    captured = capture_graph_def(graph.as_graph_def(), ["choice:0"])
    (left,) = (n for n in captured.graph if n.op in CONDITIONALS)
    assert "generator of its own" in attribute(left, WHY_WHOLE)
