"""A GraphDef under construction: nodes with full devices, unique names, constants shared per
device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2

from tofu_tf.graph import attributes
from tofu_tf.graph.registered import attribute_kinds
from tofu_tf.rewrite import naming


def host_of(device: str) -> str:
    """The CPU of the machine that a device (by its full name) is part of."""
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type == "CPU":
        return device
    return str(spec.replace(device_type="CPU", device_index=0).to_string())


class Building:
    """The nodes made so far, by name; tensors are named ``node:index``."""

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices = tuple(devices)
        self.nodes: dict[str, node_def_pb2.NodeDef] = {}
        self._constants: dict[tuple[Any, ...], str] = {}

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
        if host:
            node.device = host_of(node.device)
        node.input.extend(i.removesuffix(":0") for i in inputs)
        node.input.extend(f"^{c}" for c in sorted(set(controls)))
        kinds = attribute_kinds(op)
        for key, value in (attrs or {}).items():
            if isinstance(value, attr_value_pb2.AttrValue):
                if not key.startswith("_") or key == "_output_shapes":
                    node.attr[key].CopyFrom(value)
            else:
                node.attr[key].CopyFrom(attributes.encode(value, kinds.get(key, "")))
        self.nodes[unique] = node
        return unique

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
