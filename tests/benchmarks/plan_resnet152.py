"""Where the time goes from a Keras model to its partitioned step: wide ResNet-152 over 8 devices.

  python tests/benchmarks/plan_resnet152.py
  python tests/benchmarks/plan_resnet152.py --first_step --update   # writes docs/benchmarks.md

Nothing is asserted about times: they are printed, with each stage's share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras
from absl import app, flags

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from models import build_model  # noqa: E402

import tofu_tf  # noqa: E402
from tofu_tf import pipeline  # noqa: E402
from tofu_tf.capture import functions, keras_steps  # noqa: E402
from tofu_tf.ops.applicable import Describing  # noqa: E402
from tofu_tf.plan.machine import machine_of  # noqa: E402
from tofu_tf.plan.text import bytes_text  # noqa: E402
from tofu_tf.runtime.devices import find_devices  # noqa: E402
from tofu_tf.runtime.function import PlacedFunction  # noqa: E402
from tofu_tf.search import planning  # noqa: E402

DOCUMENT = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- plan_resnet152: begin -->", "<!-- plan_resnet152: end -->"

_DEPTH = flags.DEFINE_integer("depth", 152, "Of the ResNet: 50, 101 or 152.")
_WIDTH = flags.DEFINE_integer("width", 1, "What all widths are multiplied by.", lower_bound=1)
_SIZE = flags.DEFINE_integer("size", 64, "Height and width of the images.", lower_bound=32)
_BATCH = flags.DEFINE_integer("batch", 8, "Images per step.", lower_bound=1)
_DEVICES = flags.DEFINE_integer("devices", 8, "Logical CPUs.", lower_bound=1)
_FIRST_STEP = flags.DEFINE_bool("first_step", False, "Run three steps as well.")
_UPDATE = flags.DEFINE_bool("update", False, "Write the table into docs/benchmarks.md.")


@dataclasses.dataclass
class Stages:
    """Seconds of each stage, without those of the stages inside it."""

    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    _open: list[float] = dataclasses.field(default_factory=list)  # seconds of inner stages

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._open.append(0.0)
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            inner = self._open.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - inner
            if self._open:
                self._open[-1] += spent

    def watch(self, module: ModuleType, function: str, name: str) -> None:
        """Counts every call of a module's function from now on as this stage."""
        setattr(module, function, self._timed(getattr(module, function), name))

    def _timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            with self.stage(name):
                return function(*arguments, **named)

        return timed


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one run yields: seconds by stage, and sizes in words."""

    seconds: dict[str, float]
    sizes: dict[str, str]


def measure() -> Measured:
    """The whole road, once, in this process."""
    stages = Stages()
    stages.watch(keras_steps, "trace", "trace")
    stages.watch(functions, "inline", "inline")
    stages.watch(functions, "fold", "fold")
    stages.watch(functions, "import_graph", "import")
    stages.watch(planning, "coarsen", "coarsen")
    stages.watch(planning, "evaluate", "predict bytes")
    model = build_model(
        "resnet",
        depth=_DEPTH.value,
        width=_WIDTH.value,
        input_shape=(_SIZE.value, _SIZE.value, 3),
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    images = tf.TensorSpec((_BATCH.value, _SIZE.value, _SIZE.value, 3), tf.float32)
    machine = machine_of(find_devices(_DEVICES.value, "CPU"))

    with stages.stage("other capture"):
        data = (images, tf.TensorSpec((_BATCH.value,), tf.int64))
        captured = keras_steps.capture_step(model, "train", data)
    graph = captured.graph
    describing = Describing(graph)
    with stages.stage("describe"):
        for node in graph:
            describing(node)
    with stages.stage("search"):
        plan = pipeline.find_plan(graph, machine, describing=describing)
    with stages.stage("rewrite"):
        placed = pipeline.apply_plan(graph, plan, describing=describing)
    with stages.stage("register"):
        function = PlacedFunction(placed)
    sizes = {
        "parameters": f"{model.count_params():,}",
        "nodes of the captured graph": f"{len(graph.nodes):,}",
        "distinct descriptions": f"{len({_signature(describing, n) for n in graph}):,}",
        "nodes of the placed graph": f"{len(placed.graph_def.node):,}",
        "predicted communication": f"{bytes_text(plan.predicted_bytes)} per step",
    }
    del function
    if _FIRST_STEP.value:
        sizes.update(first_steps(model, stages))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sizes["peak resident memory"] = bytes_text(peak).partition(" (")[0]
    return Measured(stages.seconds, sizes)


def first_steps(model: keras.Model, stages: Stages) -> dict[str, str]:
    """Three steps through `distribute`: TensorFlow prepares a function when it is first called."""
    before = dict(stages.seconds)
    x = np.random.RandomState(0).rand(_BATCH.value, _SIZE.value, _SIZE.value, 3).astype("float32")
    y = np.arange(_BATCH.value)
    model = tofu_tf.distribute(model, _DEVICES.value, device_type="CPU", batch=(x, y))
    stages.seconds = before  # planned once more: counted once
    seconds = []
    for step in range(3):
        start = time.perf_counter()
        with stages.stage("first step") if step == 0 else contextlib.nullcontext():
            model.train_on_batch(x, y)
        seconds.append(time.perf_counter() - start)
    return {"seconds of the second and third step": f"{seconds[1]:.2f}, {seconds[2]:.2f}"}


def _signature(describing: Describing, node: Any) -> str:
    described = describing(node)
    return "" if described is None else described.signature


def text_of(measured: Measured) -> str:
    """The tables, in Markdown."""
    total = sum(measured.seconds.values())
    lines = [
        f"Wide ResNet-{_DEPTH.value} of width {_WIDTH.value}, {_SIZE.value}x{_SIZE.value} images, "
        f"batch {_BATCH.value}, SGD with momentum, {_DEVICES.value} logical CPUs; "
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, "
        f"TensorFlow {tf.__version__}.",
        "",
        "| stage | seconds | share |",
        "| --- | ---: | ---: |",
    ]
    lines += [
        f"| {name} | {seconds:.2f} | {seconds / total:.0%} |"
        for name, seconds in measured.seconds.items()
    ]
    lines += [f"| all | {total:.2f} | |", "", "| | |", "| --- | ---: |"]
    lines += [f"| {what} | {value} |" for what, value in measured.sizes.items()]
    return "\n".join(lines)


def update(text: str, path: Path = DOCUMENT) -> None:
    """Puts `text` between this benchmark's marks in the document."""
    document = path.read_text()
    before, found, rest = document.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise SystemExit(f"{path}: expected the lines {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main(arguments: Sequence[str]) -> None:
    if len(arguments) > 1:
        raise app.UsageError(f"what is {' '.join(arguments[1:])!r}? Only flags are taken.")
    tofu_tf.use_cpus(_DEVICES.value)
    text = text_of(measure())
    print(text)
    if _UPDATE.value:
        update(text)


if __name__ == "__main__":
    app.run(main)
