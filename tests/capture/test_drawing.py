"""Random ops that keep a generator draw the same numbers, bit for bit, from one in a variable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.graph.running import Running
from tofu_tf.capture.drawing import SEEDED, STATEFUL, Streams, draw
from tofu_tf.capture.functions import capture_function
from tofu_tf.capture.graph_defs import capture_graph_def
from tofu_tf.graph.attributes import INDEPENDENT

RAW = tf.raw_ops
CALLS = 3
FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
LAWS = ("RandomUniform", "RandomStandardNormal", "TruncatedNormal")
INTS = ((0, 10), (-7, 2**20 + 7), (-(2**31), 2**31 - 1))
SEEDS = ((87654321, 1), (5, -3), (0, 7), (2**40 + 1, 2**33))
STATEFUL_CASES = [
    *((law, dtype, (), shape) for law in LAWS for dtype in FLOATS for shape in ((3, 5), (1001,))),
    *(("RandomUniformInt", d, r, (13, 7)) for d in (tf.int32, tf.int64) for r in INTS),
    ("RandomUniform", tf.float32, (), ()),
]


def running(function: Any, *specs: tf.TensorSpec) -> tuple[Running, dict[str, np.ndarray]]:
    captured = capture_function(function, specs)
    state = {name: v.numpy() for name, v in captured.variables.items()}
    return Running(captured.graph, captured.library), state


def assert_same_bits(found: Any, expected: Any) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("law", "dtype", "limits", "shape"), STATEFUL_CASES)
def test_a_stateful_op_call_by_call(law: str, dtype: Any, limits: Any, shape: Any) -> None:
    for seed, seed2 in SEEDS:

        def drawn(seed: int = seed, seed2: int = seed2) -> Any:
            seeds = {"seed": seed, "seed2": seed2}
            if limits:
                low, high = (tf.constant(n, dtype) for n in limits)
                return RAW.RandomUniformInt(shape=shape, minval=low, maxval=high, **seeds)
            return getattr(RAW, law)(shape=tf.constant(shape, tf.int32), dtype=dtype, **seeds)

        mine, state = running(drawn)
        assert not {node.op for node in mine.graph} & set(STATEFUL)
        plain = tf.function(drawn)
        for _ in range(CALLS):
            (found,), state = mine.step([], state)
            assert_same_bits(found, plain().numpy())


@pytest.mark.parametrize("law", SEEDED)
def test_an_op_that_takes_a_seed(law: str) -> None:
    dtypes = FLOATS if "Int" not in law else (tf.int32, tf.int64)
    for dtype in dtypes:

        def drawn(seed: Any, dtype: Any = dtype) -> Any:
            if law == "StatelessRandomUniformInt":
                limits = {"minval": tf.constant(-3, dtype), "maxval": tf.constant(90, dtype)}
                return getattr(RAW, law)(shape=[7, 3], seed=seed, **limits)
            return getattr(RAW, law)(shape=[7, 3], seed=seed, dtype=dtype)

        mine, _ = running(drawn, tf.TensorSpec((2,), tf.int32))
        assert law not in {node.op for node in mine.graph}
        for seed in ((1, 2), (-5, 0)):
            (found,), _ = mine.step([np.asarray(seed, np.int32)], {})
            assert_same_bits(found, drawn(tf.constant(seed, tf.int32)).numpy())


def test_no_seed_is_never_the_same_twice() -> None:
    def drawn() -> Any:
        return RAW.RandomUniform(shape=[8], dtype=tf.float32)

    seen = []
    for _ in range(2):
        mine, state = running(drawn)
        for _ in range(2):
            (found,), state = mine.step([], state)
            seen.append(found.tobytes())
    assert len(set(seen)) == 4


def test_signatures_go_on_with_one_stream() -> None:
    """A step for another batch size draws on where the last one stopped, with its seeds."""

    def drawn(x: Any) -> Any:
        return RAW.RandomUniform(shape=tf.shape(x), dtype=tf.float32, seed=3, seed2=4)

    plain = tf.function(drawn, input_signature=[tf.TensorSpec([None], tf.float32)])
    streams, state = Streams(), {}
    by_rows = {}
    for rows in (16, 5):
        captured = capture_function(drawn, (tf.TensorSpec((rows,), tf.float32),), streams=streams)
        by_rows[rows] = Running(captured.graph, captured.library)
        state = {name: v.numpy() for name, v in captured.variables.items()}
    assert len(streams) == 1
    for rows in (16, 5, 5, 16):
        (found,), state = by_rows[rows].step([np.zeros(rows, np.float32)], state)
        assert_same_bits(found, plain(tf.zeros(rows)).numpy())


def test_restart() -> None:
    streams = Streams()
    seeded, other = streams.state("a", (3, 4)), streams.state("b", (0, 0))
    first, unseeded = seeded.numpy(), other.numpy()
    assert first.tolist() == [0, 4, 3]
    assert unseeded[0] == 0
    for state in (seeded, other):
        state.assign_add([256, 0, 0])
    assert streams.state("a", (9, 9)) is seeded
    streams.restart()
    assert seeded.numpy().tolist() == first.tolist()
    assert other.numpy()[0] == 256


def independent(function: Any, *specs: tf.TensorSpec) -> set[str]:
    graph = capture_function(function, specs, streams=Streams("independent")).graph
    return {node.op for node in graph if INDEPENDENT in node.attrs}


def test_independent_where_a_generator_is_drawn_from_and_no_seed_was_given() -> None:
    generator = tf.random.Generator.from_seed(3)
    uniform = {"StatelessRandomUniformV2"}
    assert independent(lambda: tf.random.uniform([8])) == uniform
    assert independent(lambda: generator.uniform([8])) == uniform
    seeded = lambda seed: tf.random.stateless_uniform([8], seed)  # noqa: E731
    assert not independent(seeded, tf.TensorSpec((2,), tf.int32))


def test_in_an_exported_graph_they_stay() -> None:
    with tf.Graph().as_default() as graph:
        RAW.RandomUniform(shape=[4], dtype=tf.float32, seed=1, name="u")
    captured = capture_graph_def(graph.as_graph_def(), ["u"])
    assert [node.op for node in captured.graph if node.op != "Const"] == ["RandomUniform"]


def test_a_graph_without_random_ops_is_left_alone() -> None:
    with tf.Graph().as_default() as graph:
        tf.constant(1.0)
    graph_def = graph.as_graph_def()
    assert draw(graph_def, Streams()).graph_def is graph_def


def test_the_state_waits_for_what_the_op_waited_for() -> None:
    with tf.Graph().as_default() as graph:
        shape = tf.constant([4])
        with tf.control_dependencies([tf.no_op("before")]):
            RAW.RandomUniform(shape=shape, dtype=tf.float32, seed=1, name="u")
    nodes = {n.name: n for n in draw(graph.as_graph_def(), Streams()).graph_def.node}
    skip = next(n for n in nodes.values() if n.op == "RngReadAndSkip")
    assert "^before" in skip.input
    assert "^before" in nodes["u"].input
