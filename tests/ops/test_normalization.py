"""Batch normalisation cut along the batch: whole-batch statistics, and what devices save."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tofu_tf.ops  # noqa: F401  fills the registry
from tests.conformance import running
from tofu_tf.ops.registry import REGISTRY, Piece, Sample
from tofu_tf.tdl.regions import Region

EPSILON = 1e-3
ATTRS = {"is_training": True, "epsilon": EPSILON, "exponential_avg_factor": 0.1}
X = np.random.default_rng(3).normal(size=(12, 2, 3, 4)).astype(np.float32)
# every quarter of the batch has a mean of its own
X += np.repeat(np.arange(4, dtype=np.float32), 3)[:, None, None, None]
SCALE = np.array([0.5, 1, 2, -1], np.float32)
OFFSET, MEAN = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
VARIANCE = np.full(4, 3, np.float32)


def split(op: str, inputs: tuple[np.ndarray, ...], device_type: str) -> list[np.ndarray]:
    """The outputs of the body "split" that is one piece alone."""
    attrs = {k: v for k, v in ATTRS.items() if k != "exponential_avg_factor" or "Grad" not in op}
    case = running.case_of(REGISTRY[op], Sample(inputs, {}, attrs))
    applied = case.described.variant("split")
    emit = running.Eager()
    extents = applied.description.extents
    piece = Piece(
        case.node,
        {a: (0, n) for a, n in extents.items()},
        extents,
        tuple(running.TensorSpec(x.shape, x.dtype.name) for x in case.inputs),
        tuple(Region.whole(x.shape) for x in case.inputs),
        tuple(Region.whole(s.shape) for s in case.node.outputs),
        tuple(emit.give(running.tf.constant(x)) for x in case.inputs),
        {},
        case.described.attributes,
        device_type,
    )
    body: Any = applied.variant.body(emit, piece)
    reply = None
    while True:
        try:
            reply = body.send(reply)
        except StopIteration as end:
            return [np.asarray(emit.tensors[name]) for name in end.value]


def test_moving_statistics_are_those_of_the_whole_batch() -> None:
    case = running.case_of(
        REGISTRY["FusedBatchNormV3"], Sample((X, SCALE, OFFSET, MEAN, VARIANCE), {}, ATTRS)
    )
    applied = case.described.variant("split")
    found = running._in_pieces(case, applied, ("b",), (4,), "quarters")
    rows = X.reshape(-1, 4).astype(np.float64)
    np.testing.assert_allclose(found[1], 0.9 * MEAN + 0.1 * rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found[2], 0.9 * VARIANCE + 0.1 * rows.var(0, ddof=1), rtol=1e-5)


@pytest.mark.parametrize("device_type", ["CPU", "GPU"])
def test_gradient_takes_what_the_forward_saved(device_type: str) -> None:
    dy = np.random.default_rng(5).normal(size=X.shape).astype(np.float32)
    forward = split("FusedBatchNormV3", (X, SCALE, OFFSET, MEAN, VARIANCE), device_type)
    deviation = np.sqrt(X.reshape(-1, 4).astype(np.float64).var(0) + EPSILON)
    saved = deviation**2 - EPSILON if device_type == "CPU" else 1 / deviation
    np.testing.assert_allclose(forward[4], saved, rtol=1e-5)
    reserved = np.zeros((), np.float32)
    found = split("FusedBatchNormGradV3", (dy, X, SCALE, *forward[3:5], reserved), device_type)
    variance = np.asarray(deviation**2 - EPSILON, np.float32)
    whole = running.case_of(
        REGISTRY["FusedBatchNormGradV3"],
        Sample(
            (dy, X, SCALE, forward[3], variance, reserved),
            {},
            {"is_training": True, "epsilon": EPSILON},
        ),
    ).outputs
    for ours, kernel in zip(found[:3], whole[:3], strict=True):
        np.testing.assert_allclose(ours, kernel, rtol=1e-4, atol=1e-4 * np.abs(kernel).max())
