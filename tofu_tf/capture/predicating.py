"""What becomes of an op in a branch that always runs: it counts only where the predicate holds.

An op without side effects just runs, and nobody takes its result where the branch was not asked
for; only what could fail there is given an operand that never does. A write writes what the
variable holds already, a check passes, a generator is not moved on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from tofu_tf.capture.drawing import WHEN
from tofu_tf.graph.registered import attribute_kinds, op_definition
from tofu_tf.graph.state import HANDLE_MAKERS, RANDOM, READ, READERS, is_stateful


class Unconvertible(Exception):
    """Why a conditional cannot be two branches that both run."""


class Writing(Protocol):
    """What a rule makes nodes with."""

    drawn: Collection[str]  # random ops that will draw from a state in a variable

    def add(
        self, like: NodeDef, part: str, op: str, inputs: Sequence[str], attrs: Mapping[str, Any]
    ) -> str:
        """The first output of a new node ``<like>/<part>`` where `like` runs."""

    def put(self, node: NodeDef, inputs: Sequence[str]) -> None:
        """`node` itself, with these inputs."""

    def comes_from(self, ref: str, ops: Collection[str]) -> bool:
        """Whether a node of one of `ops` makes `ref`, or is folded into it (``Const``)."""

    def must_agree(self, select: str) -> None:
        """The operands of this SelectV2 must have one shape, and not broadcast."""


Rule = Callable[[Writing, NodeDef, list[str], list[str], str], None]

# Operand -> what an op that would fail on data is given instead: rows that exist, divisors that are
# not zero. (Kernels on GPUs do not check, and only then.)
_ROWS = {
    "Gather": 1,
    "GatherV2": 1,
    "GatherNd": 1,
    "ResourceGather": 1,
    "ResourceGatherNd": 1,
    "ScatterNd": 0,
    "SparseSoftmaxCrossEntropyWithLogits": 1,
    "Slice": 1,
    "StridedSlice": 1,
    **{f"TensorScatter{kind}": 1 for kind in ("Add", "Max", "Min", "Sub", "Update")},
    **{f"UnsortedSegment{kind}": 1 for kind in ("Sum", "Prod", "Max", "Min")},
    **{f"Segment{kind}": 1 for kind in ("Sum", "Mean", "Prod", "Max", "Min")},
}
_DIVISORS = {
    **dict.fromkeys(("Div", "FloorDiv", "FloorMod", "Mod", "TruncateDiv", "TruncateMod"), 1),
    "Pow": 1,  # by whole numbers
}
# Indices that are valid wherever those are that they were found in, or computed from constants.
_VALID = ("Const", "Unique", "Where")
_CHECKED = {"CheckNumerics": 0, "CheckNumericsV2": 0}
# Ops that fail on some data, where no operand is known that they never fail on.
_FAILING = frozenset(
    {"Cholesky", "Lu", "MatrixInverse", "MatrixLogarithm", "MatrixSolve", "MatrixSolveLs", "Qr"}
    | {"MatrixSquareRoot", "MatrixTriangularSolve", "SelfAdjointEigV2", "Svd", "CTCLoss"}
    | {"CTCLossV2", "DynamicPartition", "DynamicStitch", "InvertPermutation", "SparseToDense"}
    | {"ParallelDynamicStitch", "StringToNumber"}
)
# Registered as stateful, but leave no trace.
_QUIET = READERS | HANDLE_MAKERS | set(_CHECKED)
_LOOPS = ("While", "StatelessWhile", "For")
# Writes of a sum: adding this leaves everything as it is, -0.0 included.
_SUMS = {
    "AssignAddVariableOp": (1, -0.0),
    "AssignSubVariableOp": (1, 0.0),
    "ResourceScatterAdd": (2, -0.0),
    "ResourceScatterSub": (2, 0.0),
    "ResourceScatterMul": (2, 1.0),
    "ResourceScatterDiv": (2, 1.0),
    "ResourceScatterNdAdd": (2, -0.0),
    "ResourceScatterNdSub": (2, 0.0),
}
# Writes of rows, and the op that reads the same rows.
_ROW_WRITES = {
    **dict.fromkeys(
        ("ResourceScatterUpdate", "ResourceScatterMin", "ResourceScatterMax"), "ResourceGather"
    ),
    **dict.fromkeys(
        ("ResourceScatterNdUpdate", "ResourceScatterNdMin", "ResourceScatterNdMax"),
        "ResourceGatherNd",
    ),
}
_WRITES = ("ResourceApply", "ResourceSparseApply", "ResourceStridedSliceAssign")
_SKIPS = ("RngReadAndSkip", "RngSkip")


def predicate(
    writing: Writing, node: NodeDef, data: list[str], waits: list[str], when: str
) -> None:
    """Puts what stands for `node`, whose inputs are `data` and `waits`, under the predicate `when`.

    Raises:
      Unconvertible: it has an effect that cannot be taken back, or may fail on data that only the
        branch's predicate keeps from it.
    """
    rule = _RULES.get(node.op)
    if rule is not None:
        rule(writing, node, data, waits, when)
    elif node.op.startswith(_WRITES):
        _fused(writing, node, data, waits, when)
    elif node.op in RANDOM:
        if node.op not in writing.drawn:
            raise Unconvertible(f"{node.op} draws from a generator of its own")
        put = NodeDef()
        put.CopyFrom(node)
        put.attr[WHEN].s = when.encode()
        writing.put(put, [*data, *waits])
    elif node.op == "OptionalGetValue":
        raise Unconvertible("a branch takes the value of an optional that may have none")
    elif node.op in _LOOPS:
        raise Unconvertible(f"a branch holds a loop ({node.op})")
    elif is_stateful(node.op) and node.op not in _QUIET:
        raise Unconvertible(f"a branch has a side effect ({node.op})")
    elif node.op in _FAILING:
        if not all(writing.comes_from(ref, ("Const",)) for ref in data):
            raise Unconvertible(f"a branch may fail on some data ({node.op})")
        writing.put(node, [*data, *waits])
    else:
        writing.put(node, [*_safe(writing, node, data, when), *waits])


def _safe(writing: Writing, node: NodeDef, data: list[str], when: str) -> list[str]:
    """`data` with operands that `node` cannot fail on where the branch is not asked for."""
    for table, value in ((_ROWS, 0), (_DIVISORS, 1), (_CHECKED, 0)):
        if node.op not in table:
            continue
        position = table[node.op]
        dtype = _dtype(node, position)
        if table is _DIVISORS and not dtype.is_integer:
            continue
        if writing.comes_from(data[position], _VALID):
            continue
        data[position] = _select(writing, node, "safe", when, data[position], value, dtype)
    return data


def _dtype(node: NodeDef, position: int) -> tf.DType:
    """The dtype of an operand; for ops whose operands are no lists."""
    definition = op_definition(node.op)
    assert definition is not None  # it was imported
    arg = definition.input_arg[position]
    return tf.dtypes.as_dtype(node.attr[arg.type_attr].type if arg.type_attr else arg.type)


def _select(
    writing: Writing,
    node: NodeDef,
    part: str,
    when: str,
    value: str,
    otherwise: str | float,
    dtype: tf.DType,
) -> str:
    """``when ? value : otherwise``; a number stands for a scalar of it."""
    if not isinstance(otherwise, str):
        number = np.asarray(otherwise, dtype.as_numpy_dtype)
        attrs = {"value": number, "dtype": dtype}
        otherwise = writing.add(node, f"{part}/otherwise", "Const", [], attrs)
    return writing.add(node, part, "SelectV2", [when, value, otherwise], {"T": dtype})


def _read(writing: Writing, node: NodeDef, part: str, handle: str, waits: list[str]) -> str:
    return writing.add(node, part, READ, [handle, *waits], {"dtype": _written(node)})


def _written(node: NodeDef) -> tf.DType:
    """The dtype of the variable that `node` writes."""
    name = "dtype" if "dtype" in node.attr else "T"
    return tf.dtypes.as_dtype(node.attr[name].type)


def _assign(writing: Writing, node: NodeDef, data: list[str], waits: list[str], when: str) -> None:
    before = _read(writing, node, "before", data[0], waits)
    value = _select(writing, node, "either", when, data[1], before, _written(node))
    writing.must_agree(value)
    writing.put(node, [data[0], value, *waits])


def _sum(writing: Writing, node: NodeDef, data: list[str], waits: list[str], when: str) -> None:
    position, neutral = _SUMS[node.op]
    dtype = _written(node)
    data[position] = _select(writing, node, "either", when, data[position], neutral, dtype)
    writing.put(node, [*data, *waits])


def _rows(writing: Writing, node: NodeDef, data: list[str], waits: list[str], when: str) -> None:
    attrs = {"dtype": _written(node), "Tindices": _dtype(node, 1)}
    before = writing.add(node, "before", _ROW_WRITES[node.op], [*data[:2], *waits], attrs)
    data[2] = _select(writing, node, "either", when, data[2], before, _written(node))
    writing.put(node, [*data, *waits])


def _fused(writing: Writing, node: NodeDef, data: list[str], waits: list[str], when: str) -> None:
    """The op, and then of every variable what was or what is; done when `node`'s name is."""
    held = [ref for i, ref in enumerate(data) if _dtype(node, i) == tf.resource]
    before = [_read(writing, node, f"before{i}", ref, waits) for i, ref in enumerate(held)]
    reads = ["^" + ref.partition(":")[0] for ref in before]
    attrs = {name: node.attr[name] for name in attribute_kinds(node.op) if name in node.attr}
    applied = writing.add(node, "applied", node.op, [*data, *waits, *reads], attrs)
    settled = []
    for i, (handle, old) in enumerate(zip(held, before, strict=True)):
        new = _read(writing, node, f"after{i}", handle, ["^" + applied.partition(":")[0]])
        value = _select(writing, node, f"either{i}", when, new, old, _written(node))
        writing.must_agree(value)
        made = writing.add(
            node, f"settled{i}", "AssignVariableOp", [handle, value], {"dtype": _written(node)}
        )
        settled.append("^" + made.partition(":")[0])
    writing.put(NodeDef(name=node.name, op="NoOp", device=node.device), settled)


def _check(writing: Writing, node: NodeDef, data: list[str], waits: list[str], when: str) -> None:
    data[0] = _select(writing, node, "either", when, data[0], True, tf.bool)
    writing.put(node, [*data, *waits])


def _skip(writing: Writing, node: NodeDef, data: list[str], waits: list[str], when: str) -> None:
    data[2] = _select(writing, node, "either", when, data[2], 0, _dtype(node, 2))
    writing.put(node, [*data, *waits])


_RULES: Mapping[str, Rule] = {
    "AssignVariableOp": _assign,
    "Assert": _check,
    **dict.fromkeys(_SUMS, _sum),
    **dict.fromkeys(_ROW_WRITES, _rows),
    **dict.fromkeys(_SKIPS, _skip),
}
