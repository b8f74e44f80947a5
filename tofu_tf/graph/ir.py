"""Our frozen view of a flat graph with static shapes: nodes in topological order, variables as
versions.

Reads and writes of a resource variable are not resource edges here. A variable's value at the start
of the step is output 0 of its `Variable` node; a node that writes variables takes the current
version as an ordinary input (in the place of the resource operand) and yields the next version as
an output. `ReadVariableOp` nodes are gone: their consumers refer to the version that they read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
from tensorflow.core.framework import attr_value_pb2, function_pb2

VARIABLE = "Variable"  # op of the node that stands for a variable's first version
PLACEHOLDER = "Placeholder"
CONST = "Const"
WEIGHT = "Weight"  # op of the node that stands for a large constant, which is cut as variables are
# An op of this graph only: Unique with as many places for distinct ids as there are ids; those left
# over hold -1.
PADDED_UNIQUE = "PaddedUnique"


@dataclasses.dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype name (``float32`` ...) of a tensor; -1 is a size that depends on data."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def is_static(self) -> bool:
        """Whether every dimension is known."""
        return all(d >= 0 for d in self.shape)

    @property
    def region_shape(self) -> tuple[int, ...]:
        """The shape that regions divide: a tensor of unknown size is one thing, as a scalar is."""
        return self.shape if self.is_static else ()

    @property
    def size(self) -> int:
        """How many elements; 0 where that depends on data."""
        if not self.is_static:
            return 0
        n = 1
        for d in self.shape:
            n *= d
        return n

    @property
    def itemsize(self) -> int:
        """Bytes of one element; 0 for types without a fixed width (string, variant, resource)."""
        return _ITEMSIZES.get(self.dtype, 0)

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


_ITEMSIZES = {
    **{"bool": 1, "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8},
    **{f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{"complex64": 8, "complex128": 16},
}


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Ref:
    """Output `index` of node `node`; prints as ``node:0``."""

    node: str
    index: int = 0

    def __str__(self) -> str:
        return f"{self.node}:{self.index}"

    @staticmethod
    def parse(text: str) -> Ref:
        node, _, index = text.rpartition(":")
        return Ref(node, int(index)) if node else Ref(text, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One operator.

    `inputs` are data inputs in the op's order. For a node that touches variables, the resource
    operands are among them: `variables[i]` names the variable whose current version stands at input
    i. `outputs` hold the op's own outputs, then one spec per variable written, in the order of
    `writes` (names of the variables it gives a next version to).
    `controls` are the names of nodes that must run first; only true chains of side effects remain
    here, variables are ordered by their versions.
    """

    name: str
    op: str
    inputs: tuple[Ref, ...]
    outputs: tuple[TensorSpec, ...]
    attrs: Mapping[str, attr_value_pb2.AttrValue]
    controls: tuple[str, ...] = ()
    variables: Mapping[int, str] = dataclasses.field(default_factory=dict)
    writes: tuple[str, ...] = ()

    @property
    def refs(self) -> tuple[Ref, ...]:
        return tuple(Ref(self.name, i) for i in range(len(self.outputs)))

    def version(self, variable: str) -> Ref:
        """The version that this node writes of `variable`."""
        own = len(self.outputs) - len(self.writes)
        return Ref(self.name, own + self.writes.index(variable))


@dataclasses.dataclass(frozen=True, slots=True)
class Variable:
    """A resource variable of the step.

    `name` is unique in the graph and is the user's (``dense/kernel``, without ``:0``); `node` is
    the name of its `Variable` node; `capture` is its position in the traced function's captures
    (-1: none).
    """

    name: str
    spec: TensorSpec
    node: str
    capture: int = -1
    trainable: bool = False

    @property
    def ref(self) -> Ref:
        return Ref(self.node, 0)


@dataclasses.dataclass(frozen=True)
class Graph:
    """A step: nodes in topological order (data, version and control edges).

    `inputs`: names of the Placeholder nodes that are fed, in call order. `outputs`: what is
    fetched, in order. `effects`: nodes that must run even when nothing fetched needs them (variable
    writes, prints). `functions`: those that calls, conditionals and loops refer to, by name.
    """

    nodes: Mapping[str, Node]
    inputs: tuple[str, ...]
    outputs: tuple[Ref, ...]
    variables: Mapping[str, Variable]
    effects: tuple[str, ...] = ()
    functions: Mapping[str, function_pb2.FunctionDef] = dataclasses.field(default_factory=dict)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def spec(self, ref: Ref) -> TensorSpec:
        return self.nodes[ref.node].outputs[ref.index]

    def refs(self) -> Iterator[Ref]:
        for node in self.nodes.values():
            yield from node.refs

    def const(self, ref: Ref) -> np.ndarray | None:
        """The value of `ref` when a Const node makes it."""
        node = self.nodes[ref.node]
        return constant_value(node) if node.op == CONST else None


def constant_value(node: Node) -> np.ndarray:
    """What a Const or a Weight holds."""
    from tensorflow.python.framework import tensor_util

    value: np.ndarray = tensor_util.MakeNdarray(node.attrs["value"].tensor)
    return value
