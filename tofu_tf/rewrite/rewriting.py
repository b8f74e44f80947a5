"""A Graph and a Plan as one placed GraphDef: pieces, fetches, reductions, variables in order.

Nodes are visited in the graph's order. Of every tensor the regions that its layout gives to the
workers are kept by name (`owned`); whatever else a piece reads is sliced from them by its owners
and joined where it is needed, each distinct region once per worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tofu_tf import errors
from tofu_tf.graph import traversal
from tofu_tf.graph.functions import named_by, reachable
from tofu_tf.graph.ir import CONST, PLACEHOLDER, VARIABLE, Graph, Node, Ref
from tofu_tf.ops.applicable import Describing
from tofu_tf.ops.registry import Piece
from tofu_tf.plan.layouts import layout_regions
from tofu_tf.plan.plans import Plan, Strategy
from tofu_tf.plan.transfers import Part, fetch_parts
from tofu_tf.rewrite import naming
from tofu_tf.rewrite.building import Building
from tofu_tf.rewrite.fetching import divided, division, joined, sliced
from tofu_tf.rewrite.moving import Moves, Names, demand
from tofu_tf.rewrite.pieces import PieceEmitter, run_bodies
from tofu_tf.rewrite.placed import Placed
from tofu_tf.rewrite.variables import Shards
from tofu_tf.rewrite.whole import whole_on_host
from tofu_tf.tdl import strategies
from tofu_tf.tdl.descriptions import Description
from tofu_tf.tdl.regions import IntArray, Region, Regions

# Fetches of at least so many bytes of a variable wait for the step to come near their consumer.
GATE_BYTES = 16384


def rewrite(graph: Graph, plan: Plan, describing: Describing | None = None) -> Placed:
    """The placed graph that computes what `graph` does, as `plan` says, with point-to-point
    transfers.
    """
    state = Rewriting(graph, plan, describing or Describing(graph))
    for node in graph:
        state.visit(node)
    return state.finish()


class Rewriting:
    """One graph's rewriting in progress."""

    def __init__(self, graph: Graph, plan: Plan, describing: Describing) -> None:
        self.graph, self.plan, self.describing = graph, plan, describing
        self.factors = plan.machine.factors
        self.workers = plan.machine.workers
        self.make = Building(plan.machine.devices)
        self.moves = Moves(self.make, self.factors)
        self.owned: dict[Ref, Names] = {}
        self.shards: dict[str, Shards] = {}
        self.version_of: dict[Ref, str] = {}
        self.feed_nodes: list[str] = []
        self.pieces: dict[str, dict[int, str]] = {}  # node -> worker -> the piece's last node
        self.effects: list[str] = []
        self.order = {name: n for n, name in enumerate(graph.nodes)}
        self._works: dict[tuple[str, Strategy], strategies.Work] = {}
        self._fetched: dict[tuple[Ref, int, Region], str] = {}
        consumers = traversal.consumers(graph)
        self.read = {
            ref
            for ref, uses in consumers.items()
            if any(not self._takes_handle(graph.nodes[name], i) for name, i in uses)
        } | set(graph.outputs)

    def held(self, ref: Ref) -> Regions:
        shape = self.graph.spec(ref).region_shape
        return layout_regions(self.plan.layouts[ref], shape, self.factors)

    def visit(self, node: Node) -> None:
        if node.op == CONST:
            return
        if node.op == PLACEHOLDER:
            self._feed(node)
        elif node.op == VARIABLE:
            self._variable(node)
        else:
            self._pieces(node)

    def _feed(self, node: Node) -> None:
        """The fed tensor on worker 0, and every worker's region of it sent there."""
        ref, spec = Ref(node.name), node.outputs[0]
        attrs = {"dtype": spec.dtype, "shape": spec.shape}
        feed = self.make.add(node.name, PLACEHOLDER, 0, (), attrs)
        self.feed_nodes.append(feed)
        names: Names = [None] * self.workers
        cut: dict[Region, str] = {}
        for w, region in enumerate(self.held(ref).tuple()):
            if region is None:
                continue
            if region not in cut:
                name = naming.piece(node.name, w, "feed")
                whole = Region.whole(spec.shape)
                cut[region] = sliced(
                    self.make, naming.tensor(feed), whole, region, spec.dtype, 0, name
                )
                self.feed_nodes.append(naming.node_of(cut[region]))
            piece = self.make.add(
                naming.piece(node.name, w), "Identity", w, (cut[region],), {"T": spec.dtype}
            )
            names[w] = naming.tensor(piece)
        self.owned[ref] = names

    def _variable(self, node: Node) -> None:
        variable = next(v for v in self.graph.variables.values() if v.node == node.name)
        ref = Ref(node.name)
        self.shards[variable.name] = Shards(self.make, self.graph, variable.name, self.held(ref))
        self.version_of[ref] = variable.name

    def _own(self, ref: Ref, worker: int) -> str:
        """The tensor that `worker` owns of `ref`."""
        if ref in self.version_of:
            return self.shards[self.version_of[ref]].value(ref, worker)
        name = self.owned[ref][worker]
        if name is None:
            raise errors.RewriteError(str(ref), f"worker {worker} owns nothing of it")
        return name

    def fetch(self, ref: Ref, need: Regions, worker: int, near: Node) -> str:
        """The region that `worker` needs of `ref`, as one tensor on its device or one sent to
        it.
        """
        wanted = need[worker]
        spec = self.graph.spec(ref)
        if wanted is None:
            return self._nothing(ref, worker)
        key = (ref, worker, wanted)
        if key in self._fetched:
            return self._fetched[key]
        value = self.graph.const(ref)
        if value is not None:
            index = tuple(slice(lo, hi) for lo, hi in wanted.bounds)
            part = "" if wanted == Region.whole(spec.shape) else f"part{wanted}"
            name = naming.piece(ref.node, worker, _plain(part))
            self._fetched[key] = self.make.constant(np.asarray(value[index]), worker, name)
            return self._fetched[key]
        held = self.held(ref)
        parts = fetch_parts(held, need, self.factors)[worker]
        tensors = [self._part(ref, held, p, worker, near) for p in parts]
        name = naming.piece(ref.node, worker, f"gathered{ref.index}" if ref.index else "gathered")
        self._fetched[key] = joined(self.make, parts, tensors, spec.dtype, worker, name)
        return self._fetched[key]

    def _divide(self, ref: Ref, need: Regions, near: Node) -> None:
        """Cuts up in one node each owned tensor of which several workers need all its parts."""
        if self.graph.nodes[ref.node].op == CONST or not need.present.any():
            return
        held = self.held(ref)
        for source, wanted in demand(fetch_parts(held, need, self.factors)).items():
            region = held[source]
            assert region is not None
            if division(region, wanted) is None:
                continue
            tensor = self._own(ref, source)
            if any((tensor, r) in self.moves.slices for r in wanted):
                continue
            parts = divided(
                self.make,
                tensor,
                region,
                wanted,
                self.graph.spec(ref).dtype,
                source,
                naming.piece(ref.node, source, "parts"),
                self._gates(ref, source, near),
            )
            self.moves.slices.update({(tensor, r): name for r, name in parts.items()})

    def _nothing(self, ref: Ref, worker: int) -> str:
        """An empty tensor for an input without elements; "" for one that the piece does not
        read.
        """
        spec = self.graph.spec(ref)
        if spec.size or not spec.itemsize:
            return ""
        empty = np.zeros(spec.shape, spec.dtype)
        return self.make.constant(empty, worker, naming.piece(ref.node, worker))

    def _part(self, ref: Ref, held: Regions, part: Part, worker: int, near: Node) -> str:
        """A part of what its source owns, cut there; a large part of a variable waits for its
        gate.
        """
        spec = self.graph.spec(ref)
        tensor = self._own(ref, part.source)
        region = held[part.source]
        assert region is not None
        key = (tensor, part.region)
        if key in self.moves.slices:
            return self.moves.slices[key]
        gates: tuple[str, ...] = ()
        remote = part.source != worker
        if remote:
            gates = self._gates(ref, part.source, near)
        name = naming.piece(ref.node, part.source, f"to{worker}")
        made = sliced(self.make, tensor, region, part.region, spec.dtype, part.source, name, gates)
        if made == tensor and gates:
            name = naming.piece(ref.node, part.source, "gate")
            attrs = {"T": spec.dtype}
            made = naming.tensor(
                self.make.add(name, "Identity", part.source, (tensor,), attrs, gates)
            )
        if remote:  # a local slice needs no gate, so it is not shared with the others
            self.moves.slices[key] = made
        return made

    def _gates(self, ref: Ref, source: int, near: Node) -> tuple[str, ...]:
        """The source's own piece of what comes just before the consumer `near`, for a large part of
        a variable, which is there from the start; nothing for other tensors.
        """
        held = self.held(ref)[source]
        if ref not in self.version_of or held is None:
            return ()
        if held.size * self.graph.spec(ref).itemsize < GATE_BYTES:
            return ()
        before = [
            r.node
            for r in near.inputs
            if r != ref and source in self.pieces.get(r.node, {}) and r not in self.version_of
        ]
        last = max(before, key=self.order.__getitem__, default=None)
        return () if last is None else (self.pieces[last][source],)

    def _pieces(self, node: Node) -> None:
        described = self.describing(node)
        strategy = self.plan.strategies.get(node.name)
        if strategy is None or (described is None and not strategy.home):
            raise errors.RewriteError(
                f"node {node.name} ({node.op})", "no description or no strategy in the plan"
            )
        if described is None:
            self._whole(node)
            return
        applied = described.variant(strategy.body)
        work = self._work(described.signature, applied.description, strategy)
        specs = tuple(self.graph.spec(r) for r in node.inputs)
        for i, ref in enumerate(node.inputs):
            if i not in described.constants and not _is_handle(node, i):
                self._divide(ref, work.reads[i], node)
        emitters: list[PieceEmitter | None] = [None] * self.workers
        pieces: list[Piece | None] = [None] * self.workers
        for w in np.flatnonzero(work.boxes.present).tolist():
            inputs: list[str] = []
            reads: list[Region | None] = []
            handles: dict[str, tuple[str, ...]] = {}
            for i, ref in enumerate(node.inputs):
                if i in described.constants:
                    inputs.append("")
                    reads.append(None)
                elif _is_handle(node, i):
                    shards = self.shards[node.variables[i]]
                    handle = shards.handles[w]
                    handles[handle] = shards.before_write(w, ref in self.read)
                    inputs.append(handle)
                    reads.append(shards.owned[w])
                else:
                    inputs.append(self.fetch(ref, work.reads[i], w, node))
                    reads.append(work.reads[i][w])
            waits = [self.pieces[c][w] for c in node.controls if w in self.pieces.get(c, {})]
            emitters[w] = PieceEmitter(self.make, node.name, w, waits, handles)
            writes = tuple(r[w] for r in work.writes)
            pieces[w] = Piece(
                node,
                work.boxes.box(w),
                applied.description.extents,
                specs,
                tuple(reads),
                tuple(Region(()) if r is None else r for r in writes),
                tuple(inputs),
                described.constants,
                described.attributes,
                self.plan.machine.device_type,
            )
        outputs = run_bodies(applied.variant.body, emitters, pieces, self._reducer(node, work))
        self._record(node, emitters, work, outputs)

    def _whole(self, node: Node) -> None:
        """A node of which nothing is known, on worker 0 with all that it reads."""
        work = strategies.whole_work(
            [self.graph.spec(r).region_shape for r in node.inputs],
            [s.region_shape for s in node.outputs],
            self.workers,
        )
        inputs: list[str] = []
        handles: dict[str, tuple[str, ...]] = {}
        only_read: list[Shards] = []
        for i, ref in enumerate(node.inputs):
            if not self._takes_handle(node, i):
                inputs.append(self.fetch(ref, work.reads[i], 0, node))
                continue
            shards = self.shards[node.variables[i]]
            if set(shards.handles) != {0}:
                raise errors.RewriteError(
                    f"node {node.name} ({node.op})",
                    f"takes the handle of {node.variables[i]}, which lies elsewhere",
                    "that variable whole on worker 0",
                )
            inputs.append(shards.handles[0])
            if _is_handle(node, i):
                handles[shards.handles[0]] = shards.before_write(0, ref in self.read)
            else:
                handles[shards.handles[0]] = shards.before_read(0)
                only_read.append(shards)
        waits = [self.pieces[c][0] for c in node.controls if 0 in self.pieces.get(c, {})]
        host = whole_on_host(node, self.graph, self.plan.machine.device_type)
        emit = PieceEmitter(self.make, node.name, 0, waits, handles, host)
        own = len(node.outputs) - len(node.writes)
        made = emit.add(node.op, inputs, node.attrs, outputs=own)
        for shards in only_read:
            shards.was_read(0, emit.made[-1])
        none: list[None] = [None] * (self.workers - 1)
        self._record(node, [emit, *none], work, [made, *none])

    def _takes_handle(self, node: Node, position: int) -> bool:
        """Whether the input is a variable that is handed over, not its value."""
        return _is_handle(node, position) or (
            position in node.variables and self.describing(node) is None
        )

    def _record(
        self,
        node: Node,
        emitters: Sequence[PieceEmitter | None],
        work: strategies.Work,
        outputs: Sequence[list[str] | None],
    ) -> None:
        """Notes what a node's pieces wrote, and brings their outputs to where they are owned."""
        written = {node.version(v): v for v in node.writes}
        self.pieces[node.name] = {
            w: e.made[-1] for w, e in enumerate(emitters) if e is not None and e.made
        }
        for version, name in written.items():
            self._written(node, version, name, emitters, work)
        if node.name in self.graph.effects and not node.writes:
            self.effects += self.pieces[node.name].values()
        for o, ref in enumerate(node.refs):
            if ref in self.read and ref not in written:
                made = [None if out is None else out[o] for out in outputs]
                self.owned[ref] = self._settle(
                    ref, made, work.writes[o], work.partials[o], work.reducers[o], self.held(ref)
                )

    def _work(
        self, signature: str, description: Description, strategy: Strategy
    ) -> strategies.Work:
        """The node's work; equal nodes share one."""
        key = (signature, strategy)
        if key not in self._works:
            self._works[key] = strategies.work_of(
                description, strategy.axes, self.factors, strategy.home
            )
        return self._works[key]

    def _written(
        self,
        node: Node,
        version: Ref,
        name: str,
        emitters: Sequence[PieceEmitter | None],
        work: strategies.Work,
    ) -> None:
        shards = self.shards[name]
        touched = {
            w: e.touched.get(shards.handles[w], [])
            for w, e in enumerate(emitters)
            if e is not None and w in shards.handles
        }
        missing = sorted(set(shards.handles) - {w for w, nodes in touched.items() if nodes})
        region = work.writes[version.index]
        wrong = [w for w in shards.handles if region[w] != shards.owned[w]]
        if missing or wrong:
            raise errors.RewriteError(
                f"node {node.name} ({node.op})",
                f"writes {[str(r) for r in region.tuple()]} of {name}",
                f"its shards {[str(r) for r in shards.owned.tuple()]}",
            )
        shards.write(version, touched)
        self.version_of[version] = name
        for nodes in touched.values():
            self.effects += nodes

    def _reducer(self, node: Node, work: strategies.Work) -> Callable[..., Names]:
        """What combines a body's internal partials and gives every worker the totals."""

        def reduce(internal: int, partials: Sequence[str | None]) -> Names:
            written = work.internal_writes[internal]
            dtype = "float32" if self.graph.spec(node.inputs[0]).itemsize < 4 else None
            return self._routed(
                node.name,
                f"internal{internal}",
                list(partials),
                written,
                work.internal_partials[internal],
                "Sum",
                written,
                dtype or self.graph.spec(node.inputs[0]).dtype,
            )

        return reduce

    def _settle(
        self,
        ref: Ref,
        made: Names,
        written: Regions,
        partial: IntArray,
        reducer: str | None,
        owned: Regions,
    ) -> Names:
        """Every worker's owned region of an output, from what the pieces made of it."""
        part = f"out{ref.index}" if ref.index else ""
        dtype = self.graph.spec(ref).dtype
        return self._routed(ref.node, part, made, written, partial, reducer, owned, dtype)

    def _routed(
        self,
        node: str,
        part: str,
        made: Names,
        written: Regions,
        partial: IntArray,
        reducer: str | None,
        owned: Regions,
        dtype: str,
    ) -> Names:
        return self.moves.routed(node, part, made, written, partial, reducer, owned, dtype)

    def finish(self) -> Placed:
        """The placed graph: outputs whole on worker 0, dead nodes dropped."""
        results: list[str] = []
        fetches = [self._result(n, ref, results) for n, ref in enumerate(self.graph.outputs)]
        shards = tuple(s for v in self.shards.values() for s in v.shards())
        kept = [naming.node_of(f) for f in fetches] + self.effects + list(self.graph.inputs)
        kept += [s.placeholder for s in shards]
        self._complete(kept)
        graph_def = self.make.graph_def(kept)
        called = [name for node in graph_def.node for name in named_by(node.op, node.attr)]
        graph_def.library.function.extend(reachable(called, self.graph.functions).values())
        return Placed(
            graph_def,
            tuple(self.graph.inputs),
            tuple(fetches),
            shards,
            tuple(dict.fromkeys(self.effects)),
            tuple(dict.fromkeys(self.feed_nodes)),
            tuple(dict.fromkeys(results)),
        )

    def _complete(self, kept: list[str]) -> None:
        """A last change of the nodes that are `kept` and of those that they need."""

    def _result(self, n: int, ref: Ref, results: list[str]) -> str:
        """The whole of an output on worker 0, made by nodes of its own."""
        spec = self.graph.spec(ref)
        value = self.graph.const(ref)
        name = f"{ref.node}/result{n}"
        if value is not None:
            return self.make.constant(np.asarray(value), 0, name)
        if not spec.size and spec.is_static:
            return self._nothing(ref, 0)
        held = self.held(ref)
        need = Regions.everywhere(spec.region_shape, self.workers)
        parts = fetch_parts(held, need, self.factors)[0]
        tensors = []
        for p in parts:
            region = held[p.source]
            assert region is not None
            tensors.append(
                sliced(
                    self.make,
                    self._own(ref, p.source),
                    region,
                    p.region,
                    spec.dtype,
                    p.source,
                    name,
                )
            )
        whole = joined(self.make, parts, tensors, spec.dtype, 0, name, results.append)
        if len(parts) == 1:
            made = self.make.add(name, "Identity", 0, (whole,), {"T": spec.dtype})
            results.append(made)
            whole = naming.tensor(made)
        return whole


def _is_handle(node: Node, position: int) -> bool:
    """Whether the input is a variable that the node writes, so that it takes the shard's handle."""
    return node.variables.get(position) in node.writes


def _plain(text: str) -> str:
    """A node name's characters only."""
    return text.replace(":", "-").replace(", ", "_").strip("[]").replace("[", "")
