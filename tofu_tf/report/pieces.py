"""One operator as text: what each device reads from whom, what it makes, what becomes of that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tofu_tf import errors
from tofu_tf.cost.evaluation import works
from tofu_tf.graph.ir import CONST, Graph, Node, Ref
from tofu_tf.ops.applicable import Describing
from tofu_tf.plan.classifying import COLLECTIVES, Change
from tofu_tf.plan.collectives import Choosing, group_bytes
from tofu_tf.plan.layouts import layout_regions, layout_text
from tofu_tf.plan.plans import Plan
from tofu_tf.plan.routing import Transfer, transfers_of
from tofu_tf.plan.text import size_text
from tofu_tf.plan.transfers import Part, fetch_parts
from tofu_tf.report.pictures import device_names, find_node
from tofu_tf.tdl.regions import Regions
from tofu_tf.tdl.strategies import Work

_TOGETHER = frozenset(map(str, COLLECTIVES))


def op_picture(
    graph: Graph,
    plan: Plan,
    name: str,
    describing: Describing | None = None,
    choosing: Choosing | None = None,
) -> str:
    """The pieces of an operator: for every device what it reads of each input and from whom, what
    it makes, and how that becomes the outputs as they lie.

    `choosing` says what goes by collectives; without it all goes point to point.

    Raises:
      PlanError: there is no such operator, or nothing of it is in pieces.
    """
    node = find_node(graph, name)
    work_of = works(plan, describing or Describing(graph))
    work, strategy = work_of(node), plan.strategies.get(node.name)
    if work is None or strategy is None:
        raise errors.PlanError(
            f"op {name}", f"a {node.op}", "an op that computes", "--tensor shows where it lies"
        )
    moved = list(transfers_of(graph, plan, work_of, choosing))
    drawing = _Drawing(graph, plan, node, work, choosing, moved)
    lines = [f"op {node.name} ({node.op}) over {plan.machine.workers} devices", *drawing.cuts()]
    lines += drawing.layouts()
    for w, device in enumerate(device_names(plan)):
        lines += ["", *drawing.piece(w, device)]
    return "\n".join([*lines, "", *drawing.outputs()])


class _Drawing:
    """One operator's pieces, line by line."""

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        node: Node,
        work: Work,
        choosing: Choosing | None,
        moved: Sequence[tuple[Transfer, int, int]],
    ) -> None:
        self.graph, self.plan, self.node, self.work = graph, plan, node, work
        self.choosing, self.devices = choosing, device_names(plan)
        self.strategy = plan.strategies[node.name]
        self.moved = {t: elements * width for t, elements, width in moved}

    def cuts(self) -> Iterator[str]:
        """How the work is divided."""
        if self.node.name in self.plan.whole:
            yield f"  run whole on {self.devices[0]}: {self.plan.whole[self.node.name].reason}"
        elif self.strategy.home:
            yield f"  run once, on {self.devices[0]}"
        else:
            cut = [f"d{s}: axis {a}" for s, a in enumerate(self.strategy.axes) if a is not None]
            yield "  cut along " + ", ".join(cut) if cut else "  every device does all of it"
        if self.strategy.body:
            yield f"  by the body {self.strategy.body!r}"

    def layouts(self) -> Iterator[str]:
        """How inputs and outputs lie."""
        for what, refs in (("input", self.node.inputs), ("output", self.node.refs)):
            for i, ref in enumerate(refs):
                yield f"  {what} {i}: {ref} {self._lies(ref)}"

    def _lies(self, ref: Ref) -> str:
        spec, layout = self.graph.spec(ref), self.plan.layouts.get(ref)
        if layout is None or self.graph.nodes[ref.node].op == CONST:
            return f"{spec}, a constant"
        return layout_text(layout, spec.shape, spec.dtype)

    def piece(self, w: int, device: str) -> Iterator[str]:
        """What worker w's piece reads and makes."""
        box = self.work.boxes
        if not box.present[w]:
            yield f"{device}: no piece"
            return
        axes = ", ".join(f"{a} {box.lo[a][w]}:{box.hi[a][w]}" for a in box.lo if "." not in a)
        yield f"{device}: {axes}" if axes else f"{device}:"
        for i, ref in enumerate(self.node.inputs):
            yield f"  reads {i}: {self._read(i, ref, w)}"
        for o, ref in enumerate(self.node.refs):
            region = self.work.writes[o][w]
            partial = self.work.partials[o]
            many = int(partial.max()) + 1
            kind = f", partial result {int(partial[w]) + 1} of {many}" if many > 1 else ""
            yield f"  makes {o}: {ref} {region or 'nothing'}{kind}"

    def _read(self, i: int, ref: Ref, w: int) -> str:
        need, spec = self.work.reads[i], self.graph.spec(ref)
        region = need[w]
        if self.graph.nodes[ref.node].op == CONST:
            return f"{ref} {region}, its own copy" if region else f"{ref}, as an attribute"
        if region is None:
            return f"{ref} nothing"
        if self.node.variables.get(i) in self.node.writes:
            return f"{ref} {region}, its own shard"
        change = self._change(ref, need)
        if change:
            group = next(g for g in change.groups if w in g)
            among = ", ".join(self.devices[member] for member in group)
            return f"{ref} {region} by {change.kind} among {among}"
        parts = fetch_parts(self._held(ref), need, self.plan.machine.factors)[w]
        return f"{ref} {region} = " + " + ".join(self._part(p, w, spec.itemsize) for p in parts)

    def _part(self, part: Part, w: int, width: int) -> str:
        if part.source == w:
            return f"own {part.region}"
        nbytes = size_text(part.region.size * width)
        return f"{part.region} from {self.devices[part.source]} ({nbytes})"

    def _held(self, ref: Ref) -> Regions:
        shape = self.graph.spec(ref).region_shape
        return layout_regions(self.plan.layouts[ref], shape, self.plan.machine.factors)

    def outputs(self) -> Iterator[str]:
        """How what the pieces made becomes the outputs, and the bytes of it all."""
        sent = {t: n for t, n in self.moved.items() if self._is_outward(t)}
        inside = {t: n for t, n in self.moved.items() if self._is_inside(t)}
        if inside:
            yield "partial sums inside the body:"
            yield from (f"  {self._transfer(t)}" for t in inside)
        for o, ref in enumerate(self.node.refs):
            many = int(self.work.partials[o].max()) + 1
            own = [t for t in sent if t.ref == ref]
            if o >= len(self.node.outputs) - len(self.node.writes):
                how = "each device writes its own shard"
            elif many > 1:
                how = f"the {self.work.reducers[o] or 'Sum'} of {many} partial results"
            else:
                how = "sent to where it lies" if own else "lies where it is made"
            yield f"{ref}: {how}"
            yield from (f"  {self._transfer(t)}" for t in own)
        made = sum(sent.values()) + sum(inside.values())
        yield f"reads {size_text(self._fetched())} from other devices, once for all that read it"
        yield f"moves {size_text(made)} of what it makes"

    def _is_outward(self, t: Transfer) -> bool:
        if t.ref.node != self.node.name:
            return False
        return t.kind in ("write", "partial", "gather") or (t.kind in _TOGETHER and t.part == -1)

    def _is_inside(self, t: Transfer) -> bool:
        if t.ref.node != self.node.name:
            return False
        return t.kind.startswith("internal") or (t.kind in _TOGETHER and t.part == -2)

    def _fetched(self) -> int:
        """Bytes of what the pieces read that they do not own."""
        total = 0
        for i, ref in enumerate(self.node.inputs):
            need, width = self.work.reads[i], self.graph.spec(ref).itemsize
            if self.graph.nodes[ref.node].op == CONST or not need.present.any():
                continue
            held = self._held(ref)
            change = self._change(ref, need)
            if change:
                size = int(held.sizes()[change.groups[0][0]]) * width
                total += sum(group_bytes(change.kind, len(g), size) for g in change.groups)
                continue
            for w, parts in enumerate(fetch_parts(held, need, self.plan.machine.factors)):
                total += sum(p.region.size for p in parts if p.source != w) * width
        return total

    def _change(self, ref: Ref, need: Regions) -> Change | None:
        """The collective that brings an input to where it is needed, None where none does."""
        if self.choosing is None:
            return None
        return self.choosing(self._held(ref), None, need, self.graph.spec(ref).dtype)

    def _transfer(self, t: Transfer) -> str:
        nbytes = size_text(self.moved[t])
        names = self.devices
        if t.kind in _TOGETHER:
            return f"{t.kind} among {names[t.source]} ... {names[t.destination]} ({nbytes})"
        what = f"partial {t.part + 1} " if t.kind.endswith("partial") else ""
        return f"{what}{t.region} {names[t.source]} -> {names[t.destination]} ({nbytes})"
