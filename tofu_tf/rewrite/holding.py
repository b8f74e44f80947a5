"""What every worker holds of every tensor, and how a region that a piece reads gets to it.

Of every tensor the regions that its layout gives to the workers are kept by name (`owned`);
whatever else a piece reads is sliced from them by its owners and joined where it is needed, each
distinct region once per worker.
"""

from __future__ import annotations

import numpy as np

from tofu_tf import errors
from tofu_tf.graph import traversal
from tofu_tf.graph.ir import CONST, PLACEHOLDER, WEIGHT, Graph, Node, Ref, constant_value
from tofu_tf.ops.applicable import Describing
from tofu_tf.plan.layouts import layout_regions
from tofu_tf.plan.plans import Plan
from tofu_tf.plan.transfers import Part, fetch_parts
from tofu_tf.rewrite import naming
from tofu_tf.rewrite.building import Building
from tofu_tf.rewrite.fetching import divided, division, joined, sliced
from tofu_tf.rewrite.moving import Moves, Names, demand
from tofu_tf.rewrite.variables import Shards
from tofu_tf.tdl.regions import Region, Regions

# Fetches of at least so many bytes of a variable or weight wait for the step to come near their
# consumer.
GATE_BYTES = 16384


class Holding:
    """The tensors of one graph as they lie while it is rewritten."""

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
        self.order = {name: n for n, name in enumerate(graph.nodes)}
        self._variables = {v.node: v for v in graph.variables.values()}
        self._fetched: dict[tuple[Ref, int, Region], str] = {}
        consumers = traversal.consumers(graph)
        self.read = {
            ref
            for ref, uses in consumers.items()
            if any(not self.takes_handle(graph.nodes[name], i) for name, i in uses)
        } | set(graph.outputs)

    def held(self, ref: Ref) -> Regions:
        shape = self.graph.spec(ref).region_shape
        return layout_regions(self.plan.layouts[ref], shape, self.factors)

    def feed(self, node: Node) -> None:
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

    def variable(self, node: Node) -> None:
        variable = self._variables[node.name]
        ref = Ref(node.name)
        self.shards[variable.name] = Shards(self.make, self.graph, variable.name, self.held(ref))
        self.version_of[ref] = variable.name

    def weight(self, node: Node) -> None:
        """Every worker's region of a constant, as a constant of its own."""
        ref, value = Ref(node.name), constant_value(node)
        names: Names = [None] * self.workers
        for w, region in enumerate(self.held(ref).tuple()):
            if region is not None:
                part = value[tuple(slice(lo, hi) for lo, hi in region.bounds)]
                attrs = {"value": part, "dtype": node.outputs[0].dtype}
                # never shared with an equal one: what is cut of a tensor is known by its name
                made = self.make.add(naming.piece(node.name, w), CONST, w, (), attrs)
                names[w] = naming.tensor(made)
        self.owned[ref] = names

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

    def divide(self, ref: Ref, need: Regions, near: Node) -> None:
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
        a variable or weight, which is there from the start; nothing for other tensors.
        """
        held = self.held(ref)[source]
        there = ref in self.version_of or self.graph.nodes[ref.node].op == WEIGHT
        if not there or held is None:
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

    def takes_handle(self, node: Node, position: int) -> bool:
        """Whether the input is a variable that is handed over, not its value."""
        return is_written(node, position) or (
            position in node.variables and self.describing(node) is None
        )

    def result(self, n: int, ref: Ref, results: list[str]) -> str:
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


def is_written(node: Node, position: int) -> bool:
    """Whether the input is a variable that the node writes, so that it takes the shard's handle."""
    return node.variables.get(position) in node.writes


def _plain(text: str) -> str:
    """A node name's characters only."""
    return text.replace(":", "-").replace(", ", "_").strip("[]").replace("[", "")
