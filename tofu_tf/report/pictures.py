"""The layout of one tensor as a picture in text: a grid of the devices that own its parts."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Sequence

from tofu_tf import errors
from tofu_tf.graph import traversal
from tofu_tf.graph.ir import Graph, Node, Ref
from tofu_tf.plan.layouts import layout_regions, layout_text
from tofu_tf.plan.plans import Plan
from tofu_tf.plan.text import size_text
from tofu_tf.tdl.regions import Region, Regions

_WIDTH, _HEIGHT = 64, 12  # of a picture's cells, where labels do not need more
_MOST = 16  # readers of a tensor, blocks of its picture, owners named in a cell


def tensor_picture(graph: Graph, plan: Plan, name: str) -> str:
    """The layout of a tensor: a grid of cells with the devices that own them, each as wide and high
    as its part; then each device's share, and what makes and reads the tensor.

    Args:
      graph: the step that `plan` is for.
      name: of a variable (``dense/kernel``), a node, or one of its outputs (``split:1``).

    Raises:
      PlanError: there is no such tensor.
    """
    ref = find_tensor(graph, name)
    spec, layout = graph.spec(ref), plan.layouts.get(ref)
    variable = next((v.name for v in graph.variables.values() if v.ref == ref), "")
    title = f"variable {variable}" if variable else f"tensor {ref}"
    if layout is None:
        return f"{title}: {spec}, a constant: every device has what it reads of it"
    devices = device_names(plan)
    owned = layout_regions(layout, spec.region_shape, plan.machine.factors)
    sizes = owned.sizes() * spec.itemsize
    held = [int(n) for n, there in zip(sizes, owned.present, strict=True) if there]
    lines = [
        f"{title}: {layout_text(layout, spec.shape, spec.dtype)}, {size_text(spec.nbytes)}",
        f"  {_who(owned, devices)} {size_text(min(held))}"
        + (f" to {size_text(max(held))}, as sizes do not divide" if len(set(held)) > 1 else ""),
    ]
    if plan.reasons.get(ref):
        lines.append(f"  why not cut further: {plan.reasons[ref]}")
    lines += ["", *_grids(owned, devices), "", *_uses(graph, ref, variable)]
    return "\n".join(lines)


def device_names(plan: Plan) -> list[str]:
    """The short names of the plan's devices, ``CPU:0``, where these tell them apart."""
    short = [d.rsplit("/device:", 1)[-1] for d in plan.machine.devices]
    return short if len(set(short)) == len(short) else list(plan.machine.devices)


def find_tensor(graph: Graph, name: str) -> Ref:
    """The tensor of that name: a variable's value, or the output of a node.

    Raises:
      PlanError: there is none.
    """
    if name.removesuffix(":0") in graph.variables:
        return graph.variables[name.removesuffix(":0")].ref
    stem, _, index = name.rpartition(":")
    ref = Ref(stem, int(index)) if stem and index.isdigit() else Ref(name)
    if ref.node not in graph.nodes or ref.index >= len(graph.nodes[ref.node].outputs):
        raise _unknown("tensor", name, [*graph.variables, *graph.nodes])
    return ref


def find_node(graph: Graph, name: str) -> Node:
    """The node of that name.

    Raises:
      PlanError: there is none.
    """
    if name not in graph.nodes:
        raise _unknown("op", name, list(graph.nodes))
    return graph.nodes[name]


def _unknown(kind: str, name: str, known: Sequence[str]) -> errors.PlanError:
    within = [k for k in known if name and name in k][:3]
    close = difflib.get_close_matches(name.partition(":")[0], known, n=3) or within
    return errors.PlanError(
        f"{kind} {name}",
        "not in the graph as it was captured",
        f"one of its {len(known)} names",
        f"did you mean {' or '.join(close)}?" if close else "tofu-tf plan --rows=-1 lists them",
    )


def _grids(owned: Regions, devices: Sequence[str]) -> Iterator[str]:
    """Pictures of the cells: along the last two dimensions that are cut, once for each block of the
    others.
    """
    owners: dict[Region, list[int]] = {}
    for w, region in enumerate(owned.tuple()):
        if region is not None:
            owners.setdefault(region, []).append(w)
    rank = owned.rank
    edges = [sorted({r.bounds[d] for r in owners}) for d in range(rank)]
    cut = [d for d in range(rank) if len(edges[d]) > 1]
    down, across = (None, None, *cut)[-2:]
    blocks = list(itertools.product(*(edges[d] for d in cut[:-2])))
    for n, block in enumerate(blocks[:_MOST]):
        fixed = dict(zip(cut[:-2], block, strict=True))
        if fixed:
            yield (
                ("" if not n else "\n")
                + "at "
                + ", ".join(f"dimension {d} {lo}:{hi}" for d, (lo, hi) in fixed.items())
            )
        cells = {
            (
                None if down is None else region.bounds[down],
                None if across is None else region.bounds[across],
            ): _owners(workers, devices)
            for region, workers in owners.items()
            if all(region.bounds[d] == b for d, b in fixed.items())
        }
        rows = [None] if down is None else edges[down]
        columns = [None] if across is None else edges[across]
        yield from _grid(cells, rows, columns, down, across)
    if len(blocks) > _MOST:
        yield f"... and {len(blocks) - _MOST} more"


Range = tuple[int, int] | None


def _grid(
    cells: dict[tuple[Range, Range], str],
    rows: Sequence[Range],
    columns: Sequence[Range],
    down: int | None,
    across: int | None,
) -> Iterator[str]:
    labels = [_range_text(c) for c in columns]
    most = [
        max(len(label), *(len(cells.get((r, c), "")) for r in rows)) + 2
        for label, c in zip(labels, columns, strict=True)
    ]
    widths = _scaled([_size(c) for c in columns], most, _WIDTH)
    heights = _scaled([_size(r) for r in rows], [1] * len(rows), min(_HEIGHT, 2 * len(rows) - 1))
    names = [_range_text(r) for r in rows]
    margin = " " * (2 + max(map(len, names)))
    rule = margin + "+" + "+".join("-" * w for w in widths) + "+"
    if down is not None and across is not None:
        yield f"dimension {down} down, dimension {across} across"
    elif across is not None:
        yield f"dimension {across} across"
    if across is not None:
        edge = zip(labels, widths, strict=True)
        yield (margin + " " + " ".join(t.center(w) for t, w in edge)).rstrip()
    yield rule
    for row, name, height in zip(rows, names, heights, strict=True):
        for line in range(height):
            middle = line == (height - 1) // 2
            start = (f"  {name}" if middle else "").ljust(len(margin))
            texts = [cells.get((row, c), "") if middle else "" for c in columns]
            filled = (t.center(w) for t, w in zip(texts, widths, strict=True))
            yield start + "|" + "|".join(filled) + "|"
        yield rule


def _scaled(sizes: Sequence[int], least: Sequence[int], whole: int) -> list[int]:
    """Lengths in proportion to `sizes`, together about `whole`, none below its `least`."""
    unit = max(whole / max(sum(sizes), 1), max(n / max(s, 1) for n, s in zip(least, sizes)))  # noqa: B905
    return [max(n, round(unit * s)) for n, s in zip(least, sizes, strict=True)]


def _size(edge: Range) -> int:
    return 1 if edge is None else edge[1] - edge[0]


def _range_text(edge: Range) -> str:
    return "" if edge is None else f"{edge[0]}:{edge[1]} ({edge[1] - edge[0]})"


def _who(owned: Regions, devices: Sequence[str]) -> str:
    there = [device for device, has in zip(devices, owned.present, strict=True) if has]
    return "each device owns" if len(there) == len(devices) else f"{', '.join(there)} alone owns"


def _owners(workers: Sequence[int], devices: Sequence[str]) -> str:
    if len(workers) == len(devices) > 1:
        return f"all {len(devices)} devices"
    if len(workers) > 4:
        return f"{devices[workers[0]]} ... {devices[workers[-1]]} ({len(workers)})"
    return " ".join(devices[w] for w in workers)


def _uses(graph: Graph, ref: Ref, variable: str) -> Iterator[str]:
    """What makes the tensor, or writes the variable, and what reads it."""
    refs = [ref]
    if variable:
        refs = list(traversal.versions(graph)[variable])
        writers = [r.node for r in refs if r != ref]
        yield "written by " + (_some(writers) or "nothing in this step")
    else:
        yield f"made by {ref.node} ({graph.nodes[ref.node].op})"
    consumers = traversal.consumers(graph)
    readers = dict.fromkeys(name for r in refs for name, _ in consumers.get(r, ()))
    out = [f"output {n}" for n, r in enumerate(graph.outputs) if r in refs]
    yield "read by " + (_some([*readers, *out]) or "nothing")


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + rest
