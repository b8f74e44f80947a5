"""Softmax and the cross-entropies: rows are independent, a row's classes stay together."""

from __future__ import annotations

from typing import Any

import numpy as np

from tofu_tf.ops.registry import Sample, op
from tofu_tf.tdl.expressions import Opaque, Operand

ALL = slice(None)

_SOFTMAX = (
    Sample((((7, 5), "float64"),), {"": ("i0",)}),
    Sample((((4, 3, 5), "float32"),), {"": ("i0", "i1")}),
    Sample((((2, 3, 2, 5), "float64"),), {"": ("i0", "i1", "i2")}),
    Sample((((4, 6), "bfloat16"),), {"": ("i0",)}),
)


def _per_logit(count: int) -> Any:
    """FLOPs that are so many per element of the first input."""
    return lambda inputs, outputs, attributes: count * inputs[0].size


# Largest, difference, exponential, sum, quotient.
@op("Softmax", "LogSoftmax", flops=_per_logit(5), samples=_SOFTMAX)
def softmax(logits: Operand) -> Any:
    return lambda *i: Opaque(logits[(*i[:-1], ALL)])[i[-1]]


def _one_hot(rows: int, classes: int) -> np.ndarray:
    return np.eye(classes)[np.arange(rows) % classes]


@op(
    "SoftmaxCrossEntropyWithLogits",
    flops=_per_logit(8),  # softmax; product and sum of the loss, difference of its gradient
    samples=(
        Sample((((7, 5), "float64"), _one_hot(7, 5)), {"": ("b",)}),
        Sample((((4, 6), "float32"), _one_hot(4, 6).astype(np.float32)), {"": ("b",)}),
        # either side may be one row or one column for all
        Sample((((6, 5), "float64"), np.full((1, 5), 0.2)), {"": ("b",)}),
        Sample((((1, 5), "float64"), _one_hot(6, 5)), {"": ("b",)}),
    ),
)
def softmax_cross_entropy(logits: Operand, labels: Operand) -> Any:
    def rows(b: Any) -> tuple[Any, ...]:
        return tuple(x[0 if x.shape[0] == 1 else b, ALL] for x in (logits, labels))

    return lambda b: Opaque(*rows(b)), lambda b, c: Opaque(*rows(b))[c]


@op(
    "SparseSoftmaxCrossEntropyWithLogits",
    flops=_per_logit(6),
    samples=(
        Sample((((7, 5), "float64"), np.arange(7) % 5), {"": ("b",)}),
        Sample((((4, 6), "float32"), np.array([5, 0, 3, 3], np.int32)), {"": ("b",)}),
    ),
)
def sparse_softmax_cross_entropy(logits: Operand, labels: Operand) -> Any:
    return (
        lambda b: Opaque(logits[b, ALL], labels[b]),
        lambda b, c: Opaque(logits[b, ALL], labels[b])[c],
    )
