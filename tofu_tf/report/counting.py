"""Bytes that a placed GraphDef moves between devices, read off nothing but the GraphDef.

A tensor crosses once to each device that uses it, as in TensorFlow's own partitioning: the data
edges between devices are counted as distinct (tensor, destination) pairs. What predicts bytes
(plans, costs, the rewriter) is not imported here, so that predicted == counted says something.
TensorFlow itself copies small Consts instead of sending them; here they count. Collectives go by a
table, each member sending its share to the next one.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2

from tofu_tf import errors

# Collective op -> bytes that all members of a group send together, of the group's size n and the
# bytes s that each puts in: what the ring algorithms move.
COLLECTIVES: Mapping[str, Callable[[int, int], int]] = {
    "CollectiveReduceV2": lambda n, s: 2 * (n - 1) * s,
    "CollectiveReduceScatterV2": lambda n, s: (n - 1) * s,
    "CollectiveGatherV2": lambda n, s: n * (n - 1) * s,
    "CollectiveAllToAllV2": lambda n, s: (n - 1) * s,
}

OUTPUT_SHAPES = "_output_shapes"  # as graph.as_graph_def(add_shapes=True) writes them
# What the rewriter calls the nodes that cut feeds and join results.
_FEED = re.compile(r".+/piece\d+/feed(_\d+)?")
_RESULT = re.compile(r".+/result\d+(_\d+)?(/.+)?")
_HEAD = 8  # offenders that an error names one by one


@dataclasses.dataclass(frozen=True, slots=True)
class Transfer:
    """One tensor (``node:0``) that goes to one device; `kind` is the op that receives it."""

    tensor: str
    source: str
    destination: str
    nbytes: int
    kind: str


@dataclasses.dataclass(frozen=True)
class Communication:
    """What crosses between devices in one step.

    `transfers` are the data edges between devices, `fed` and `fetched` those at the edge of the
    step (from feeds, into results), `hosted` those between an accelerator and the CPU of its task:
    copies inside one machine. `controls` is the number of control edges between devices, as
    distinct (node, destination) pairs: they carry no bytes.
    """

    transfers: tuple[Transfer, ...]
    fed: tuple[Transfer, ...]
    fetched: tuple[Transfer, ...]
    controls: int
    hosted: tuple[Transfer, ...] = ()

    @property
    def total(self) -> int:
        """Bytes of all `transfers`."""
        return sum(t.nbytes for t in self.transfers)

    @property
    def feeds(self) -> int:
        """Bytes that feeds send to other devices than their own."""
        return sum(t.nbytes for t in self.fed)

    @property
    def results(self) -> int:
        """Bytes that only results receive from other devices than their own."""
        return sum(t.nbytes for t in self.fetched)

    @property
    def host_copies(self) -> int:
        """Bytes between accelerators and their CPUs."""
        return sum(t.nbytes for t in self.hosted)

    @property
    def sent(self) -> dict[str, int]:
        """Bytes of `transfers` per source device."""
        return _summed((t.source, t.nbytes) for t in self.transfers)

    @property
    def received(self) -> dict[str, int]:
        """Bytes of `transfers` per destination device."""
        return _summed((t.destination, t.nbytes) for t in self.transfers)

    @property
    def by_pair(self) -> dict[tuple[str, str], int]:
        """Bytes of `transfers` per (source, destination) device."""
        sums: dict[tuple[str, str], int] = defaultdict(int)
        for t in self.transfers:
            sums[t.source, t.destination] += t.nbytes
        return dict(sums)

    @property
    def by_kind(self) -> dict[str, int]:
        """Bytes of `transfers` per op that receives them."""
        return _summed((t.kind, t.nbytes) for t in self.transfers)


def count_communication(
    graph_def: graph_pb2.GraphDef, feeds: Collection[str] = (), results: Collection[str] = ()
) -> Communication:
    """The bytes that cross between devices when every node of `graph_def` runs once.

    Args:
      graph_def: every node has a device; shapes are inferred by TensorFlow; `_output_shapes` gives
        those of reads of variables.
      feeds: names of nodes whose outgoing edges count as feeds.
      results: names of nodes whose incoming edges count as results.

    Raises:
      GraphError: a node without a device, a collective that the table does not hold or whose
        members do not fit together, a function that is placed inside, or a tensor that crosses and
        has no fixed number of bytes (unknown shape, resource, string, variant).
    """
    _refuse_uncountable(graph_def)
    nodes = {node.name: node for node in graph_def.node}
    devices = {node.name: full_device(node.device) for node in graph_def.node}
    receivers: dict[tuple[str, str], list[node_def_pb2.NodeDef]] = defaultdict(list)
    controls = set()
    for node in graph_def.node:
        for edge in node.input:
            source = producer(edge)
            if devices[source] == devices[node.name]:
                continue
            if edge.startswith("^"):
                controls.add((source, devices[node.name]))
            else:
                receivers[tensor_name(edge), devices[node.name]].append(node)

    members = {tensor_name(node.input[0]) for node in graph_def.node if node.op in COLLECTIVES}
    nbytes = _tensor_bytes(graph_def, {tensor for tensor, _ in receivers} | members)
    transfers = _collective_transfers(nodes, devices, nbytes)
    fed: list[Transfer] = []
    fetched: list[Transfer] = []
    hosted: list[Transfer] = []
    for (tensor, destination), consumers in receivers.items():
        source = producer(tensor)
        inside = [node for node in consumers if node.name not in results]
        kind = (inside or consumers)[0].op
        transfer = Transfer(tensor, devices[source], destination, nbytes[tensor], kind)
        # What the step itself needs there has crossed anyway when a result wants it too.
        where = fed if nodes[source].name in feeds else transfers if inside else fetched
        if where is transfers and _beside(transfer.source, destination):
            where = hosted
        where.append(transfer)
    return Communication(tuple(transfers), tuple(fed), tuple(fetched), len(controls), tuple(hosted))


def _beside(one: str, other: str) -> bool:
    """Whether one of the devices is the CPU beside the other, an accelerator."""
    specs = [tf.DeviceSpec.from_string(device) for device in (one, other)]
    hosts = {(s.job, s.replica, s.task) for s in specs}
    return len(hosts) == 1 and [s.device_type for s in specs].count("CPU") == 1


def edge_nodes(graph_def: graph_pb2.GraphDef) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The feeds and results of a graph that nobody says them of: Placeholders that are fed, and the
    nodes that cut feeds and join results as tofu_tf names them.
    """
    feeds = [
        node.name
        for node in graph_def.node
        if (node.op == "Placeholder" and node.attr["dtype"].type != types_pb2.DT_RESOURCE)
        or _FEED.fullmatch(node.name)
    ]
    results = [node.name for node in graph_def.node if _RESULT.fullmatch(node.name)]
    return tuple(feeds), tuple(results)


def _collective_transfers(
    nodes: Mapping[str, node_def_pb2.NodeDef],
    devices: Mapping[str, str],
    nbytes: Mapping[str, int],
) -> list[Transfer]:
    """What the members of every collective send to the next one in the order of the graph."""
    transfers: list[Transfer] = []
    wrong = []
    for (size, key, instance), members in collective_groups(nodes).items():
        put_in = {nbytes[tensor_name(node.input[0])] for node in members}
        places = [devices[node.name] for node in members]
        alike = len({node.op for node in members}) == len(put_in) == 1
        if not alike or len(members) != size or len(set(places)) != size:
            wrong.append(f"{_listed([n.name for n in members])} of group {key}, {instance}")
            continue
        total = COLLECTIVES[members[0].op](size, put_in.pop())
        for i, node in enumerate(members):
            share = total * (i + 1) // size - total * i // size
            source, to = places[i], places[(i + 1) % size]
            transfers.append(Transfer(tensor_name(node.input[0]), source, to, share, node.op))
    if wrong:
        raise errors.GraphError(
            "; ".join(wrong), "members that do not fit together", "one alike on each device"
        )
    return transfers


def collective_groups(
    nodes: Mapping[str, node_def_pb2.NodeDef],
) -> dict[tuple[int, ...], list[node_def_pb2.NodeDef]]:
    """The members of every collective by its group's size, group key and instance key."""
    groups: dict[tuple[int, ...], list[node_def_pb2.NodeDef]] = defaultdict(list)
    for node in nodes.values():
        if node.op in COLLECTIVES:
            groups[tuple(_number(nodes, edge) for edge in node.input[1:4])].append(node)
    return groups


def _number(nodes: Mapping[str, node_def_pb2.NodeDef], edge: str) -> int:
    """The integer that an input is, which a Const gives."""
    node = nodes[producer(edge)]
    if node.op != "Const":
        raise errors.GraphError(node.name, "size or key of a collective", "a Const")
    return int(tf.make_ndarray(node.attr["value"].tensor))


def infer_shapes(graph_def: graph_pb2.GraphDef) -> tf.Graph:
    """`graph_def` as a tf.Graph: with TensorFlow's static shapes and every default attribute."""
    plain = graph_pb2.GraphDef()
    plain.CopyFrom(graph_def)
    for node in plain.node:
        node.attr.pop("_class", None)  # import refuses a colocation with a node that is gone
        node.attr.pop(OUTPUT_SHAPES, None)
    graph = tf.Graph()
    try:
        with graph.as_default():
            tf.graph_util.import_graph_def(plain, name="")
    except (ValueError, tf.errors.OpError) as error:
        raise errors.GraphError("graph", f"TensorFlow cannot import it: {error}") from error
    return graph


def full_device(device: str) -> str:
    """The canonical full name of a device; what is left out is this host's task 0."""
    spec = tf.DeviceSpec.from_string(device)
    return tf.DeviceSpec(
        job=spec.job or "localhost",
        replica=spec.replica or 0,
        task=spec.task or 0,
        device_type=spec.device_type,
        device_index=spec.device_index or 0,
    ).to_string()


def producer(edge: str) -> str:
    """The node that an input of a NodeDef (``a``, ``a:1``, ``^a``) comes from."""
    return edge.removeprefix("^").partition(":")[0]


def tensor_name(edge: str) -> str:
    """The tensor (``a:0``) that a data input of a NodeDef names."""
    node, _, index = edge.partition(":")
    return f"{node}:{index or 0}"


def _summed(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = defaultdict(int)
    for key, value in pairs:
        sums[key] += value
    return dict(sorted(sums.items()))


def _listed(names: Collection[str]) -> str:
    shown = sorted(names)[:_HEAD]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _refuse_uncountable(graph_def: graph_pb2.GraphDef) -> None:
    """Raises where edges between nodes do not tell what crosses."""
    unplaced = [node.name for node in graph_def.node if not node.device]
    if unplaced:
        raise errors.GraphError(_listed(unplaced), "no device", "a device on every node")
    collectives = [
        f"{node.name} ({node.op})"
        for node in graph_def.node
        if node.op.startswith("Collective") and node.op not in COLLECTIVES
    ]
    if collectives:
        raise errors.GraphError(
            _listed(collectives), "unknown collective ops", f"one of {', '.join(COLLECTIVES)}"
        )
    placed = [
        function.signature.name
        for function in graph_def.library.function
        if any(node.device for node in function.node_def)
    ]
    if placed:
        raise errors.GraphError(
            _listed(placed), "functions with devices inside", remedy="inline them first"
        )
    names = {node.name for node in graph_def.node}
    missing = {producer(e) for node in graph_def.node for e in node.input} - names
    if missing:
        raise errors.GraphError(_listed(missing), "inputs of nodes, but not in the graph")


def _tensor_bytes(graph_def: graph_pb2.GraphDef, tensors: Collection[str]) -> dict[str, int]:
    """Bytes of each tensor; raises with all that have none."""
    if not tensors:
        return {}
    graph = infer_shapes(_with_given_shapes(graph_def))
    nbytes: dict[str, int] = {}
    wrong: dict[str, list[str]] = defaultdict(list)
    for name in sorted(tensors):
        tensor = graph.get_tensor_by_name(name)
        if tensor.dtype in (tf.resource, tf.variant, tf.string):
            wrong[tensor.dtype.name].append(name)
        elif tensor.shape.is_fully_defined():
            nbytes[name] = tensor.shape.num_elements() * tensor.dtype.size
        else:
            wrong[f"of unknown shape {tensor.shape}"].append(name)
    if wrong:
        raise errors.GraphError(
            "; ".join(f"{_listed(names)}: {what}" for what, names in wrong.items()),
            "tensors without a fixed number of bytes cross between devices",
            "static shapes; a resource is used only on its own device",
        )
    return nbytes


def _with_given_shapes(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """`graph_def` with a Placeholder of the given shape for every read of a variable.

    A handle that is fed does not say what it holds, so only `_output_shapes` can.
    """
    shown = graph_pb2.GraphDef()
    shown.CopyFrom(graph_def)
    for node in shown.node:
        if node.op == "ReadVariableOp" and OUTPUT_SHAPES in node.attr:
            read = node_def_pb2.NodeDef(name=node.name, op="Placeholder", device=node.device)
            read.attr["dtype"].CopyFrom(node.attr["dtype"])
            read.attr["shape"].shape.CopyFrom(node.attr[OUTPUT_SHAPES].list.shape[0])
            node.CopyFrom(read)
    return shown
