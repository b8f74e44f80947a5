"""One conditional, with all that is nested in it -> the nodes of its branches and of the choice."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.node_def_pb2 import NodeDef

from tofu_tf.capture.bodies import Body
from tofu_tf.capture.predicating import Unconvertible, predicate
from tofu_tf.graph.attributes import encode
from tofu_tf.graph.ir import CONST
from tofu_tf.graph.registered import attribute_kinds
from tofu_tf.graph.state import CARRIERS, is_stateful

_IFS = ("If", "StatelessIf")
CONDITIONALS = frozenset({*_IFS, "Case", "StatelessCase"})
_NO_SELECT = ("resource", "string")


class Around(Protocol):
    """The graph in which a conditional stands.

    `nodes`: all of them by name. `drawn`: stateful random ops that will draw from a variable.
    `cases`: for the number that a Case chooses by, whether it takes each branch.
    """

    nodes: MutableMapping[str, NodeDef]
    drawn: Collection[str]
    cases: dict[str, list[str]]

    def body(self, name: str) -> Body:
        """The body of a function of its library."""

    def may_fold(self, ref: str, nodes: Mapping[str, NodeDef]) -> bool:
        """Whether `ref` is computed from constants and shapes alone."""


@dataclasses.dataclass(frozen=True)
class _Branch:
    """`chosen`: the tensor that says whether the conditional takes it; None: it does."""

    label: str
    function: str
    chosen: str | None


class Splice:
    """One conditional, with all that is nested in it, as nodes that replace it.

    `own`: these nodes; `agreeing`, `scalars` as in Converted; `optionals`: the SelectV2 nodes that
    choose an optional.
    """

    def __init__(self, around: Around) -> None:
        self.around = around
        self.drawn = around.drawn
        self.own: dict[str, NodeDef] = {}
        self.nodes = collections.ChainMap(self.own, around.nodes)
        self.agreeing: list[str] = []
        self.scalars: list[str] = []
        self.optionals: list[str] = []
        self.cases: dict[str, list[str]] = {}
        # What is known inside the branches at hand: whether a tensor is true.
        self.known: dict[str, bool] = {}

    def conditional(self, node: NodeDef, data: list[str], waits: list[str], outer: str) -> None:
        """Both branches of `node`, which itself runs where `outer` holds ("": always)."""
        producers = [node_of(ref) for ref in data]
        after = [f"^{p}" for p in producers if self.nodes[p].op not in ("Placeholder", CONST)]
        last = self._nothing(node, "start", dict.fromkeys((*waits, *after)))
        branches = self._branches(node, data[0])
        given: list[list[str]] = []
        for branch in branches:
            when = self._both(node, branch, outer)
            outside = dict(self.known)
            for other in branches:
                if other.chosen is not None:
                    self.known[follow(other.chosen, self.nodes)] = other is branch
            outputs, effects = self._branch(node, branch, data[1:], when, last)
            self.known = outside
            given.append(outputs)
            if effects:
                last = self._nothing(node, f"{branch.label}/done", [f"^{e}" for e in effects])
        types = [tf.dtypes.as_dtype(t) for t in node.attr["Tout"].list.type]
        outputs = [
            self._joined(node, i, branches, [refs[i] for refs in given], dtype)
            for i, dtype in enumerate(types)
        ]
        join = NodeDef(name=node.name, op="IdentityN" if types else "NoOp", device=node.device)
        join.input.extend([*outputs, f"^{last}"])
        if types:
            join.attr["T"].CopyFrom(node.attr["Tout"])
        self.own[node.name] = join

    def _branches(self, node: NodeDef, choice: str) -> list[_Branch]:
        """The branches of `node`; one alone where the choice between them is a constant."""
        if node.op in _IFS:
            labels = ["then", "else"]
            functions = [node.attr[f"{label}_branch"].func.name for label in labels]
        else:
            functions = [func.name for func in node.attr["branches"].list.func]
            labels = [f"branch{i}" for i in range(len(functions))]
        value = self._value(choice)
        if value is not None:
            taken = _taken(value, node.op in _IFS, len(functions))
            return [_Branch(labels[taken], functions[taken], None)]
        if len(functions) == 1:
            return [_Branch(labels[0], functions[0], None)]
        self.scalars.append(choice)
        if node.op in _IFS:
            chosen = self._truth(node, choice)
            choices = [chosen, self.add(node, "otherwise", "LogicalNot", [chosen], {})]
        else:
            choices = self._cases(node, choice, len(functions))
        return [_Branch(*parts) for parts in zip(labels, functions, choices, strict=True)]

    def _value(self, ref: str) -> np.ndarray | None:
        source = follow(ref, self.nodes)
        node = self.nodes[node_of(source)]
        return tf.make_ndarray(node.attr["value"].tensor) if node.op == CONST else None

    def _truth(self, node: NodeDef, choice: str) -> str:
        """The choice of an If as a bool: numbers other than 0 are true."""
        dtype = tf.dtypes.as_dtype(node.attr["Tcond"].type)
        if dtype == tf.bool:
            return choice
        if dtype.name in _NO_SELECT:
            raise Unconvertible(f"its predicate is a {dtype.name}")
        attrs = {"SrcT": dtype, "DstT": tf.bool}
        return self.add(node, "predicate", "Cast", [choice], attrs)

    def _cases(self, node: NodeDef, choice: str, count: int) -> list[str]:
        """Whether each branch of a Case is taken; the last is for all numbers that none has.

        One choice, one set of nodes: a gradient is to be seen to take the same branch.
        """
        key = f"{follow(choice, self.nodes)} of {count}"
        if key in self.around.cases:
            return self.around.cases[key]
        if key not in self.cases:
            found = []
            for i in range(count - 1):
                number = {"value": np.asarray(i, np.int32), "dtype": tf.int32}
                index = self.add(node, f"index{i}", CONST, [], number)
                attrs = {"T": tf.int32}
                found.append(self.add(node, f"is{i}", "Equal", [choice, index], attrs))
            some = found[0]
            for i, other in enumerate(found[1:], 1):
                some = self.add(node, f"upto{i}", "LogicalOr", [some, other], {})
            found.append(self.add(node, "otherwise", "LogicalNot", [some], {}))
            self.cases[key] = found
        return self.cases[key]

    def _both(self, node: NodeDef, branch: _Branch, outer: str) -> str:
        """Where a branch runs: where the conditional does, and takes it ("": always)."""
        if branch.chosen is None or not outer:
            return branch.chosen or outer
        return self.add(node, f"{branch.label}/when", "LogicalAnd", [outer, branch.chosen], {})

    def _branch(
        self, node: NodeDef, branch: _Branch, data: Sequence[str], when: str, after: str
    ) -> tuple[list[str], list[str]]:
        """The tensors that a branch gives, and those of its nodes that read, write or check.

        A conditional inside stays one where the branch always runs.
        """
        body = self.around.body(branch.function)
        refs = {f"{arg}:0": ref for arg, ref in zip(body.arguments, data, strict=True)}
        names = {arg: node_of(ref) for arg, ref in zip(body.arguments, data, strict=True)}
        start = len(self.own)
        for inner in body.nodes:
            own = inner.name.removeprefix(f"{node.name.rpartition('/')[2]}/")
            names[inner.name] = self._free(f"{node.name}/{branch.label}/{own}")
            self.own[names[inner.name]] = NodeDef()

        def mapped(text: str) -> str:
            if text.startswith("^"):
                return f"^{names[text[1:]]}"
            if text in refs:
                return refs[text]
            source, colon, index = text.partition(":")
            return refs.get(f"{source}:0", "") or f"{names[source]}{colon}{index}"

        for inner in body.nodes:
            made = NodeDef()
            made.CopyFrom(inner)
            made.name = names[inner.name]
            operands, waits = divided([mapped(text) for text in inner.input])
            if is_stateful(inner.op) or inner.op in CONDITIONALS:
                waits = list(dict.fromkeys((*waits, f"^{after}")))
            if inner.op == "OptionalGetValue" and (value := self._optional(operands[0])):
                made.op = "IdentityN"
                made.attr["T"].CopyFrom(value.attr["Toutput_types"])
                self.put(made, [*divided(value.input)[0], *waits])
            elif not when:
                self.put(made, [*operands, *waits])
            elif inner.op in CONDITIONALS:
                self.conditional(made, operands, waits, when)
            else:
                predicate(self, made, operands, waits, when)
        nested = {names[inner.name] for inner in body.nodes if inner.op in CONDITIONALS}
        effects = [
            name
            for name in itertools.islice(self.own, start, None)
            if name in nested or is_stateful(self.own[name].op)
        ]
        return [mapped(text) for text in body.outputs], effects

    def _optional(self, ref: str) -> NodeDef | None:
        """The OptionalFromValue that `ref` is where the branches at hand are taken.

        The gradient of a conditional takes the values inside its branches so.
        """
        node = self.nodes[node_of(follow(ref, self.nodes))]
        while node.op == "SelectV2":
            true = self.known.get(follow(node.input[0], self.nodes))
            if true is None:
                return None
            node = self.nodes[node_of(follow(node.input[1 if true else 2], self.nodes))]
        return node if node.op == "OptionalFromValue" else None

    def _joined(
        self,
        node: NodeDef,
        index: int,
        branches: Sequence[_Branch],
        refs: Sequence[str],
        dtype: tf.DType,
    ) -> str:
        """What the conditional gives of what its branches do."""
        ends = [follow(ref, self.nodes) for ref in refs]
        if len(set(ends)) == 1:
            return refs[0]
        # A FakeParam stands for a value that only other branches have.
        real = [r for r, end in zip(refs, ends, strict=True) if not self._is_fake(end)]
        if len(real) <= 1:
            return real[0] if real else refs[0]
        if dtype.name in _NO_SELECT:
            raise Unconvertible(f"its branches give different {dtype.name}s")
        result = refs[-1]
        for branch, ref in reversed(list(zip(branches[:-1], refs[:-1], strict=True))):
            attrs = {"T": dtype}
            part = f"{branch.label}/given{index}"
            result = self.add(node, part, "SelectV2", [str(branch.chosen), ref, result], attrs)
            if dtype == tf.variant:
                self.optionals.append(node_of(result))
            else:
                self.must_agree(result)
        return result

    def _is_fake(self, ref: str) -> bool:
        return self.nodes[node_of(ref)].op == "FakeParam"

    def _nothing(self, node: NodeDef, part: str, waits: Collection[str]) -> str:
        name = self._free(f"{node.name}/{part}")
        self.own[name] = NodeDef(name=name, op="NoOp", input=waits, device=node.device)
        return name

    def _free(self, name: str) -> str:
        while name in self.nodes:
            name += "_"
        return name

    def add(
        self, like: NodeDef, part: str, op: str, inputs: Sequence[str], attrs: Mapping[str, Any]
    ) -> str:
        name = self._free(f"{like.name}/{part}")
        made = NodeDef(name=name, op=op, input=inputs, device=like.device)
        kinds = attribute_kinds(op)
        for key, value in attrs.items():
            given = isinstance(value, AttrValue)
            made.attr[key].CopyFrom(value if given else encode(value, kinds[key]))
        self.own[name] = made
        return f"{name}:0"

    def put(self, node: NodeDef, inputs: Sequence[str]) -> None:
        made = NodeDef()
        made.CopyFrom(node)
        del made.input[:]
        made.input.extend(inputs)
        self.own[made.name] = made

    def comes_from(self, ref: str, ops: Collection[str]) -> bool:
        node = self.nodes[node_of(follow(ref, self.nodes, CARRIERS | {"Cast", "Reshape"}))]
        return node.op in ops or (CONST in ops and self.around.may_fold(ref, self.nodes))

    def must_agree(self, select: str) -> None:
        self.agreeing.append(node_of(select))


def _taken(value: np.ndarray, is_if: bool, count: int) -> int:
    """Which branch a constant choice takes, as TensorFlow's kernels choose."""
    if is_if:
        true = bool(value) if value.ndim == 0 else value.size > 0
        return 0 if true else 1
    return int(value) if 0 <= int(value) < count else count - 1


def divided(inputs: Sequence[str]) -> tuple[list[str], list[str]]:
    """Data and control inputs."""
    data = [text for text in inputs if not text.startswith("^")]
    return data, [text for text in inputs if text.startswith("^")]


def follow(ref: str, nodes: Mapping[str, NodeDef], through: Collection[str] = CARRIERS) -> str:
    """Where the value that ops like Identity pass on as `ref` is made."""
    while nodes[node_of(ref)].op in through:
        index = int(ref.rpartition(":")[2]) if ":" in ref else 0
        ref = divided(nodes[node_of(ref)].input)[0][index]
    return ref if ":" in ref else f"{ref}:0"


def node_of(ref: str) -> str:
    """The node that makes a tensor."""
    return ref.partition(":")[0]
