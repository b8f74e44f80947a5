"""A model's step for one signature: captured, planned, rewritten, registered, bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tofu_tf.capture.captured import Captured, flatten_inputs, pack_outputs
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.plans import Plan
from tofu_tf.rewrite.placed import Placed
from tofu_tf.runtime import shown, variables
from tofu_tf.runtime.function import PlacedFunction


@dataclasses.dataclass(frozen=True)
class Step:
    """One kind of step for one signature. `parts`: where each variable must lie when it runs."""

    kind: str
    captured: Captured
    plan: Plan
    placed: Placed
    function: PlacedFunction
    parts: Mapping[str, tuple[variables.Part, ...]]

    def bind(self) -> list[Any]:
        """The handles that the function is called with; moves variables that lie otherwise."""
        handles: list[Any] = []
        for name, parts in self.parts.items():
            variable = self.captured.variables[name]
            state = variables.sharding_of(variable)
            if state is None or state.parts is not parts:
                state = variables.shard_variable(variable, parts)
                state.origin = origin_of(self.plan, self.layout(name))
            handles += state.handles
        return handles

    def __call__(self, data: Any) -> Any:
        """The step's result for a batch, structured as the model's own step returns it."""
        feeds = flatten_inputs(self.captured, (data,))
        return pack_outputs(self.captured, self.function(feeds, self.bind()))

    def layout(self, name: str) -> Layout:
        return self.plan.layouts[self.captured.graph.variables[name].ref]


def make_step(kind: str, captured: Captured, plan: Plan, placed: Placed) -> Step:
    """A registered step whose shards are grouped by variable, so that handles line up."""
    devices = {node.name: node.device for node in placed.graph_def.node}
    parts: dict[str, tuple[variables.Part, ...]] = {}
    for shard in placed.shards:
        part = variables.Part(devices[shard.placeholder], shard.region)
        parts[shard.variable] = (*parts.get(shard.variable, ()), part)
    order = list(parts)
    grouped = sorted(placed.shards, key=lambda shard: order.index(shard.variable))
    placed = dataclasses.replace(placed, shards=tuple(grouped))
    specs = [captured.graph.spec(ref) for ref in captured.graph.outputs]
    function = PlacedFunction(placed, specs, captured.library.function)
    return Step(kind, captured, plan, placed, function, parts)


def origin_of(plan: Plan, layout: Layout) -> tuple[Any, ...]:
    """What the parts of a variable follow from; equal for equal machines and layouts."""
    return (plan.machine.devices, plan.machine.factors, layout)


def identity_of(variable: Any) -> str:
    """Tells variables apart for the life of the process, whatever wraps them."""
    return str(shown.innermost(variable)._unique_id)
