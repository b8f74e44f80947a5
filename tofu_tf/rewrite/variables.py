"""A variable's shards in the rewritten graph: reads and writes in the order of the versions, per
worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tofu_tf.graph import attributes
from tofu_tf.graph.ir import Graph, Ref
from tofu_tf.rewrite import naming
from tofu_tf.rewrite.building import Building
from tofu_tf.rewrite.placed import Shard
from tofu_tf.tdl.regions import Regions


class Shards:
    """The shards of one variable, and for every worker which nodes wrote or read its current
    version.
    """

    def __init__(self, make: Building, graph: Graph, variable: str, owned: Regions) -> None:
        self.make, self.graph = make, graph
        self.variable = graph.variables[variable]
        self.owned = owned
        self.handles: dict[int, str] = {}
        self._writers: dict[int, tuple[str, ...]] = {}
        self._readers: dict[int, list[str]] = {}
        self._values: dict[tuple[Ref, int], str] = {}
        self.version = self.variable.ref
        for w, region in enumerate(owned.tuple()):
            if region is not None:
                name = make.add(
                    naming.piece(self.variable.node, w, "handle"),
                    "Placeholder",
                    w,
                    (),
                    # An op that is told nothing of the variable takes the handle's shape for it.
                    {"dtype": "resource", "shape": None},
                )
                self.handles[w] = naming.tensor(name)

    def shards(self) -> tuple[Shard, ...]:
        out = []
        for w, handle in self.handles.items():
            region = self.owned[w]
            assert region is not None
            out.append(Shard(self.variable.name, w, region, naming.node_of(handle)))
        return tuple(out)

    def value(self, version: Ref, worker: int) -> str:
        """The shard's value at `version`, which must be current or have been read while it was."""
        key = (version, worker)
        if key not in self._values:
            assert version == self.version, f"{version} read after {self.version}"
            region = self.owned[worker]
            assert region is not None
            # a resource Placeholder tells no shape, so the read must
            attrs = {
                "dtype": self.variable.spec.dtype,
                "_output_shapes": attributes.encode([region.shape], "list(shape)"),
            }
            name = self.make.add(
                naming.piece(
                    version.node, worker, "read" if version.index or self.wrote(version) else ""
                ),
                "ReadVariableOp",
                worker,
                (self.handles[worker],),
                attrs,
                self._writers.get(worker, ()),
            )
            self._readers.setdefault(worker, []).append(name)
            self._values[key] = naming.tensor(name)
        return self._values[key]

    def wrote(self, version: Ref) -> bool:
        return version != self.variable.ref

    def before_write(self, worker: int, needed: bool) -> tuple[str, ...]:
        """The nodes that a write of the next version waits for; the current one is read first if
        `needed`.
        """
        if needed:
            self.value(self.version, worker)
        return (*self._writers.get(worker, ()), *self._readers.get(worker, ()))

    def before_read(self, worker: int) -> tuple[str, ...]:
        """The nodes that a reader of the current version, by its handle, waits for."""
        return self._writers.get(worker, ())

    def was_read(self, worker: int, node: str) -> None:
        """Notes that `node` reads the current version: the next write waits for it."""
        self._readers.setdefault(worker, []).append(node)

    def write(self, version: Ref, nodes: Mapping[int, Sequence[str]]) -> None:
        """Goes on to `version`, which `nodes` (per worker) write."""
        self.version = version
        self._writers = {w: tuple(n) for w, n in nodes.items()}
        self._readers = {}
