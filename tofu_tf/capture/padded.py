"""What is known of tensors that have a place for every distinct id, and nodes made for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tofu_tf.graph.attributes import complete, encode
from tofu_tf.graph.ir import CONST, Graph, Node, Ref, TensorSpec
from tofu_tf.graph.registered import op_definition


@dataclasses.dataclass(frozen=True)
class Found:
    """What is known of a tensor whose size, or value, follows from a number of distinct ids.

    `unique`: the node that finds these ids. `kind`: ``ids`` (the distinct ids themselves), ``rows``
    (whatever has a place for each of them, in dimension `axis`), ``places`` (for each distinct id
    of the node `of` its place among those of `unique`), or ``size`` (of any of these, or computed
    from one; `values` for as many places as there are, and for one more).
    """

    unique: str
    kind: str
    axis: int = 0
    of: str = ""
    values: tuple[np.ndarray, ...] = ()

    @property
    def counted(self) -> str:
        """The node whose distinct ids number dimension `axis`."""
        return self.of or self.unique


@dataclasses.dataclass(frozen=True)
class Change:
    """The node that takes another's place, new ones before and after it, what is found of its
    outputs.
    """

    node: Node
    found: Mapping[int, Found] = dataclasses.field(default_factory=dict)
    before: tuple[Node, ...] = ()
    after: tuple[Node, ...] = ()


class Unknown(Exception):
    """Why padding would show in a node."""


class Padding:
    """What has been found so far in one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.found: dict[Ref, Found] = {}
        self.places: dict[str, int] = {}  # Unique node -> how many places its distinct ids have
        self.clamped: dict[Ref, Ref] = {}  # ids -> the same with 0 for -1
        self.constants: dict[Ref, np.ndarray] = {}  # sizes that the distinct ids leave alone

    def const(self, ref: Ref) -> np.ndarray | None:
        """The value of a constant, or of what has become one."""
        return self.constants[ref] if ref in self.constants else self.graph.const(ref)

    def free(self, name: str) -> str:
        """`name`, or one like it that no node has."""
        while name in self.graph.nodes:
            name += "_"
        return name

    def shape(self, ref: Ref) -> tuple[int, ...]:
        """The shape with all places."""
        spec = self.graph.spec(ref)
        found = self.found.get(ref)
        return spec.shape if found is None else self.static(spec, found).shape

    def static(self, spec: TensorSpec, found: Found) -> TensorSpec:
        """The spec with a size for the dimension of distinct ids, the only one that has none."""
        dims = list(spec.shape)
        if found.kind != "size" and found.axis < len(dims):
            if dims[found.axis] not in (-1, self.places[found.counted]):
                raise Unknown("something has the size of distinct ids only by chance")
            dims[found.axis] = self.places[found.counted]
        if -1 in dims:
            raise Unknown("another size depends on data too")
        return TensorSpec(tuple(dims), spec.dtype)

    def only(self, found: Mapping[int, Found], *kinds: str) -> Found:
        """The one thing found, or one of several that lie alike."""
        first = next(iter(found.values()))
        for f in found.values():
            if f.kind not in kinds:
                raise Unknown("takes the number of distinct ids" if f.kind == "size" else "indices")
            if f.counted != first.counted:
                raise Unknown("joins distinct ids of several vectors")
        return first


def node_of(
    name: str,
    op: str,
    inputs: Sequence[Ref],
    spec: TensorSpec,
    **attrs: object,
) -> Node:
    """A new node with one output."""
    kinds = {a.name: a.type for a in op_definition(op).attr}  # type: ignore[union-attr]
    encoded = {key: encode(value, kinds[key]) for key, value in attrs.items()}
    return Node(name, op, tuple(inputs), (spec,), complete(op, encoded))


def const_of(name: str, value: object, dtype: str) -> Node:
    """A Const node."""
    array = np.asarray(value).astype(tf.as_dtype(dtype).as_numpy_dtype)
    spec = TensorSpec(array.shape, dtype)
    return node_of(name, CONST, (), spec, value=array, dtype=dtype)


def with_inputs(node: Node, changed: Mapping[int, Ref]) -> Node:
    inputs = tuple(changed.get(i, ref) for i, ref in enumerate(node.inputs))
    return dataclasses.replace(node, inputs=inputs)


def rows_of(padding: Padding, node: Node, found: Found, before: tuple[Node, ...] = ()) -> Change:
    """`node` with one output that has a place for each distinct id, as `found` says."""
    (spec,) = node.outputs
    made = dataclasses.replace(node, outputs=(padding.static(spec, found),))
    after: tuple[Node, ...] = ()
    if found.kind == "ids":
        after = clamped_ids(padding, Ref(node.name), made.outputs[0])
    return Change(made, {0: found}, before, after)


def clamped_ids(padding: Padding, ids: Ref, spec: TensorSpec) -> tuple[Node, ...]:
    """Nodes that make indices of the ids: a row that exists stands for those that are padding."""
    zero = const_of(padding.free(f"{ids.node}/first"), 0, spec.dtype)
    some = node_of(
        padding.free(f"{ids.node}/some"), "Maximum", (ids, Ref(zero.name)), spec, T=spec.dtype
    )
    padding.clamped[ids] = Ref(some.name)
    return zero, some
