"""Every transfer of a planned step, named by what may be shared; costs count them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from tofu_tf.graph.ir import CONST, Graph, Node, Ref
from tofu_tf.plan import transfers
from tofu_tf.plan.classifying import Change
from tofu_tf.plan.collectives import Choosing, group_bytes
from tofu_tf.plan.layouts import layout_regions
from tofu_tf.plan.plans import Plan
from tofu_tf.plan.transfers import Parts, Route
from tofu_tf.tdl.regions import IntArray, Region, Regions
from tofu_tf.tdl.strategies import Work


@dataclasses.dataclass(frozen=True, slots=True)
class Transfer:
    """A region that goes from one worker to another; equal ones are made once.

    `kind`: ``fetch`` (a tensor's shard to an operator that reads it), ``write`` (an operator's
    output to the tensor's shards), ``partial`` (a partial result to where it is combined),
    ``gather`` (a combined part to the tensor's shards), ``internal`` (the same two of a body's own
    reduction). `part`: which partial result or internal reduction. A collective is one transfer per
    group, of its kind, from its first member to its last; `part` tells changes of a tensor apart.
    """

    kind: str
    ref: Ref
    part: int
    source: int
    destination: int
    region: Region


# (transfer, elements, bytes of an element)
Moved = tuple[Transfer, int, int]
Mask = npt.NDArray[np.bool_]


def transfers_of(
    graph: Graph,
    plan: Plan,
    work_of: Callable[[Node], Work | None],
    choosing: Choosing | None = None,
) -> Iterator[Moved]:
    """Every region that some worker gets from another, last nodes first.

    A transfer that several operators need comes several times. `work_of(node)` is the node's work
    under the plan (None: it does nothing); equal works should be one object. What no effect and no
    result needs is not made, worker by worker, and moves nothing. Feeds and results are apart.
    `choosing` says what goes by collectives; nothing does without it. Where one member of a group
    needs what a collective yields, all take part.
    """
    finding = _Finding(graph, plan)
    effects = frozenset(graph.effects)
    finding.read_results()
    for node in reversed(list(graph)):
        work = work_of(node)
        if work is None:
            continue
        alive = np.zeros(plan.machine.workers, np.bool_)
        if node.writes or node.name in effects:
            alive |= work.boxes.present
        own = len(node.outputs) - len(node.writes)
        makers = [np.zeros_like(alive) for _ in range(own)]  # of each output, where it is used
        for o, ref in enumerate(node.refs[:own]):
            if ref in finding.used:
                owned, spec = finding.held(ref), node.outputs[o]
                width = spec.itemsize
                change = choosing and choosing(
                    work.writes[o], work.partials[o], owned, spec.dtype, work.reducers[o]
                )
                if change:
                    wanted = finding.used[ref]
                    yield from _together(change, ref, -1, work.writes[o], wanted, makers[o], width)
                else:
                    way = finding.route(work.writes[o], work.partials[o], owned)
                    used = finding.used[ref]
                    for transfer, elements in _along(way, finding, ref, used, makers[o]):
                        yield transfer, elements, width
                alive |= makers[o]
        if not alive.any():
            continue
        for n, (made, partial) in enumerate(
            zip(work.internal_writes, work.internal_partials, strict=True)
        ):
            # every part needs the sums, so every part is made
            alive |= work.boxes.present
            # half types are summed in float32
            summed = graph.spec(node.inputs[0])
            width = max(4, summed.itemsize)
            inside = Ref(node.name, n)
            dtype = "float32" if summed.itemsize < 4 else summed.dtype
            change = choosing and choosing(made, partial, made, dtype, "Sum")
            if change:
                yield from _together(change, inside, -2, made, made.present, alive, width)
                continue
            way = finding.route(made, partial, made)
            for t, elements in _along(way, finding, inside, made.present, alive):
                yield dataclasses.replace(t, kind=f"internal {t.kind}"), elements, width
        for i, ref in enumerate(node.inputs):
            if graph.nodes[ref.node].op == CONST or not work.reads[i].present.any():
                continue
            width = graph.spec(ref).itemsize
            held = finding.held(ref)
            readers = alive
            if i in work.serves:
                readers = np.logical_or.reduce([makers[o] for o in work.serves[i]])
            used = finding.used.setdefault(ref, np.zeros(plan.machine.workers, np.bool_))
            change = choosing and choosing(held, None, work.reads[i], graph.spec(ref).dtype)
            if change:
                number = finding.number(ref, work.reads[i])
                yield from _together(change, ref, number, held, readers, used, width)
                continue
            parts = finding.parts(held, work.reads[i])
            for transfer, elements in _sent(parts, "fetch", ref, 0, readers, used):
                yield transfer, elements, width


def moved_bytes(
    graph: Graph,
    plan: Plan,
    work_of: Callable[[Node], Work | None],
    choosing: Choosing | None = None,
) -> int:
    """Bytes that cross between workers in one step, what is shared counted once."""
    paid: dict[Transfer, int] = {}
    for transfer, elements, width in transfers_of(graph, plan, work_of, choosing):
        paid[transfer] = elements * width
    return sum(paid.values())


def _along(
    way: Route, finding: _Finding, ref: Ref, wanted: Mask, alive: Mask
) -> Iterator[tuple[Transfer, int]]:
    """What moves on a route so that the `wanted` workers get what they own; whose pieces it takes
    is added to `alive`.
    """
    if len(way.partials) == 1:
        yield from _sent(finding.parts(way.partials[0], way.owned), "write", ref, 0, wanted, alive)
        return
    middle = wanted
    if way.middle is not way.owned:
        middle = np.zeros_like(wanted)
        yield from _sent(finding.parts(way.middle, way.owned), "gather", ref, 0, wanted, middle)
    for p, held in enumerate(way.partials):
        yield from _sent(finding.parts(held, way.middle), "partial", ref, p, middle, alive)


def _sent(
    parts: Parts, kind: str, ref: Ref, part: int, wanted: Mask, sources: Mask
) -> Iterator[tuple[Transfer, int]]:
    """The transfers to the `wanted` workers; their sources (themselves too) are added to
    `sources`.
    """
    for w in np.flatnonzero(wanted).tolist():
        for p in parts[w]:
            sources[p.source] = True
            if p.source != w:
                yield Transfer(kind, ref, part, p.source, w, p.region), p.region.size


def _together(
    change: Change,
    ref: Ref,
    part: int,
    held: Regions,
    wanted: Mask,
    sources: Mask,
    width: int,
) -> Iterator[Moved]:
    """One transfer for each group that has a member in `wanted`; all its members are added to
    `sources`.
    """
    sizes = held.sizes()
    for group in change.groups:
        members = list(group)
        if wanted[members].any():
            sources[members] = True
            elements = group_bytes(change.kind, len(group), int(sizes[group[0]]))
            first, last = group[0], group[-1]
            yield Transfer(str(change.kind), ref, part, first, last, Region(())), elements, width


class _Finding:
    """Parts and routes of a plan, the same Regions objects looked at once, and `used`: for every
    tensor the workers whose own region of it somebody reads.
    """

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.graph, self.plan = graph, plan
        self.used: dict[Ref, Mask] = {}
        self._parts: dict[tuple[int, int], Parts] = {}
        self._routes: dict[tuple[int, int, int], Route] = {}
        self._alive: list[object] = []  # keys are identities: keep their objects
        self._needs: dict[tuple[Ref, tuple[object, ...]], int] = {}

    def number(self, ref: Ref, need: Regions) -> int:
        """Tells different needs of a tensor apart; equal for equal ones."""
        return self._needs.setdefault((ref, need.key), len(self._needs))

    def held(self, ref: Ref) -> Regions:
        shape = self.graph.spec(ref).region_shape
        return layout_regions(self.plan.layouts[ref], shape, self.plan.machine.factors)

    def read_results(self) -> None:
        """Marks what the results are fetched from."""
        workers = self.plan.machine.workers
        for ref in self.graph.outputs:
            if self.graph.nodes[ref.node].op == CONST:
                continue
            whole = Regions.everywhere(self.graph.spec(ref).region_shape, workers)
            used = self.used.setdefault(ref, np.zeros(workers, np.bool_))
            for p in transfers.fetch_parts(self.held(ref), whole, self.plan.machine.factors)[0]:
                used[p.source] = True

    def parts(self, held: Regions, need: Regions) -> Parts:
        key = (id(held), id(need))
        if key not in self._parts:
            self._alive += [held, need]
            self._parts[key] = transfers.fetch_parts(held, need, self.plan.machine.factors)
        return self._parts[key]

    def route(self, written: Regions, partial: IntArray, owned: Regions) -> Route:
        key = (id(written), id(partial), id(owned))
        if key not in self._routes:
            self._alive += [written, partial, owned]
            self._routes[key] = transfers.route(written, partial, owned)
        return self._routes[key]
