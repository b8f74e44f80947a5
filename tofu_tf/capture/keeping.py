"""Python objects, left as they were: whatever a trace changes in them is undone."""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

# Objects of these packages hold nothing of the user's, or hold more than a trace can change.
_FOREIGN = {
    *sys.stdlib_module_names,
    *("absl", "google", "h5py", "jax", "keras", "ml_dtypes", "numpy", "pandas", "scipy"),
    *("tensorflow", "tofu_tf", "torch", "wrapt"),
}
# ... but these of TensorFlow's are the containers in which Keras tracks its attributes, and
# functions that remember what they were traced for.
_CONTAINERS = (
    "tensorflow.python.trackable.",
    "tensorflow.python.util.object_identity",
    "tensorflow.python.eager.polymorphic_function.",
)
_BASES = ("tf_keras.", "tensorflow.python.module.")
# What TensorFlow's proxy of a dictionary says of itself; such a proxy does not list its attributes.
_OF_PROXIES = (
    "_self_unconditional_checkpoint_dependencies",
    "_self_unconditional_dependency_names",
    "_self_non_string_key",
    "_self_external_modification",
    "_self_last_wrapped_dict_snapshot",
)
_OPAQUE = (type, types.ModuleType, tf.Tensor, tf.Variable, tf.Graph, tf.Operation)

Undo = Callable[[], None]


@contextlib.contextmanager
def kept(*roots: Any) -> Iterator[list[Any]]:
    """Undoes on leaving every change to attributes, lists, dictionaries and sets in reach of
    `roots`.

    Yields everything in reach: by attributes, items, closures, and the globals that functions name.
    Tensors, variables and the objects of foreign packages are not looked into: the values of
    variables are not undone.
    """
    found, undo = _snapshot(roots)
    try:
        yield found
    finally:
        for restore in undo:
            restore()


def _snapshot(roots: tuple[Any, ...]) -> tuple[list[Any], list[Undo]]:
    found: list[Any] = []
    undo: list[Undo] = []
    stack, seen = list(roots), set()
    while stack:
        thing = stack.pop()
        if id(thing) in seen or _is_opaque(thing):
            continue
        seen.add(id(thing))
        found.append(thing)  # which also keeps the id from being used again
        children, restores = _parts(thing)
        stack += children
        undo += restores
    return found, undo


def _is_opaque(thing: Any) -> bool:
    return thing is None or issubclass(type(thing), (str, bytes, int, float, complex, *_OPAQUE))


def _parts(thing: Any) -> tuple[list[Any], list[Undo]]:
    """What hangs on `thing`, and what puts it back."""
    kind = type(thing)
    if issubclass(kind, types.FunctionType):
        return _function_parts(thing)
    if issubclass(kind, types.MethodType):
        return [thing.__self__, thing.__func__], []
    if issubclass(kind, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()], []
    if issubclass(kind, tuple | frozenset):
        return list(thing), []
    if hasattr(kind, "__wrapped__") and _has_ours(kind):
        children, undo = _slot_parts(thing, _OF_PROXIES)
        return [thing.__wrapped__, *children], undo
    children, undo = [], []
    if issubclass(kind, list | collections.deque | set):
        children += thing
        undo.append(_restore_items(thing, kind))
    elif issubclass(kind, dict):
        children += thing.values()
        undo.append(_restore_dictionary(thing))
    elif not _has_ours(kind):
        return [], []
    state = getattr(thing, "__dict__", None)
    if type(state) is dict:
        children += state.values()
        undo.append(_restore_dictionary(state))
    more, also = _slot_parts(thing, _slots(kind))
    return children + more, undo + also


def _slot_parts(thing: Any, names: Sequence[str]) -> tuple[list[Any], list[Undo]]:
    values = {name: getattr(thing, name) for name in names if hasattr(thing, name)}
    undo: list[Undo] = [functools.partial(setattr, thing, n, v) for n, v in values.items()]
    return list(values.values()), undo


def _has_ours(kind: type) -> bool:
    module = kind.__module__ or ""
    if module.partition(".")[0] not in _FOREIGN or module.startswith(_CONTAINERS):
        return True
    # a user's module may be called as one of the standard library
    return any((base.__module__ or "").startswith(_BASES) for base in kind.__mro__)


def _slots(kind: type) -> list[str]:
    found: list[str] = []
    for base in kind.__mro__:
        names = base.__dict__.get("__slots__", ())
        found += [names] if isinstance(names, str) else list(names)
    return [n for n in found if n not in ("__dict__", "__weakref__")]


def _function_parts(function: types.FunctionType) -> tuple[list[Any], list[Undo]]:
    children: list[Any] = [
        *(function.__defaults__ or ()),
        *(function.__kwdefaults__ or {}).values(),
    ]
    children += vars(function).values()
    undo: list[Undo] = []
    for cell in function.__closure__ or ():
        try:
            children.append(cell.cell_contents)
        except ValueError:  # empty so far
            continue
        undo.append(functools.partial(setattr, cell, "cell_contents", children[-1]))
    if function.__module__ is not None and function.__module__.partition(".")[0] not in _FOREIGN:
        space = function.__globals__
        names = [n for n in _names(function.__code__) if n in space]
        children += [space[n] for n in names]
        if function.__module__.partition(".")[0] != "tf_keras":
            undo.append(functools.partial(space.update, {n: space[n] for n in names}))
    return children, undo


def _names(code: types.CodeType) -> list[str]:
    """The global names in a function's code, in that of functions inside it too."""
    found = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found += _names(constant)
    return found


def _restore_items(thing: Any, kind: type) -> Undo:
    saved = list(thing)
    if issubclass(kind, list):
        return functools.partial(list.__setitem__, thing, slice(None), saved)

    def restore() -> None:
        thing.clear()
        (thing.extend if issubclass(kind, collections.deque) else thing.update)(saved)

    return restore


def _restore_dictionary(state: dict[Any, Any]) -> Undo:
    saved = list(state.items())

    def restore() -> None:
        now = list(state.items())
        if len(now) == len(saved) and all(
            a is c and b is d for (a, b), (c, d) in zip(now, saved, strict=True)
        ):
            return
        state.clear()
        state.update(saved)

    return restore
