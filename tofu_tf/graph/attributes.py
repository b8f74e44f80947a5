"""Attributes as Python values, and a node's signature: its attributes as one comparable string."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_shape_pb2
from tensorflow.core.framework.attr_value_pb2 import AttrValue

from tofu_tf.errors import GraphError
from tofu_tf.graph.ir import Node
from tofu_tf.graph.registered import attribute_kinds, op_definition

# Attributes that say how a resource is called, not what is computed.
_NAMES = frozenset({"container", "shared_name", "tensor_name"})
# The one internal attribute that says what is computed: pieces draw from streams of their own.
INDEPENDENT = "_random_independent"
# Says of a node that reads or writes rows by index: rows of negative indices are padding, which it
# leaves out.
PADDED = "_rows_padded"
_OURS = frozenset({INDEPENDENT, PADDED})
# Says of a conditional why it stays one; for messages only.
WHY_WHOLE = "_why_whole"
# Says of a Unique why its distinct ids cannot be padded; for messages only.
WHY_DYNAMIC = "_why_dynamic"

# What stands for a function's name in a signature.
Renaming = Callable[[str], str]


def decode(attr: AttrValue) -> Any:
    """The attribute as int, float, bool, str, bytes, dtype name, tuple (shape or list) or ndarray.

    A shape of unknown rank is None and an unknown dimension -1; a function is its name; a string
    that is not UTF-8 stays bytes.
    """
    kind = attr.WhichOneof("value")
    if kind == "type":
        return tf.dtypes.as_dtype(attr.type).name
    if kind == "shape":
        return _decode_shape(attr.shape)
    if kind == "s":
        return _decode_string(attr.s)
    if kind == "tensor":
        return tf.make_ndarray(attr.tensor)
    if kind == "func":
        return attr.func.name
    if kind == "list":
        return _decode_list(attr.list)
    return getattr(attr, kind) if kind else None


def _decode_list(values: AttrValue.ListValue) -> tuple[Any, ...]:
    if values.s:
        return tuple(_decode_string(s) for s in values.s)
    if values.type:
        return tuple(tf.dtypes.as_dtype(t).name for t in values.type)
    if values.shape:
        return tuple(_decode_shape(s) for s in values.shape)
    if values.tensor:
        return tuple(tf.make_ndarray(t) for t in values.tensor)
    if values.func:
        return tuple(f.name for f in values.func)
    return tuple(values.i) or tuple(values.f) or tuple(values.b)


def _decode_shape(shape: tensor_shape_pb2.TensorShapeProto) -> tuple[int, ...] | None:
    return None if shape.unknown_rank else tuple(d.size for d in shape.dim)


def _decode_string(text: bytes) -> str | bytes:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


def encode(value: Any, kind: str = "") -> AttrValue:
    """The AttrValue of a Python value.

    `kind` is the OpDef's word (``type``, ``shape``, ``list(int)`` ...); without it the value's
    Python type
    decides: str is a string, a tuple of ints a list of ints, DType a type, an ndarray a tensor.
    """
    if kind.startswith("list"):
        return _encode_list(value, kind[5:-1])
    if not kind:
        if isinstance(value, AttrValue):
            return value
        if isinstance(value, tuple | list):
            return _encode_list(value, _kind_of(value[0]) if value else "int")
        kind = _kind_of(value)
    attr = AttrValue()
    _put(attr, kind, value)
    return attr


def _kind_of(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "bool"
    if isinstance(value, int | np.integer):
        return "int"
    if isinstance(value, float | np.floating):
        return "float"
    if isinstance(value, str | bytes):
        return "string"
    if isinstance(value, tf.DType | np.dtype | type):
        return "type"
    if isinstance(value, tf.TensorShape | tuple | list):
        return "shape"
    return "tensor"


def _shape_proto(value: Any) -> tensor_shape_pb2.TensorShapeProto:
    if value is None:
        return tensor_shape_pb2.TensorShapeProto(unknown_rank=True)
    proto = tensor_shape_pb2.TensorShapeProto()
    for d in tf.TensorShape(value).as_list() if isinstance(value, tf.TensorShape) else value:
        proto.dim.add().size = -1 if d is None else int(d)
    return proto


def _put(attr: AttrValue, kind: str, value: Any) -> None:
    if kind == "bool":
        attr.b = bool(value)
    elif kind == "int":
        attr.i = int(value)
    elif kind == "float":
        attr.f = float(value)
    elif kind == "string":
        attr.s = value.encode() if isinstance(value, str) else bytes(value)
    elif kind == "type":
        attr.type = tf.dtypes.as_dtype(value).as_datatype_enum
    elif kind == "shape":
        attr.shape.CopyFrom(_shape_proto(value))
    elif kind == "tensor":
        attr.tensor.CopyFrom(tf.make_tensor_proto(value))
    elif kind == "func":
        attr.func.name = value
    else:
        raise GraphError(f"attribute of kind {kind!r}", "no such kind", "a kind of an OpDef")


def _encode_list(values: Any, kind: str) -> AttrValue:
    attr = AttrValue()
    attr.list.SetInParent()
    for value in values:
        one = AttrValue()
        _put(one, kind, value)
        field = one.WhichOneof("value")
        items = getattr(attr.list, field)
        if field in ("shape", "tensor", "func"):
            items.add().CopyFrom(getattr(one, field))
        else:
            items.append(getattr(one, field))
    return attr


def attributes(node: Node) -> dict[str, Any]:
    """Every attribute of `node`, decoded, by name."""
    return {name: decode(attr) for name, attr in node.attrs.items()}


def attribute(node: Node, name: str, default: Any = None) -> Any:
    """The decoded attribute `name` of `node`, or `default`."""
    return decode(node.attrs[name]) if name in node.attrs else default


def complete(op: str, attrs: Mapping[str, AttrValue]) -> dict[str, AttrValue]:
    """`attrs` without internal ones (``_...``), with the op's defaults for those left out."""
    found = {n: a for n, a in attrs.items() if n == WHY_WHOLE or not _is_internal(n)}
    definition = op_definition(op)
    for declared in definition.attr if definition is not None else ():
        if declared.HasField("default_value"):
            found.setdefault(declared.name, declared.default_value)
    return found


def _is_internal(name: str) -> bool:
    return name.startswith("_") and name not in _OURS


def signature(node: Node) -> str:
    """The attributes that decide what `node` computes, as one deterministic string.

    Names of resources and internal attributes are left out; tensors stand as a digest of dtype,
    shape and bytes, however they were encoded.
    """
    return signature_of(node.attrs)


def signature_of(attrs: Mapping[str, AttrValue], renamed: Renaming = str) -> str:
    """The signature of a node with these attributes; `renamed` is written for functions' names."""
    return ";".join(
        f"{name}={_written(_renamed(attr, renamed))}"
        for name, attr in sorted(attrs.items())
        if not _is_internal(name) and name not in _NAMES
    )


def _renamed(attr: AttrValue, renamed: Renaming) -> Any:
    if attr.HasField("func"):
        return renamed(attr.func.name)
    if attr.list.func:
        return tuple(renamed(f.name) for f in attr.list.func)
    return decode(attr)


def matters(op: str, name: str, attr: AttrValue) -> bool:
    """Whether a listing shows this attribute: not a dtype, a name or the op's default."""
    if (
        _is_internal(name)
        or name in _NAMES
        or attribute_kinds(op).get(name) in ("type", "list(type)")
    ):
        return False
    definition = op_definition(op)
    declared = {a.name: a for a in definition.attr} if definition is not None else {}
    if name not in declared:
        return True
    # N-like attributes count the inputs that the listing shows anyway.
    if definition is not None and any(a.number_attr == name for a in definition.input_arg):
        return False
    return not (declared[name].HasField("default_value") and declared[name].default_value == attr)


def _written(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"tensor({digest(value)})"
    if isinstance(value, tuple):
        return "(" + ",".join(_written(v) for v in value) + ")"
    return repr(value)


def digest(value: np.ndarray) -> str:
    """A short hash of dtype, shape and bytes."""
    data = repr(value.tolist()).encode() if value.dtype == object else value.tobytes()
    head = f"{value.dtype.name}{value.shape}".encode()
    return hashlib.sha256(head + data).hexdigest()[:32]
