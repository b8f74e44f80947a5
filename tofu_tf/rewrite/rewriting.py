"""A Graph and a Plan as one placed GraphDef: pieces, fetches, reductions, variables in order.

Nodes are visited in the graph's order; `Holding` says where their inputs come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from tofu_tf import errors
from tofu_tf.graph.functions import named_by, reachable
from tofu_tf.graph.ir import CONST, PLACEHOLDER, VARIABLE, WEIGHT, Graph, Node, Ref
from tofu_tf.ops.applicable import Describing
from tofu_tf.ops.registry import Piece
from tofu_tf.plan.plans import Plan, Strategy
from tofu_tf.rewrite import naming
from tofu_tf.rewrite.holding import Holding, is_written
from tofu_tf.rewrite.moving import Names
from tofu_tf.rewrite.pieces import PieceEmitter, run_bodies
from tofu_tf.rewrite.placed import Placed
from tofu_tf.rewrite.variables import Shards
from tofu_tf.rewrite.whole import whole_on_host
from tofu_tf.tdl import strategies
from tofu_tf.tdl.descriptions import Description
from tofu_tf.tdl.regions import IntArray, Region, Regions


def rewrite(graph: Graph, plan: Plan, describing: Describing | None = None) -> Placed:
    """The placed graph that computes what `graph` does, as `plan` says, with point-to-point
    transfers.
    """
    known = describing or Describing(graph)
    return visited(lambda: Rewriting(graph, plan, known)).finish()


State = TypeVar("State", bound="Rewriting")


def visited(start: Callable[[], State]) -> State:
    """A rewriting that `start` makes, with every node visited; once more where variables turn out
    to need the CPU beside an accelerator.
    """
    hosted: frozenset[str] = frozenset()
    while True:
        state = start()
        state.make.hosted = hosted
        for node in state.graph:
            state.visit(node)
        if not state.make.homeless:
            return state
        hosted |= state.make.homeless


class Rewriting(Holding):
    """One graph's rewriting in progress."""

    def __init__(self, graph: Graph, plan: Plan, describing: Describing) -> None:
        super().__init__(graph, plan, describing)
        self.effects: list[str] = []
        self._works: dict[tuple[str, Strategy], strategies.Work] = {}

    def visit(self, node: Node) -> None:
        if node.op == CONST:
            return
        if node.op == PLACEHOLDER:
            self.feed(node)
        elif node.op == VARIABLE:
            self.variable(node)
        elif node.op == WEIGHT:
            self.weight(node)
        else:
            self._pieces(node)

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
            if i not in described.constants and not is_written(node, i):
                self.divide(ref, work.reads[i], node)
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
                elif is_written(node, i):
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
            pieces[w] = Piece(
                node,
                work.boxes.box(w),
                applied.description.extents,
                specs,
                tuple(reads),
                tuple(r.box(w) for r in work.writes),
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
            if not self.takes_handle(node, i):
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
            if is_written(node, i):
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
        fetches = [self.result(n, ref, results) for n, ref in enumerate(self.graph.outputs)]
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
