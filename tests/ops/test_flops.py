"""FLOPs of ops that are heavy, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

import tofu_tf.ops  # noqa: F401  fills the registry
from tofu_tf.graph.ir import TensorSpec
from tofu_tf.ops.registry import REGISTRY

Shape = tuple[int, ...]

# 4 images of 10x8 with 3 channels, 16 filters of 5x3, to 5x4 (stride 2): 4*5*4*16 outputs, each of
# 5*3*3 products and as many sums.
CONVOLVED = 2 * (4 * 5 * 4 * 16) * (5 * 3 * 3)
IMAGE, FILTER, RESULT = (4, 10, 8, 3), (5, 3, 3, 16), (4, 5, 4, 16)
# In 3-D, 2 volumes of 4x10x8, filters of 3x5x3.
VOLUMES = 2 * (2 * 4 * 5 * 4 * 16) * (3 * 5 * 3 * 3)
VOLUME, FILTER3D, RESULT3D = (2, 4, 10, 8, 3), (3, 5, 3, 3, 16), (2, 4, 5, 4, 16)
# Depthwise: 2 filters of 5x3 for each of 3 channels; every output has 5*3 products.
DEPTHWISE = 2 * (4 * 5 * 4 * 6) * (5 * 3)
DEPTH_FILTER, DEPTH_RESULT = (5, 3, 3, 2), (4, 5, 4, 6)
# 2 groups: a filter sees 4 of 8 channels.
GROUPED = 2 * (4 * 5 * 4 * 16) * (5 * 3 * 4)
WINDOW = {"ksize": (1, 3, 2, 1)}
WINDOW3D = {"ksize": (1, 2, 3, 2, 1)}
TRAINING, INFERENCE = {"is_training": True}, {"is_training": False}

CASES: list[tuple[str, list[Shape], list[Shape], dict[str, Any], int]] = [
    ("MatMul", [(7, 5), (5, 3)], [(7, 3)], {}, 2 * 7 * 5 * 3),
    ("MatMul", [(5, 7), (5, 3)], [(7, 3)], {"transpose_a": True}, 2 * 7 * 5 * 3),
    ("MatMul", [(7, 5), (3, 5)], [(7, 3)], {"transpose_b": True}, 2 * 7 * 5 * 3),
    ("BatchMatMulV2", [(2, 6, 7, 5), (6, 5, 3)], [(2, 6, 7, 3)], {}, 2 * 12 * 7 * 5 * 3),
    ("BatchMatMulV2", [(6, 5, 7), (6, 5, 3)], [(6, 7, 3)], {"adj_x": True}, 2 * 6 * 7 * 5 * 3),
    ("BatchMatMulV3", [(6, 7, 5), (6, 5, 3)], [(6, 7, 3)], {}, 2 * 6 * 7 * 5 * 3),
    # attention: 2 sequences, 3 heads, 4 queries, 5 keys, heads of width 6
    (
        "Einsum",
        [(2, 5, 3, 6), (2, 4, 3, 6)],
        [(2, 3, 4, 5)],
        {"equation": "aecd,abcd->acbe"},
        2 * 2 * 3 * 4 * 5 * 6,
    ),
    ("Einsum", [(2, 4, 3)], [(3, 2)], {"equation": "abc->ca"}, 2 * 4 * 3),
    ("Conv2D", [IMAGE, FILTER], [RESULT], {}, CONVOLVED),
    ("Conv2D", [(4, 10, 8, 8), (5, 3, 4, 16)], [RESULT], {}, GROUPED),
    ("Conv2DBackpropInput", [(4,), FILTER, RESULT], [IMAGE], {}, CONVOLVED),
    ("Conv2DBackpropFilter", [IMAGE, (4,), RESULT], [FILTER], {}, CONVOLVED),
    ("Conv2DBackpropFilter", [(4, 10, 8, 8), (4,), RESULT], [(5, 3, 4, 16)], {}, GROUPED),
    ("Conv3D", [VOLUME, FILTER3D], [RESULT3D], {}, VOLUMES),
    ("Conv3DBackpropInputV2", [(5,), FILTER3D, RESULT3D], [VOLUME], {}, VOLUMES),
    ("Conv3DBackpropFilterV2", [VOLUME, (5,), RESULT3D], [FILTER3D], {}, VOLUMES),
    ("DepthwiseConv2dNative", [IMAGE, DEPTH_FILTER], [DEPTH_RESULT], {}, DEPTHWISE),
    (
        "DepthwiseConv2dNativeBackpropInput",
        [(4,), DEPTH_FILTER, DEPTH_RESULT],
        [IMAGE],
        {},
        DEPTHWISE,
    ),
    (
        "DepthwiseConv2dNativeBackpropFilter",
        [IMAGE, (4,), DEPTH_RESULT],
        [DEPTH_FILTER],
        {},
        DEPTHWISE,
    ),
    ("MaxPool", [IMAGE], [(4, 5, 4, 3)], WINDOW, 4 * 5 * 4 * 3 * 6),
    ("AvgPool", [IMAGE], [(4, 5, 4, 3)], WINDOW, 4 * 5 * 4 * 3 * 6),
    ("MaxPoolGrad", [IMAGE, *2 * [(4, 5, 4, 3)]], [IMAGE], WINDOW, 4 * 5 * 4 * 3 * 6),
    ("AvgPoolGrad", [(4,), (4, 5, 4, 3)], [IMAGE], WINDOW, 4 * 5 * 4 * 3 * 6),
    ("MaxPool3D", [VOLUME], [(2, 2, 5, 4, 3)], WINDOW3D, 2 * 2 * 5 * 4 * 3 * 12),
    ("AvgPool3D", [VOLUME], [(2, 2, 5, 4, 3)], WINDOW3D, 2 * 2 * 5 * 4 * 3 * 12),
    (
        "MaxPool3DGrad",
        [VOLUME, *2 * [(2, 2, 5, 4, 3)]],
        [VOLUME],
        WINDOW3D,
        2 * 2 * 5 * 4 * 3 * 12,
    ),
    ("FusedBatchNormV3", [IMAGE, *4 * [(3,)]], [IMAGE], TRAINING, 8 * 4 * 10 * 8 * 3),
    ("FusedBatchNormV3", [IMAGE, *4 * [(3,)]], [IMAGE], INFERENCE, 4 * 4 * 10 * 8 * 3),
    ("FusedBatchNormGradV3", [IMAGE, IMAGE], [IMAGE], TRAINING, 11 * 4 * 10 * 8 * 3),
    ("Softmax", [(7, 5)], [(7, 5)], {}, 5 * 35),
    ("SparseSoftmaxCrossEntropyWithLogits", [(7, 5), (7,)], [(7,), (7, 5)], {}, 6 * 35),
    ("BiasAdd", [IMAGE, (3,)], [IMAGE], {}, 4 * 10 * 8 * 3),
    ("BiasAddGrad", [IMAGE], [(3,)], {}, 4 * 10 * 8 * 3),
    ("Sum", [IMAGE, (2,)], [(4, 3)], {}, 4 * 10 * 8 * 3),
    ("AddN", [IMAGE, IMAGE, IMAGE], [IMAGE], {}, 2 * 4 * 10 * 8 * 3),
    ("Reshape", [IMAGE, (2,)], [(40, 24)], {}, 0),
    ("Transpose", [IMAGE, (4,)], [(3, 4, 10, 8)], {}, 0),
    ("ConcatV2", [IMAGE, IMAGE, ()], [(8, 10, 8, 3)], {}, 0),
]


@pytest.mark.parametrize(
    "op, inputs, outputs, attributes, expected", CASES, ids=lambda v: v if type(v) is str else ""
)
def test_by_hand(
    op: str, inputs: list[Shape], outputs: list[Shape], attributes: Any, expected: int
) -> None:
    count = REGISTRY[op].flops
    assert count is not None
    specs = [[TensorSpec(s, "float32") for s in shapes] for shapes in (inputs, outputs)]
    assert count(*specs, attributes) == expected
