"""A Plan as rows and as plain text: its figures, every variable, the largest other tensors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from tofu_tf.graph.ir import Ref, TensorSpec
from tofu_tf.plan.layouts import Layout, layout_regions, layout_text
from tofu_tf.plan.plans import Plan

HEADER = ("tensor", "shape", "layout", "per device", "why not cut")
ACTIVATIONS = 20  # how many tensors that are no variables are shown
_WIDTHS = (48, 24, 48, 10, 60)  # longer names are shortened in their middle
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclasses.dataclass(frozen=True)
class Row:
    """One tensor: `nbytes` are those of the device that owns most of it."""

    tensor: str
    shape: str
    layout: str
    nbytes: int
    reason: str

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        return (self.tensor, self.shape, self.layout, size_text(self.nbytes), self.reason)


@dataclasses.dataclass(frozen=True)
class Section:
    """Rows under a title; `left_out`: how many more there are."""

    title: str
    rows: tuple[Row, ...]
    left_out: int = 0


def plan_text(plan: Plan, activations: int | None = ACTIVATIONS) -> str:
    """The table of `plan`: tensor, shape, layout as ``f32[512@d0, 512@d1]``, bytes, why not cut.

    Bytes are those of the device that owns most. `activations`: how many of the tensors that are no
    variables are shown, largest first; None: all.
    """
    sections = plan_sections(plan, activations)
    cells = [shortened(row.cells) for section in sections for row in section.rows]
    widths = [max(map(len, column)) for column in zip(HEADER, *cells, strict=True)]
    lines = [*summary_lines(plan), *whole_lines(plan)]
    for section in sections:
        lines += ["", section.title, _line(HEADER, widths)]
        lines += [_line(shortened(row.cells), widths) for row in section.rows]
        if section.left_out:
            lines.append(f"... and {section.left_out} more")
    return "\n".join(lines)


def summary_lines(plan: Plan) -> tuple[str, ...]:
    """What the plan is for, how it was found, what it moves, and how many tensors are cut."""
    machine = plan.machine
    factors = " x ".join(map(str, machine.factors)) or "1"
    counts = {"cut": 0, "copied": 0, "on worker 0 only": 0}
    for ref in plan.specs or plan.layouts:
        counts[_way(plan.layouts[ref])] += 1
    shown = ", ".join(f"{n} {way}" for way, n in counts.items())
    return (
        f"plan for {machine.workers} {machine.device_type} devices = {factors}"
        f" ({', '.join(f'd{s}' for s in range(len(machine.factors)))})",
        f"algorithm {plan.algorithm}, objective {plan.objective}",
        f"predicted communication: {bytes_text(plan.predicted_bytes)} per step",
        *certificate_lines(plan),
        f"tensors: {shown}",
    )


def certificate_lines(plan: Plan) -> tuple[str, ...]:
    """How far from the least bytes the plan may be; nothing where nobody knows."""
    if plan.gap is None:
        return ()
    # never rounded to what was not proven
    percent = math.ceil(plan.gap * 1e4) / 100
    close = "optimal" if plan.gap == 0 else f"within {percent:.2f}% of optimal"
    if plan.search_bytes != plan.predicted_bytes:
        close += f" by {bytes_text(plan.search_bytes)}, what is small counted for each reader"
    return (f"certificate: {close}",)


def whole_lines(plan: Plan, most: int = ACTIVATIONS) -> tuple[str, ...]:
    """What runs whole on worker 0 as nothing says how it could be cut, costliest first."""
    if not plan.whole:
        return ()
    nodes = sorted(plan.whole.items(), key=lambda item: -item[1].nbytes)
    shown = [
        f"  {name} ({w.op}): {w.reason}; {size_text(w.nbytes)} moved" for name, w in nodes[:most]
    ]
    more = [f"  ... and {len(nodes) - most} more"] if len(nodes) > most else []
    return ("", f"run whole on worker 0: {len(nodes)}", *shown, *more)


def plan_sections(plan: Plan, activations: int | None = ACTIVATIONS) -> tuple[Section, ...]:
    """Weights, variables shaped like one (optimizer slots), other variables, the largest others.

    A plan that was not given its shapes (`plans.with_specs`) shows names and layouts only.
    """
    named = {v.ref: name for name, v in plan.variables.items()}
    trained = {v.spec.shape for v in plan.variables.values() if v.trainable}
    weights: list[Row] = []
    slots: list[Row] = []
    others: list[Row] = []
    for name, variable in plan.variables.items():
        row = _row(plan, variable.ref, name, variable.spec)
        if variable.trainable:
            weights.append(row)
        elif variable.spec.shape and variable.spec.shape in trained:
            slots.append(row)
        else:
            others.append(row)
    rest = [ref for ref in (plan.specs or plan.layouts) if ref not in named]
    rest.sort(key=lambda ref: -_largest(plan, ref))  # equal ones in the order of the step
    shown = rest if activations is None else rest[:activations]
    rows = tuple(_row(plan, r, str(r).removesuffix(":0"), plan.specs.get(r)) for r in shown)
    sections = (
        Section("weights", tuple(weights)),
        Section("variables shaped like a weight", tuple(slots)),
        Section("other variables" if weights else "variables", tuple(others)),
        Section("other tensors, largest first", rows, len(rest) - len(rows)),
    )
    return tuple(s for s in sections if s.rows)


def size_text(nbytes: int) -> str:
    """``4 B``, ``1.50 KiB`` ..."""
    size, unit = float(nbytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.2f} {_UNITS[unit]}" if unit else f"{nbytes} B"


def bytes_text(nbytes: int) -> str:
    """``1.50 KiB (1536 bytes)``: to read and to compare."""
    return size_text(nbytes) if nbytes < 1024 else f"{size_text(nbytes)} ({nbytes} bytes)"


def shortened(cells: Sequence[str], widths: Sequence[int] = _WIDTHS) -> list[str]:
    """`cells`, those that are too wide with ``...`` in their middle."""
    return [_short(cell, width) for cell, width in zip(cells, widths, strict=True)]


def _short(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    left = (width - 3) // 2
    return f"{text[:left]}...{text[len(text) - (width - 3 - left) :]}"


def _way(layout: Layout) -> str:
    if layout.home:
        return "on worker 0 only"
    return "copied" if layout.replicated else "cut"


def _largest(plan: Plan, ref: Ref) -> int:
    spec = plan.specs.get(ref)
    return spec.nbytes if spec else 0


def _row(plan: Plan, ref: Ref, name: str, spec: TensorSpec | None) -> Row:
    layout, reason = plan.layouts[ref], plan.reasons.get(ref, "")
    if spec is None:
        return Row(name, "", str(layout), 0, reason)
    owned = layout_regions(layout, spec.region_shape, plan.machine.factors).sizes()
    shape = "x".join("?" if d < 0 else str(d) for d in spec.shape) or "scalar"
    nbytes = int(owned.max()) * spec.itemsize
    return Row(name, shape, layout_text(layout, spec.shape, spec.dtype), nbytes, reason)


def _line(cells: Iterable[str], widths: Sequence[int]) -> str:
    padded = [
        c.rjust(w) if i == HEADER.index("per device") else c.ljust(w)
        for i, (c, w) in enumerate(zip(cells, widths, strict=True))
    ]
    return ("  " + "  ".join(padded)).rstrip()
