"""A GraphDef under construction: nodes with full devices, unique names, constants shared per
device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2, types_pb2

from tofu_tf.graph import attributes, registered
from tofu_tf.graph.registered import attribute_kinds
from tofu_tf.rewrite import naming

_STAYS = (types_pb2.DT_STRING, types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT)


def _is_handle(node: node_def_pb2.NodeDef) -> bool:
    return node.op == "Placeholder" and node.attr["dtype"].type == types_pb2.DT_RESOURCE


def _has_strings(node: node_def_pb2.NodeDef) -> bool:
    """Whether it takes or makes strings, by its attributes."""
    return any(types_pb2.DT_STRING in (attr.type, *attr.list.type) for attr in node.attr.values())


def host_of(device: str) -> str:
    """The CPU of the machine that a device (by its full name) is part of."""
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type == "CPU":
        return device
    return str(spec.replace(device_type="CPU", device_index=0).to_string())


class Building:
    """The nodes made so far, by name; tensors are named ``node:index``.

    On accelerators a node goes to the CPU beside its worker's device where only that has a kernel
    for it, and where it handles strings; an op on a variable goes where the variable is. What
    leaves such a CPU for another worker, or comes there from one, passes the worker's own device:
    between workers data go between their devices. `hosted`: variables' handles that are to be on
    the CPU; `homeless`: those found to have an op that no accelerator runs.
    """

    def __init__(self, devices: Sequence[str], hosted: Collection[str] = ()) -> None:
        self.devices = tuple(devices)
        self.nodes: dict[str, node_def_pb2.NodeDef] = {}
        self.hosted, self.homeless = frozenset(hosted), set[str]()
        self._constants: dict[tuple[Any, ...], str] = {}
        self._workers: dict[str, int] = {}
        self._landed: dict[tuple[str, int], str] = {}
        types = {tf.DeviceSpec.from_string(device).device_type for device in devices}
        self._accelerator = None if types == {"CPU"} else str(types.pop())

    def add(
        self,
        name: str,
        op: str,
        worker: int,
        inputs: Sequence[str] = (),
        attrs: Mapping[str, Any] | None = None,
        controls: Iterable[str] = (),
        host: bool = False,
    ) -> str:
        """The name of a new node: `name`, with a number after it where that is taken; on its
        worker's device, or the CPU beside it.
        """
        unique, n = name, 1
        while unique in self.nodes:
            unique, n = f"{name}_{n}", n + 1
        node = node_def_pb2.NodeDef(name=unique, op=op, device=self.devices[worker])
        kinds = attribute_kinds(op)
        for key, value in (attrs or {}).items():
            if isinstance(value, attr_value_pb2.AttrValue):
                if not key.startswith("_") or key == "_output_shapes":
                    node.attr[key].CopyFrom(value)
            else:
                node.attr[key].CopyFrom(attributes.encode(value, kinds.get(key, "")))
        if self._accelerator:
            if self._needs_host(node, inputs, host or unique in self.hosted):
                node.device = host_of(node.device)
            inputs = [self._passed(tensor, worker, node.device) for tensor in inputs]
        node.input.extend(i.removesuffix(":0") for i in inputs)
        node.input.extend(f"^{c}" for c in sorted(set(controls)))
        self.nodes[unique] = node
        self._workers[unique] = worker
        return unique

    def _needs_host(self, node: node_def_pb2.NodeDef, inputs: Sequence[str], asked: bool) -> bool:
        """Whether a node goes to the CPU; notes variables that would have to be there too."""
        wanted = asked or _has_strings(node) or not registered.runs(node, str(self._accelerator))
        made = [self.nodes[naming.node_of(i)] for i in inputs]
        handles = {m.name: m.device == host_of(m.device) for m in made if _is_handle(m)}
        if wanted or any(handles.values()):
            self.homeless |= {name for name, is_there in handles.items() if not is_there}
            return True
        return False

    def _passed(self, tensor: str, worker: int, device: str) -> str:
        """`tensor` for a node of `worker` on `device`, by way of the accelerators where it comes
        from another worker.
        """
        node = naming.node_of(tensor)
        source = self._workers[node]
        if source == worker:
            return tensor
        for own in (source, worker):
            here = device if own == worker else self.nodes[node].device
            if here != self.devices[own]:
                tensor = self._through(tensor, own)
        return tensor

    def _through(self, tensor: str, worker: int) -> str:
        """The same tensor on the worker's accelerator; strings stay where they are."""
        if (tensor, worker) not in self._landed:
            name, _, index = tensor.rpartition(":")
            dtype = registered.output_type(self.nodes[name], int(index))
            if dtype is None or dtype in _STAYS:
                return tensor
            attrs = {"T": tf.as_dtype(dtype).name}
            made = self.add(f"{name}/landed{worker}", "Identity", worker, (tensor,), attrs)
            self._landed[tensor, worker] = naming.tensor(made)
        return self._landed[tensor, worker]

    def constant(self, value: np.ndarray, worker: int, name: str) -> str:
        """A constant tensor on `worker`; one node for equal values on one device."""
        key: tuple[Any, ...] = (worker, value.dtype.name, value.shape, value.tobytes())
        if value.dtype == object:  # strings: tobytes() would give addresses
            key = (worker, value.shape, tuple(value.ravel().tolist()))
        if key not in self._constants:
            made = self.add(name, "Const", worker, (), {"value": value, "dtype": value.dtype})
            self._constants[key] = naming.tensor(made)
        return self._constants[key]

    def needed(self, kept: Iterable[str]) -> set[str]:
        """`kept` and all nodes that these need."""
        alive: set[str] = set()
        todo = list(kept)
        while todo:
            name = todo.pop()
            if name in alive:
                continue
            alive.add(name)
            for i in self.nodes[name].input:
                todo.append(i[1:] if i.startswith("^") else i.rpartition(":")[0] or i)
        return alive

    def graph_def(self, kept: Iterable[str]) -> graph_pb2.GraphDef:
        """The nodes that `kept` need, in the order in which they were made."""
        alive = self.needed(kept)
        out = graph_pb2.GraphDef()
        out.node.extend(node for name, node in self.nodes.items() if name in alive)
        out.versions.producer = tf.version.GRAPH_DEF_VERSION
        return out
