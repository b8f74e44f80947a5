"""The Plan: plain data that says how every tensor lies and how every operator is cut."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from tofu_tf.graph.ir import CONST, Graph, Ref, TensorSpec, Variable
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.machine import Machine


@dataclasses.dataclass(frozen=True, slots=True)
class Strategy:
    """Per cut the axis (by name) that divides an operator's work; None: every group does all of it.

    `home`: only worker 0 runs the operator, whole. `body` names the body that makes the pieces.
    """

    axes: tuple[str | None, ...]
    home: bool = False
    body: str = ""

    def __str__(self) -> str:
        if self.home:
            return "home"
        return ",".join("R" if a is None else a for a in self.axes) + (
            f" ({self.body})" if self.body else ""
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Whole:
    """An operator that is not cut since nothing says how: worker 0 runs it on all of its inputs.

    `nbytes`: what is sent to worker 0 for it, and from there to those who own its outputs, each
    counted as if nobody else needed it.
    """

    op: str
    reason: str
    nbytes: int

    def __str__(self) -> str:
        return f"{self.op}: {self.reason}; {self.nbytes} bytes moved"


@dataclasses.dataclass(frozen=True)
class Plan:
    """A decision for every tensor and operator of one graph on one machine.

    `predicted_bytes`: bytes that cross between devices in one step (feeds and results apart).
    `search_bytes`: the objective's value at the optimum; above it by what worker 0 hands out to
    several readers, by pieces that nobody needs, and where very many readers share a tensor.
    `bound`: no plan by the same rules has fewer search_bytes; None where nothing is known.
    `reasons`: for tensors that are not cut, why. `whole`: by node, what runs whole as nothing says
    how it could be cut.
    `specs` and `variables`, for people to read (see `with_specs`): shape and dtype of every tensor
    but constants and the next versions of variables, and the step's variables by name.
    """

    machine: Machine
    layouts: Mapping[Ref, Layout]
    strategies: Mapping[str, Strategy]
    fingerprint: str
    algorithm: str = "recursion"
    objective: str = "bytes"
    predicted_bytes: int = 0
    search_bytes: int = 0
    reasons: Mapping[Ref, str] = dataclasses.field(default_factory=dict)
    specs: Mapping[Ref, TensorSpec] = dataclasses.field(default_factory=dict)
    variables: Mapping[str, Variable] = dataclasses.field(default_factory=dict)
    whole: Mapping[str, Whole] = dataclasses.field(default_factory=dict)
    bound: int | None = None

    @property
    def gap(self) -> float | None:
        """By what part of the least possible search_bytes these may be above it; 0.0: optimal."""
        if self.bound is None:
            return None
        if self.search_bytes <= self.bound:
            return 0.0
        return (self.search_bytes - self.bound) / self.bound if self.bound else math.inf

    def __str__(self) -> str:
        from tofu_tf.plan.text import plan_text

        return plan_text(self)


def with_specs(plan: Plan, graph: Graph) -> Plan:
    """`plan` with shapes, dtypes and variables of its graph, so that it can be read by itself."""
    specs = {
        ref: spec
        for node in graph
        if node.op != CONST
        for ref, spec in list(zip(node.refs, node.outputs, strict=True))[
            : len(node.outputs) - len(node.writes)
        ]
    }
    return dataclasses.replace(plan, specs=specs, variables=dict(graph.variables))
