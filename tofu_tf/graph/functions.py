"""Functions that a graph's calls, conditionals and loops refer to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2

from tofu_tf.graph import attributes

Functions = Mapping[str, function_pb2.FunctionDef]


def named_by(op: str, attrs: Mapping[str, attr_value_pb2.AttrValue]) -> Iterator[str]:
    """The functions that a node of this op may call: its op itself may be one."""
    yield op
    for attr in attrs.values():
        if attr.HasField("func"):
            yield attr.func.name
        for func in attr.list.func:
            yield func.name


def reachable(roots: Iterable[str], functions: Functions) -> dict[str, function_pb2.FunctionDef]:
    """The functions among `roots`, and all that they call, in the order of `functions`."""
    found: set[str] = set()
    stack = list(roots)
    while stack:
        name = stack.pop()
        if name in functions and name not in found:
            found.add(name)
            for node in functions[name].node_def:
                stack += named_by(node.op, node.attr)
    return {name: function for name, function in functions.items() if name in found}


def without_devices(
    functions: Functions,
) -> tuple[dict[str, function_pb2.FunctionDef], dict[str, str]]:
    """The functions without devices and colocation inside, and the new names of those that differ.

    They run where they are called. TensorFlow may know the old ones under their names already.
    """
    changed = {
        name
        for name, function in functions.items()
        if any(node.device or "_class" in node.attr for node in function.node_def)
    }
    while True:
        more = {
            name
            for name in functions.keys() - changed
            if any(changed & set(named_by(n.op, n.attr)) for n in functions[name].node_def)
        }
        if not more:
            break
        changed |= more
    names = {name: f"{name}_anywhere" for name in changed}
    found = {}
    for name, function in functions.items():
        if name in names:
            made = function_pb2.FunctionDef()
            made.CopyFrom(function)
            made.signature.name = names[name]
            for node in made.node_def:
                node.device = ""
                node.attr.pop("_class", None)
                node.op = names.get(node.op, node.op)
                for attr in node.attr.values():
                    rename(attr, names)
            found[names[name]] = made
        else:
            found[name] = function
    return found, names


def rename(attr: attr_value_pb2.AttrValue, names: Mapping[str, str]) -> None:
    """Gives the functions that `attr` names their new names, in place."""
    if attr.HasField("func"):
        attr.func.name = names.get(attr.func.name, attr.func.name)
    for func in attr.list.func:
        func.name = names.get(func.name, func.name)


def digests(functions: Functions) -> dict[str, str]:
    """For every function a hash of what it computes; names of functions and nodes play no part."""
    known: dict[str, str] = {}

    def digest(name: str) -> str:
        if name not in functions:
            return name
        if name not in known:
            known[name] = ""  # one that calls itself
            known[name] = _digest(functions[name], digest)
        return known[name]

    for name in functions:
        digest(name)
    return known


def _digest(function: function_pb2.FunctionDef, digest: attributes.Renaming) -> str:
    number = {arg.name: f"a{i}" for i, arg in enumerate(function.signature.input_arg)}
    number |= {node.name: f"n{i}" for i, node in enumerate(function.node_def)}

    def edge(text: str) -> str:
        wait, name = text.startswith("^"), text.removeprefix("^")
        head, colon, rest = name.partition(":")
        return f"{'^' if wait else ''}{number.get(head, head)}{colon}{rest}"

    def line(node: node_def_pb2.NodeDef) -> str:
        attrs = attributes.signature_of(attributes.complete(node.op, node.attr), digest)
        return "|".join([digest(node.op), attrs, *map(edge, node.input)])

    total = hashlib.sha256()
    types = ",".join(str(arg.type) for arg in function.signature.input_arg)
    for text in (types, *map(line, function.node_def)):
        total.update(text.encode() + b"\n")
    for arg in function.signature.output_arg:
        total.update(edge(function.ret[arg.name]).encode() + b"\n")
    for name in function.signature.control_output:
        total.update(edge(function.control_ret[name]).encode() + b"\n")
    return total.hexdigest()[:32]
