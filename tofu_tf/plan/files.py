"""A Plan as a JSON file, and back; a file that cannot be read is refused in one screen."""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from tofu_tf import errors
from tofu_tf.graph.ir import Ref, TensorSpec, Variable
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.machine import Link, Machine
from tofu_tf.plan.plans import Plan, Strategy, Whole

FORMAT = "tofu_tf plan"
VERSION = 1


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Writes `plan` to a JSON file; the same plan gives the same bytes."""
    text = json.dumps(plan_to_json(plan), indent=1, ensure_ascii=False)
    pathlib.Path(path).write_text(text + "\n", encoding="utf-8")


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """The Plan in a file that `save_plan` wrote.

    Raises:
      PlanFileError: a file that is not there, is not JSON or no plan, is of another version, or
        lacks something.
    """
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise errors.PlanFileError(
            str(path), f"cannot be read: {error}", "a plan file", "save one with save_plan"
        ) from error
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise errors.PlanFileError(
            str(path),
            f"is not JSON: {error}",
            "a plan file, whole",
            "save the plan again",
        ) from error
    return plan_from_json(data, str(path))


def given_plan(
    plan: Plan | str | os.PathLike[str] | None, constraints: object = None
) -> Plan | None:
    """The plan that a caller gave, as it is or as a file.

    Raises:
      PlanError: something else, or a plan together with `constraints`.
      PlanFileError: see `load_plan`.
    """
    if plan is None:
        return None
    if constraints:
        raise errors.PlanError(
            "plan and constraints",
            "both are given, and a plan has all layouts already",
            "one of them",
            "leave the constraints out, or plan again with them",
        )
    if isinstance(plan, str | os.PathLike):
        return load_plan(plan)
    if not isinstance(plan, Plan):
        raise errors.PlanError(
            "plan", f"a {type(plan).__name__}", "a Plan, or the path of a file", "see save_plan"
        )
    return plan


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan as what `json` can write."""
    machine = plan.machine
    return {
        "format": FORMAT,
        "version": VERSION,
        "machine": {
            "devices": list(machine.devices),
            "factors": list(machine.factors),
            "links": [[link.latency, link.bandwidth] for link in machine.links],
            "memory": machine.memory,
            "flops": machine.flops,
            "memory_bandwidth": machine.memory_bandwidth,
        },
        "fingerprint": plan.fingerprint,
        "algorithm": plan.algorithm,
        "objective": plan.objective,
        "predicted_bytes": plan.predicted_bytes,
        "search_bytes": plan.search_bytes,
        "bound": plan.bound,
        "layouts": {
            str(ref): "home" if layout.home else list(layout.cuts)
            for ref, layout in plan.layouts.items()
        },
        "strategies": {
            name: {
                "axes": "home" if strategy.home else list(strategy.axes),
                **({"body": strategy.body} if strategy.body else {}),
            }
            for name, strategy in plan.strategies.items()
        },
        "reasons": {str(ref): text for ref, text in plan.reasons.items()},
        "whole": {name: [w.op, w.reason, w.nbytes] for name, w in plan.whole.items()},
        "specs": {str(ref): [spec.dtype, *spec.shape] for ref, spec in plan.specs.items()},
        "variables": {
            v.name: {
                "spec": [v.spec.dtype, *v.spec.shape],
                "node": v.node,
                "capture": v.capture,
                "trainable": v.trainable,
            }
            for v in plan.variables.values()
        },
    }


def plan_from_json(data: Any, where: str = "plan") -> Plan:
    """The Plan that `plan_to_json` wrote.

    Raises:
      PlanFileError: naming every entry that is missing or not what it should be.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise errors.PlanFileError(
            where,
            "is JSON, but not a plan",
            f'"format": "{FORMAT}"',
            "give a file that save_plan wrote",
        )
    if data.get("version") != VERSION:
        raise errors.PlanFileError(
            where,
            f"is a plan of version {data.get('version')!r}",
            f"version {VERSION}",
            "make the plan again with this version of tofu_tf",
        )
    reading = _Reading()
    machine = reading.machine(data)
    plan = None
    if machine is not None:
        cuts = len(machine.factors)
        plan = Plan(
            machine,
            reading.table(data, "layouts", lambda name, v: (Ref.parse(name), _layout(v, cuts))),
            reading.table(data, "strategies", lambda name, v: (name, _strategy(v, cuts))),
            reading.entry(data, "fingerprint", str, ""),
            reading.entry(data, "algorithm", str, ""),
            reading.entry(data, "objective", str, ""),
            reading.count(data, "predicted_bytes"),
            reading.count(data, "search_bytes"),
            reading.table(data, "reasons", lambda name, v: (Ref.parse(name), _text(v))),
            reading.table(data, "specs", lambda name, v: (Ref.parse(name), _spec(v))),
            reading.table(data, "variables", lambda name, v: (name, _variable(name, v))),
            reading.table(data, "whole", lambda name, v: (name, _whole(v))),
            None if data.get("bound") is None else reading.count(data, "bound"),
        )
        reading.names(plan)
    if plan is None or reading.wrong:
        shown = reading.wrong[:12]
        if len(reading.wrong) > len(shown):
            shown.append(f"and {len(reading.wrong) - len(shown)} more")
        raise errors.PlanFileError(
            where, "; ".join(shown), "the entries that save_plan writes", "save the plan again"
        )
    return plan


class _Reading:
    """Entries of a parsed file; what is wrong with them is gathered in `wrong`."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def entry(self, data: Mapping[str, Any], name: str, kind: type, instead: Any) -> Any:
        if name not in data:
            self.wrong.append(f"{name} is missing")
        elif not isinstance(data[name], kind) or isinstance(data[name], bool):
            self.wrong.append(f"{name} is {data[name]!r:.40}, not a {kind.__name__}")
        else:
            return data[name]
        return instead

    def count(self, data: Mapping[str, Any], name: str) -> int:
        found: int = self.entry(data, name, int, 0)
        if found < 0:
            self.wrong.append(f"{name} is {found}, less than 0")
        return found

    def names(self, plan: Plan) -> None:
        """Notes tensors that some table speaks of and the layouts do not, and cuts of dimensions
        that a tensor has not.
        """
        nodes = {ref.node for ref in plan.layouts}
        for table, refs in (("specs", plan.specs), ("reasons", plan.reasons)):
            for ref in refs:
                if ref not in plan.layouts:
                    self.wrong.append(f"{table} of {str(ref)!r}: no tensor of a layout")
        for variable in plan.variables.values():
            if variable.node not in nodes:
                name, node = variable.name, variable.node
                self.wrong.append(f"variables of {name!r}: {node!r} is no node of a layout")
        for ref, spec in plan.specs.items():
            cuts = list(plan.layouts[ref].cuts) if ref in plan.layouts else []
            if any(c is not None and c >= len(spec.shape) for c in cuts):
                self.wrong.append(
                    f"layouts of {str(ref)!r} is {cuts}, its shape {list(spec.shape)}"
                )

    def table(self, data: Mapping[str, Any], name: str, read: Any) -> dict[Any, Any]:
        found = {}
        for key, value in self.entry(data, name, dict, {}).items():
            try:
                made, what = read(key, value)
                if made in found:
                    self.wrong.append(f"{name} of {key!r} comes twice")
                found[made] = what
            except (TypeError, ValueError, KeyError):
                self.wrong.append(f"{name} of {key!r} is {value!r:.60}")
        return found

    def machine(self, data: Mapping[str, Any]) -> Machine | None:
        given = self.entry(data, "machine", dict, None)
        if given is None:
            return None
        before = len(self.wrong)
        devices = self.entry(given, "devices", list, [])
        factors = self.entry(given, "factors", list, [])
        links = self.entry(given, "links", list, [])
        flops = self.entry(given, "flops", (int, float), 0)  # type: ignore[arg-type]
        bandwidth = self.entry(given, "memory_bandwidth", (int, float), 0)  # type: ignore[arg-type]
        if len(self.wrong) > before:
            return None
        try:
            return Machine(
                tuple(map(_text, devices)),
                tuple(_whole_number(f, 2) for f in factors),
                tuple(Link(_number(latency, 0), _number(width)) for latency, width in links),
                None if given.get("memory") is None else _whole_number(given["memory"], 1),
                _number(flops),
                _number(bandwidth),
            )
        except (TypeError, ValueError, errors.PlanError) as error:
            self.wrong.append(f"machine: {error}")
            return None


def _layout(value: Any, cuts: int) -> Layout:
    if value == "home":
        return Layout((None,) * cuts, home=True)
    if not isinstance(value, list) or len(value) != cuts:
        raise ValueError(value)
    return Layout(tuple(None if c is None else _whole_number(c) for c in value))


def _strategy(value: Any, cuts: int) -> Strategy:
    axes, body = value["axes"], value.get("body", "")
    if axes == "home":
        return Strategy((None,) * cuts, True, _text(body))
    if not isinstance(axes, list) or len(axes) != cuts:
        raise ValueError(value)
    return Strategy(tuple(None if a is None else _text(a) for a in axes), False, _text(body))


def _spec(value: Any) -> TensorSpec:
    dtype, *shape = value
    return TensorSpec(tuple(_whole_number(n, -1) for n in shape), _text(dtype))


def _whole(value: Any) -> Whole:
    op, reason, nbytes = value
    return Whole(_text(op), _text(reason), _whole_number(nbytes))


def _variable(name: str, value: Any) -> Variable:
    return Variable(
        name,
        _spec(value["spec"]),
        _text(value["node"]),
        _whole_number(value["capture"], -1),
        _truth(value["trainable"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def _whole_number(value: Any, least: int = 0) -> int:
    """`value` if it is an integer; JSON's booleans and fractions are none."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{value!r}: not a whole number from {least}")
    return value


def _number(value: Any, least: float | None = None) -> float:
    """`value` if it is a number above 0, or from `least`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r}: not a number")
    if not math.isfinite(value) or (value <= 0 if least is None else value < least):
        raise ValueError(f"{value!r}: not a finite number above 0")
    return float(value)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(value)
    return value
