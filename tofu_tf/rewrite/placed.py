"""What rewriting yields: one GraphDef over all devices, and how to feed, fetch and hold its
variables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tensorflow.core.framework import graph_pb2

from tofu_tf.tdl.regions import Region


@dataclasses.dataclass(frozen=True, slots=True)
class Shard:
    """One worker's part of a variable; `placeholder` is the resource Placeholder that stands for
    it.
    """

    variable: str
    worker: int
    region: Region
    placeholder: str


@dataclasses.dataclass(frozen=True)
class Placed:
    """A rewritten step.

    `graph_def`: every node has a full device. `feeds`: names of the fed Placeholders in call order
    (on worker 0's host). `shards`: every variable's parts, a replicated one once per worker.
    `fetches`: ``node:0`` for every output of the original graph, whole, on worker 0.
    `effects`: nodes that must run in every step. Data edges that leave `feed_nodes`, or enter
    `result_nodes`, bring the caller's tensors in and out; all others between devices are
    communication.
    `groups`: of the collectives, by group key, the members' devices in the order of their ranks.
    """

    graph_def: graph_pb2.GraphDef
    feeds: tuple[str, ...]
    fetches: tuple[str, ...]
    shards: tuple[Shard, ...]
    effects: tuple[str, ...]
    feed_nodes: tuple[str, ...] = ()
    result_nodes: tuple[str, ...] = ()
    groups: Mapping[int, tuple[str, ...]] = dataclasses.field(default_factory=dict)
