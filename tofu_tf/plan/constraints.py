"""Layouts asked for by name -> layouts of tensors; what cannot be is refused, all of it at once."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence

from tofu_tf import errors
from tofu_tf.graph.ir import Graph, Ref
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.machine import Machine

# Per dimension None, one cut ("d0"), or several ("d0d1" or ("d0", "d1")).
Wish = Sequence[str | Sequence[str] | None]


def wanted_layouts(
    graph: Graph,
    machine: Machine,
    constraints: Mapping[str, Wish] | None = None,
    pinned: Mapping[str, Layout] | None = None,
) -> dict[Ref, Layout]:
    """The layout that was asked for each tensor.

    Args:
      graph: the step.
      machine: whose cuts d0, d1 ... are meant, outermost first.
      constraints: name -> per dimension the cuts that divide it, as ``(None, "d0")``. A name is
        that of a variable,
        a node (its first output) or ``node:1``, or a pattern (``*/kernel``). Along cuts that are
        not named the tensor is copied.
      pinned: variable name -> layout, as an earlier plan has it.

    Raises:
      ConstraintError: names that match nothing, ranks, cuts or sizes that do not fit.
    """
    found: dict[Ref, Layout] = {}
    wrong: list[str] = []
    check_names(constraints)
    for name, wish in (constraints or {}).items():
        refs = _matching(graph, name)
        if not refs:
            wrong.append(f"{name!r} matches no variable, tensor or node{_like(graph, name)}")
        for ref in refs:
            layout = _read(graph, machine, name, ref, wish, wrong)
            if layout is None:
                continue
            if found.setdefault(ref, layout) != layout:
                wrong.append(
                    f"{name!r}: {ref} is asked to lie both as {found[ref]} and as {layout}"
                )
    for name, layout in (pinned or {}).items():
        variable = graph.variables.get(name)
        if variable is None:
            wrong.append(f"pinned {name!r} is no variable of the step")
            continue
        if len(layout.cuts) != len(machine.factors):
            wrong.append(
                f"pinned {name!r} has {len(layout.cuts)} cuts, the machine {len(machine.factors)}"
            )
            continue
        _check_sizes(f"pinned {name!r}", variable.spec.shape, layout, machine, wrong)
        if found.setdefault(variable.ref, layout) != layout:
            wrong.append(
                f"{name!r} is pinned as {layout} and asked to lie as {found[variable.ref]}"
            )
    if wrong:
        raise errors.ConstraintError(
            "constraints",
            "\n  ".join(("these cannot be met:", *wrong)) if len(wrong) > 1 else wrong[0],
            "for every dimension None or cuts, such as (None, 'd0'), each cut once, and no more "
            "parts than the dimension has elements",
            f"the machine has {_cuts_text(machine)}; printing the plan lists the names",
        )
    return found


def check_names(constraints: object) -> None:
    """Nothing when `constraints` is None or maps names.

    Raises:
      ConstraintError: something else.
    """
    if constraints is None:
        return
    if not isinstance(constraints, Mapping) or not all(isinstance(n, str) for n in constraints):
        raise errors.ConstraintError(
            "constraints",
            f"{constraints!r}",
            "a dict from names to one entry for each dimension",
            'such as {"dense/kernel": (None, "d0")}',
        )


def _cuts_text(machine: Machine) -> str:
    cuts = ", ".join(f"d{s} (in {f})" for s, f in enumerate(machine.factors))
    return f"{machine.workers} workers and the cuts {cuts}" if cuts else "one worker and no cut"


def _matching(graph: Graph, name: str) -> list[Ref]:
    plain = name.removesuffix(":0")
    refs = [v.ref for v in graph.variables.values() if fnmatch.fnmatchcase(v.name, plain)]
    if refs:
        return refs
    stem, colon, index = name.rpartition(":")
    if not (colon and index.isdigit()):
        stem, index = name, "0"
    return [
        Ref(node.name, int(index))
        for node in graph
        if fnmatch.fnmatchcase(node.name, stem) and int(index) < len(node.outputs)
    ]


def _like(graph: Graph, name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name.removesuffix(":0"), list(graph.variables), n=3)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def _read(
    graph: Graph, machine: Machine, name: str, ref: Ref, wish: Wish, wrong: list[str]
) -> Layout | None:
    shape = graph.spec(ref).shape
    if not isinstance(wish, tuple | list) or len(wish) != len(shape):
        wrong.append(
            f"{name!r}: {wish!r} is not one entry for each dimension of {ref} {list(shape)}"
        )
        return None
    cuts: list[int | None] = [None] * len(machine.factors)
    before = len(wrong)
    for d, entry in enumerate(wish):
        for s in _cut_numbers(entry):
            if s is None or s >= len(cuts):
                wrong.append(f"{name!r}: {entry!r} (dimension {d}) names no cut of the machine")
            elif cuts[s] is not None:
                wrong.append(f"{name!r}: cut d{s} is to divide dimensions {cuts[s]} and {d}")
            else:
                cuts[s] = d
    if len(wrong) > before:
        return None
    layout = Layout(tuple(cuts))
    _check_sizes(f"{name!r}", shape, layout, machine, wrong)
    return layout if len(wrong) == before else None


def _cut_numbers(entry: str | Sequence[str] | None) -> list[int | None]:
    if entry is None:
        return []
    if not isinstance(entry, str | tuple | list):
        return [None]
    text = entry if isinstance(entry, str) else "".join(map(str, entry))
    if not re.fullmatch(r"(d\d+)+", text):
        return [None]
    return [int(n) for n in re.findall(r"d(\d+)", text)]


def _check_sizes(
    what: str, shape: tuple[int, ...], layout: Layout, machine: Machine, wrong: list[str]
) -> None:
    if any(c is not None and c >= len(shape) for c in layout.cuts):
        wrong.append(f"{what}: layout {layout} names a dimension that {list(shape)} has not")
        return
    for d, cuts in enumerate(layout.by_dimension(len(shape))):
        parts = 1
        for s in cuts:
            parts *= machine.factors[s]
        if parts > max(shape[d], 1):
            wrong.append(
                f"{what}: axis {d} of {list(shape)} has size {shape[d]} and cannot be cut into "
                f"{parts} parts (k = {machine.workers})"
            )
