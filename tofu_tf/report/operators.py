"""Described ops and their derived strategies, a line each, and as the tables of docs/ops.md."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from tofu_tf.ops.applicable import Applied
from tofu_tf.ops.registry import REGISTRY, OpEntry
from tofu_tf.report.sampled import Sampled, sampled
from tofu_tf.tdl import strategies
from tofu_tf.tdl.descriptions import Dims
from tofu_tf.tdl.regions import Regions

_PARTS = (2,)  # strategies are shown by cutting an axis in two


@dataclasses.dataclass(frozen=True)
class Operator:
    """What is shown of a described op, of one of its samples.

    `signature`: ``([i, k], [k, j]) -> [i, j]``. `cuts`: (axes, body, what a cut along each of them
    reads and writes). `whole`: (axes that are never cut, why).
    """

    name: str
    signature: str
    cuts: tuple[tuple[tuple[str, ...], str, str], ...]
    whole: tuple[tuple[tuple[str, ...], str], ...]
    uncuttable: str

    @property
    def cuttable(self) -> int:
        """How many axes can be cut by some body."""
        return len({axis for axes, _, _ in self.cuts for axis in axes})

    @property
    def total(self) -> int:
        """How many axes of two elements and more there are."""
        return self.cuttable + sum(len(axes) for axes, _ in self.whole)


def operators(registry: Mapping[str, OpEntry] | None = None) -> tuple[Operator, ...]:
    """Every registered op by name, on its first sample."""
    entries = sorted((REGISTRY if registry is None else registry).items())
    return tuple(operator(entry) for _, entry in entries if entry.samples)


def operator(entry: OpEntry, sample: int = 0) -> Operator:
    """The op on one of its samples."""
    found = sampled(entry, entry.samples[sample])
    cuts: dict[tuple[str, str], list[str]] = {}
    known: set[str] = set()
    for applied in found.described.applied:
        for axis in applied.axes:
            if axis not in known:
                text = _cut_text(applied, axis)
                cuts.setdefault((applied.variant.name, text), []).append(axis)
        known |= set(applied.axes)
    return Operator(
        entry.name,
        _signature(found),
        tuple((tuple(axes), body, text) for (body, text), axes in cuts.items()),
        _whole_axes(found.described.applied, known),
        entry.uncuttable,
    )


def operator_line(shown: Operator) -> str:
    """``MatMul  ([i, k], [k, j]) -> [i, j]  cut i: in0[0], in1 whole; cut k: ...``."""
    cuts = [
        f"cut {','.join(axes)}{f' ({body})' if body else ''}: {text}"
        for axes, body, text in shown.cuts
    ]
    cuts += [f"whole {','.join(axes)}: {why}" for axes, why in shown.whole]
    if not shown.cuts:
        cuts = [f"not cut: {shown.uncuttable or 'no reason is given'}"]
    return f"{shown.name}  {shown.signature}  {'; '.join(cuts)}"


def _signature(found: Sampled) -> str:
    description = found.described.applied[0].description
    reads = [
        str(found.graph.const(ref).tolist())  # type: ignore[union-attr]
        if i in found.described.constants and found.described.constants[i].size <= 4
        else "const"
        if i in found.described.constants
        else " and ".join(_dims(dims) for dims in accesses) or "-"
        for i, (ref, accesses) in enumerate(zip(found.node.inputs, description.reads, strict=True))
    ]
    writes = ", ".join(_dims(w.dims) for w in description.writes)
    return f"({', '.join(reads)}) -> {writes}"


def _dims(dims: Dims) -> str:
    return "[" + ", ".join(":" if d is None else str(d) for d in dims) + "]"


def _cut_text(applied: Applied, axis: str) -> str:
    """What each half reads of each input along the axis, and what becomes of the outputs."""
    description = applied.description
    work = strategies.work_of(description, (axis,), _PARTS)
    parts = [
        _read_text(f"in{i}", regions, shape)
        for i, (regions, shape) in enumerate(zip(work.reads, description.shapes, strict=True))
        if description.reads[i] and shape
    ]
    inside = sum(axis in w.over for w in description.internals)
    parts += [f"{inside} sums inside"] if inside else []
    reduced: dict[str, list[int]] = {}
    for o, (write, regions) in enumerate(zip(description.writes, work.writes, strict=True)):
        if axis in write.over and write.reducer is not None:
            reduced.setdefault(f"reduce {write.reducer}", []).append(o)
        elif not _moved(regions, description.out_shapes[o]):
            reduced.setdefault("in both", []).append(o)
    several = len(description.writes) > 1
    parts += [
        f"out{','.join(map(str, outs))} {what}" if several else what
        for what, outs in reduced.items()
    ]
    return ", ".join(parts) or "reads nothing"


def _moved(regions: Regions, shape: Sequence[int]) -> list[int]:
    """The dimensions along which the halves' regions differ from the whole."""
    return [
        d for d, n in enumerate(shape) if np.any((regions.lo[:, d] > 0) | (regions.hi[:, d] < n))
    ]


def _read_text(name: str, regions: Regions, shape: Sequence[int]) -> str:
    """``in0[1]`` for halves of dimension 1, ``in0[1]+2`` with a halo of 2, ``in0 whole``."""
    if not all(regions.present):
        return f"{name} in one half"
    touched = _moved(regions, shape)
    if not touched:
        return f"{name} whole"
    found = []
    for d in touched:
        shared = int(regions.hi[:, d].min() - regions.lo[:, d].max())
        found.append(f"{name}[{d}]{f'+{shared}' if shared > 0 else ''}")
    return " ".join(found)


def _whole_axes(
    variants: Sequence[Applied], cut: set[str]
) -> tuple[tuple[tuple[str, ...], str], ...]:
    """Axes of two elements and more that no body can cut, by the reason why."""
    first = variants[0]
    reasons: dict[str, list[str]] = {}
    for axis, extent in first.description.extents.items():
        if extent > 1 and axis not in cut:
            reasons.setdefault(_why_whole(first, axis), []).append(axis)
    return tuple((tuple(axes), why) for why, axes in reasons.items())


def _why_whole(applied: Applied, axis: str) -> str:
    description = applied.description
    if axis.split(".")[0] in applied.variant.uncut:
        return "no kernel runs on a part of it"
    if axis in description.fixed:
        return "all of it is needed at once"
    return "an output needs all of it"


@functools.cache
def _best(name: str) -> Operator:
    """The op on the sample that shows the most axes that can be cut, then the most axes."""
    entry = REGISTRY[name]
    shown = [operator(entry, i) for i in range(len(entry.samples))]
    return max(shown, key=lambda o: (o.cuttable, o.total))


def operators_markdown() -> str:
    """The tables of all described ops for docs/ops.md: axes, and what is never cut and why."""
    _best.cache_clear()
    names = sorted(name for name, entry in REGISTRY.items() if entry.samples)
    shown = [_best(name) for name in names]
    lines = [
        "| op | axes cut / all | in -> out | along |",
        "|---|---|---|---|",
    ]
    for o in shown:
        axes = ", ".join(axis for axes, _, _ in o.cuts for axis in axes) or "-"
        signature = o.signature.replace("|", "\\|")
        lines.append(f"| {o.name} | {o.cuttable} / {o.total} | `{signature}` | {axes} |")
    uncuttable = [o for o in shown if not o.cuts]
    lines += ["", "## Ops that are never cut", "", f"{len(uncuttable)} ops:", ""]
    lines += [f"- {o.name}: {o.uncuttable or 'no reason is given'}" for o in uncuttable]
    partly = [o for o in shown if o.cuts and o.whole]
    lines += ["", "## Ops with axes that are never cut", "", f"{len(partly)} ops:", ""]
    lines += ["| op | axes | why |", "|---|---|---|"]
    lines += [f"| {o.name} | {', '.join(axes)} | {why} |" for o in partly for axes, why in o.whole]
    return "\n".join(lines) + "\n"
