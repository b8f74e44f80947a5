"""Distinct ids, and all that is made for each of them, in tensors of a known size.

The gradient of an embedding has a row for every distinct id of a batch, so its size depends on
data. There are at most as many distinct ids as ids: here a vector of them has that many places, and
the places left over hold -1. What is made for these is padding. It may hold anything and goes
nowhere: rows written to a variable by negative ids are left out, and a reduction over the places
takes the reducer's neutral element for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from tofu_tf.capture import padding
from tofu_tf.capture.padded import Change, Found, Padding, Unknown
from tofu_tf.capture.padding import NEUTRAL
from tofu_tf.graph import traversal
from tofu_tf.graph.attributes import WHY_DYNAMIC, encode
from tofu_tf.graph.ir import Graph, Node, Ref

# Ops whose result's elements depend on the elements at their own place only, and that never fail.
_ELEMENTWISE = """
    Abs Add AddN AddV2 Cast Ceil ClipByValue Cos Div DivNoNan Elu Equal Erf Exp Expm1 Floor
    Greater GreaterEqual Inv IsFinite IsInf IsNan LeakyRelu Less LessEqual Log Log1p LogicalAnd
    LogicalNot LogicalOr Maximum Minimum Mul MulNoNan Neg NotEqual OnesLike Pow RealDiv Reciprocal
    Relu Relu6 Rint Round Rsqrt SelectV2 Selu Sigmoid Sign Sin Softplus Softsign Sqrt Square
    SquaredDifference Sub Tanh Xdivy Xlogy ZerosLike
"""
_SCATTERS = """
    ResourceScatterAdd ResourceScatterSub ResourceScatterMul ResourceScatterDiv ResourceScatterMin
    ResourceScatterMax ResourceScatterUpdate ResourceScatterNdAdd ResourceScatterNdSub
    ResourceScatterNdMin ResourceScatterNdMax ResourceScatterNdUpdate ResourceSparseApplyAdadelta
    ResourceSparseApplyAdagrad ResourceSparseApplyAdagradV2 ResourceSparseApplyCenteredRMSProp
    ResourceSparseApplyFtrl ResourceSparseApplyFtrlV2 ResourceSparseApplyKerasMomentum
    ResourceSparseApplyMomentum ResourceSparseApplyProximalAdagrad
    ResourceSparseApplyProximalGradientDescent ResourceSparseApplyRMSProp
"""
_OF_SIZES = "Cast ConcatV2 ExpandDims GatherV2 Pack Reshape Slice Squeeze StridedSlice"

Rule = Callable[[Padding, Node, Mapping[int, Found]], Change]

# What an op does with padding; an op that is not here takes none.
RULES: dict[str, Rule] = {
    "Unique": padding.unique,
    "Shape": padding.size,
    "Size": padding.size,
    "Reshape": padding.reshape,
    "ExpandDims": padding.expand,
    "StridedSlice": padding.strided_slice,
    **dict.fromkeys(_ELEMENTWISE.split(), padding.elementwise),
    **{f"UnsortedSegment{kind}": padding.segments for kind in ("Sum", "Prod", "Max", "Min")},
    **dict.fromkeys(("Gather", "GatherV2", "ResourceGather"), padding.gather),
    **dict.fromkeys(("GatherNd", "ResourceGatherNd"), padding.gather_places),
    **dict.fromkeys(NEUTRAL, padding.reduction),
    **dict.fromkeys(_SCATTERS.split(), padding.scatter),
}


def pad_distinct(graph: Graph) -> Graph:
    """`graph` in which every Unique whose distinct ids go only where padding does no harm is a
    PaddedUnique, and all that has a place for each of them has a known size.

    Any other Unique stays, and says why in its attribute WHY_DYNAMIC.
    """
    if not any(node.op == "Unique" for node in graph):
        return graph
    changes, refused = _changes(graph)
    nodes: dict[str, Node] = {}
    for node in graph:
        change = changes.get(node.name)
        if node.name in refused:
            attrs = {**node.attrs, WHY_DYNAMIC: encode(refused[node.name])}
            nodes[node.name] = dataclasses.replace(node, attrs=attrs)
        elif change is None:
            nodes[node.name] = node
        else:
            new = (*change.before, change.node, *change.after)
            nodes |= {made.name: made for made in new}
    return traversal.live(dataclasses.replace(graph, nodes=nodes))


def _changes(graph: Graph) -> tuple[dict[str, Change], dict[str, str]]:
    """The changes of nodes, and the Unique nodes that stay with the reason."""
    state = Padding(graph)
    linked = _Linked()
    changes: dict[str, tuple[frozenset[str], Change]] = {}
    reasons: dict[str, str] = {}  # Unique node -> why it stays
    for node in graph:
        held = {i: state.found[r] for i, r in enumerate(node.inputs) if r in state.found}
        owners = frozenset(o for f in held.values() for o in (f.unique, f.of) if o)
        if node.op == "Unique":
            owners |= {node.name}
        elif not held:
            continue
        linked.join(owners)
        try:
            change = _changed(state, node, held)
            if not all(spec.is_static for spec in change.node.outputs):
                raise Unknown("another size depends on data too")
        except Unknown as why:
            for owner in owners:
                reasons.setdefault(owner, f"{node.name} ({node.op}): {why}")
            continue
        changes[node.name] = owners, change
        state.found |= {Ref(node.name, i): found for i, found in change.found.items()}
    for ref in graph.outputs:
        if ref in state.found:
            reasons.setdefault(state.found[ref].counted, f"{ref} is fetched")
    refused = linked.spread(reasons)
    kept = {name: change for name, (owners, change) in changes.items() if not owners & set(refused)}
    return kept, refused


def _changed(state: Padding, node: Node, held: Mapping[int, Found]) -> Change:
    """What becomes of `node`, whose inputs `held` depend on the number of distinct ids."""

    def is_size(i: int) -> bool:
        return held[i].kind == "size" if i in held else state.const(node.inputs[i]) is not None

    if held and node.op in _OF_SIZES.split() and all(map(is_size, range(len(node.inputs)))):
        return padding.of_sizes(state, node, held)
    held = {i: f for i, f in held.items() if node.inputs[i] not in state.constants}
    if not held and node.op != "Unique":
        return Change(node)
    return RULES.get(node.op, _shows)(state, node, held)


def _shows(state: Padding, node: Node, held: Mapping[int, Found]) -> Change:
    raise Unknown("padding would show")


class _Linked:
    """Unique nodes that are padded together or not at all."""

    def __init__(self) -> None:
        self._sets: dict[str, frozenset[str]] = {}

    def join(self, names: Iterable[str]) -> None:
        every = frozenset(names).union(*(self._sets.get(n, frozenset({n})) for n in names))
        self._sets |= dict.fromkeys(every, every)

    def spread(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """The reasons, also for those linked to the nodes that have one."""
        return {
            other: reasons.get(other, reason)
            for name, reason in reasons.items()
            for other in self._sets[name]
        }
