"""Every transfer of a planned step, named by what may be shared; costs count them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from tofu_tf.graph import traversal
from tofu_tf.graph.ir import CONST, Graph, Node, Ref
from tofu_tf.plan import transfers
from tofu_tf.plan.layouts import layout_regions
from tofu_tf.plan.plans import Plan
from tofu_tf.tdl.regions import IntArray, Region, Regions
from tofu_tf.tdl.strategies import Work


@dataclasses.dataclass(frozen=True, slots=True)
class Transfer:
    """A region that goes from one worker to another; equal ones are made once.

    `kind`: ``fetch`` (a tensor's shard to an operator that reads it), ``write`` (an operator's
    output to the tensor's shards), ``partial`` (a partial result to where it is combined),
    ``gather`` (a combined part to the tensor's shards), ``internal`` (the same two of a body's own
    reduction). `part`: which partial result or internal reduction.
    """

    kind: str
    ref: Ref
    part: int
    source: int
    destination: int
    region: Region


Found = tuple[tuple[str, int, int, int, Region], ...]  # kind, part, source, destination, region


def transfers_of(
    graph: Graph, plan: Plan, work_of: Callable[[Node], Work | None]
) -> Iterator[tuple[Transfer, int, int]]:
    """(transfer, elements, bytes of an element) of every region that some worker gets from another.

    A transfer that several operators need comes several times. `work_of(node)` is the node's work
    under the plan (None: it does nothing); equal works should be one object. Outputs that nobody
    uses stay where they are made. Feeds and results are apart.
    """
    finding = _Finding(plan.machine.factors)
    uses = traversal.consumers(graph)
    fetched = frozenset(graph.outputs)
    for node in graph:
        work = work_of(node)
        if work is None:
            continue
        for i, ref in enumerate(node.inputs):
            if graph.nodes[ref.node].op == CONST:  # every worker has its own
                continue
            spec = graph.spec(ref)
            held = layout_regions(plan.layouts[ref], spec.shape, plan.machine.factors)
            for kind, part, source, to, region in finding.fetches(held, work.reads[i]):
                yield Transfer(kind, ref, part, source, to, region), region.size, spec.itemsize
        own = len(node.outputs) - len(node.writes)
        for o, ref in enumerate(node.refs):
            if o < own and ref not in uses and ref not in fetched:
                continue
            spec = node.outputs[o]
            owned = layout_regions(plan.layouts[ref], spec.shape, plan.machine.factors)
            for kind, part, source, to, region in finding.routes(
                work.writes[o], work.partials[o], owned
            ):
                yield Transfer(kind, ref, part, source, to, region), region.size, spec.itemsize
        for n, (made, partial) in enumerate(
            zip(work.internal_writes, work.internal_partials, strict=True)
        ):
            # half types are summed in float32
            width = max(4, graph.spec(node.inputs[0]).itemsize)
            for kind, part, source, to, region in finding.routes(made, partial, made):
                name = Transfer(f"internal {kind}", Ref(node.name, n), part, source, to, region)
                yield name, region.size, width


def moved_bytes(graph: Graph, plan: Plan, work_of: Callable[[Node], Work | None]) -> int:
    """Bytes that cross between workers in one step, what is shared counted once."""
    paid: dict[Transfer, int] = {}
    for transfer, elements, width in transfers_of(graph, plan, work_of):
        paid[transfer] = elements * width
    return sum(paid.values())


class _Finding:
    """Remote parts of fetches and routes; the same Regions objects are looked at once."""

    def __init__(self, factors: tuple[int, ...]) -> None:
        self._factors = factors
        self._found: dict[tuple[object, ...], Found] = {}
        self._alive: list[object] = []  # keys are identities: keep their objects

    def fetches(self, held: Regions, need: Regions) -> Found:
        if not need.present.any():  # read as an attribute, if at all
            return ()
        key = (id(held), id(need))
        if key not in self._found:
            self._alive += [held, need]
            self._found[key] = self._parts("fetch", 0, held, need)
        return self._found[key]

    def routes(self, written: Regions, partial: IntArray, owned: Regions) -> Found:
        key = (id(written), id(partial), id(owned))
        if key not in self._found:
            self._alive += [written, partial, owned]
            self._found[key] = self._routes(written, partial, owned)
        return self._found[key]

    def _routes(self, written: Regions, partial: IntArray, owned: Regions) -> Found:
        route = transfers.route(written, partial, owned)
        if len(route.partials) <= 1:
            return self._parts("write", 0, written, owned)
        found: Found = ()
        for p, made in zip(np.unique(partial[written.present]), route.partials, strict=True):
            found += self._parts("partial", int(p), made, route.middle)
        if route.middle is not route.owned:
            found += self._parts("gather", 0, route.middle, route.owned)
        return found

    def _parts(self, kind: str, part: int, held: Regions, need: Regions) -> Found:
        if transfers.fetched_elements(held, need) == 0:
            return ()
        return tuple(
            (kind, part, p.source, w, p.region)
            for w, parts in enumerate(transfers.fetch_parts(held, need, self._factors))
            for p in parts
            if p.source != w
        )
