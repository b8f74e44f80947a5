"""Dilated convolutions are one node each, and computed as TensorFlow computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tests.rewrite import random_plans as plans
from tofu_tf.capture.functions import capture_function
from tofu_tf.graph import attributes
from tofu_tf.rewrite.rewriting import rewrite

L = keras.layers
IMAGE, LINE, BODY = (3, 9, 8, 4), (3, 9, 4), (2, 6, 5, 7, 4)
# layer, its input, {op: (dilations, padding)}
Case = tuple[Any, tuple[int, ...], dict[str, tuple[tuple[int, ...], str]]]


def ops(stem: str, suffix: str, dilations: tuple[int, ...], padding: str) -> dict[str, Any]:
    kinds = (stem, f"{stem}BackpropInput{suffix}", f"{stem}BackpropFilter{suffix}")
    return dict.fromkeys(kinds, ((1, *dilations, 1), padding))


CASES: dict[str, Case] = {
    "2-D, same": (
        lambda: L.Conv2D(5, 3, dilation_rate=2, padding="same"),
        IMAGE,
        ops("Conv2D", "", (2, 2), "EXPLICIT"),
    ),
    "2-D, valid, by row only": (
        lambda: L.Conv2D(5, (3, 2), dilation_rate=(3, 1)),
        IMAGE,
        ops("Conv2D", "", (3, 1), "VALID"),
    ),
    "2-D, taller than the image": (
        lambda: L.Conv2D(5, (4, 3), dilation_rate=(4, 2), padding="same"),
        IMAGE,
        ops("Conv2D", "", (4, 2), "EXPLICIT"),
    ),
    "1-D, same": (
        lambda: L.Conv1D(5, 3, dilation_rate=2, padding="same"),
        LINE,
        ops("Conv2D", "", (1, 2), "EXPLICIT"),
    ),
    "1-D, causal": (
        lambda: L.Conv1D(5, 2, dilation_rate=3, padding="causal"),
        LINE,
        ops("Conv2D", "", (1, 3), "VALID"),
    ),
    "3-D, same": (
        lambda: L.Conv3D(5, 3, dilation_rate=(2, 1, 3), padding="same"),
        BODY,
        ops("Conv3D", "V2", (2, 1, 3), "SAME"),
    ),
    "depthwise": (
        lambda: L.DepthwiseConv2D(3, depth_multiplier=2, dilation_rate=2, padding="same"),
        IMAGE,
        {
            f"DepthwiseConv2dNative{kind}": ((1, 2, 2, 1), "EXPLICIT")
            for kind in ("", "BackpropInput", "BackpropFilter")
        },
    ),
    "transposed": (
        lambda: L.Conv2DTranspose(5, 3, dilation_rate=2, padding="same"),
        IMAGE,
        ops("Conv2D", "", (2, 2), "EXPLICIT"),
    ),
}


def step_of(name: str) -> tuple[Any, list[np.ndarray], list[tf.Variable]]:
    """Loss of a layer's output and all gradients, in float64."""
    make, shape, _ = CASES[name]
    keras.utils.set_random_seed(0)
    with tf.device("/device:CPU:0"):
        layer = make()
        layer._set_dtype_policy("float64")
        layer.build(shape)

    def step(x: tf.Tensor, g: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = layer(x)
            loss = tf.reduce_sum(out * g)
        return out, tape.gradient(loss, [x, *layer.trainable_variables])

    r = np.random.RandomState(0)
    feeds = [r.rand(*shape), r.rand(*layer.compute_output_shape(shape))]
    return step, feeds, layer.trainable_variables


# The rest says of other ranks and paddings what these two say.
QUICK = ("1-D, same", "depthwise")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in CASES]
)
def test_one_node_that_computes_the_same_however_it_is_cut(name: str) -> None:
    step, feeds, _ = step_of(name)
    captured = capture_function(step, [tf.TensorSpec(f.shape, f.dtype) for f in feeds])
    assert not [n for n in captured.graph if n.op.endswith("ND")]
    found = {
        n.op: tuple(attributes.decode(n.attrs[a]) for a in ("dilations", "padding"))
        for n in captured.graph
        if "Conv" in n.op
    }
    assert found == CASES[name][2]

    expected = [t.numpy() for t in tf.nest.flatten(tf.function(step)(*map(tf.constant, feeds)))]
    for workers, seed in [(1, 0), (2, 1), (2, 2), (3, 3), (4, 4), (6, 5)]:
        plan = plans.random_plan(captured.graph, workers, seed)
        got, _ = plans.run_placed(rewrite(captured.graph, plan), captured, feeds)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12, err_msg=f"{workers} {seed}")
