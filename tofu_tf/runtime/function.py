"""A placed step as a registered FunctionDef that can be called."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import function_pb2, node_def_pb2, op_def_pb2

from tofu_tf import errors
from tofu_tf.graph import registered
from tofu_tf.graph.ir import TensorSpec
from tofu_tf.rewrite.placed import Placed
from tofu_tf.runtime import groups, private_api

_serial = itertools.count()


class PlacedFunction:
    """A registered multi-device function; calling it runs one step.

    `outputs` are the static shapes of the fetches, `library` holds functions that its nodes call.
    It may be called eagerly or while another function is traced. One call runs at a time, as all
    calls share its variables.
    """

    def __init__(
        self,
        placed: Placed,
        outputs: Sequence[TensorSpec] | None = None,
        library: Iterable[function_pb2.FunctionDef] = (),
    ) -> None:
        self.placed = placed
        self.name = f"tofu_step_{next(_serial)}"
        definition, self._output_types = function_definition(placed, self.name)
        self._output_shapes = None if outputs is None else [_static(spec) for spec in outputs]
        nodes = {node.name: node for node in placed.graph_def.node}
        self._feeds = [_feed_spec(nodes[name]) for name in placed.feeds]
        self._lock = threading.Lock()
        # The trace that made these functions takes them away when it goes.
        held = {f.signature.name: f for f in (*placed.graph_def.library.function, *library)}
        for function in held.values():
            private_api.hold_function(function)
        private_api.add_function(definition)
        names = (self.name, *held)
        self._finalizer = weakref.finalize(self, private_api.remove_functions, names)
        self._finalizer.atexit = False
        self._calls: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        if placed.groups:
            form_groups(placed.groups)

    def __call__(self, feeds: Sequence[Any], handles: Sequence[Any]) -> list[Any]:
        """The fetches, given a value per feed and the resource handle of every shard, in order."""
        values = [*self._checked(feeds), *handles]
        with self._lock, tf.control_dependencies(self._before()):
            try:
                outputs = private_api.call_function(self.name, values, self._output_types, _CONFIG)
            except tf.errors.OpError as error:
                if self.placed.groups:
                    self._explain(error)
                raise
        if outputs and self.placed.groups and not tf.executing_eagerly():
            self._calls[tf.compat.v1.get_default_graph()] = outputs[0].op
        if self._output_shapes is not None and not tf.executing_eagerly():
            for output, shape in zip(outputs, self._output_shapes, strict=True):
                output.set_shape(shape)
        return outputs

    def _before(self) -> list[Any]:
        """The last call in the graph that is built: two at once would mix up their collectives."""
        if tf.executing_eagerly() or not self.placed.groups:
            return []
        last = self._calls.get(tf.compat.v1.get_default_graph())
        return [] if last is None else [last]

    def _explain(self, error: tf.errors.OpError) -> None:
        """Notes what an error did to the process's collectives; raises for one that timed out."""
        global _broken
        if not _broken and _are_broken(next(iter(self.placed.groups.values()))):
            _broken = True
            groups.say_broken(error)
        if isinstance(error, tf.errors.DeadlineExceededError):
            # TensorFlow does not say which.
            names = [n.name for n in self.placed.graph_def.node if n.op.startswith("Collective")]
            devices = sorted({device for group in self.placed.groups.values() for device in group})
            rest = f" or {len(names) - 8} more" if len(names) > 8 else ""
            raise errors.DeviceError(
                f"step {self.name}: {', '.join(names[:8])}{rest}",
                f"a collective timed out over {', '.join(devices)}",
                "every device's part in time",
                'use lowering="p2p", or look for a device that hangs',
            ) from error

    def _checked(self, feeds: Sequence[Any]) -> list[Any]:
        if len(feeds) != len(self._feeds):
            raise errors.PlanError(
                f"step {self.name}", f"{len(feeds)} fed tensors", f"{len(self._feeds)}"
            )
        values, wrong = [], []
        for name, value, (shape, dtype) in zip(self.placed.feeds, feeds, self._feeds, strict=True):
            tensor = value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value, dtype)
            if tensor.dtype != dtype or not shape.is_compatible_with(tensor.shape):
                wrong.append(
                    f"{name} is {tensor.dtype.name}{tensor.shape}, expected {dtype.name}{shape}"
                )
            values.append(tensor)
        if wrong:
            raise errors.PlanError(
                f"step {self.name}",
                "; ".join(wrong),
                remedy="feed the shapes that the step was planned for, or plan it for these",
            )
        return values


def form_groups(devices: Mapping[int, Sequence[str]]) -> None:
    """Makes the groups of a step's collectives, by group key, before any step can fail.

    Raises:
      DeviceError: TensorFlow ranks the members otherwise than by their devices.
    """
    with tf.init_scope():
        ranks = PlacedFunction(groups.gathering(devices))([], [])
        groups.check_ranks(devices, [rank.numpy() for rank in ranks])


def collectives_are_broken() -> bool:
    """Whether a step that failed has left this process without collectives."""
    return _broken


_broken = False  # of the process, as TensorFlow's collectives are


def _are_broken(devices: Sequence[str]) -> bool:
    try:
        form_groups(groups.probe(devices))
    except tf.errors.OpError:
        return True
    return False


def function_definition(
    placed: Placed, name: str
) -> tuple[function_pb2.FunctionDef, list[tf.DType]]:
    """A placed graph as a FunctionDef and the types of its outputs.

    Arguments are the feeds and then the shards' handles, outputs are the fetches; whatever has an
    effect is a control output, as TensorFlow prunes what neither reaches.
    """
    graph_def = placed.graph_def
    nodes = {node.name: node for node in graph_def.node}
    resources = [shard.placeholder for shard in placed.shards]
    prefix = "arg"
    while any(node.startswith(prefix) for node in nodes):
        prefix += "_"
    arguments = {
        node: f"{prefix}{i}" for i, node in enumerate(dict.fromkeys([*placed.feeds, *resources]))
    }
    missing = sorted({n for n in (*arguments, *placed.effects) if n not in nodes})
    if missing or len(arguments) != len(placed.feeds) + len(resources):
        raise errors.RewriteError(
            "placed graph",
            f"feeds, shards and effects name {', '.join(missing) or 'a node twice'}",
            "distinct nodes of the graph",
        )
    definition = function_pb2.FunctionDef()
    signature = definition.signature
    signature.name = name
    signature.is_stateful = True
    for node, argument in arguments.items():
        signature.input_arg.add(name=argument, type=nodes[node].attr["dtype"].type)
    library = {f.signature.name: f.signature for f in graph_def.library.function}
    names = _OutputNames(nodes, arguments, library)
    for node in graph_def.node:
        if node.name not in arguments:
            definition.node_def.append(_function_node(node, names))
    types = []
    for i, fetch in enumerate(placed.fetches):
        reference, dtype = names.reference(fetch), names.dtype(fetch)
        signature.output_arg.add(name=f"out{i}", type=dtype)
        definition.ret[f"out{i}"] = reference
        types.append(tf.as_dtype(dtype))
    for i, effect in enumerate(dict.fromkeys(placed.effects)):
        signature.control_output.append(f"effect{i}")
        definition.control_ret[f"effect{i}"] = effect
    return definition, types


class _OutputNames:
    """Maps ``node:index`` of a GraphDef to ``node:out_arg:index`` of a FunctionDef."""

    def __init__(
        self,
        nodes: Mapping[str, node_def_pb2.NodeDef],
        arguments: Mapping[str, str],
        library: Mapping[str, op_def_pb2.OpDef],
    ) -> None:
        self._nodes, self.arguments, self._library = nodes, arguments, library
        self._outputs: dict[str, list[tuple[str, int, int]]] = {}

    def definition(self, node: node_def_pb2.NodeDef) -> op_def_pb2.OpDef:
        found = registered.op_definition(node.op) or self._library.get(node.op)
        if found is None:
            raise errors.RewriteError(node.name, f"op {node.op}", "an op that TensorFlow knows")
        return found

    def reference(self, text: str) -> str:
        name, index = _split(text)
        if name in self.arguments:
            return self.arguments[name]
        argument, position, _ = self._output(name, index)
        return f"{name}:{argument}:{position}"

    def dtype(self, text: str) -> int:
        name, index = _split(text)
        return self._output(name, index)[2]

    def _output(self, name: str, index: int) -> tuple[str, int, int]:
        if name not in self._outputs:
            if name not in self._nodes:
                raise errors.RewriteError("placed graph", f"{name}:{index} is read", "a known node")
            node = self._nodes[name]
            self._outputs[name] = list(_outputs(node, self.definition(node)))
        outputs = self._outputs[name]
        if index >= len(outputs):
            raise errors.RewriteError(
                name, f"output {index} is read", f"one of the {len(outputs)} outputs"
            )
        return outputs[index]


def _outputs(
    node: node_def_pb2.NodeDef, definition: op_def_pb2.OpDef
) -> list[tuple[str, int, int]]:
    """For each output in order: its argument's name, position there and data type."""
    found: list[tuple[str, int, int]] = []
    for arg in definition.output_arg:
        if arg.type_list_attr:
            types = list(_attr(node, definition, arg.type_list_attr).list.type)
        else:
            count = _attr(node, definition, arg.number_attr).i if arg.number_attr else 1
            dtype = _attr(node, definition, arg.type_attr).type if arg.type_attr else arg.type
            types = [dtype] * count
        found += [(arg.name, i, t) for i, t in enumerate(types)]
    return found


def _attr(node: node_def_pb2.NodeDef, definition: op_def_pb2.OpDef, name: str) -> Any:
    if name in node.attr:
        return node.attr[name]
    return next(a.default_value for a in definition.attr if a.name == name)


def _function_node(node: node_def_pb2.NodeDef, names: _OutputNames) -> node_def_pb2.NodeDef:
    made = node_def_pb2.NodeDef(name=node.name, op=node.op, device=node.device)
    for key, value in node.attr.items():
        made.attr[key].CopyFrom(value)
    for attribute in names.definition(node).attr:
        # A function's nodes get no defaults on registration.
        if attribute.HasField("default_value") and attribute.name not in made.attr:
            made.attr[attribute.name].CopyFrom(attribute.default_value)
    for text in node.input:
        if not text.startswith("^"):
            made.input.append(names.reference(text))
        elif text[1:] not in names.arguments:
            made.input.append(text)
    return made


def _split(text: str) -> tuple[str, int]:
    name, colon, index = text.rpartition(":")
    return (name, int(index)) if colon else (text, 0)


def _static(spec: TensorSpec) -> tf.TensorShape:
    return tf.TensorShape(spec.shape if spec.is_static else None)


def _feed_spec(node: node_def_pb2.NodeDef) -> tuple[tf.TensorShape, tf.DType]:
    shape = tf.TensorShape(node.attr["shape"].shape) if "shape" in node.attr else None
    return tf.TensorShape(shape), tf.as_dtype(node.attr["dtype"].type)


def _config() -> bytes:
    """We optimise before we partition: Grappler on the result costs most of the set-up time."""
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config.SerializeToString()


_CONFIG = _config()

__all__ = ["PlacedFunction", "function_definition"]
