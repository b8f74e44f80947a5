"""Stateful random ops -> a generator's state in a variable, and stateless ops that draw from it.

TensorFlow's stateful random ops keep a Philox generator inside their kernel: two copies of one node
draw the same numbers, and nobody can draw a part of them. With ``state = (counter's low word, its
high word, key)`` the generator of a node starts at ``(0, seed2, seed)`` and is moved on by 256 for
every element drawn: just what RngReadAndSkip does, and what tf.random.Generator emits itself. So a
node becomes RngReadAndSkip and the op that draws the same numbers from a counter and a key.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.node_def_pb2 import NodeDef

from tofu_tf.graph.attributes import INDEPENDENT, encode
from tofu_tf.graph.ir import CONST, TensorSpec, Variable
from tofu_tf.graph.registered import attribute_kinds

# Whether pieces draw from streams of their own.
MODES = {"exact": False, "independent": True}

# The op that draws the same numbers from a key and a counter.
STATEFUL = {
    "RandomUniform": "StatelessRandomUniformV2",
    "RandomStandardNormal": "StatelessRandomNormalV2",
    "TruncatedNormal": "StatelessTruncatedNormalV2",
    "RandomUniformInt": "StatelessRandomUniformIntV2",
}
SEEDED = {
    "StatelessRandomUniform": "StatelessRandomUniformV2",
    "StatelessRandomNormal": "StatelessRandomNormalV2",
    "StatelessTruncatedNormal": "StatelessTruncatedNormalV2",
    "StatelessRandomUniformInt": "StatelessRandomUniformIntV2",
    "StatelessRandomUniformFullInt": "StatelessRandomUniformFullIntV2",
}
_DRAWN = frozenset({*STATEFUL, *SEEDED, "RngReadAndSkip"})
_PHILOX = 1
_STATE = TensorSpec((3,), "int64")
# The predicate under which a stateful random op draws; where it does not hold its state stays.
WHEN = "_when"
# What may stand between a generator's state and the key taken from it.
_BETWEEN = frozenset({"Bitcast", "StridedSlice", "Slice", "Identity"})


class Streams:
    """The generators of steps that draw from the same streams: one for each random op, by its name.

    Whichever step comes first makes an op's state, with its own seeds; the others go on with it.
    """

    def __init__(self, mode: str = "exact") -> None:
        self.independent = MODES[mode]
        self._made: dict[str, tuple[tf.Variable, tuple[int, ...]]] = {}

    def __len__(self) -> int:
        return len(self._made)

    def state(self, name: str, seeds: tuple[int, int]) -> tf.Variable:
        """The state of the op of this name."""
        if name not in self._made:
            value = _initial(seeds)
            with tf.init_scope(), tf.device("/device:CPU:0"):
                variable = tf.Variable(value, trainable=False, dtype=tf.int64, name="stream")
            self._made[name] = variable, value if any(seeds) else ()
        return self._made[name][0]

    def restart(self) -> None:
        """Moves every seeded generator back to its start, as tf.random.set_seed does."""
        with tf.init_scope():
            for variable, value in self._made.values():
                if value:
                    variable.assign(value)


def _initial(seeds: tuple[int, int]) -> tuple[int, ...]:
    """A generator's first state; seeds that are both 0 ask for one that nobody can foresee."""
    if not any(seeds):
        seeds = (secrets.randbits(64) - (1 << 63), secrets.randbits(64) - (1 << 63))
    return (0, seeds[1], seeds[0])


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A flat GraphDef without stateful random ops, and the states that it takes.

    `placeholders`: those of the states, with a tensor that tells their handles' shapes. `handles`,
    `variables`: as in a traced function.
    """

    graph_def: graph_pb2.GraphDef
    placeholders: Mapping[str, tf.Tensor]
    handles: Mapping[str, Variable]
    variables: Mapping[str, tf.Variable]


def draw(
    graph_def: graph_pb2.GraphDef, streams: Streams | None, taken: Collection[str] = ()
) -> Drawn:
    """`graph_def` with every random op that can be as one of a key and a counter.

    Args:
      graph_def: flat; random ops inside the bodies of loops stay as they are.
      streams: where the states of stateful ops come from; None leaves these ops as they are.
      taken: names of variables that a state must not have.
    """
    if not any(node.op in _DRAWN for node in graph_def.node):
        return Drawn(graph_def, {}, {}, {})
    result = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    making = _Making(result, {node.name for node in graph_def.node})
    handles: dict[str, Variable] = {}
    variables: dict[str, tf.Variable] = {}
    placeholders: dict[str, tf.Tensor] = {}
    for node in graph_def.node:
        if node.op in SEEDED:
            making.seeded(node)
        elif node.op in STATEFUL and streams is not None:
            state = streams.state(node.name, (node.attr["seed"].i, node.attr["seed2"].i))
            name = _free(f"random/{node.name}", {*taken, *variables})
            fed = making.stateful(node)
            handles[fed] = Variable(name, _STATE, making.free(name))
            variables[name] = state
            placeholders[fed] = state.handle
        else:
            result.node.add().CopyFrom(node)
    if streams is not None and streams.independent:
        for node in _from_generators(result):
            node.attr[INDEPENDENT].b = True
    return Drawn(result, placeholders, handles, variables)


def _from_generators(graph_def: graph_pb2.GraphDef) -> Iterator[NodeDef]:
    """The ops that draw with a key from a generator's state, and not from a seed that was given."""
    nodes = {node.name: node for node in graph_def.node}
    drawing = {*STATEFUL.values(), *SEEDED.values()}
    for node in graph_def.node:
        if node.op not in drawing:
            continue
        source = nodes.get(_source(node, 1))
        while source is not None and source.op in _BETWEEN:
            source = nodes.get(_source(source, 0))
        if source is not None and source.op == "RngReadAndSkip":
            yield node


def _source(node: NodeDef, position: int) -> str:
    return str(node.input[position]).partition(":")[0]


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name


class _Making:
    """Adds the nodes that stand for a random op; the op that draws keeps its name."""

    def __init__(self, result: graph_pb2.GraphDef, taken: set[str]) -> None:
        self.result, self.taken = result, taken

    def free(self, name: str) -> str:
        """`name`, or the like where a node has it; taken from now on."""
        found = _free(name, self.taken)
        self.taken.add(found)
        return found

    def stateful(self, node: NodeDef) -> str:
        """The name of the placeholder of the state that `node` now draws from."""
        inputs, waits = _inputs(node)
        shape_type = node.attr["T"]
        state = self._add(node, "stream", "Placeholder", [], {"dtype": "resource", "shape": ()})
        every = self._const(node, "every", np.zeros(1, np.int32))
        attrs = {"T": shape_type, "Tidx": "int32", "keep_dims": False}
        count = self._add(node, "count", "Prod", [inputs[0], every], attrs)
        attrs = {"SrcT": shape_type, "DstT": "uint64", "Truncate": False}
        delta = self._add(node, "delta", "Cast", [count], attrs)
        alg = self._const(node, "alg", np.asarray(_PHILOX, np.int32))
        if WHEN in node.attr:
            none = self._const(node, "delta/none", np.asarray(0, np.uint64))
            when = node.attr[WHEN].s.decode()
            attrs = {"T": "uint64"}
            delta = self._add(node, "delta/either", "SelectV2", [when, delta, none], attrs)
        read = self._add(node, "skip", "RngReadAndSkip", [state, alg, delta, *waits], {})
        counter = self._words(node, "counter", read, 0, 2)
        key = self._words(node, "key", read, 2, 1)
        op = STATEFUL[node.op]
        dtype = node.attr["Tout"] if node.op == "RandomUniformInt" else node.attr["dtype"]
        self._draws(node, op, [inputs[0], key, counter, alg, *inputs[1:], *waits], dtype)
        return state

    def seeded(self, node: NodeDef) -> None:
        """The key and the counter are what `node` itself makes of its seed."""
        inputs, waits = _inputs(node)
        attrs = {"Tseed": node.attr["Tseed"]}
        made = self._add(node, "key", "StatelessRandomGetKeyCounter", [inputs[1], *waits], attrs)
        alg = self._const(node, "alg", np.asarray(_PHILOX, np.int32))
        operands = [inputs[0], made, f"{made}:1", alg, *inputs[2:], *waits]
        self._draws(node, SEEDED[node.op], operands, node.attr["dtype"])

    def _draws(self, node: NodeDef, op: str, inputs: list[str], dtype: Any) -> None:
        made = self.result.node.add(name=node.name, op=op, input=inputs, device=node.device)
        made.attr["dtype"].CopyFrom(dtype)
        made.attr["Tshape"].CopyFrom(node.attr["T"])

    def _words(self, node: NodeDef, part: str, read: str, begin: int, size: int) -> str:
        """Words of the state, unsigned."""
        start = self._const(node, f"{part}/begin", np.asarray([begin], np.int32))
        many = self._const(node, f"{part}/size", np.asarray([size], np.int32))
        attrs = {"T": "int64", "Index": "int32"}
        words = self._add(node, f"{part}/words", "Slice", [read, start, many], attrs)
        return self._add(node, part, "Bitcast", [words], {"T": "int64", "type": "uint64"})

    def _const(self, node: NodeDef, part: str, value: np.ndarray) -> str:
        return self._add(node, part, CONST, [], {"value": value, "dtype": value.dtype.name})

    def _add(
        self, node: NodeDef, part: str, op: str, inputs: list[str], attrs: Mapping[str, Any]
    ) -> str:
        made = self.result.node.add(name=self.free(f"{node.name}/{part}"), op=op, input=inputs)
        made.device = node.device
        kinds = attribute_kinds(op)
        for name, value in attrs.items():
            given = isinstance(value, AttrValue)
            made.attr[name].CopyFrom(value if given else encode(value, kinds[name]))
        return str(made.name)


def _inputs(node: NodeDef) -> tuple[list[str], list[str]]:
    """Data and control inputs."""
    data = [text for text in node.input if not text.startswith("^")]
    return data, [text for text in node.input if text.startswith("^")]
