"""Plans, devices and communication as tables for a terminal, and as text of one width elsewhere."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tofu_tf.plan.plans import Plan
from tofu_tf.plan.text import (
    ACTIVATIONS,
    HEADER,
    bytes_text,
    plan_sections,
    shortened,
    size_text,
    summary_lines,
    whole_lines,
)
from tofu_tf.report.communication import Moved
from tofu_tf.report.counting import Communication
from tofu_tf.report.coverage import LARGE_BYTES, Coverage
from tofu_tf.report.devices import Shares

WIDTH = 160  # columns where the output is no terminal
_FLOPS = ("", "K", "M", "G", "T", "P")


def plan_table(plan: Plan, activations: int | None = ACTIVATIONS) -> RenderableType:
    """What `plan_text` says, as tables: figures, variables, the largest other tensors."""
    parts: list[RenderableType] = [
        Text(line) for line in (*summary_lines(plan), *whole_lines(plan))
    ]
    for section in plan_sections(plan, activations):
        title = section.title + (f" ({section.left_out} more)" if section.left_out else "")
        rows = [shortened(row.cells) for row in section.rows]
        parts += ["", _table(title, HEADER, rows, right=("per device",))]
    return Group(*parts)


def devices_table(shares: Shares) -> RenderableType:
    """One row a device: nodes, pieces, FLOPs, bytes held, made, sent and received."""
    header = (
        "device",
        "nodes",
        "pieces",
        "FLOPs",
        "variables",
        "constants",
        "tensors made",
        "sent",
        "received",
    )
    rows = [
        (
            _short(d.device),
            str(d.nodes),
            str(d.pieces),
            count_text(d.flops),
            size_text(d.variable_bytes),
            size_text(d.constant_bytes),
            size_text(d.output_bytes),
            size_text(d.sent),
            size_text(d.received),
        )
        for d in shares.devices
    ]
    parts: list[RenderableType] = [_table("devices", header, rows, right=header[1:])]
    if shares.unknown:
        shown = ", ".join(shares.unknown[:5])
        rest = f" and {len(shares.unknown) - 5} more" if len(shares.unknown) > 5 else ""
        parts.append(Text(f"of unknown size, counted as nothing: {shown}{rest}"))
    if shares.uncounted:
        ops = ", ".join(f"{op} ({n})" for op, n in shares.uncounted.items())
        parts.append(Text(f"without a count of FLOPs: {ops}"))
    return Group(*parts)


def kinds_table(moved: Sequence[Moved], collectives: bool = False) -> RenderableType:
    """One row a kind of communication: how many changes of layout, and their bytes; what goes point
    to point is marked so where `collectives` were to be used.
    """
    rows = [
        (
            f"{m.kind}{' (p2p)' if collectives and not m.collective else ''}",
            str(m.changes),
            size_text(m.nbytes),
            str(m.nbytes),
        )
        for m in moved
    ]
    total = sum(m.nbytes for m in moved)
    rows.append(("total", str(sum(m.changes for m in moved)), size_text(total), str(total)))
    header = ("communication", "changes", "size", "bytes")
    return _table("communication by kind", header, rows, right=header[1:])


def receivers_table(moved: Communication) -> RenderableType:
    """One row an op that receives tensors from other devices, as counted in a placed graph."""
    tensors: dict[str, int] = {}
    for transfer in moved.transfers:
        tensors[transfer.kind] = tensors.get(transfer.kind, 0) + 1
    rows = [(op, str(tensors[op]), size_text(n), str(n)) for op, n in moved.by_kind.items()]
    rows.append(("total", str(len(moved.transfers)), size_text(moved.total), str(moved.total)))
    header = ("received by", "tensors", "size", "bytes")
    return _table("communication by receiving op", header, rows, right=header[1:])


def pairs_table(moved: Communication) -> RenderableType:
    """One row a pair of devices of which the first sends to the second: tensors and bytes."""
    tensors: dict[tuple[str, str], int] = {}
    for t in moved.transfers:
        tensors[t.source, t.destination] = tensors.get((t.source, t.destination), 0) + 1
    rows = [
        (_short(a), _short(b), str(tensors[a, b]), size_text(n), str(n))
        for (a, b), n in sorted(moved.by_pair.items(), key=lambda item: _order(item[0]))
    ]
    rows.append(("total", "", str(len(moved.transfers)), size_text(moved.total), str(moved.total)))
    header = ("from", "to", "tensors", "size", "bytes")
    return _table("communication by pair of devices", header, rows, right=header[2:])


def counted_lines(moved: Communication) -> tuple[str, ...]:
    """What was counted between devices, and apart from it what feeds and results move."""
    return (
        f"counted communication: {bytes_text(moved.total)} per step",
        f"feeds {bytes_text(moved.feeds)}, results {bytes_text(moved.results)}, "
        f"{moved.controls} control edges between devices",
        *([f"with the CPUs beside them {bytes_text(moved.host_copies)}"] if moved.hosted else []),
    )


def coverage_tables(covered: Coverage) -> list[RenderableType]:
    """Described ops with their axes, ops that are not described with the reason, the shares of work
    and of large tensors that can be cut, and whose they are not.
    """
    described = [r for r in covered.ops if not r.reason]
    others = [r for r in covered.ops if r.reason]
    rows = [(r.op, str(r.nodes), f"{_range(r.cuttable)} / {_range(r.axes)}") for r in described]
    parts: list[RenderableType] = [
        _table("described", ("op", "nodes", "axes cut / all"), rows, right=("nodes",))
    ]
    if others:
        rows = [(r.op, str(r.nodes), r.reason) for r in others]
        parts.append(_table("not described", ("op", "nodes", "why"), rows, right=("nodes",)))
    large = [o for o in covered.offenders if o.nbytes]
    if large:
        shown = [(o.node, o.op, size_text(o.nbytes), o.reason) for o in large[:ACTIVATIONS]]
        header = ("node", "op", "size", "why")
        parts.append(_table("large tensors that are never cut", header, shown, right=("size",)))
    counts = [sum(r.nodes for r in rs) for rs in (described, others)]
    parts.append(
        Text(
            f"{counts[0]} nodes of {len(described)} op types are described"
            f"{f', {counts[1]} of {len({r.op for r in others})} are not' if others else ''}\n"
            f"that can be cut: {covered.flops_share:.2%} of {count_text(covered.flops)} FLOPs, "
            f"{covered.nbytes_share:.2%} of {size_text(covered.nbytes)} in tensors above "
            f"{size_text(LARGE_BYTES)}"
        )
    )
    return parts


def _range(bounds: tuple[int, int]) -> str:
    low, high = bounds
    return str(low) if low == high else f"{low}-{high}"


def count_text(n: int) -> str:
    """``1.23 G`` for a count of operations."""
    size, unit = float(n), 0
    while size >= 1000 and unit < len(_FLOPS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.2f} {_FLOPS[unit]}" if unit else str(n)


def show(*parts: RenderableType, file: TextIO | None = None) -> None:
    """Prints to `file` (stdout): as wide as its terminal, plain and WIDTH columns elsewhere."""
    out = file or sys.stdout
    if out.isatty():
        Console(file=out, highlight=False).print(*_spaced(parts), sep="\n", markup=False)
    else:
        out.write(text_of(*parts))


def text_of(*parts: RenderableType, width: int = WIDTH) -> str:
    """The tables as plain text without trailing spaces."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, force_terminal=False)
    console.print(*_spaced(parts), sep="\n", markup=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _short(device: str) -> str:
    """A device of this host without the part that all of them share."""
    return device.removeprefix("/job:localhost/replica:0/task:0")


def _order(devices: Sequence[str]) -> tuple[object, ...]:
    """Devices as one counts them: CPU:2 before CPU:10."""
    return tuple(int(p) if p.isdigit() else p for d in devices for p in re.split(r"(\d+)", d))


def _spaced(parts: Sequence[RenderableType]) -> list[RenderableType]:
    """`parts` with an empty line before each but the first."""
    return [line for part in parts for line in ("", part)][1:]


def _table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()
) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in header:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
