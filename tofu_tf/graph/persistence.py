"""Where a GraphDef's variables get their values from, and where these are saved to."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from tensorflow.core.framework import graph_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf import saver_pb2
from tensorflow.python.framework import tensor_util

from tofu_tf.errors import GraphError
from tofu_tf.graph.ir import Ref
from tofu_tf.graph.state import CARRIERS, HANDLE_MAKERS, READ

SCOPE = "tofu_state/"  # of the nodes of a placed graph that only initialise, restore and save
_ASSIGN = "AssignVariableOp"


@dataclasses.dataclass(frozen=True)
class Saver:
    """The names by which a graph is told to save and restore, as in a SaverDef.

    `filename` and `save` are tensors, `restore` is an operation; `fed`: whether the name of the
    file must be fed, having no default.
    """

    filename: str
    save: str
    restore: str
    fed: bool = False


@dataclasses.dataclass(frozen=True)
class Persistence:
    """How the variables of `graph_def` (flat), by their shared names, come by their values.

    `initial`: the tensor of a variable's first value. `initializers`: operations that only
    initialise, with the variables that they set. `keys`: a variable's name in checkpoints.
    `constants`: other entries of a checkpoint, with the tensors that are saved there. `handles`:
    the nodes of the variables.
    """

    graph_def: graph_pb2.GraphDef
    handles: Mapping[str, NodeDef]
    initial: Mapping[str, str]
    initializers: Mapping[str, tuple[str, ...]]
    keys: Mapping[str, str]
    constants: Mapping[str, str]
    saver: Saver | None


def find_persistence(
    flat: graph_pb2.GraphDef,
    step: Iterable[str],
    saver_def: saver_pb2.SaverDef | None = None,
) -> Persistence:
    """How the variables of a flat GraphDef are initialised, restored and saved.

    Args:
      flat: the whole graph, without calls.
      step: the nodes of one step: what is assigned there is no initialisation.
      saver_def: the names of what saves and restores; without it they are found by what the nodes
        do.

    An initialiser is an assignment that needs no variable and nothing fed; of several the one that
    is called ``<variable>/Assign``.

    Raises:
      GraphError: a variable that is restored from a part of an entry.
    """
    finding = _Finding(flat, set(step))
    initial, by_node = finding.initial()
    keys, restoring = finding.restored()
    saver = _named(saver_def) if saver_def is not None else None
    if restoring and saver is None:
        saver = finding.saver(restoring)
    if saver is not None:
        fed = finding.nodes.get(Ref.parse(saver.filename).node)
        saver = dataclasses.replace(saver, fed=fed is not None and fed.op == "Placeholder")
    return Persistence(
        flat,
        finding.handles,
        initial,
        finding.groups(by_node),
        keys,
        finding.constants(),
        saver if keys else None,
    )


def _named(saver_def: saver_pb2.SaverDef) -> Saver | None:
    if not saver_def.restore_op_name:
        return None
    return Saver(
        saver_def.filename_tensor_name, saver_def.save_tensor_name, saver_def.restore_op_name
    )


class _Finding:
    """A flat GraphDef and what is known of its nodes."""

    def __init__(self, flat: graph_pb2.GraphDef, step: Collection[str]) -> None:
        self.nodes = {node.name: node for node in flat.node}
        self.step = step
        self.handles: dict[str, NodeDef] = {}
        for node in flat.node:
            if node.op in HANDLE_MAKERS:
                self.handles.setdefault(node.attr["shared_name"].s.decode() or node.name, node)

    def initial(self) -> tuple[dict[str, str], dict[str, str]]:
        """The tensor of each variable's first value; the variable that each initialiser sets."""
        tensors: dict[str, str] = {}
        by_node: dict[str, str] = {}
        for node in self.nodes.values():
            if node.op != _ASSIGN or node.name in self.step:
                continue
            variable = self._variable(node.input[0])
            if variable is None or not self._stands_alone(node.input[1]):
                continue
            by_node[node.name] = variable
            if variable not in tensors or node.name == f"{self.handles[variable].name}/Assign":
                tensors[variable] = node.input[1]
        return tensors, by_node

    def restored(self) -> tuple[dict[str, str], dict[str, NodeDef]]:
        """Each variable's name in checkpoints, and the RestoreV2 behind each assignment of one."""
        keys: dict[str, str] = {}
        behind: dict[str, NodeDef] = {}
        for node in self.nodes.values():
            if node.op != _ASSIGN:
                continue
            source = self._carried(node.input[1])
            maker = self.nodes.get(source.node)
            variable = self._variable(node.input[0])
            if maker is None or maker.op != "RestoreV2" or variable is None:
                continue
            names, parts = (self._texts(maker.input[i]) for i in (1, 2))
            if parts[source.index]:
                raise GraphError(
                    variable,
                    f"restored from the part {parts[source.index]!r} of {names[source.index]!r}",
                    "variables that are restored whole",
                    "export the graph without a partitioner",
                )
            keys[variable], behind[node.name] = names[source.index], maker
        return keys, behind

    def constants(self) -> dict[str, str]:
        """What else is saved, such as the graph of objects, as entry -> tensor."""
        found: dict[str, str] = {}
        for node in self.nodes.values():
            if node.op == "SaveV2":
                names = self._texts(node.input[1])
                data = [text for text in node.input[3:] if not text.startswith("^")]
                for key, text in zip(names, data, strict=True):
                    source = self._carried(text)
                    if self.nodes[source.node].op == "Const":
                        found[key] = str(source)
        return found

    def groups(self, by_node: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
        """Operations that wait for initialisers and for nothing else, with their variables."""
        found: dict[str, tuple[str, ...]] = {}
        for node in self.nodes.values():
            if node.op == "NoOp" and node.input and node.name not in self.step:
                waits = [text.removeprefix("^") for text in node.input]
                if all(name in by_node or name in found for name in waits):
                    each = (found.get(n) or (by_node[n],) for n in waits)
                    found[node.name] = tuple(v for variables in each for v in variables)
        return found

    def saver(self, restoring: Mapping[str, NodeDef]) -> Saver | None:
        """The names of what restores most and of what saves beside it."""
        covers = {
            node.name: sum(text.removeprefix("^") in restoring for text in node.input)
            for node in self.nodes.values()
            if node.op == "NoOp"
        }
        restore = max(covers, key=covers.__getitem__, default="")
        if not restore or not covers[restore]:
            return None
        scope = f"{restore.rpartition('/')[0]}/".removeprefix("/")
        filename = str(self._carried(next(iter(restoring.values())).input[0], ("Identity",)))
        save = [n for n in ("control_dependency", "Identity") if f"{scope}{n}" in self.nodes]
        return Saver(filename, f"{scope}{(save or ['control_dependency'])[0]}:0", restore)

    def _texts(self, tensor: str) -> list[str]:
        value = tensor_util.MakeNdarray(self.nodes[self._carried(tensor).node].attr["value"].tensor)
        return [text.decode() for text in value.ravel().tolist()]

    def _carried(self, text: str, through: Collection[str] = CARRIERS) -> Ref:
        ref = parsed(text)
        while (node := self.nodes.get(ref.node)) is not None and node.op in through:
            ref = parsed(node.input[ref.index])
        return ref

    def _variable(self, text: str) -> str | None:
        node = self.nodes.get(self._carried(text).node)
        if node is None or node.op not in HANDLE_MAKERS:
            return None
        return node.attr["shared_name"].s.decode() or node.name

    def _stands_alone(self, text: str) -> bool:
        """Whether a tensor needs no variable, no file and nothing fed."""
        outside = {"Placeholder", "RestoreV2", READ, *HANDLE_MAKERS}
        needed = ancestors(self.nodes, [parsed(text).node])
        return all(name in self.nodes and self.nodes[name].op not in outside for name in needed)


def parsed(text: str) -> Ref:
    """The tensor that a node's data input names."""
    name, colon, index = text.rpartition(":")
    return Ref(name, int(index)) if colon and index.isdigit() else Ref(text)


def ancestors(nodes: Mapping[str, NodeDef], roots: Iterable[str]) -> set[str]:
    """Names of the nodes that `roots` need, themselves included; also those that are not there."""
    found: set[str] = set()
    stack = list(roots)
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            if name in nodes:
                stack += [parsed(text.removeprefix("^")).node for text in nodes[name].input]
    return found


def step_of(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """A placed graph without what initialises, restores and saves its variables."""
    nodes = {node.name: node for node in graph_def.node}
    readers: dict[str, list[str]] = {}
    for node in graph_def.node:
        for text in node.input:
            readers.setdefault(parsed(text.removeprefix("^")).node, []).append(node.name)
    apart: set[str] = set()
    stack = [name for name in nodes if name.startswith(SCOPE)]
    while stack:
        name = stack.pop()
        if name not in apart:
            apart.add(name)
            stack += readers.get(name, ())
    if not apart:
        return graph_def
    out = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    out.node.extend(node for node in graph_def.node if node.name not in apart)
    return out
