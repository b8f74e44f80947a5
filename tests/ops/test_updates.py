"""Updates by rows of which some are padding: left out, whatever they hold and however it is cut."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import tofu_tf.ops  # noqa: F401  fills the registry
from tests.conformance import running, test_rewritten
from tofu_tf.graph.attributes import PADDED, encode
from tofu_tf.graph.ir import PLACEHOLDER, Graph, Node, TensorSpec
from tofu_tf.graph.registered import op_definition
from tofu_tf.ops.applicable import Describing
from tofu_tf.ops.registry import REGISTRY

BY_ROWS = [
    name
    for name in REGISTRY
    if name.startswith(("ResourceScatter", "ResourceSparseApply"))
    and {"indices"} & {a.name for a in op_definition(name).input_arg}
]


def padded(name: str) -> running.Case:
    """The op's first sample with padding between and behind its rows; its outputs without."""
    entry = REGISTRY[name]
    case = running.case_of(entry, entry.samples[0])
    names = [a.name for a in op_definition(name).input_arg]
    rows = {names.index("updates" if "updates" in names else "grad"), names.index("indices")}
    inputs = []
    for i, x in enumerate(case.inputs):
        if i in rows:
            padding = -1 if x.dtype.kind == "i" else np.nan
            x = np.insert(x, [1, len(x), len(x)], padding, axis=0)
        inputs.append(x)
    attrs = {**case.node.attrs, PADDED: encode(True)}
    node = dataclasses.replace(case.node, attrs=attrs)
    specs = [TensorSpec(x.shape, x.dtype.name) for x in inputs]
    nodes = {f"in{i}": Node(f"in{i}", PLACEHOLDER, (), (s,), {}) for i, s in enumerate(specs)}
    for i in case.described.constants:
        value = {"value": encode(inputs[i], "tensor")}
        nodes[f"in{i}"] = Node(f"in{i}", "Const", (), (specs[i],), value)
    described = Describing(Graph({**nodes, "node": node}, (), (), {}))(node)
    assert described is not None
    return running.Case(case.sample, node, described, tuple(inputs), case.outputs)


def test_there_are_such_ops() -> None:
    assert len(BY_ROWS) == 7 + 5 + 11


@pytest.mark.parametrize("name", BY_ROWS)
def test_padding_is_left_out(name: str) -> None:
    case = padded(name)
    assert {axes for a in case.described.applied for axes in a.axes} == {"i0", "i1"}
    assert running.check_pieces(case) > 2


@pytest.mark.parametrize("name", BY_ROWS)
def test_padding_is_left_out_whole(name: str) -> None:
    """Uncut, through the rewriter: the attribute is for this package only."""
    case = padded(name)
    test_rewritten.check(case, (case.described.applied[0], (None,), (1,)), 0)
