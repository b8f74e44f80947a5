"""Runs an exported graph with TensorFlow alone: here, or in a process in which this package is not.

python stock_tensorflow.py job.json results.npz
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Fetched = dict[str, np.ndarray]  # "<step>/<fetch>" -> value


@dataclasses.dataclass(frozen=True)
class Job:
    """What to load (`kind` of `path`), how often to run it with what, and what to do before and
    after.

    `feeds`: a file of arrays, "<step>/<name>" each. `initialize`: operations to run first.
    `restore`, `save`: prefixes of checkpoints.
    """

    kind: str
    path: str
    feeds: str
    steps: int
    devices: int = 1
    fetches: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    initialize: tuple[str, ...] = ()
    restore: str = ""
    save: str = ""
    signature: str = ""

    def fed(self, step: int) -> Fetched:
        held = np.load(self.feeds)
        prefix = f"{step}/"
        return {n.removeprefix(prefix): held[n] for n in held.files if n.startswith(prefix)}


def apart(jobs: Sequence[Job], directory: Path) -> list[Fetched]:
    """What the jobs yield, one after the other, in a process without this package and elsewhere."""
    given, made = directory / "jobs.json", directory / "results.npz"
    given.write_text(json.dumps([dataclasses.asdict(job) for job in jobs]))
    ran = subprocess.run(
        [sys.executable, "-I", str(Path(__file__).resolve()), str(given), str(made)],
        cwd=directory,
        env={"PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    held = np.load(made)
    return [
        {n.removeprefix(f"{i}/"): held[n] for n in held.files if n.startswith(f"{i}/")}
        for i in range(len(jobs))
    ]


def run(job: Job) -> Fetched:
    """What the job yields, in this process."""
    return KINDS[job.kind](job)


def in_session(job: Job) -> Fetched:
    """A GraphDef or MetaGraphDef in a v1 Session."""
    import tensorflow as tf

    v1 = tf.compat.v1
    saver = None
    with tf.Graph().as_default() as graph:
        if job.kind == "meta":
            saver = v1.train.import_meta_graph(job.path)
        else:
            tf.graph_util.import_graph_def(_graph_def(job.path), name="")
    config = v1.ConfigProto(device_count={"CPU": job.devices})
    found: Fetched = {}
    with v1.Session(graph=graph, config=config) as session:
        session.run(list(job.initialize))
        if job.restore:
            saver.restore(session, job.restore)
        for step in range(job.steps):
            fed = {f"{name}:0": value for name, value in job.fed(step).items()}
            values, _ = session.run([list(job.fetches), list(job.targets)], fed)
            found |= {f"{step}/{n}": v for n, v in zip(job.fetches, values, strict=True)}
        if job.save:
            saver.save(session, job.save, write_meta_graph=False)
    return found


def wrapped(job: Job) -> Fetched:
    """A GraphDef through wrap_function."""
    import tensorflow as tf

    graph_def = _graph_def(job.path)
    held = tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(graph_def, name=""), []
    )
    graph = held.graph

    def operations(names: Any) -> list[Any]:
        return [graph.get_operation_by_name(name) for name in names]

    if job.initialize:
        held.prune([], operations(job.initialize))()
    names = list(job.fed(0))
    step_function = held.prune(
        [graph.get_tensor_by_name(f"{n}:0") for n in names],
        [[graph.get_tensor_by_name(n) for n in job.fetches], operations(job.targets)],
    )
    found: Fetched = {}
    for step in range(job.steps):
        fed = job.fed(step)
        values, _ = step_function(*(tf.constant(fed[n]) for n in names))
        found |= {f"{step}/{n}": v.numpy() for n, v in zip(job.fetches, values, strict=True)}
    return found


def loaded(job: Job) -> Fetched:
    """A signature of a SavedModel through tf.saved_model.load."""
    import tensorflow as tf

    function = tf.saved_model.load(job.path).signatures[job.signature]
    found: Fetched = {}
    for step in range(job.steps):
        fed = {name: tf.constant(value) for name, value in job.fed(step).items()}
        found |= {f"{step}/{n}": v.numpy() for n, v in function(**fed).items()}
    return found


def loaded_in_session(job: Job) -> Fetched:
    """A signature of a SavedModel in a v1 Session, which also saves."""
    import tensorflow as tf

    v1 = tf.compat.v1
    config = v1.ConfigProto(device_count={"CPU": job.devices})
    found: Fetched = {}
    with v1.Session(graph=tf.Graph(), config=config) as session:
        meta = v1.saved_model.load(session, ["serve"], job.path)
        signature = meta.signature_def[job.signature]
        outputs = {name: info.name for name, info in signature.outputs.items()}
        for step in range(job.steps):
            fed = {signature.inputs[n].name: v for n, v in job.fed(step).items()}
            found |= {f"{step}/{n}": v for n, v in session.run(outputs, fed).items()}
        if job.save:
            saver = meta.saver_def
            session.run(saver.save_tensor_name, {saver.filename_tensor_name: job.save})
    return found


KINDS = {
    "session": in_session,
    "meta": in_session,
    "wrapped": wrapped,
    "saved_model": loaded,
    "saved_model_session": loaded_in_session,
}


def _graph_def(path: str) -> Any:
    import tensorflow as tf

    return tf.compat.v1.GraphDef.FromString(Path(path).read_bytes())


def _logical_cpus(n: int) -> None:
    import tensorflow as tf

    if n > 1:
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * n
        )


def _main(given: str, made: str) -> None:
    sys.modules["tofu_tf"] = None  # type: ignore[assignment]  # importing it fails
    jobs = [Job(**fields) for fields in json.loads(Path(given).read_text())]
    _logical_cpus(max(job.devices for job in jobs))
    results = enumerate(map(run, jobs))
    np.savez(made, **{f"{i}/{n}": value for i, held in results for n, value in held.items()})


if __name__ == "__main__":
    _main(*sys.argv[1:])
