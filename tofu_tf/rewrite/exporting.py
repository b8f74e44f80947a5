"""A placed step as a GraphDef that stands by itself: fetches under their own names, shards as
variables.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tofu_tf import errors
from tofu_tf.graph.ir import Graph, Ref
from tofu_tf.graph.persistence import ancestors, parsed
from tofu_tf.rewrite.placed import Placed


def exported(
    placed: Placed,
    graph: Graph,
    fetches: Sequence[str],
    operations: Sequence[str] = (),
    effectful: Collection[str] = (),
) -> graph_pb2.GraphDef:
    """The placed GraphDef in which every ``node`` or ``node:0`` of `fetches` is a node of that
    name.

    `fetches` name the outputs of `graph` in order. Placeholders keep their names anyway. Each of
    `operations` is a node of that name, after which every effect has happened, and so is each of
    `effectful`, names of fetched nodes that wait for effects in the original. The shards
    of a variable ``v`` are VarHandleOps that share the names ``v/shard0``, ``v/shard1`` ...

    Raises:
      RewriteError: outputs of one node of which one with a lower index is not fetched.
    """
    out = with_variables(placed, graph)
    nodes = {node.name: node for node in out.node}
    by_node: dict[str, dict[int, tuple[str, str]]] = {}
    for fetch, made, ref in zip(fetches, placed.fetches, graph.outputs, strict=True):
        wanted = Ref.parse(fetch)
        by_node.setdefault(wanted.node, {})[wanted.index] = (made, graph.spec(ref).dtype)
    for name, outputs in by_node.items():
        if name in nodes:  # a fetched Placeholder is there already
            continue
        gaps = sorted(set(range(max(outputs) + 1)) - set(outputs))
        if gaps:
            raise errors.RewriteError(
                f"fetch {name}:{max(outputs)}",
                f"output {gaps[0]} of {name} is not fetched",
                remedy=f"fetch {', '.join(f'{name}:{i}' for i in gaps)} too",
            )
        node = out.node.add(name=name, op="IdentityN" if len(outputs) > 1 else "Identity")
        device = nodes[outputs[0][0].rpartition(":")[0]].device
        node.device = device
        waits = placed.effects if name in effectful else ()
        types = [tf.dtypes.as_dtype(d).as_datatype_enum for _, (_, d) in sorted(outputs.items())]
        node.input.extend(made.removesuffix(":0") for _, (made, _) in sorted(outputs.items()))
        node.input.extend(f"^{effect}" for effect in waits)
        if len(outputs) > 1:
            node.attr["T"].list.type.extend(types)
        else:
            node.attr["T"].type = types[0]
    for name in operations:
        if name not in nodes:
            done = out.node.add(name=name, op="NoOp", device=placed.graph_def.node[0].device)
            done.input.extend(f"^{effect}" for effect in placed.effects)
    if placed.groups:
        _wait_for_peers(out, [*by_node, *operations])
    return out


def _wait_for_peers(graph_def: graph_pb2.GraphDef, names: Sequence[str]) -> None:
    """Lets each of the nodes `names` wait for all members of every collective that it needs.

    A Session runs only what is asked for, and a collective without one of its members never ends.
    """
    nodes = {node.name: node for node in graph_def.node}
    key_of: dict[str, tuple[int, ...]] = {}
    members: dict[tuple[int, ...], list[str]] = {}
    for node in graph_def.node:
        if node.op.startswith("Collective"):
            keys = (nodes[parsed(text).node] for text in node.input[2:4])
            key = tuple(int(tf.make_ndarray(k.attr["value"].tensor)) for k in keys)
            key_of[node.name] = key
            members.setdefault(key, []).append(node.name)
    for name in names:
        needed = ancestors(nodes, [name])
        waits: dict[str, None] = {}
        while missing := {
            m for n in needed if n in key_of for m in members[key_of[n]] if m not in needed
        }:
            waits |= dict.fromkeys(sorted(missing))
            needed |= ancestors(nodes, missing)
        nodes[name].input.extend(f"^{member}" for member in waits)


def with_variables(placed: Placed, graph: Graph) -> graph_pb2.GraphDef:
    """The placed GraphDef with a VarHandleOp for every shard, in place of the fed handle."""
    out = graph_pb2.GraphDef()
    out.CopyFrom(placed.graph_def)
    nodes = {node.name: node for node in out.node}
    specs = {v.name: v.spec for v in graph.variables.values()}
    for shard in placed.shards:
        node = nodes[shard.placeholder]
        dtype = tf.dtypes.as_dtype(specs[shard.variable].dtype)
        node.op = "VarHandleOp"
        node.attr.clear()
        node.attr["dtype"].type = dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tf.TensorShape(shard.region.shape).as_proto())
        node.attr["shared_name"].s = f"{shard.variable}/shard{shard.worker}".encode()
    return out
