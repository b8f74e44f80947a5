"""What a plan moves by kind: fetches, all-reduces, all-gathers ... and their bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from tofu_tf.cost.evaluation import works
from tofu_tf.graph.ir import Graph, Node
from tofu_tf.ops.applicable import Describing
from tofu_tf.plan.classifying import COLLECTIVES, Kind, classify_regions
from tofu_tf.plan.collectives import Choosing
from tofu_tf.plan.layouts import layout_regions
from tofu_tf.plan.plans import Plan
from tofu_tf.plan.routing import transfers_of
from tofu_tf.plan.transfers import fetch_parts
from tofu_tf.tdl.regions import IntArray, Regions
from tofu_tf.tdl.strategies import Work


@dataclasses.dataclass(frozen=True, slots=True)
class Moved:
    """The changes of layout of one kind that move anything, and the bytes that they move.

    `collective`: whether collective ops make them, or sends from one device to another.
    """

    kind: Kind
    changes: int
    nbytes: int
    collective: bool = False


WorkOf = Callable[[Node], Work | None]
Key = tuple[object, ...]  # one change of layout
_TOGETHER = "together"  # starts the key of one that collectives make


def moved_by_kind(
    graph: Graph,
    plan: Plan,
    describing: Describing | None = None,
    choosing: Choosing | None = None,
) -> tuple[Moved, ...]:
    """What one step moves, by kind in the order of `Kind`; all bytes are the plan's prediction.

    `choosing` says what goes by collectives; without it all goes point to point.

    A change is an output that comes to lie as its layout says, or a need of operators that read a
    tensor. Of needs that share a region, the first pays for it.
    """
    work_of = works(plan, describing or Describing(graph))
    kinds = _Kinds()
    kind_of: dict[Key, Kind] = {}
    paid: dict[Key, int] = {}
    for key, kind, nbytes in (
        *_fetches(graph, plan, work_of, kinds, choosing),
        *_routes(graph, plan, work_of, kinds, choosing),
    ):
        kind_of[key] = kind
        paid[key] = paid.get(key, 0) + nbytes
    return tuple(
        Moved(kind, len(found), sum(found), together)
        for kind in Kind
        for together in (True, False)
        if (
            found := [
                n
                for key, n in paid.items()
                if n and kind_of[key] is kind and (key[0] == _TOGETHER) == together
            ]
        )
    )


def _fetches(
    graph: Graph, plan: Plan, work_of: WorkOf, kinds: _Kinds, choosing: Choosing | None
) -> Iterator[tuple[Key, Kind, int]]:
    """(change, kind, bytes) of every region that an operator is the first to fetch."""
    factors = plan.machine.factors
    # what nobody needs in the end is not fetched
    made = {
        (t.ref, t.source, t.destination, t.region)
        for t, _, _ in transfers_of(graph, plan, work_of, choosing)
        if t.kind == "fetch"
    }
    seen: set[Key] = set()
    for node in graph:
        work = work_of(node)
        if work is None:
            continue
        for ref, need in zip(node.inputs, work.reads, strict=True):
            if not need.present.any():  # read as an attribute, if at all
                continue
            spec = graph.spec(ref)
            held = layout_regions(plan.layouts[ref], spec.region_shape, factors)
            kind = kinds(held, None, need)
            if kind is Kind.NONE or (choosing and choosing(held, None, need, spec.dtype)):
                continue
            for w, parts in enumerate(fetch_parts(held, need, factors)):
                for part in parts:
                    name = (ref, part.source, w, part.region)
                    if part.source != w and name in made and name not in seen:
                        seen.add(name)
                        change = ("fetch", ref, need.tuple())
                        yield change, kind, part.region.size * spec.itemsize


def _routes(
    graph: Graph, plan: Plan, work_of: WorkOf, kinds: _Kinds, choosing: Choosing | None
) -> Iterator[tuple[Key, Kind, int]]:
    """(change, kind, bytes) of every region that an output, or an internal reduction, sends."""
    seen = set()
    for transfer, elements, width in transfers_of(graph, plan, work_of, choosing):
        if transfer.kind == "fetch" or transfer in seen:
            continue
        seen.add(transfer)
        if transfer.kind in _COLLECTIVE:
            change = (_TOGETHER, transfer.ref, transfer.part)
            yield change, _COLLECTIVE[transfer.kind], elements * width
            continue
        ref, inside = transfer.ref, transfer.kind.startswith("internal")
        node = graph.nodes[ref.node]
        work = work_of(node)
        if work is None:
            continue
        if inside:
            made = work.internal_writes[ref.index]
            kind = kinds(made, work.internal_partials[ref.index], made)
        else:
            shape = graph.spec(ref).region_shape
            owned = layout_regions(plan.layouts[ref], shape, plan.machine.factors)
            kind = kinds(work.writes[ref.index], work.partials[ref.index], owned)
        yield ("inside" if inside else "output", ref), kind, elements * width


_COLLECTIVE = {str(kind): kind for kind in COLLECTIVES}


class _Kinds:
    """Kinds of changes; the same objects are looked at once."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int, int], Kind] = {}
        self._alive: list[object] = []  # keys are identities: keep their objects

    def __call__(self, held: Regions, partial: IntArray | None, need: Regions) -> Kind:
        key = (id(held), id(partial), id(need))
        if key not in self._found:
            self._alive += [held, partial, need]
            one = np.zeros(held.workers, np.int64) if partial is None else partial
            self._found[key] = classify_regions(held, one, need).kind
        return self._found[key]
