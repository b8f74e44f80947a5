"""What initialises, restores and saves the shards of a placed graph's variables.

Everything made here lies below one scope, but for the operations that keep their names. It is no
part of a step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, variable_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from tofu_tf.graph import attributes
from tofu_tf.graph.functions import named_by, reachable
from tofu_tf.graph.ir import Graph
from tofu_tf.graph.persistence import SCOPE, Persistence, Saver, ancestors, parsed
from tofu_tf.graph.registered import attribute_kinds
from tofu_tf.graph.state import READ
from tofu_tf.rewrite.building import host_of
from tofu_tf.rewrite.placed import Placed
from tofu_tf.tdl.regions import Region


@dataclasses.dataclass(frozen=True)
class Persisted:
    """A placed GraphDef whose shards are initialised, restored and saved in parts.

    `initialize`: the operations that give shards their first values. `variables`: what TensorFlow's
    v1 Saver needs to know of every distinct shard. `unset`: variables without first value and
    without an entry in checkpoints. `saver`: by what names the graph saves and restores, None where
    it does not.
    """

    graph_def: graph_pb2.GraphDef
    initialize: tuple[str, ...]
    variables: tuple[variable_pb2.VariableDef, ...]
    unset: tuple[str, ...]
    saver: Saver | None = None


def persisted(
    graph_def: graph_pb2.GraphDef, placed: Placed, graph: Graph, persistence: Persistence
) -> Persisted:
    """`graph_def` (made by `exported`) with what `persistence` says of the original's variables.

    A first value is computed whole, as in the original, beside worker 0, and each shard gets its
    part. Checkpoints hold whole tensors: a shard is read from and written to its part of an entry.
    Where a step writes variables, those of a checkpoint that it does not use are kept beside worker
    0, so that what is saved is complete.
    """
    state = _State(graph_def, placed, graph, persistence)
    initialize = state.initialize()
    saver = persistence.saver if state.kept else None
    if saver is not None:
        state.restore()
        state.save()
    return Persisted(state.out, initialize, state.definitions(), state.unset(), saver)


@dataclasses.dataclass(frozen=True)
class _Shard:
    """A variable's part: the node of its handle."""

    variable: str
    region: Region
    handle: str
    device: str


class _State:
    """The placed GraphDef while it is completed."""

    def __init__(
        self,
        graph_def: graph_pb2.GraphDef,
        placed: Placed,
        graph: Graph,
        persistence: Persistence,
    ) -> None:
        self.out, self.graph, self.persistence = graph_def, graph, persistence
        self.devices = {node.name: node.device for node in graph_def.node}
        first = min(placed.shards, key=lambda s: s.worker, default=None)
        at = placed.graph_def.node[0].device if first is None else self.devices[first.placeholder]
        self.host = host_of(at)
        self.specs = {v.name: v.spec for v in graph.variables.values()}
        self.shapes = {v: Region.whole(s.shape) for v, s in self.specs.items()}
        self.dtypes = {v: s.dtype for v, s in self.specs.items()}
        self.shards = [
            _Shard(s.variable, s.region, s.placeholder, self.devices[s.placeholder])
            for s in placed.shards
        ]
        if any(node.writes for node in graph):
            self._keep_the_rest()
        self.assigned: dict[str, str] = {}  # handle -> what initialises it, or else restores it
        self.reads: dict[str, str] = {}

    def _keep_the_rest(self) -> None:
        for variable in self.persistence.keys:
            if variable in self.specs:
                continue
            node = NodeDef()
            node.CopyFrom(self.persistence.handles[variable])
            node.name, node.device = f"{SCOPE}{variable}", self.host
            node.attr.pop("_class", None)
            node.attr["shared_name"].s = variable.encode()
            self.out.node.append(node)
            shape = tf.TensorShape(node.attr["shape"].shape).as_list()
            self.shapes[variable] = Region.whole(tuple(shape))
            self.dtypes[variable] = tf.dtypes.as_dtype(node.attr["dtype"].type).name
            self.shards.append(_Shard(variable, self.shapes[variable], node.name, self.host))

    def add(
        self,
        name: str,
        op: str,
        device: str,
        inputs: Sequence[str] = (),
        attrs: Mapping[str, object] | None = None,
        controls: Iterable[str] = (),
    ) -> str:
        """The name of a new node."""
        unique, n = name, 1
        while unique in self.devices:
            unique, n = f"{name}_{n}", n + 1
        node = self.out.node.add(name=unique, op=op, device=device)
        node.input.extend([*inputs, *(f"^{c}" for c in controls)])
        kinds = attribute_kinds(op)
        for key, value in (attrs or {}).items():
            node.attr[key].CopyFrom(attributes.encode(value, kinds[key]))
        self.devices[unique] = device
        return unique

    def const(self, name: str, value: np.ndarray, device: str, dtype: str) -> str:
        return self.add(name, "Const", device, (), {"value": value, "dtype": dtype})

    def texts(self, name: str, values: Sequence[str], device: str) -> str:
        return self.const(name, np.array(values, object), device, "string")

    def initialize(self) -> tuple[str, ...]:
        """The operations that initialise, under their own names."""
        wanted = {v: tensor for v, tensor in self.persistence.initial.items() if v in self.dtypes}
        if not wanted:
            return ()
        names = self._copied(wanted.values())
        by_variable: dict[str, list[str]] = {}
        sliced: dict[tuple[str, Region], str] = {}
        for shard in self.shards:
            tensor = wanted.get(shard.variable)
            if tensor is None:
                continue
            ref = parsed(tensor)
            made = f"{names[ref.node]}:{ref.index}" if ref.index else names[ref.node]
            key = (tensor, shard.region)
            if key not in sliced:
                sliced[key] = self._slice(made, shard)
            assign = self.add(
                f"{SCOPE}init/{shard.handle}",
                "AssignVariableOp",
                shard.device,
                (shard.handle, sliced[key]),
                {"dtype": self.dtypes[shard.variable]},
            )
            self.assigned[shard.handle] = assign
            by_variable.setdefault(shard.variable, []).append(assign)
        groups = {
            name: held
            for name, variables in self.persistence.initializers.items()
            if name not in self.devices and (held := [v for v in variables if v in by_variable])
        }
        if not any(set(held) == set(by_variable) for held in groups.values()):
            groups["init"] = list(by_variable)
        return tuple(
            self.add(name, "NoOp", self.host, (), {}, (a for v in held for a in by_variable[v]))
            for name, held in groups.items()
        )

    def _slice(self, tensor: str, shard: _Shard) -> str:
        if shard.region == self.shapes[shard.variable]:
            return tensor
        name = f"{SCOPE}init/{shard.handle}"
        begin = self.const(
            f"{name}/begin", np.array(shard.region.origin, np.int64), self.host, "int64"
        )
        size = self.const(
            f"{name}/size", np.array(shard.region.shape, np.int64), self.host, "int64"
        )
        attrs = {"T": self.dtypes[shard.variable], "Index": "int64"}
        return self.add(f"{name}/part", "Slice", self.host, (tensor, begin, size), attrs)

    def _copied(self, tensors: Iterable[str]) -> dict[str, str]:
        """The original's nodes that `tensors` need, beside worker 0, and their new names."""
        nodes = {node.name: node for node in self.persistence.graph_def.node}
        needed = ancestors(nodes, (parsed(t).node for t in tensors))
        names = {name: f"{SCOPE}{name}" for name in nodes if name in needed}
        for name, new in names.items():
            node = self.out.node.add()
            node.CopyFrom(nodes[name])
            node.name, node.device = new, self.host
            node.attr.pop("_class", None)
            for i, text in enumerate(node.input):
                mark = "^" if text.startswith("^") else ""
                node.input[i] = f"{mark}{SCOPE}{text.removeprefix('^')}"
            self.devices[new] = self.host
        library = {f.signature.name: f for f in self.persistence.graph_def.library.function}
        called = [c for name in names for c in named_by(nodes[name].op, nodes[name].attr)]
        present = {f.signature.name for f in self.out.library.function}
        more = reachable(called, library)
        self.out.library.function.extend(f for n, f in more.items() if n not in present)
        return names

    @property
    def kept(self) -> list[_Shard]:
        """The shards that checkpoints have entries for."""
        return [s for s in self.shards if s.variable in self.persistence.keys]

    def _part(self, shard: _Shard) -> str:
        """``shape_and_slices`` of a shard, "" for a whole variable."""
        whole = self.shapes[shard.variable]
        if shard.region == whole:
            return ""
        parts = [
            "-" if bounds == all_of else f"{bounds[0]},{bounds[1] - bounds[0]}"
            for bounds, all_of in zip(shard.region.bounds, whole.bounds, strict=True)
        ]
        return f"{' '.join(map(str, whole.shape))} {':'.join(parts)}"

    def _filename(self) -> str:
        saver = self.persistence.saver
        assert saver is not None
        ref = parsed(saver.filename)
        if ref.node not in self.devices:
            attrs = {"dtype": "string", "shape": ()}
            if saver.fed:
                self.add(ref.node, "Placeholder", self.host, (), attrs)
            else:
                default = self.const(
                    f"{SCOPE}save/filename", np.array("model", object), self.host, "string"
                )
                self.add(ref.node, "PlaceholderWithDefault", self.host, (default,), attrs)
        return ref.node

    def restore(self) -> None:
        """One RestoreV2 beside each device, for the shards there."""
        saver, filename = self.persistence.saver, self._filename()
        assert saver is not None
        done: list[str] = []
        places: dict[str, list[_Shard]] = {}
        for shard in self.kept:
            places.setdefault(host_of(shard.device), []).append(shard)
        for n, (device, shards) in enumerate(places.items()):
            name = f"{SCOPE}restore/{n}"
            keys = [self.persistence.keys[s.variable] for s in shards]
            entries = self.texts(f"{name}/names", keys, device)
            parts = self.texts(f"{name}/parts", [self._part(s) for s in shards], device)
            attrs = {"dtypes": tuple(self.dtypes[s.variable] for s in shards)}
            read = self.add(name, "RestoreV2", device, (filename, entries, parts), attrs)
            for i, shard in enumerate(shards):
                assign = self.add(
                    f"{SCOPE}restore/{shard.handle}",
                    "AssignVariableOp",
                    shard.device,
                    (shard.handle, f"{read}:{i}" if i else read),
                    {"dtype": self.dtypes[shard.variable]},
                )
                self.assigned.setdefault(shard.handle, assign)
                done.append(assign)
        self.add(saver.restore, "NoOp", self.host, (), {}, done)

    def save(self) -> None:
        """One SaveV2 of every distinct shard, each as its part of a whole entry."""
        saver, filename = self.persistence.saver, self._filename()
        assert saver is not None
        distinct = list({(s.variable, s.region): s for s in reversed(self.kept)}.values())[::-1]
        constants = dict(self.persistence.constants)
        copied = self._copied(constants.values())
        keys = [*(self.persistence.keys[s.variable] for s in distinct), *constants]
        parts = [*(self._part(s) for s in distinct), *("" for _ in constants)]
        entries = self.texts(f"{SCOPE}save/names", keys, self.host)
        places = self.texts(f"{SCOPE}save/parts", parts, self.host)
        data = [self._read(s) for s in distinct]
        data += [copied[parsed(t).node] for t in constants.values()]
        nodes = {node.name: node for node in self.persistence.graph_def.node}
        types = [self.dtypes[s.variable] for s in distinct]
        types += [
            tf.dtypes.as_dtype(nodes[parsed(t).node].attr["dtype"].type).name
            for t in constants.values()
        ]
        inputs = (filename, entries, places, *data)
        attrs = {"dtypes": tuple(types)}
        written = self.add(f"{SCOPE}save/all", "SaveV2", self.host, inputs, attrs)
        name = parsed(saver.save).node
        self.add(name, "Identity", self.host, (filename,), {"T": "string"}, (written,))

    def _read(self, shard: _Shard) -> str:
        if shard.handle not in self.reads:
            self.reads[shard.handle] = self.add(
                f"{SCOPE}read/{shard.handle}",
                READ,
                shard.device,
                (shard.handle,),
                {"dtype": self.dtypes[shard.variable]},
            )
        return self.reads[shard.handle]

    def definitions(self) -> tuple[variable_pb2.VariableDef, ...]:
        """A VariableDef of every distinct shard that something gives a value."""
        found: dict[tuple[str, Region], variable_pb2.VariableDef] = {}
        trained = {v.name for v in self.graph.variables.values() if v.trainable}
        for shard in self.shards:
            if (shard.variable, shard.region) in found or shard.handle not in self.assigned:
                continue
            made = variable_pb2.VariableDef(
                variable_name=f"{shard.handle}:0",
                snapshot_name=f"{self._read(shard)}:0",
                initializer_name=self.assigned[shard.handle],
                is_resource=True,
                trainable=shard.variable in trained,
            )
            whole = self.shapes[shard.variable]
            if shard.region != whole:
                part = made.save_slice_info_def
                part.full_name = self.persistence.keys.get(shard.variable, shard.variable)
                part.full_shape.extend(whole.shape)
                part.var_offset.extend(shard.region.origin)
                part.var_shape.extend(shard.region.shape)
            found[shard.variable, shard.region] = made
        return tuple(found.values())

    def unset(self) -> tuple[str, ...]:
        known = {*self.persistence.initial, *self.persistence.keys}
        return tuple(v for v in self.specs if v not in known)
