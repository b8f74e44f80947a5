"""Variables whose value lies in parts on several devices, behind the user's own variable object.

The object stays: its class is replaced by a subclass that reads and writes the parts, so that
layers, optimizers, metrics and checkpoints see whole current values. Its own resource is emptied,
which frees the memory and makes functions that still hold it fail instead of returning old numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tofu_tf import errors
from tofu_tf.capture.abstract import check_value
from tofu_tf.runtime import devices, gathering, private_api, shown
from tofu_tf.tdl.regions import Region


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Where a part of a variable lies."""

    device: str
    region: Region


class ShardedVariable:
    """The parts of one variable and what the user's object shows of them.

    `origin` is whatever the caller wants to know again of where the parts came from.
    """

    def __init__(self, variable: Any, parts: Sequence[Part]) -> None:
        self.shape = tuple(int(n) for n in variable.shape)
        self.dtype: tf.DType = variable.dtype
        self.name: str = variable.name.split(":")[0]
        self.handle = variable.handle  # of the emptied resource
        self.origin: tuple[Any, ...] | None = None
        self._check(parts)
        source = _Whole(variable)
        self._parts, self._resources = tuple(parts), source.copy(self.name, parts)
        private_api.empty(self.handle, self.dtype)

    @property
    def parts(self) -> tuple[Part, ...]:
        return self._parts

    @property
    def resources(self) -> tuple[Any, ...]:
        """One variable per part."""
        return self._resources

    @property
    def handles(self) -> tuple[Any, ...]:
        return tuple(r.handle for r in self._resources)

    def reshard(self, parts: Sequence[Part]) -> None:
        """Moves the value into other parts; those that stay where they are keep their resources."""
        if tuple(parts) == self._parts:
            self._parts = tuple(parts)  # the same object makes the next comparison quick
            return
        self._check(parts)
        with tf.init_scope():
            left = self._resources
            self._resources = self._moved(parts)
            for resource in left:
                # A traced function may hold it: it must fail, not return old numbers.
                if not any(resource is kept for kept in self._resources):
                    private_api.empty(resource.handle, self.dtype)
        self._parts = tuple(parts)

    def read(self) -> Any:
        """The whole current value, on the current device; eagerly or in the graph being traced."""
        whole = Region.whole(self.shape)
        return gathering.gather(whole, [p.region for p in self._parts], self._reader())

    def numpy(self) -> np.ndarray:
        """The whole current value in host memory, one part after the other."""
        value = np.empty(self.shape, self.dtype.as_numpy_dtype)
        seen = set()
        for part, resource in zip(self._parts, self._resources, strict=True):
            if part.region not in seen:
                seen.add(part.region)
                value[tuple(slice(lo, hi) for lo, hi in part.region.bounds)] = resource.numpy()
        return value

    def assign(self, value: Any) -> list[Any]:
        """Writes a whole value into every part; the writing operations when a graph is traced."""
        return self._write(tf.convert_to_tensor(value, self.dtype), "AssignVariableOp", "value")

    def assign_add(self, delta: Any) -> list[Any]:
        return self._write(self._broadcast(delta), "AssignAddVariableOp", "value")

    def assign_sub(self, delta: Any) -> list[Any]:
        return self._write(self._broadcast(delta), "AssignSubVariableOp", "value")

    def _broadcast(self, delta: Any) -> Any:
        delta = tf.convert_to_tensor(delta, self.dtype)
        return delta if delta.shape == self.shape else tf.broadcast_to(delta, self.shape)

    def _write(self, value: Any, op: str, argument: str) -> list[Any]:
        if not value.shape.is_compatible_with(self.shape):
            raise ValueError(
                f"Cannot assign value to variable '{self.name}': Shape mismatch. The variable "
                f"shape {self.shape}, and the assigned value shape {value.shape} are incompatible."
            )
        value = tf.ensure_shape(value, self.shape)
        made = []
        for part, handle in zip(self._parts, self.handles, strict=True):
            piece = gathering.slice_region(value, part.region)
            with tf.device(part.device):
                made.append(getattr(tf.raw_ops, op)(resource=handle, **{argument: piece}))
        return made

    def _reader(self) -> Any:
        read: dict[int, Any] = {}

        def piece(i: int, region: Region) -> Any:
            part = self._parts[i]
            with tf.device(part.device):
                if i not in read:
                    read[i] = private_api.read(self._resources[i].handle, self.dtype)
                return gathering.slice_region(read[i], region.within(part.region))

        return piece

    def _moved(self, parts: Sequence[Part]) -> tuple[Any, ...]:
        old = dict(zip(self._parts, self._resources, strict=True))
        regions, read = [p.region for p in self._parts], self._reader()
        made = []
        for part in parts:
            if part in old:
                made.append(old[part])
            else:
                with tf.device(part.device):
                    value = gathering.gather(part.region, regions, read)
                    made.append(private_api.make_variable(value, f"{self.name}/part"))
        return tuple(made)

    def _check(self, parts: Sequence[Part]) -> None:
        whole = Region.whole(self.shape)
        wrong = [str(p.region) for p in parts if not whole.contains(p.region)]
        distinct = {p.region for p in parts}
        # Distinct parts of a layout never overlap, so that their sizes tell whether they cover.
        if wrong or sum(region.size for region in distinct) != whole.size:
            raise errors.PlanError(
                f"variable {self.name}{list(self.shape)}",
                "parts " + ", ".join(str(p.region) for p in parts),
                "parts that cover it once, or whole copies",
            )
        if len({(p.device, p.region) for p in parts}) != len(parts):
            raise errors.PlanError(
                f"variable {self.name}", "two equal parts on one device", "each part once a device"
            )


class _Whole:
    """The value of a variable that is not in parts yet, read once for all the parts."""

    def __init__(self, variable: Any) -> None:
        with tf.device(variable.device):
            self._value = private_api.read(variable.handle, variable.dtype)

    def copy(self, name: str, parts: Sequence[Part]) -> tuple[Any, ...]:
        made = []
        for part in parts:
            piece = gathering.slice_region(self._value, part.region)
            with tf.device(part.device):
                made.append(private_api.make_variable(piece, f"{name}/part"))
        return tuple(made)


def shard_variable(variable: Any, parts: Sequence[Part]) -> ShardedVariable:
    """Makes the user's `variable` lie in these parts, whether or not it already lies in others."""
    variable = shown.innermost(variable)
    with tf.init_scope():
        state: ShardedVariable | None = sharding_of(variable)
        if state is not None:
            state.reshard(parts)
            return state
        if not variable.shape.is_fully_defined():
            raise errors.PlanError(
                f"variable {variable.name}", f"shape {variable.shape}", "a static shape"
            )
        check_value(variable)
        state = ShardedVariable(variable, parts)
        shown.show(variable, state)
        return state


def sharding_of(variable: Any) -> ShardedVariable | None:
    """The parts of the user's variable; None when it is an ordinary one."""
    found: ShardedVariable | None = shown.state_of(shown.innermost(variable))
    return found


def restore_variable(variable: Any) -> None:
    """Makes an ordinary variable of the user's object again, whole on its own device."""
    variable = shown.innermost(variable)
    state = sharding_of(variable)
    if state is None:
        return
    with tf.init_scope():
        value = state.read()
        with tf.device(state.handle.device):
            tf.raw_ops.AssignVariableOp(resource=state.handle, value=value)
    shown.hide(variable)


def host_device(variable: Any) -> str:
    """The CPU of the task that the variable was made in."""
    return devices.host_of(shown.innermost(variable).handle.device)
