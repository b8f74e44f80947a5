"""How much of a graph can be cut: its op types, and the shares of FLOPs and large tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tofu_tf.graph.attributes import attributes
from tofu_tf.graph.ir import CONST, PLACEHOLDER, VARIABLE, Graph, Node
from tofu_tf.ops.applicable import Described, Describing
from tofu_tf.ops.registry import REGISTRY

LARGE_BYTES = 64 * 1024  # a tensor above this counts

_SOURCES = (CONST, PLACEHOLDER, VARIABLE)  # no op makes these: they can lie in any way


@dataclasses.dataclass(frozen=True)
class OpCount:
    """The nodes of one op type that are alike in what is known of them.

    `cuttable`, `axes`: how many of the axes of two elements and more can be cut, at least and at
    most. `reason`: why they are not described; "" when they are.
    """

    op: str
    nodes: int
    cuttable: tuple[int, int] = (0, 0)
    axes: tuple[int, int] = (0, 0)
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Offender:
    """A node that no axis can be cut of, and what that costs."""

    node: str
    op: str
    flops: int
    nbytes: int
    reason: str


@dataclasses.dataclass(frozen=True)
class Coverage:
    """A graph's op types, and how much of its work and of its large tensors can be cut.

    `nbytes`: of tensors above LARGE_BYTES that ops make; `cuttable_...`: those of nodes with an
    axis that can be cut. `offenders`: the nodes that make the difference, most bytes first.
    """

    ops: tuple[OpCount, ...]
    flops: int
    cuttable_flops: int
    nbytes: int
    cuttable_nbytes: int
    offenders: tuple[Offender, ...]

    @property
    def flops_share(self) -> float:
        return self.cuttable_flops / self.flops if self.flops else 1.0

    @property
    def nbytes_share(self) -> float:
        return self.cuttable_nbytes / self.nbytes if self.nbytes else 1.0


def cover(graph: Graph, describing: Describing | None = None) -> Coverage:
    """What of `graph` is described and can be cut."""
    describing = describing or Describing(graph)
    flops = cuttable_flops = nbytes = cuttable_nbytes = 0
    offenders = []
    for node in _worked(graph):
        work = node_flops(graph, node)
        large = sum(o.nbytes for o in node.outputs if o.nbytes > LARGE_BYTES)
        described = describing(node)
        flops, nbytes = flops + work, nbytes + large
        if described is not None and any(a.axes for a in described.applied):
            cuttable_flops, cuttable_nbytes = cuttable_flops + work, cuttable_nbytes + large
        elif work or large:
            reason = describing.why_not(node) if described is None else _why_whole(described)
            offenders.append(Offender(node.name, node.op, work, large, reason))
    offenders.sort(key=lambda o: (-o.nbytes, -o.flops, o.node))
    return Coverage(
        _counted(graph, describing),
        flops,
        cuttable_flops,
        nbytes,
        cuttable_nbytes,
        tuple(offenders),
    )


def node_flops(graph: Graph, node: Node) -> int:
    """Floating-point operations of a node: its entry's count; one per element of an element-wise
    op's output, and of the outputs of an op that nothing is known of.
    """
    entry = REGISTRY.get(node.op)
    if entry is not None and entry.flops is not None:
        inputs = [graph.spec(ref) for ref in node.inputs]
        if all(s.is_static for s in (*inputs, *node.outputs)):
            return int(entry.flops(inputs, list(node.outputs), attributes(node)))
    known = entry is not None and not entry.elementwise
    return 0 if known else sum(o.size for o in node.outputs)


def _worked(graph: Graph) -> Iterator[Node]:
    return (node for node in graph if node.op not in _SOURCES)


def _why_whole(described: Described) -> str:
    if described.entry.uncuttable:
        return described.entry.uncuttable
    axes = sum(n > 1 for n in described.applied[0].description.extents.values())
    return "none of its axes can be cut" if axes else "it has no axes"


def _counted(graph: Graph, describing: Describing) -> tuple[OpCount, ...]:
    """One row an op type, and one more for each reason why some of its nodes are not described."""
    rows: dict[tuple[str, str], OpCount] = {}
    for node in _worked(graph):
        described = describing(node)
        key = node.op, "" if described is not None else describing.why_not(node)
        old = rows.get(key)
        if described is None:
            rows[key] = OpCount(node.op, (old.nodes if old else 0) + 1, reason=key[1])
            continue
        cut = len({axis for a in described.applied for axis in a.axes})
        axes = sum(n > 1 for n in described.applied[0].description.extents.values())
        rows[key] = OpCount(
            node.op,
            (old.nodes if old else 0) + 1,
            (min(old.cuttable[0], cut), max(old.cuttable[1], cut)) if old else (cut, cut),
            (min(old.axes[0], axes), max(old.axes[1], axes)) if old else (axes, axes),
        )
    return tuple(sorted(rows.values(), key=lambda r: (bool(r.reason), -r.nodes, r.op, r.reason)))
