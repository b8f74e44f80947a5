"""Rewriting with TensorFlow's collective ops where a change of layout is exactly one of them.

All members of a group take part or none does; on every device collectives run in the order in which
they were made, which is the same on all.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from tofu_tf.graph.ir import CONST, Graph, Node, Ref
from tofu_tf.ops.applicable import Describing
from tofu_tf.plan.classifying import Change, Kind
from tofu_tf.plan.collectives import MERGES, Choosing
from tofu_tf.plan.plans import Plan
from tofu_tf.plan.transfers import Part
from tofu_tf.rewrite import naming
from tofu_tf.rewrite.fetching import divided, division, index_operand, joined, sliced
from tofu_tf.rewrite.moving import Names
from tofu_tf.rewrite.placed import Placed
from tofu_tf.rewrite.rewriting import Rewriting, visited
from tofu_tf.tdl.regions import IntArray, Region, Regions

OPS = {
    Kind.ALL_REDUCE: "CollectiveReduceV2",
    Kind.REDUCE_SCATTER: "CollectiveReduceScatterV2",
    Kind.ALL_GATHER: "CollectiveGatherV2",
    Kind.ALL_TO_ALL: "CollectiveAllToAllV2",
}
HINTS = {"CPU": "ring", "GPU": "nccl"}
TIMEOUT = 300.0  # seconds until a collective whose members do not all come is given up

# A pair of keys fixes shape, type and kind for the whole process, so no key comes twice. Others
# count from 1.
_group_keys = itertools.count(1 << 20)


def rewrite_with_collectives(
    graph: Graph, plan: Plan, describing: Describing | None = None
) -> Placed:
    """The placed graph of `plan` with collectives where they fit, point-to-point transfers for the
    rest.
    """
    known = describing or Describing(graph)
    state = visited(lambda: _Collective(graph, plan, known))
    made = state.finish()
    return dataclasses.replace(made, groups=state.groups())


class _Collective(Rewriting):
    def __init__(self, graph: Graph, plan: Plan, describing: Describing) -> None:
        super().__init__(graph, plan, describing)
        self._choosing = Choosing(plan.machine.device_type)
        self._keys: dict[tuple[int, ...], int] = {}
        self._instances = itertools.count(1)
        self._made: list[tuple[str, ...]] = []  # of each collective its members' nodes
        self._alive: set[int] = set()  # key of a group that has some collective left
        self._key_of: dict[str, int] = {}
        self._exchanged: dict[tuple[Ref, tuple[object, ...]], Names] = {}

    def groups(self) -> dict[int, tuple[str, ...]]:
        """Devices of every group that some collective in the graph is of, by its key."""
        return {
            key: tuple(self.make.devices[w] for w in group)
            for group, key in self._keys.items()
            if key in self._alive
        }

    def fetch(self, ref: Ref, need: Regions, worker: int, near: Node) -> str:
        change = self._change(ref, need)
        if change is None:
            return super().fetch(ref, need, worker, near)
        key = (ref, need.key)
        if key not in self._exchanged:
            held, dtype = self.held(ref), self.graph.spec(ref).dtype
            owned: Names = [self._own(ref, w) for w in range(self.workers)]
            gates = [self._gates(ref, w, near) for w in range(self.workers)]
            name = f"exchanged{ref.index}" if ref.index else "exchanged"
            self._exchanged[key] = self._together(
                change, ref.node, name, owned, held, need, None, dtype, gates
            )
        tensor = self._exchanged[key][worker]
        assert tensor is not None, "every worker is of a group"
        return tensor

    def divide(self, ref: Ref, need: Regions, near: Node) -> None:
        if self._change(ref, need) is None:
            super().divide(ref, need, near)

    def _change(self, ref: Ref, need: Regions) -> Change | None:
        if self.graph.nodes[ref.node].op == CONST or not need.present.any():
            return None
        return self._choosing(self.held(ref), None, need, self.graph.spec(ref).dtype)

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
        change = self._choosing(written, partial, owned, dtype, reducer)
        if change is None:
            return super()._routed(node, part, made, written, partial, reducer, owned, dtype)
        name = f"{part}/collected" if part else "collected"
        return self._together(change, node, name, made, written, owned, reducer, dtype)

    def _together(
        self,
        change: Change,
        node: str,
        part: str,
        made: Names,
        held: Regions,
        need: Regions,
        reducer: str | None,
        dtype: str,
        gates: Sequence[Sequence[str]] | None = None,
    ) -> Names:
        """Every worker's `need`, by one collective per group."""
        out: Names = [None] * self.workers
        for group in change.groups:
            has = [_there(held[w]) for w in group]
            wants = [_there(need[w]) for w in group]
            instance = next(self._instances)
            members = []
            for rank, w in enumerate(group):
                name = naming.piece(node, w, part)
                tensor = made[w]
                assert tensor is not None, "every member puts in its part"
                # What this member gives to each, and takes from each, in the order of ranks.
                given, taken = [has[rank]], [wants[rank]]
                if change.kind is Kind.ALL_TO_ALL:
                    given = [_common(has[rank], want) for want in wants]
                    taken = [_common(own, wants[rank]) for own in has]
                elif change.kind is Kind.ALL_GATHER:
                    taken = has
                elif change.kind is Kind.REDUCE_SCATTER:
                    given = wants
                packed = self._packed(tensor, has[rank], given, dtype, w, name)
                if change.kind is Kind.ALL_TO_ALL:  # the op wants a row for each member
                    rows = (len(group), *given[0].shape)
                    packed = self._reshaped(packed, rows, dtype, w, f"{name}/rows")
                waits = () if gates is None else gates[w]
                member = self._member(
                    change, group, instance, w, packed, dtype, name, reducer, waits
                )
                members.append(member)
                made_here = naming.tensor(member)
                if change.kind is Kind.REDUCE_SCATTER:  # the op does not say its shape
                    shape = wants[rank].shape
                    made_here = self._reshaped(made_here, shape, dtype, w, f"{name}/shaped")
                out[w] = self._unpacked(made_here, taken, wants[rank], dtype, w, name)
            self._made.append(tuple(members))
        return out

    def _member(
        self,
        change: Change,
        group: tuple[int, ...],
        instance: int,
        worker: int,
        tensor: str,
        dtype: str,
        name: str,
        reducer: str | None,
        waits: Sequence[str],
    ) -> str:
        if group not in self._keys:
            self._keys[group] = next(_group_keys)
        key = self._keys[group]
        inputs = [tensor]
        for number in (len(group), key, instance):
            inputs.append(index_operand(self.make, number, worker, "int32"))
        attrs = {
            "T": dtype,
            "communication_hint": HINTS[self.plan.machine.device_type],
            "timeout_seconds": TIMEOUT,
            "is_stateless": False,
            "Nordering_token": 0,
        }
        if change.kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER):
            attrs |= {"merge_op": MERGES[reducer or "Sum"], "final_op": "Id"}
            attrs["max_subdivs_per_device"] = -1
        made = self.make.add(name, OPS[change.kind], worker, inputs, attrs, waits)
        self._key_of[made] = key
        return made

    def _packed(
        self, tensor: str, held: Region, given: list[Region], dtype: str, worker: int, name: str
    ) -> str:
        """The regions `given` of a tensor that holds `held`, one after the other along its first
        dimension.
        """
        if given == [held] or _along_first(held, given):
            return tensor
        cut = divided(self.make, tensor, held, given, dtype, worker, f"{name}/parts")
        parts = [
            cut.get(region)
            or sliced(self.make, tensor, held, region, dtype, worker, f"{name}/part{i}")
            for i, region in enumerate(given)
        ]
        axis = index_operand(self.make, 0, worker, "int32")
        attrs = {"N": len(parts), "T": dtype, "Tidx": "int32"}
        made = self.make.add(f"{name}/packed", "ConcatV2", worker, (*parts, axis), attrs)
        return naming.tensor(made)

    def _unpacked(
        self, tensor: str, taken: list[Region], wanted: Region, dtype: str, worker: int, name: str
    ) -> str:
        """The region `wanted` of a tensor that holds the regions `taken`, one after the other along
        its first dimension.
        """
        if taken == [wanted]:
            return tensor
        n, shape = len(taken), taken[0].shape
        along = _along_first(wanted, taken)
        stacked = wanted.shape if along else (n * shape[0], *shape[1:])
        # Says the shape, which the op itself does not.
        whole = self._reshaped(tensor, stacked, dtype, worker, f"{name}/stacked")
        if along:
            return whole
        axis = index_operand(self.make, 0, worker, "int32")
        split = self.make.add(
            f"{name}/unpacked",
            "Split",
            worker,
            (axis, whole),
            {"T": dtype, "num_split": n},
        )
        parts = [Part(i, region) for i, region in enumerate(taken)]
        tensors = [naming.tensor(split, i) for i in range(n)]
        return joined(self.make, parts, tensors, dtype, worker, f"{name}/joined")

    def _reshaped(
        self, tensor: str, shape: tuple[int, ...], dtype: str, worker: int, name: str
    ) -> str:
        size = index_operand(self.make, shape, worker, "int32")
        attrs = {"T": dtype, "Tshape": "int32"}
        return naming.tensor(self.make.add(name, "Reshape", worker, (tensor, size), attrs))

    def _complete(self, kept: list[str]) -> None:
        """Keeps every member of a collective of which one is needed, as an effect, and puts those
        of a device in order.
        """
        waiting = list(self._made)
        while True:
            alive = self.make.needed(kept)
            found = [members for members in waiting if not alive.isdisjoint(members)]
            waiting = [members for members in waiting if alive.isdisjoint(members)]
            if not found:
                break
            for members in found:
                kept += members
                self.effects += members
        last: dict[str, str] = {}
        for members in self._made:
            if members[0] in alive:
                self._alive.add(self._key_of[members[0]])
                for name in members:
                    node = self.make.nodes[name]
                    before = last.get(node.device)
                    if before is not None and f"^{before}" not in node.input:
                        node.input.append(f"^{before}")
                    last[node.device] = name


def _there(region: Region | None) -> Region:
    assert region is not None, "members of a group hold and need something"
    return region


def _common(a: Region, b: Region) -> Region:
    return _there(a.intersect(b))


def _along_first(whole: Region, parts: list[Region]) -> bool:
    """Whether the parts, in their order, make up `whole` along its first dimension."""
    found = division(whole, parts)
    return found is not None and found == (0, parts)
