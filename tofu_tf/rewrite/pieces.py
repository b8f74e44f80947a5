"""The pieces of one node: its body run for every worker, generators in lock step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from tofu_tf.ops.registry import Body, Piece
from tofu_tf.rewrite import naming
from tofu_tf.rewrite.building import Building


class PieceEmitter:
    """Makes one piece's nodes on its worker, or on its `host`; nodes that take one of `handles`
    wait for what it says.
    """

    def __init__(
        self,
        make: Building,
        node: str,
        worker: int,
        controls: Sequence[str] = (),
        handles: Mapping[str, Sequence[str]] | None = None,
        host: bool = False,
    ) -> None:
        self.host = host
        self.make, self.node, self.worker = make, node, worker
        self.controls, self.handles = tuple(controls), handles or {}
        self.made: list[str] = []
        self.touched: dict[str, list[str]] = {}  # handle -> nodes that take it

    def add(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Any] | None = None,
        part: str = "",
        outputs: int = 1,
    ) -> list[str]:
        waits = [*self.controls]
        for i in inputs:
            waits += self.handles.get(i, ())
        name = self.make.add(
            naming.piece(self.node, self.worker, part),
            op,
            self.worker,
            inputs,
            attrs,
            waits,
            self.host,
        )
        self.made.append(name)
        for i in inputs:
            if i in self.handles:
                self.touched.setdefault(i, []).append(name)
        return [naming.tensor(name, n) for n in range(outputs)]

    def const(self, value: np.ndarray, part: str) -> str:
        return self.make.constant(
            np.asarray(value), self.worker, naming.piece(self.node, self.worker, part)
        )


Reduce = Callable[[int, Sequence["str | None"]], "list[str | None]"]


def run_bodies(
    body: Body,
    emitters: Sequence[PieceEmitter | None],
    pieces: Sequence[Piece | None],
    reduce: Reduce,
) -> list[list[str] | None]:
    """Every piece's outputs, None for a worker without a piece.

    `reduce(n, partials)` combines the partials of internal n: one tensor per worker in, one out.
    """
    outputs: list[list[str] | None] = [None] * len(pieces)
    running: dict[int, Generator[str, str, list[str]]] = {}
    partials: list[str | None] = [None] * len(pieces)
    for w, (emit, piece) in enumerate(zip(emitters, pieces, strict=True)):
        if emit is None or piece is None:
            continue
        made = body(emit, piece)
        if isinstance(made, list):
            outputs[w] = made
            continue
        running[w] = made
        partials[w] = _next(running, w, None, outputs)
    internal = 0
    while running:
        totals = reduce(internal, partials)
        partials = [None] * len(pieces)
        for w in list(running):
            partials[w] = _next(running, w, totals[w], outputs)
        internal += 1
    return outputs


def _next(
    running: dict[int, Generator[str, str, list[str]]],
    w: int,
    value: str | None,
    outputs: list[list[str] | None],
) -> str | None:
    """Goes on with worker w's body until its next partial; None when it has ended."""
    try:
        return running[w].send(value)  # type: ignore[arg-type]
    except StopIteration as end:
        outputs[w] = end.value
        del running[w]
        return None
