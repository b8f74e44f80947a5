"""What coarsening yields: groups of tensors with one decision each, operators between them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from tofu_tf.graph.ir import Graph, Ref
from tofu_tf.ops.applicable import Described
from tofu_tf.plan.layouts import Layout

# Tensors of at most so many bytes are not cut: every worker has its own copy, or worker 0 the only
# one.
SMALL_BYTES = 1024

# Where a tensor lies that belongs to no group: everywhere, on worker 0, or nowhere since nobody
# uses it.
COPIED, HOME, UNUSED = -1, -2, -3


class Place(enum.Enum):
    """How an operator runs: in pieces, whole on every worker, or whole on worker 0."""

    CUT = "cut"
    COPIED = "copied"
    HOME = "home"


@dataclasses.dataclass(frozen=True)
class Group:
    """Tensors of one shape and element width that share one decision.

    `fixed`: the layout that was asked for, None where the search decides.
    """

    id: int
    members: tuple[Ref, ...]
    shape: tuple[int, ...]
    itemsize: int
    fixed: Layout | None = None


@dataclasses.dataclass(frozen=True)
class Operator:
    """All nodes that are equal: same signature, same groups around them.

    `inputs[i]`, `outputs[o]`: the group's id, or COPIED, HOME, UNUSED. The last `versions` outputs
    are a variable's next versions, which must be written where they lie. `once`: no part of the
    work may be done twice (random numbers). `internal`: element-wise within one group, so without
    cost in any layout.
    """

    described: Described | None
    place: Place
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    input_itemsizes: tuple[int, ...]
    output_itemsizes: tuple[int, ...]
    versions: int
    once: bool
    internal: bool
    nodes: tuple[str, ...]

    @property
    def groups(self) -> tuple[int, ...]:
        """The distinct groups around it, inputs first."""
        return tuple(dict.fromkeys(g for g in (*self.inputs, *self.outputs) if g >= 0))


@dataclasses.dataclass(frozen=True)
class Coarse:
    """A graph as groups and operators.

    `group_of`: each grouped tensor's group. `small`: for all other tensors COPIED or HOME.
    """

    graph: Graph
    groups: tuple[Group, ...]
    operators: tuple[Operator, ...]
    group_of: Mapping[Ref, int]
    small: Mapping[Ref, int]
    small_bytes: int = SMALL_BYTES
