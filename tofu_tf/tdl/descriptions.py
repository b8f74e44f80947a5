"""Descriptions: an operator's lambdas, run once on symbols, as axes, reads and writes."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tofu_tf import errors
from tofu_tf.tdl import expressions
from tofu_tf.tdl.expressions import Affine

# Of every dimension where it is accessed, None: all of it. More forms than dimensions: only where
# those are 0 is anything accessed.
Dims = tuple[Affine | None, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    """Where an output's elements go, and what partial outputs are combined with.

    `reducer`: Sum, Max, Min or Prod when the value is one reduction over `over`, else None.
    `depends`: every axis that the value depends on.
    """

    dims: Dims
    reducer: str | None = None
    over: frozenset[str] = frozenset()
    depends: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Description:
    """One operator on given shapes.

    `extents`: every loop axis and its extent, in order of appearance. `reads[i]`: the accesses of
    input i (their union is read). `writes[o]`: output o. `internals`: partial results that a body
    reduces and gives back to all parts. `fixed`: axes that must not be cut. `exact`: a part must
    read just the elements that it uses (a reshape), so that reads may not have holes either.
    `serves[i]`: the only outputs that input i is of use for; where it is not named, for all.
    """

    extents: Mapping[str, int]
    reads: tuple[tuple[Dims, ...], ...]
    writes: tuple[Write, ...]
    shapes: tuple[tuple[int, ...], ...]
    out_shapes: tuple[tuple[int, ...], ...]
    internals: tuple[Write, ...] = ()
    fixed: frozenset[str] = frozenset()
    exact: bool = False
    serves: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        reads = ", ".join(
            " and ".join(_access_text(dims, len(shape)) for dims in accesses) or "-"
            for accesses, shape in zip(self.reads, self.shapes, strict=True)
        )
        writes = ", ".join(
            _dims_text(w.dims)
            + (f" by {w.reducer} over {','.join(sorted(w.over))}" if w.over else "")
            for w in self.writes
        )
        return f"{reads} -> {writes}"


def _access_text(dims: Dims, rank: int) -> str:
    guards = [f" if {g} = 0" for g in dims[rank:]]
    return _dims_text(dims[:rank]) + "".join(guards)


def _dims_text(dims: Dims) -> str:
    return "[" + ", ".join(":" if d is None else str(d) for d in dims) + "]"


def describe(
    function: Callable[..., Any],
    operands: Sequence[tuple[tuple[int, ...], str] | Any],
    out_shapes: Sequence[tuple[int, ...]],
    attributes: Mapping[str, Any] | None = None,
    internals: Sequence[Sequence[str]] = (),
    exact: bool = False,
) -> Description:
    """The Description of `function` on operands of given ``(shape, dtype)`` and outputs of given
    shapes.

    `function(*operands, **attributes)` returns one lambda per output (or one lambda for one output)
    from coordinates to a value; ``lambda *i: ...`` takes as many axes as its output has dimensions.
    Axes are known by their names: the same name in two lambdas is the same axis. An operand that is
    not a ``(shape, dtype)`` pair is handed over as it is (a constant read as an attribute).

    Raises:
      DescriptionError: a coordinate that is not affine, with the lambda's text; an unknown extent.
    """
    splits: dict[str, int] = {}
    extents: dict[str, int] = {}
    for _ in range(64):
        try:
            found = _describe_once(
                function, operands, out_shapes, attributes or {}, internals, splits, extents
            )
            return dataclasses.replace(found, exact=exact)
        except expressions.SplitNeeded as need:
            splits[need.axis] = need.inner_extent
    raise errors.DescriptionError(getattr(function, "__name__", "?"), "axes split without end")


def _describe_once(
    function: Callable[..., Any],
    operands: Sequence[Any],
    out_shapes: Sequence[tuple[int, ...]],
    attributes: Mapping[str, Any],
    internals: Sequence[Sequence[str]],
    splits: Mapping[str, int],
    known: dict[str, int],
) -> Description:
    state = expressions.Tracing(known, splits)
    args: list[Any] = []
    shapes: list[tuple[int, ...]] = []
    for i, operand in enumerate(operands):
        if isinstance(operand, tuple) and len(operand) == 2 and isinstance(operand[0], tuple):
            args.append(expressions.Operand(i, operand[0], operand[1]))
            shapes.append(operand[0])
        else:
            args.append(operand)
            shapes.append(())
    writes: list[Write] = []
    with expressions.tracing(state):
        state.text = lambda: getattr(function, "__name__", "?")
        returned = function(*args, **attributes)
        lambdas = returned if isinstance(returned, tuple) else (returned,)
        if len(lambdas) != len(out_shapes):
            raise state.refuse(f"{len(lambdas)} lambdas for {len(out_shapes)} outputs")
        for body, shape in zip(lambdas, out_shapes, strict=True):
            writes.append(_run(state, body, shape))
    extents = _extents(state, shapes)
    for name in list(state.extents):
        known[name] = state.extents[name]
    reads: list[list[Dims]] = [[] for _ in operands]
    for index, dims in state.accesses:
        if dims not in reads[index]:
            reads[index].append(dims)
    whole = frozenset(a for a in extents if a in state.inner or a in state.fixed)
    every = frozenset(extents)
    inside = tuple(
        Write(
            tuple(Affine.of({a: 1}, 0) for a in axes),
            "Sum",
            frozenset(every - frozenset(axes)),
            every,
        )
        for axes in internals
    )
    return Description(
        extents,
        tuple(tuple(r) for r in reads),
        tuple(_leaves(w, state) for w in writes),
        tuple(shapes),
        tuple(tuple(s) for s in out_shapes),
        inside,
        whole,
    )


def _run(state: expressions.Tracing, body: Callable[..., Any], shape: tuple[int, ...]) -> Write:
    """The Write of one output's lambda."""
    state.text = lambda: lambda_text(body)
    names = _names(body, len(shape))
    if len(names) != len(shape):
        raise state.refuse(f"{len(names)} coordinates for an output of shape {tuple(shape)}")
    for name, n in zip(names, shape, strict=True):
        if state.extents.setdefault(name, int(n)) != int(n):
            raise state.refuse(f"axis {name} has extents {state.extents[name]} and {n}")
    state.used = set()
    symbols = [state.symbol(name) for name in names]
    value = body(*symbols)
    if isinstance(value, expressions.Value) and value.tainted:
        raise state.refuse("an access is not affine")
    if isinstance(value, expressions.NonAffine) and not isinstance(value, expressions.Value):
        raise state.refuse("the result is a coordinate that is not affine")
    reducer = value.reducer if isinstance(value, expressions.Value) else None
    over = value.axes if isinstance(value, expressions.Value) else frozenset()
    return Write(tuple(symbols), reducer, over, frozenset(state.used))


def _names(body: Callable[..., Any], rank: int) -> tuple[str, ...]:
    """The output axes of a lambda; one ``*i`` takes what the other parameters leave of the rank."""
    if isinstance(body, expressions.Named):
        return body.names
    parameters = inspect.signature(body).parameters.values()
    starred = [p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL]
    plain = sum(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters)
    rest = max(rank - plain, 0)
    return expressions.axis_names(body, dict.fromkeys(starred, rest))


def _leaves(write: Write, state: expressions.Tracing) -> Write:
    """The write with axes that were cut apart replaced by their parts."""

    def leaves(names: frozenset[str]) -> frozenset[str]:
        out: set[str] = set()
        for name in names:
            if name in state.splits:
                out |= leaves(frozenset({f"{name}.0", f"{name}.1"}))
            else:
                out.add(name)
        return frozenset(out)

    return dataclasses.replace(write, over=leaves(write.over), depends=leaves(write.depends))


def _extents(state: expressions.Tracing, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """Every axis's extent; a reduction axis's is the size of the dimension that it indexes
    alone.
    """
    for index, dims in state.accesses:
        for d, e in enumerate(dims):
            if d < len(shapes[index]) and e is not None and e.axis is not None:
                state.extents.setdefault(e.axis, shapes[index][d])
    order: dict[str, int] = {}
    names = [a for _, dims in state.accesses for e in dims if e is not None for a, _ in e.terms]
    for name in [*state.extents, *names]:
        if name in state.splits or name in order:
            continue
        if name not in state.extents:
            raise state.refuse(
                f"the extent of axis {name} is unknown: no input is indexed by it alone; "
                f"give it by keyword, as in Sum(lambda {name}: ..., {name}=3)"
            )
        order[name] = state.extents[name]
    return order


def lambda_text(body: Callable[..., Any]) -> str:
    """The source text of a lambda, or its name where there is none."""
    if isinstance(body, expressions.Named):
        body = body.body
    try:
        text = inspect.getsource(body).strip()
    except (OSError, TypeError):
        return getattr(body, "__name__", repr(body))
    return " ".join(text.split())
