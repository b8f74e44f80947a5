"""Windows over an image: spans, halos of real ops, floating-point operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tofu_tf.ops  # noqa: F401  fills the registry
from tests.conformance import running
from tofu_tf.ops.registry import REGISTRY, Sample
from tofu_tf.ops.windows import Window, windows
from tofu_tf.tdl import strategies

F = "float32"


@pytest.mark.parametrize(
    "padding, size, kernel, stride, count, before, span",
    [
        ("SAME", 15, 7, 2, 8, 3, (-3, 18)),
        ("SAME", 14, 7, 2, 7, 2, (-2, 17)),
        ("SAME", 14, 1, 4, 4, 0, (0, 13)),
        ("VALID", 14, 3, 2, 6, 0, (0, 13)),
    ],
)
def test_span_of_all_windows(
    padding: str, size: int, kernel: int, stride: int, count: int, before: int, span: Any
) -> None:
    (w, _) = windows(
        (1, size, 1, 1), (kernel, 1), (1, count, 1, 1), (1, stride, 1, 1), padding, "NHWC"
    )
    assert w.before == before
    assert w.span((0, count)) == span
    assert w.inside((0, count)) == (max(span[0], 0), min(span[1], size))


def test_real_taps_leave_the_padding_out() -> None:
    # rows -1..1, 1..3, 3..5 of five rows
    assert Window(5, 3, 3, 2, 1, 1).real_taps((0, 3)) == [2, 3, 2]


def rows_read(
    op: str, axis: str, parts: int, operand: int, *inputs: Any, **attrs: Any
) -> list[Any]:
    """Rows [lo, hi) of input `operand` that each worker reads when `axis` is cut; None: none."""
    given = tuple(i if isinstance(i, np.ndarray) else (i, F) for i in inputs)
    case = running.case_of(REGISTRY[op], Sample(given, {}, attrs))
    work = strategies.work_of(case.described.applied[0].description, (axis,), (parts,))
    return [None if r is None else r.bounds[1] for r in work.reads[operand].tuple()]


IMAGE, SIZES = (2, 8, 4, 3), np.array([2, 8, 4, 3], np.int32)
FILTER, POOL = (3, 3, 3, 5), {"ksize": (1, 2, 2, 1), "strides": (1, 2, 2, 1), "padding": "VALID"}
ONE, TWO = {"strides": (1, 1, 1, 1)}, {"strides": (1, 2, 2, 1)}
HALVES = (2, 4, 2, 3)


@pytest.mark.parametrize(
    "rows, args, attrs",
    [
        ([(0, 5), (3, 8)], ("Conv2D", "y", 2, 0, IMAGE, FILTER), ONE | {"padding": "SAME"}),
        ([(0, 5), (4, 8)], ("Conv2D", "y", 2, 0, IMAGE, FILTER), TWO | {"padding": "SAME"}),
        ([(0, 5), (3, 8)], ("Conv2D", "y", 2, 0, IMAGE, FILTER), ONE | {"padding": "VALID"}),
        # all padding is below: window 1 covers rows 2 to 4
        (
            [(0, 2), (1, 4)],
            ("Conv2DBackpropInput", "y", 2, 2, SIZES, FILTER, (2, 4, 2, 5)),
            TWO | {"padding": "SAME"},
        ),
        (
            [(0, 5), (3, 8)],
            ("Conv2DBackpropFilter", "oy", 2, 0, IMAGE, np.array(FILTER, np.int32), (2, 8, 4, 5)),
            ONE | {"padding": "SAME"},
        ),
        # windows that tile the image need no halo
        ([(0, 4), (4, 8)], ("MaxPool", "y", 2, 0, IMAGE), POOL),
        ([(0, 4), (4, 8)], ("MaxPoolGrad", "y.0", 2, 0, IMAGE, HALVES, HALVES), POOL),
        ([(0, 2), (2, 4)], ("MaxPoolGrad", "y.0", 2, 2, IMAGE, HALVES, HALVES), POOL),
        ([(0, 2), (2, 4)], ("AvgPoolGrad", "y", 2, 1, SIZES, HALVES), POOL),
        # three windows of one row, four rows apart: rows between them get nothing
        (
            [(1, 2), None, None, (2, 3)],
            ("AvgPoolGrad", "y", 8, 1, np.array([1, 9, 1, 1], np.int32), (1, 3, 1, 1)),
            {"ksize": (1, 1, 1, 1), "strides": (1, 4, 1, 1), "padding": "VALID"},
        ),
    ],
)
def test_rows_read(rows: list[Any], args: Any, attrs: dict[str, Any]) -> None:
    found = rows_read(*args, **attrs)
    assert found[-len(rows) :] == rows


@pytest.mark.parametrize(
    "op, inputs, attrs, expected",
    [
        # 2 x 8 x 4 x 5 outputs, 27 taps, a product and a sum each
        ("Conv2D", (IMAGE, FILTER), ONE | {"padding": "SAME"}, 2 * 2 * 8 * 4 * 5 * 27),
        (
            "Conv2DBackpropInput",
            (SIZES, FILTER, (2, 4, 2, 5)),
            TWO | {"padding": "SAME"},
            2 * 2 * 4 * 2 * 5 * 27,
        ),
        (
            "Conv2DBackpropFilter",
            (IMAGE, np.array(FILTER, np.int32), (2, 4, 2, 5)),
            TWO | {"padding": "SAME"},
            2 * 2 * 4 * 2 * 5 * 27,
        ),
        (
            "DepthwiseConv2dNative",
            (IMAGE, (3, 3, 3, 2)),
            ONE | {"padding": "SAME"},
            2 * 2 * 8 * 4 * 6 * 9,
        ),
        ("MaxPool", (IMAGE,), POOL, 2 * 4 * 2 * 3 * 4),
    ],
)
def test_operations(op: str, inputs: Any, attrs: dict[str, Any], expected: int) -> None:
    given = tuple(i if isinstance(i, np.ndarray) else (i, F) for i in inputs)
    case = running.case_of(REGISTRY[op], Sample(given, {}, attrs))
    specs = tuple(running.TensorSpec(x.shape, x.dtype.name) for x in (*case.inputs,))
    flops = REGISTRY[op].flops
    assert flops is not None
    assert flops(specs, case.node.outputs, case.described.attributes) == expected
