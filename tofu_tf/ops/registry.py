"""The table of described operators: one `OpEntry` holds all that is known of an op.

::

    @op("MatMul", flops=matmul_flops, samples=(sample(...),))
    def matmul(a, b, *, transpose_a, transpose_b):
        return lambda i, j: Sum(lambda k: ...)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tofu_tf import errors
from tofu_tf.graph.ir import Node, TensorSpec
from tofu_tf.tdl.regions import Region


class Emitter(Protocol):
    """What a body uses to make the nodes of one piece; every tensor is named by a ``node:0``
    string.
    """

    def add(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Any] | None = None,
        part: str = "",
        outputs: int = 1,
    ) -> list[str]:
        """The outputs of a new node on the piece's device. `part` names an auxiliary node ("" = the
        piece).
        """

    def const(self, value: np.ndarray, part: str) -> str:
        """A constant on the piece's device."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """One worker's share of `node`.

    `box`: its range of every loop axis; `extents`: the whole ranges. `reads[i]`: the region of
    input i that stands in `inputs[i]` (None for an input that is read as a constant attribute or
    not at all); `writes[o]`: the region of output o to make. For an input that is a variable's
    version at a node that writes it, `inputs[i]` is the handle of the worker's shard, and a body
    returns the op's own outputs only (the versions follow from the write). `constants[i]`: the
    whole value of a constant input. `device_type`: CPU or GPU, where their kernels differ.
    """

    node: Node
    box: Mapping[str, tuple[int, int]]
    extents: Mapping[str, int]
    specs: tuple[TensorSpec, ...]  # whole inputs
    reads: tuple[Region | None, ...]
    writes: tuple[Region, ...]
    inputs: tuple[str, ...]
    constants: Mapping[int, np.ndarray]
    attributes: Mapping[str, Any]
    device_type: str = "CPU"

    def whole(self, *axes: str) -> bool:
        """Whether none of the axes is cut in this piece."""
        return all(self.box[a] == (0, self.extents[a]) for a in axes)


# A body makes a piece's nodes and returns its outputs. One that needs internal reductions is a
# generator: it yields the partial tensors of each internal in turn and is sent the reduced ones.
Body = Callable[[Emitter, Piece], "list[str] | Generator[str, str, list[str]]"]


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to run an op in pieces: its description and the body that makes a piece.

    `internals`: for every internal reduction (a Sum over all axes but these) the axes of its
    result.
    `uncut`: axes that the description has but that this body cannot cut. `exact`: a piece must be
    given just the elements that it uses (reshapes). `serves`: for a body of several nodes, inputs
    of which only some outputs have any use, with these outputs; not for inputs that the internal
    reductions need.
    """

    describe: Callable[..., Any]
    body: Body
    name: str = ""
    internals: Callable[..., Sequence[Sequence[str]]] | None = None
    uncut: tuple[str, ...] = ()
    exact: bool = False
    serves: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Sample:
    """A case for the conformance test: whole inputs, attributes, and the axes expected to be
    cuttable.

    `inputs`: a ``(shape, dtype)`` pair (random data), or an array (used as it is; constant if the
    op reads that input as an attribute). `low`, `high`: range of the random data.
    `axes`: for every variant name, the cuttable axes. `unspecified`: outputs whose values the
    kernel leaves undefined here; only their shapes are compared.
    """

    inputs: tuple[Any, ...]
    axes: Mapping[str, tuple[str, ...]]
    attrs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    low: float = -2.0
    high: float = 2.0
    rtol: float = 0.0  # 0: the dtype's default
    unspecified: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class OpEntry:
    """All that is known of one op type.

    `constants`: inputs (by position, negative from the end) that must be Const and are handed to
    the description as arrays. `flops`: (input specs, output specs, attributes) -> floating-point
    operations.
    `elementwise`: output and same-shaped inputs may be tied. `uncuttable`: the reason why no axis
    can be cut.
    """

    name: str
    variants: tuple[Variant, ...]
    constants: tuple[int, ...] = ()
    flops: Callable[..., int] | None = None
    elementwise: bool = False
    samples: tuple[Sample, ...] = ()
    uncuttable: str = ""


REGISTRY: dict[str, OpEntry] = {}


def same_op(emit: Emitter, piece: Piece) -> list[str]:
    """The plain body: the same op with the same attributes on the piece's inputs."""
    inputs = [
        emit.const(piece.constants[i], f"in{i}") if i in piece.constants else name
        for i, name in enumerate(piece.inputs)
    ]
    own = len(piece.writes) - len(piece.node.writes)
    return emit.add(piece.node.op, inputs, piece.node.attrs, outputs=own)


def op(
    *names: str,
    body: Body = same_op,
    constants: Sequence[int] = (),
    flops: Callable[..., int] | None = None,
    elementwise: bool = False,
    samples: Sequence[Sample] | Mapping[str, Sequence[Sample]] = (),
    variants: Sequence[Variant] = (),
    uncut: Sequence[str] = (),
    uncuttable: str = "",
    exact: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the decorated description for each of the op `names`.

    The description takes the op's inputs in order (arrays for `constants`), its attributes as
    keyword-only parameters of the same names, and, when it has a keyword parameter `out`, the tuple
    of output shapes.
    """

    def register(describe: Callable[..., Any]) -> Callable[..., Any]:
        first = Variant(describe, body, "", None, tuple(uncut), exact)
        for name in names:
            if name in REGISTRY:
                raise errors.DescriptionError(f"op {name}", "is described twice")
            own = samples.get(name, ()) if isinstance(samples, Mapping) else samples
            REGISTRY[name] = OpEntry(
                name,
                (first, *variants),
                tuple(constants),
                flops,
                elementwise,
                tuple(own),
                uncuttable,
            )
        return describe

    return register
