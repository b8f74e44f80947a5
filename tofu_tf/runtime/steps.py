"""Steps, one per kind and signature: captured, planned, rewritten, registered, bound."""

from __future__ import annotations

import dataclasses
import fnmatch
import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent import futures
from typing import Any, TypeVar

import tensorflow as tf

from tofu_tf import errors, pipeline
from tofu_tf.capture import drawing
from tofu_tf.capture.captured import Captured, flatten_inputs, pack_outputs
from tofu_tf.plan.constraints import check_names
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.machine import Machine
from tofu_tf.plan.plans import Plan
from tofu_tf.rewrite.placed import Placed
from tofu_tf.runtime import devices, private_api, shown, variables
from tofu_tf.runtime.function import PlacedFunction, collectives_are_broken

Made = TypeVar("Made")


@dataclasses.dataclass(frozen=True)
class Step:
    """One kind of step for one signature. `parts`: where each variable must lie when it runs.

    `lowering`: how its data move; with "collective" whatever is exactly one goes by collectives.
    """

    kind: str
    captured: Captured
    plan: Plan
    placed: Placed
    function: PlacedFunction
    parts: Mapping[str, tuple[variables.Part, ...]]
    lowering: str = "p2p"

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

    def __call__(self, *arguments: Any) -> Any:
        """The step's result, structured as the captured function returns it."""
        feeds = flatten_inputs(self.captured, arguments)
        return pack_outputs(self.captured, self.function(feeds, self.bind()))

    def layout(self, name: str) -> Layout:
        return self.plan.layouts[self.captured.graph.variables[name].ref]


class Steps:
    """The steps of one model or function by kind and key, planned around each other.

    The first step that settles fixes how variables lie; what was made before it is provisional and
    dropped where it disagrees, and what comes later is planned around it.
    """

    def __init__(
        self,
        machine: Machine,
        constraints: Mapping[str, Any] | None = None,
        plan: Plan | None = None,
        objective: str = "bytes",
        algorithm: str = "recursion",
        lowering: str = "p2p",
        undescribed: str = "whole",
        random: str = "exact",
    ) -> None:
        self.machine, self.given = machine, plan
        self.undescribed = undescribed
        self._announced: set[str] = set()
        self.lock = threading.RLock()
        self.made: dict[tuple[str, tuple[Any, ...]], Step] = {}
        check_names(constraints)
        pipeline.check_choices(objective, algorithm, undescribed)
        pipeline.check_known("lowering", lowering, [*pipeline.LOWERINGS, "auto"])
        pipeline.check_known("random", random, drawing.MODES)
        self._random = random
        self._streams: dict[Hashable, drawing.Streams] = {}
        self._seeding = private_api.seeding()
        self._constraints = dict(constraints or {})
        apart = devices.are_distinct_gpus(machine.devices)
        if lowering == "auto":
            lowering = "collective" if apart else "p2p"
        elif lowering == "collective" and machine.device_type == "GPU" and not apart:
            raise errors.DeviceError(
                'lowering="collective"',
                f"several of {', '.join(machine.devices)} are on one physical GPU",
                "distinct physical GPUs, as NCCL joins no others",
                'use lowering="p2p"',
            )
        self._objective, self._algorithm, self._lowering = objective, algorithm, lowering
        self._layouts: dict[str, Layout] = {}  # by identity of the variable
        self._settled: set[str] = set()
        self._is_settled = False

    def find(
        self,
        kind: str,
        key: tuple[Any, ...],
        capture: Callable[[], Captured],
        settles: bool = True,
        awaited: bool = False,
    ) -> Step:
        """The step of this kind and key, made of what `capture` yields where there is none yet; no
        variable moves.

        Args:
          settles: how its variables lie holds for all later steps.
          awaited: a step that settles will come, for which the constraints are meant.

        Raises:
          TofuError: the step cannot be captured, planned or rewritten.
        """
        with self.lock:
            self._follow_seed()
            if (kind, key) not in self.made:
                step, names = eagerly(lambda: self._make(kind, capture, settles, awaited))
                self._record(step, names, settles)
                self.made[kind, key] = step
            step = self.made[kind, key]
            if step.placed.groups and collectives_are_broken():
                self.made[kind, key] = step = eagerly(lambda: _without_collectives(step))
            return step

    def forget(self, kind: str | None = None) -> None:
        """Drops the steps, or those of one kind, and their random streams; variables stay where
        they are, and new steps are planned around them.
        """
        with self.lock:
            if kind is None:
                self.made.clear()
                self._streams.clear()
            else:
                self.made = {key: step for key, step in self.made.items() if key[0] != kind}
                self._streams.pop(kind, None)

    def streams(self, key: Hashable) -> drawing.Streams:
        """The random streams of all steps that are captured under this key."""
        return self._streams.setdefault(key, drawing.Streams(self._random))

    def _follow_seed(self) -> None:
        """Starts the random streams again when tf.random.set_seed was called, as TensorFlow does
        with those inside its kernels.
        """
        seeding = private_api.seeding()
        if seeding is not self._seeding:
            self._seeding = seeding
            for streams in self._streams.values():
                streams.restart()

    def _make(
        self, kind: str, capture: Callable[[], Captured], settles: bool, awaited: bool
    ) -> tuple[Step, Mapping[str, str]]:
        with shown.whole_variables_traced():
            captured = capture()
        names = {name: identity_of(v) for name, v in captured.variables.items()}
        pinned = self._pinned(captured, names, settles)
        plan = self._planned(captured, pinned, settles, awaited)
        lowering = "p2p" if collectives_are_broken() else self._lowering
        placed = pipeline.apply_plan(captured.graph, plan, lowering)
        if lowering == "collective":
            plan = pipeline.with_bytes(captured.graph, plan, lowering)
        return make_step(kind, captured, plan, placed, lowering), names

    def _planned(
        self, captured: Captured, pinned: Mapping[str, Layout], settles: bool, awaited: bool
    ) -> Plan:
        first = settles and not self._is_settled
        if first and self.given is not None:
            pipeline.check_plan(self.given, captured.graph, self.machine)
            # a plan counts workers; which devices they are is the caller's to say
            return dataclasses.replace(self.given, machine=self.machine)
        constraints = self._constraints
        if not first and (self._is_settled or awaited):
            # A tensor's constraint is meant for the step that settles; a variable's holds
            # everywhere.
            constraints = {
                name: wish
                for name, wish in constraints.items()
                if (matched := _matching(name, captured)) and not matched & set(pinned)
            }
        return pipeline.find_plan(
            captured.graph,
            self.machine,
            objective=self._objective,
            algorithm=self._algorithm,
            constraints=constraints or None,
            pinned=pinned or None,
            undescribed=self.undescribed,
            announced=self._announced,
        )

    def _pinned(
        self, captured: Captured, names: Mapping[str, str], settles: bool
    ) -> dict[str, Layout]:
        """Layouts that stay: settled ones, provisional ones where nothing settles, another's."""
        pinned = {}
        for name, identity in names.items():
            if identity in self._settled or (not settles and identity in self._layouts):
                pinned[name] = self._layouts[identity]
            elif identity not in self._layouts:
                state = variables.sharding_of(captured.variables[name])
                here = (self.machine.devices, self.machine.factors)
                if state is not None and state.origin is not None and state.origin[:2] == here:
                    pinned[name] = state.origin[2]
        return pinned

    def _record(self, step: Step, names: Mapping[str, str], settles: bool) -> None:
        moved = set()
        for name, identity in names.items():
            layout = step.layout(name)
            if self._layouts.setdefault(identity, layout) != layout:
                moved.add(identity)
                self._layouts[identity] = layout
            if settles:
                self._settled.add(identity)
        self._is_settled |= settles
        if moved:
            self.made = {
                key: other
                for key, other in self.made.items()
                if moved.isdisjoint(map(identity_of, other.captured.variables.values()))
            }


def eagerly(make: Callable[[], Made]) -> Made:
    """What `make` returns when nothing is being traced around it.

    A graph under construction is left by another thread: tf.init_scope stops gradient tapes, also
    those of the step that is captured inside.
    """
    if tf.executing_eagerly():
        return make()
    with futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(make).result()


def _matching(name: str, captured: Captured) -> set[str]:
    pattern = name.removesuffix(":0")
    return {v for v in captured.graph.variables if fnmatch.fnmatchcase(v, pattern)}


def _without_collectives(step: Step) -> Step:
    """The same step with all data going point to point."""
    graph = step.captured.graph
    plan = pipeline.with_bytes(graph, step.plan, "p2p")
    return make_step(step.kind, step.captured, plan, pipeline.apply_plan(graph, plan))


def make_step(
    kind: str, captured: Captured, plan: Plan, placed: Placed, lowering: str = "p2p"
) -> Step:
    """A registered step whose shards are grouped by variable, so that handles line up."""
    places = {node.name: node.device for node in placed.graph_def.node}
    parts: dict[str, tuple[variables.Part, ...]] = {}
    for shard in placed.shards:
        part = variables.Part(places[shard.placeholder], shard.region)
        parts[shard.variable] = (*parts.get(shard.variable, ()), part)
    order = list(parts)
    grouped = sorted(placed.shards, key=lambda shard: order.index(shard.variable))
    placed = dataclasses.replace(placed, shards=tuple(grouped))
    specs = [captured.graph.spec(ref) for ref in captured.graph.outputs]
    function = PlacedFunction(placed, specs, captured.library.function)
    return Step(kind, captured, plan, placed, function, parts, lowering)


def origin_of(plan: Plan, layout: Layout) -> tuple[Any, ...]:
    """What the parts of a variable follow from; equal for equal machines and layouts."""
    return (plan.machine.devices, plan.machine.factors, layout)


def identity_of(variable: Any) -> str:
    """Tells variables apart for the life of the process, whatever wraps them."""
    return str(shown.innermost(variable)._unique_id)
