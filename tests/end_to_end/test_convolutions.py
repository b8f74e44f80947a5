"""Convolutions of one image, cut along height, width, in-channels and out-channels in turn."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tests.end_to_end import oracle
from tests.rewrite.random_plans import run_placed
from tofu_tf import pipeline
from tofu_tf.capture.captured import Captured
from tofu_tf.capture.functions import capture_function
from tofu_tf.graph.ir import Graph, Node
from tofu_tf.ops.applicable import Describing
from tofu_tf.plan import machine as machines
from tofu_tf.plan.plans import Plan, Strategy
from tofu_tf.tdl import strategies

L = keras.layers
WORKERS = (2, 3, 4)


def flat() -> tuple[list[Any], tuple[int, ...]]:
    layers = [
        L.Conv2D(4, 7, strides=2, padding="same", name="wide"),
        L.Conv2D(6, 3, name="inner"),
        L.MaxPool2D(3, 2, padding="same"),
        L.Conv2D(4, 3, dilation_rate=2, padding="same", name="dilated"),
        L.DepthwiseConv2D(5, padding="same", name="depthwise"),
        L.Conv2DTranspose(4, 4, strides=2, padding="same", name="up"),
        L.GlobalAveragePooling2D(),
        L.Dense(3, name="head"),
    ]
    return layers, (1, 15, 13, 3)


def solid() -> tuple[list[Any], tuple[int, ...]]:
    """Without pooling, whose kernels for three dimensions know no float64."""
    layers = [
        L.Conv3D(4, 7, strides=2, padding="same", name="wide"),
        L.Conv3D(6, 3, name="inner"),
        L.Conv3D(4, 3, dilation_rate=2, padding="same", name="dilated"),
        L.Conv3DTranspose(4, 4, strides=2, padding="same", name="up"),
        L.GlobalAveragePooling3D(),
        L.Dense(3, name="head"),
    ]
    return layers, (1, 9, 8, 7, 3)


def low() -> tuple[list[Any], tuple[int, ...]]:
    """Images lower than the kernel, and halos wider than a part of one row."""
    layers = [
        L.Conv2D(4, (7, 3), padding="same", name="tall"),
        L.MaxPool2D((5, 2), 1, padding="same"),
        L.Conv2D(6, (5, 3), padding="same", dilation_rate=(3, 1), name="dilated"),
        L.AveragePooling2D((6, 2), (1, 2), padding="same"),
        L.DepthwiseConv2D((5, 3), padding="same", name="depthwise"),
        L.Conv2DTranspose(4, (6, 3), padding="same", name="up"),
        L.GlobalAveragePooling2D(),
        L.Dense(3, name="head"),
    ]
    return layers, (1, 4, 13, 3)


CHAINS: dict[str, Callable[[], tuple[list[Any], tuple[int, ...]]]] = {
    "flat": flat,
    "solid": solid,
    "low": low,
}
# What is cut: loop axes of forward and input-gradient ops, and of a filter's gradient (oy ...).
CUTS: dict[str, tuple[str, ...]] = {
    "depth": ("z", "oz"),
    "height": ("y", "oy"),
    "width": ("x", "ox"),
    "in-channels": ("ci", "c", "co.0"),
    "out-channels": ("co", "co.1", "c"),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A captured chain, what it is fed, and what one device makes of that."""

    captured: Captured
    feeds: list[np.ndarray]
    expected: list[np.ndarray]


@functools.cache
def case_of(chain: str) -> Case:
    """Output, input gradient and the gradient of every filter, in float64."""
    keras.utils.set_random_seed(0)
    with oracle.floatx("float64"), tf.device("/device:CPU:0"):
        layers, shape = CHAINS[chain]()
        model = keras.Sequential([L.Input(shape[1:], batch_size=1), *layers])
    feeds = [np.random.RandomState(0).rand(*shape), np.random.RandomState(1).rand(1, 3)]

    def step(x: tf.Tensor, wanted: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = model(x, training=True)
            loss = tf.reduce_sum(tf.square(out - wanted))
        return out, tape.gradient(loss, [x, *model.trainable_variables])

    captured = capture_function(step, [tf.TensorSpec(f.shape, f.dtype) for f in feeds])
    outputs = tf.nest.flatten(tf.function(step)(*map(tf.constant, feeds)))
    return Case(captured, feeds, [t.numpy() for t in outputs])


def forced(graph: Graph, axes: Sequence[str], k: int) -> tuple[Plan, set[str]]:
    """A plan in which every op of a window is cut along the first of `axes` that it can be cut
    along; and the names of those ops.
    """
    machine = machines.imagined(k)
    describing = Describing(graph)
    plan = pipeline.find_plan(graph, machine, describing=describing, undescribed="refuse")
    chosen, cut = dict(plan.strategies), set()
    for node in graph:
        strategy = _along(node, describing, axes, machine.factors)
        if strategy is not None:
            chosen[node.name] = strategy
            cut.add(node.name)
    return dataclasses.replace(plan, strategies=chosen), cut


def _along(
    node: Node, describing: Describing, axes: Sequence[str], factors: tuple[int, ...]
) -> Strategy | None:
    if not any(word in node.op for word in ("Conv", "Pool")):
        return None
    described = describing(node)
    assert described is not None
    for applied in described.applied:
        for axis in axes:
            every = (axis,) * len(factors)
            legal = axis in applied.axes and strategies.is_legal(
                applied.description, every, factors
            )
            if legal:
                return Strategy(every, body=applied.variant.name)
    return None


QUICK = {("flat", "height", 3), ("low", "height", 4), ("solid", "width", 2)}
ROWS = [
    pytest.param(chain, cut, k, marks=[] if (chain, cut, k) in QUICK else pytest.mark.slow)
    for chain in CHAINS
    for cut in CUTS
    for k in WORKERS
    if chain == "solid" or cut != "depth"
]


@pytest.mark.parametrize("chain, cut, k", ROWS)
def test_forced_cuts_of_every_window(chain, cut, k):
    case = case_of(chain)
    graph = case.captured.graph
    plan, names = forced(graph, CUTS[cut], k)
    convolutions = {n.name for n in graph if "Conv" in n.op}
    # Each convolution, forward and both gradients, can be cut that way.
    assert convolutions <= names or cut.endswith("channels")
    assert len(convolutions & names) > len(convolutions) / 2
    placed = pipeline.apply_plan(graph, plan)
    got, _ = run_placed(placed, case.captured, case.feeds)
    for a, b in zip(got, case.expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


R = np.random.RandomState(0)


def trained(chain: str) -> keras.Model:
    layers, shape = CHAINS[chain]()
    model = keras.Sequential([L.Input(shape[1:]), *layers])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("chain", CHAINS)
def test_training_with_one_image(chain, k):
    _, shape = CHAINS[chain]()
    x, y = R.rand(3, *shape[1:]), R.rand(3, 3)
    make = oracle.in_float64(lambda: trained(chain))
    oracle.check(make, (x, y), k, batch=1, tolerance=oracle.FLOAT64)


# layer, its input
LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "one-dimensional": (lambda: L.Conv1D(9, 5, strides=2), (31, 6)),
    "one-dimensional, causal": (lambda: L.Conv1D(9, 3, dilation_rate=2, padding="causal"), (31, 6)),
    "one-dimensional, transposed": (lambda: L.Conv1DTranspose(9, 4, strides=3), (17, 6)),
    "one-dimensional, depthwise": (lambda: L.DepthwiseConv1D(3, depth_multiplier=2), (31, 6)),
    "one-dimensional, separable": (lambda: L.SeparableConv1D(9, 3, dilation_rate=2), (31, 6)),
    "grouped": (lambda: L.Conv2D(9, 3, groups=3, padding="same"), (11, 9, 6)),
    "separable": (lambda: L.SeparableConv2D(9, 3, dilation_rate=2, padding="same"), (11, 9, 6)),
    "transposed, dilated": (lambda: L.Conv2DTranspose(9, 3, dilation_rate=2), (11, 9, 6)),
    "transposed, padded": (
        lambda: L.Conv2DTranspose(9, 4, strides=3, padding="same", output_padding=1),
        (6, 5, 6),
    ),
    "locally connected": (lambda: L.LocallyConnected2D(5, 3), (7, 6, 3)),
    "up-sampled": (lambda: L.UpSampling2D((2, 3)), (7, 6, 5)),
    "up-sampled, bilinear": (lambda: L.UpSampling2D(2, interpolation="bilinear"), (7, 6, 5)),
    "pooled in one dimension": (lambda: L.MaxPool1D(3, 2, padding="same"), (31, 6)),
    "pooled in three": (lambda: L.MaxPool3D(3, 2, padding="same"), (5, 6, 5, 4)),
    "averaged in three": (lambda: L.AveragePooling3D(2, 1, padding="same"), (5, 6, 5, 4)),
    "padded and cropped": (
        lambda: keras.Sequential([L.ZeroPadding2D(((1, 2), (3, 0))), L.Cropping2D(((0, 2), 1))]),
        (7, 6, 5),
    ),
}


SINGLE = ("pooled in three", "averaged in three")  # whose kernels know no float64


def around(name: str) -> keras.Model:
    """The layer between two that are plain, so that its gradients are of use."""
    make, shape = LAYERS[name]
    layers = [L.Input(shape), L.Dense(shape[-1], "tanh", name="before"), make()]
    model = keras.Sequential([*layers, L.Flatten(), L.Dense(7, name="head")])
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    return model


@pytest.mark.slow
@pytest.mark.parametrize("k", [3, 4])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, k):
    x, y = R.rand(10, *LAYERS[name][1]), R.rand(10, 7)
    make, tolerance = (lambda: around(name)), oracle.FLOAT32
    if name not in SINGLE:
        make, tolerance = oracle.in_float64(make), oracle.FLOAT64
    oracle.check(make, (x, y), k, batch=5, tolerance=tolerance)
