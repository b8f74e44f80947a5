"""Convolutions of images whose rows were moved into the batch -> dilated convolutions.

TensorFlow computes a dilated convolution as SpaceToBatchND, a plain convolution, BatchToSpaceND,
and its gradients likewise. In between the batch holds every place of a block, one after the other:
a part of the rows of a batch is no range there, so that such a graph could not be cut along the
batch. As one node it can, along batch, space and channels alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from tensorflow.core.framework.attr_value_pb2 import AttrValue

from tofu_tf.graph import attributes, traversal
from tofu_tf.graph.ir import CONST, Graph, Node, Ref, TensorSpec

Pairs = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class _Kind:
    """Positions of the operands; None: that side is the op's result. `sizes`: its shape."""

    image: int | None
    windows: int | None
    sizes: int | None


_FORWARD, _OF_INPUT, _OF_FILTER = _Kind(0, None, None), _Kind(None, 2, 0), _Kind(0, 2, 1)
KINDS: Mapping[str, _Kind] = {
    **dict.fromkeys(("Conv2D", "Conv3D", "DepthwiseConv2dNative"), _FORWARD),
    "Conv2DBackpropInput": _OF_INPUT,
    "Conv3DBackpropInputV2": _OF_INPUT,
    "DepthwiseConv2dNativeBackpropInput": _OF_INPUT,
    "Conv2DBackpropFilter": _OF_FILTER,
    "Conv3DBackpropFilterV2": _OF_FILTER,
    "DepthwiseConv2dNativeBackpropFilter": _OF_FILTER,
}


@dataclasses.dataclass(frozen=True)
class _Side:
    """A tensor before it was moved apart (or after it was put together): block and margins.

    `lifted`: there is one spatial dimension fewer, and the convolution takes a row of it.
    """

    ref: Ref
    block: tuple[int, ...]
    margins: Pairs
    lifted: bool


def fuse_dilated(graph: Graph) -> Graph:
    """`graph` with dilated convolutions as one node each; itself where there are none.

    The new node of a convolution has its own name; what was moved and put together stands for
    nothing any more and goes, if nobody else uses it.
    """
    if not any(node.op == "SpaceToBatchND" for node in graph):
        return graph
    fusing = _Fusing(graph)
    for node in graph:
        fusing.visit(node)
    return fusing.result()


class _Fusing:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.uses = traversal.consumers(graph)
        self.fetched = frozenset(graph.outputs)
        self.replaced: dict[str, list[Node]] = {}  # node -> those that stand in its place
        self.instead: dict[Ref, Ref] = {}

    def visit(self, node: Node) -> None:
        kind = KINDS.get(node.op)
        if kind is None or not _is_plain(node):
            return
        image = self._moved(node.inputs[kind.image]) if kind.image is not None else None
        windows = self._moved(node.inputs[kind.windows]) if kind.windows is not None else None
        sinks: list[_Side] = []
        if kind is not _OF_FILTER:
            sinks = list(self._together(node))
            if not sinks or any(_move(s) != _move(sinks[0]) for s in sinks):
                return
            image, windows = (image, sinks[0]) if kind is _FORWARD else (sinks[0], windows)
        if image is None or windows is None:
            return
        if (image.block, image.lifted) == (windows.block, windows.lifted):
            self._fuse(node, kind, image, windows, sinks)

    def _moved(self, ref: Ref) -> _Side | None:
        """What an operand was before SpaceToBatchND."""
        node = self.graph.nodes[ref.node]
        lifted = self._lifts(node)
        if lifted:
            node = self.graph.nodes[node.inputs[0].node]
        if node.op != "SpaceToBatchND":
            return None
        return self._side(node, node.inputs[0], lifted)

    def _together(self, node: Node) -> Iterator[_Side]:
        """Every BatchToSpaceND of a node's result; none when it is of other use too."""
        found: list[_Side] = []
        ref = node.refs[0]
        for name, _ in self.uses.get(ref, ()):
            user, lifted = self.graph.nodes[name], False
            if self._drops(user) and user.refs[0] not in self.fetched:
                users = self.uses.get(user.refs[0], ())
                if len(users) != 1:
                    return
                user, lifted = self.graph.nodes[users[0][0]], True
            if user.op != "BatchToSpaceND":
                return
            side = self._side(user, user.refs[0], lifted)
            if side is None:
                return
            found.append(side)
        if ref not in self.fetched:
            yield from found

    def _side(self, node: Node, ref: Ref, lifted: bool) -> _Side | None:
        block, margins = (self.graph.const(r) for r in node.inputs[1:3])
        if block is None or margins is None:
            return None
        first = [1] if lifted else []
        rank = len(node.outputs[0].shape) - 2 + lifted
        sizes = [*first, *map(int, block)]
        pairs = [*([(0, 0)] if lifted else []), *((int(a), int(b)) for a, b in margins)]
        if len(sizes) > rank:
            return None
        more = rank - len(sizes)
        return _Side(ref, (*sizes, *[1] * more), (*pairs, *[(0, 0)] * more), lifted)

    def _lifts(self, node: Node) -> bool:
        """Whether the node adds a dimension of one row behind the batch and does nothing else."""
        if node.op not in ("ExpandDims", "Reshape"):
            return False
        before, after = self.graph.spec(node.inputs[0]).shape, node.outputs[0].shape
        return after == (*before[:1], 1, *before[1:])

    def _drops(self, node: Node) -> bool:
        if node.op not in ("Squeeze", "Reshape"):
            return False
        before, after = self.graph.spec(node.inputs[0]).shape, node.outputs[0].shape
        return before == (*after[:1], 1, *after[1:])

    def _fuse(
        self, node: Node, kind: _Kind, image: _Side, windows: _Side, sinks: Sequence[_Side]
    ) -> None:
        size, count = (self._shape(side)[1:-1] for side in (image, windows))
        kernel = self._kernel(node)
        margins = []
        for n, m, k, b, (before, _), (cropped, _) in zip(
            size, count, kernel, image.block, image.margins, windows.margins, strict=True
        ):
            first = before - cropped
            margins.append((first, m - 1 + (k - 1) * b + 1 - first - n))
        padding = _padding(node, margins, size, count)
        if padding is None:
            return
        attrs = dict(node.attrs)
        attrs["dilations"] = attributes.encode((1, *image.block, 1), "list(int)")
        for name, value in padding.items():
            attrs[name] = attributes.encode(value, "string" if name == "padding" else "list(int)")
        new: list[Node] = []
        inputs = list(node.inputs)
        for position, side in ((kind.image, image), (kind.windows, windows)):
            if position is not None:
                inputs[position] = self._operand(node, side, position, new)
        spec = node.outputs[0]
        if kind is not _OF_FILTER:
            spec = TensorSpec(self._shape(sinks[0]), spec.dtype)
        if kind is _OF_INPUT:
            dtype = self.graph.spec(node.inputs[0]).dtype
            new.append(_const(f"{node.name}/whole_sizes", spec.shape, dtype))
            inputs[0] = new[-1].refs[0]
        new.append(dataclasses.replace(node, inputs=tuple(inputs), outputs=(spec,), attrs=attrs))
        self.replaced[node.name] = new
        for sink in sinks:
            self._result(node, sink)

    def _shape(self, side: _Side) -> tuple[int, ...]:
        shape = self.graph.spec(side.ref).shape
        return (*shape[:1], 1, *shape[1:]) if side.lifted else shape

    def _kernel(self, node: Node) -> tuple[int, ...]:
        if KINDS[node.op] is _OF_FILTER:
            return node.outputs[0].shape[:-2]
        return self.graph.spec(node.inputs[1]).shape[:-2]

    def _operand(self, node: Node, side: _Side, position: int, new: list[Node]) -> Ref:
        if not side.lifted:
            return side.ref
        axis = _const(f"{node.name}/lifted{position}/axis", 1, "int32")
        spec = self.graph.spec(side.ref)
        lifted = Node(
            f"{node.name}/lifted{position}",
            "ExpandDims",
            (side.ref, axis.refs[0]),
            (TensorSpec(self._shape(side), spec.dtype),),
            {"T": _type(spec.dtype), "Tdim": _type("int32")},
        )
        new += [axis, lifted]
        return lifted.refs[0]

    def _result(self, node: Node, sink: _Side) -> None:
        """Puts the fused node, or a Squeeze of it, in the place of a BatchToSpaceND."""
        together = self.graph.nodes[sink.ref.node]
        if not sink.lifted and sink.ref not in self.fetched:
            self.instead[sink.ref] = node.refs[0]
            return
        attrs = {"T": _type(together.outputs[0].dtype)}
        if sink.lifted:
            attrs["squeeze_dims"] = attributes.encode((1,), "list(int)")
        op = "Squeeze" if sink.lifted else "Identity"
        self.replaced[together.name] = [
            dataclasses.replace(together, op=op, inputs=node.refs, attrs=attrs)
        ]

    def result(self) -> Graph:
        if not self.replaced:
            return self.graph
        nodes = {}
        for old in self.graph:
            for node in self.replaced.get(old.name, [old]):
                inputs = tuple(self.instead.get(r, r) for r in node.inputs)
                nodes[node.name] = dataclasses.replace(node, inputs=inputs)
        return traversal.live(dataclasses.replace(self.graph, nodes=nodes))


def _is_plain(node: Node) -> bool:
    """Whether a convolution's own windows are neither padded, dilated nor strided."""
    known = {name: attributes.decode(value) for name, value in node.attrs.items()}
    return (
        known["padding"] == "VALID"
        and known["data_format"].endswith("C")
        and all(n == 1 for n in (*known["strides"], *known.get("dilations", ())))
    )


def _move(side: _Side) -> tuple[object, ...]:
    return side.block, side.margins, side.lifted


def _padding(
    node: Node, margins: Sequence[tuple[int, int]], size: Sequence[int], count: Sequence[int]
) -> dict[str, object] | None:
    """Attributes that pad an image by `margins`; None where the op has none that do."""
    if not any(n for pair in margins for n in pair):
        return {"padding": "VALID"}
    if "explicit_paddings" in node.attrs:
        if any(n < 0 for pair in margins for n in pair):
            return None
        every = [n for pair in ((0, 0), *margins, (0, 0)) for n in pair]
        return {"padding": "EXPLICIT", "explicit_paddings": tuple(every)}
    halves = all(
        lo == (lo + hi) // 2 and n == m for (lo, hi), n, m in zip(margins, size, count, strict=True)
    )
    return {"padding": "SAME"} if halves else None


def _type(dtype: str) -> AttrValue:
    return attributes.encode(dtype, "type")


def _const(name: str, value: object, dtype: str) -> Node:
    array = np.asarray(value, dtype)
    attrs = {"dtype": _type(dtype), "value": attributes.encode(array, "tensor")}
    return Node(name, CONST, (), (TensorSpec(array.shape, dtype),), attrs)
