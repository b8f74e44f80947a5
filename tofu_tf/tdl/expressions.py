"""Coordinates and values of the description language: what a description's lambda computes with.

A coordinate is an affine form of the loop axes with whole coefficients over one whole divisor. ``e
/ c`` reads "only where c divides e" (a strided operator's inverse); ``e // c`` and ``e % c`` are
exact on whole
factors: an axis that they cut apart is replaced by an outer and an inner axis.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tofu_tf import errors


class SplitNeeded(Exception):
    """Raised while tracing: axis `axis` must become ``outer * inner_extent + inner``."""

    def __init__(self, axis: str, inner_extent: int) -> None:
        super().__init__(axis, inner_extent)
        self.axis, self.inner_extent = axis, inner_extent


class Tracing:
    """What one run of a description's lambdas has seen."""

    def __init__(self, extents: Mapping[str, int], splits: Mapping[str, int]) -> None:
        self.extents: dict[str, int] = dict(extents)
        self.splits = dict(splits)
        self.accesses: list[tuple[int, tuple[Any, ...]]] = []
        self.inner: set[str] = set()  # axes of reductions that are not the outermost operation
        self.fixed: set[str] = set()  # axes that index the result of an opaque part
        self.used: set[str] = set()  # axes met in the lambda that runs now
        self.text: Callable[[], str] = lambda: "?"

    def symbol(self, name: str) -> Affine:
        """The axis `name` as a coordinate, in terms of its parts when it has been cut apart."""
        self.used.add(name)
        if name in self.splits:
            inner = self.splits[name]
            if name in self.extents:
                self.extents[f"{name}.0"] = self.extents[name] // inner
                self.extents[f"{name}.1"] = inner
            return self.symbol(f"{name}.0") * inner + self.symbol(f"{name}.1")
        return Affine.of({name: 1}, 0)

    def refuse(self, what: str) -> errors.DescriptionError:
        return errors.DescriptionError(
            f"description {self.text()}",
            what,
            "coordinates that are affine in the axes, with // and % on whole factors only",
            "put the access into Opaque(...), which leaves those axes whole",
        )


_current: contextvars.ContextVar[Tracing] = contextvars.ContextVar("tracing")


@contextlib.contextmanager
def tracing(state: Tracing) -> Iterator[None]:
    token = _current.set(state)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Tracing:
    return _current.get()


def _lost(*coordinates: object) -> NonAffine:
    """What arithmetic leaves when it is not affine: the axes in it can no longer be cut."""
    for c in coordinates:
        if isinstance(c, Affine):
            current().fixed |= {a for a, _ in c.terms}
    return NonAffine()


@dataclasses.dataclass(frozen=True, slots=True)
class Affine:
    """``(sum of coefficient * axis + offset) / divisor``, present only where that is whole."""

    terms: tuple[tuple[str, int], ...]
    offset: int = 0
    divisor: int = 1

    @staticmethod
    def of(terms: Mapping[str, int], offset: int, divisor: int = 1) -> Affine:
        return Affine(tuple(sorted((a, c) for a, c in terms.items() if c)), offset, divisor)

    @property
    def axis(self) -> str | None:
        """The axis's name when this is that axis and nothing else."""
        if self.divisor == 1 and not self.offset and len(self.terms) == 1 and self.terms[0][1] == 1:
            return self.terms[0][0]
        return None

    def _plus(self, other: object, sign: int) -> Affine | NonAffine:
        if isinstance(other, int):
            other = Affine((), other)
        if not isinstance(other, Affine):
            return _lost(self)
        terms: dict[str, int] = {}
        for a, c in self.terms:
            terms[a] = c * other.divisor
        for a, c in other.terms:
            terms[a] = terms.get(a, 0) + sign * c * self.divisor
        offset = self.offset * other.divisor + sign * other.offset * self.divisor
        return Affine.of(terms, offset, self.divisor * other.divisor)

    def __add__(self, other: object) -> Any:
        return self._plus(other, 1)

    __radd__ = __add__

    def __sub__(self, other: object) -> Any:
        return self._plus(other, -1)

    def __rsub__(self, other: object) -> Any:
        return (self * -1) + other

    def __neg__(self) -> Any:
        return self * -1

    def __mul__(self, other: object) -> Any:
        if not isinstance(other, int):
            return _lost(self, other)
        return Affine.of({a: c * other for a, c in self.terms}, self.offset * other, self.divisor)

    __rmul__ = __mul__

    def __truediv__(self, other: object) -> Any:
        if not isinstance(other, int) or other <= 0:
            return _lost(self, other)
        return Affine(self.terms, self.offset, self.divisor * other)

    def _divide(self, c: int) -> tuple[Affine, Affine] | None:
        """Quotient and remainder by c, None when an axis's extent is unknown or a factor not
        whole.
        """
        state = current()
        if self.divisor != 1 or c <= 0:
            return None
        quotient, remainder = {}, {}
        rest = self.offset % c
        for a, k in self.terms:
            if k % c == 0:
                quotient[a] = k // c
            else:
                remainder[a] = k
        if any(k < 0 or a not in state.extents for a, k in remainder.items()):
            return None
        span = rest + sum(k * (state.extents[a] - 1) for a, k in remainder.items())
        if span >= c:
            for a, k in remainder.items():
                inner = c // k
                if k * state.extents[a] > c:
                    if rest or c % k or state.extents[a] % inner:
                        return None
                    raise SplitNeeded(a, inner)
            return None
        return Affine.of(quotient, self.offset // c), Affine.of(remainder, rest)

    def __floordiv__(self, other: object) -> Any:
        parts = self._divide(other) if isinstance(other, int) else None
        return parts[0] if parts else _lost(self, other)

    def __mod__(self, other: object) -> Any:
        parts = self._divide(other) if isinstance(other, int) else None
        return parts[1] if parts else _lost(self, other)

    def __str__(self) -> str:
        parts = [a if c == 1 else f"-{a}" if c == -1 else f"{c}*{a}" for a, c in self.terms]
        if self.offset or not parts:
            parts.append(str(self.offset))
        text = " + ".join(parts).replace("+ -", "- ")
        return text if self.divisor == 1 else f"({text}) / {self.divisor}"


class NonAffine:
    """A coordinate that the analysis cannot follow; allowed inside Opaque only."""

    def _again(self, *others: object) -> NonAffine:
        return _lost(*others)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _again
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _again
    __neg__ = __pow__ = __rpow__ = _again


class Value(NonAffine):
    """A value of an element; arithmetic on it yields a value (used as a coordinate it is not
    affine).

    `reducer` and `axes` are set while the value is exactly one reduction's result.
    """

    def __init__(
        self, reducer: str | None = None, axes: frozenset[str] = frozenset(), tainted: bool = False
    ) -> None:
        self.reducer, self.axes, self.tainted = reducer, axes, tainted

    def _combine(self, *others: object) -> Value:
        values = [self, *(v for v in others if isinstance(v, Value))]
        for v in values:
            current().inner |= v.axes
        return Value(tainted=any(v.tainted for v in values))

    def _scale(self, other: object) -> Value:
        # a sum scaled by a plain number is still that sum
        if isinstance(other, int | float) and self.reducer in (None, "Sum"):
            return self
        return self._combine(other)

    __mul__ = __rmul__ = __truediv__ = _scale  # type: ignore[assignment]
    __add__ = __radd__ = __sub__ = __rsub__ = __rtruediv__ = _combine
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _combine
    __and__ = __or__ = __lt__ = __le__ = __gt__ = __ge__ = _combine

    def __neg__(self) -> Value:  # type: ignore[override]
        return self._scale(-1)


def apply(*values: object) -> Value:
    """Any element-wise function of the given values (its name does not matter to the analysis)."""
    return Value()._combine(*values)


class Operand:
    """An input of the described op: `shape`, `rank`, `dtype`, and element access ``x[i, j]``."""

    def __init__(
        self, index: int, shape: tuple[int, ...], dtype: str, guards: tuple[Affine, ...] = ()
    ) -> None:
        self.index, self.shape, self.dtype = index, shape, dtype
        self._guards = guards

    def only(self, *coordinates: Affine) -> Operand:
        """The same input, read only where all these coordinates are 0."""
        return Operand(self.index, self.shape, self.dtype, (*self._guards, *coordinates))

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __getitem__(self, coordinates: object) -> Value:
        coords = coordinates if isinstance(coordinates, tuple) else (coordinates,)
        state = current()
        if len(coords) != self.rank:
            raise state.refuse(
                f"input {self.index} has shape {self.shape} and is read with {len(coords)} "
                "coordinates"
            )
        tainted = False
        dims: list[Affine | None] = []
        for c in coords:
            if isinstance(c, bool | float) or not isinstance(c, int | Affine | slice | NonAffine):
                raise state.refuse(f"input {self.index} is read at {c!r}")
            if isinstance(c, slice):
                if c != slice(None):
                    raise state.refuse(f"input {self.index} is read at {c}; only ':' is known")
                dims.append(None)
            elif isinstance(c, NonAffine):
                tainted = True
                dims.append(None)
            else:
                dims.append(Affine((), c) if isinstance(c, int) else c)
        state.accesses.append((self.index, (*dims, *self._guards)))
        return Value(tainted=tainted)

    def broadcast(self, *axes: Any) -> Value:
        """The element that broadcasting reads for output coordinates `axes` (right-aligned)."""
        own = axes[len(axes) - self.rank :]
        return self[tuple(0 if n == 1 else a for n, a in zip(self.shape, own, strict=True))]


class _OpaqueValue(Value):
    def __getitem__(self, coordinates: object) -> Value:
        coords = coordinates if isinstance(coordinates, tuple) else (coordinates,)
        for c in coords:
            if isinstance(c, Affine):
                current().fixed |= {a for a, _ in c.terms}
        return Value()


def Opaque(*values: object) -> _OpaqueValue:
    """A part whose inside is not analysed; axes that index its result, ``Opaque(...)[i]``, stay
    whole.
    """
    for v in values:
        if isinstance(v, Value):
            current().inner |= v.axes
    return _OpaqueValue()


@dataclasses.dataclass(frozen=True)
class Named:
    """A lambda whose coordinates have the given axis names, where its parameters cannot say
    them.
    """

    names: tuple[str, ...]
    body: Callable[..., Any]

    def __call__(self, *coordinates: Any) -> Any:
        return self.body(*coordinates)


def axis_names(body: Callable[..., Any], ranks: Mapping[str, int]) -> tuple[str, ...]:
    """The axes of a lambda's parameters: ``*i`` stands for ``i0, i1 ...``, ``ranks["i"]`` of
    them.
    """
    if isinstance(body, Named):
        return body.names
    names: list[str] = []
    for name, p in inspect.signature(body).parameters.items():
        if p.kind is inspect.Parameter.KEYWORD_ONLY:
            continue  # a value bound by default, as in lambda *i, n=n: ...
        if p.kind is not inspect.Parameter.VAR_POSITIONAL:
            names.append(name)
        elif name not in ranks:
            raise current().refuse(
                f"the number of axes *{name} is unknown: give {name}=(extents ...)"
            )
        else:
            names += [f"{name}{d}" for d in range(ranks[name])]
    return tuple(names)


def _reduction(
    reducer: str, body: Callable[..., Any], extents: Mapping[str, int | Sequence[int]]
) -> Value:
    state = current()
    given: dict[str, int] = {}
    ranks: dict[str, int] = {}
    for name, n in extents.items():
        if isinstance(n, Sequence):
            ranks[name] = len(n)
            given |= {f"{name}{d}": int(m) for d, m in enumerate(n)}
        else:
            given[name] = int(n)
    names = axis_names(body, ranks)
    for name in names:
        if name in given:
            state.extents[name] = given[name]
    result = body(*(state.symbol(name) for name in names))
    if not names and isinstance(result, Value):
        return result
    if not isinstance(result, Value):
        return Value(reducer, frozenset(names))
    if result.reducer not in (None, reducer):
        state.inner |= result.axes
        return Value(reducer, frozenset(names), result.tainted)
    return Value(reducer, frozenset(names) | result.axes, result.tainted)


def Sum(body: Callable[..., Any], **extents: int | Sequence[int]) -> Value:
    """The sum of ``body`` over its parameters.

    Give an axis's extent by keyword where no input's dimension is it; ``Sum(lambda *r: ..., r=(3,
    5))`` sums over axes r0 and r1.
    """
    return _reduction("Sum", body, extents)


def Max(body: Callable[..., Any], **extents: int | Sequence[int]) -> Value:
    """The maximum over the parameters of ``body``."""
    return _reduction("Max", body, extents)


def Min(body: Callable[..., Any], **extents: int | Sequence[int]) -> Value:
    """The minimum over the parameters of ``body``."""
    return _reduction("Min", body, extents)


def Prod(body: Callable[..., Any], **extents: int | Sequence[int]) -> Value:
    """The product over the parameters of ``body``."""
    return _reduction("Prod", body, extents)
