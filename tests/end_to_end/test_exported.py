"""cases.md 14: exported graphs rewritten by the command tofu-tf, and run by TensorFlow alone."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.end_to_end import exports
from tests.end_to_end.stock_tensorflow import Fetched, Job, apart, run
from tofu_tf.cli.main import main
from tofu_tf.graph.files import read_graph_def

# float32 sums in another order; Adam turns what is left of tiny gradients into whole steps
RTOL, ATOL = 2e-5, 1e-5


def rewritten(capsys: pytest.CaptureFixture[str], *arguments: object) -> None:
    """Runs ``tofu-tf rewrite``, which must say that it counts the bytes that it predicted."""
    code = main(["rewrite", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    predicted, counted = re.findall(r"communication: .*?(\d+)(?: B| bytes\)) per step", out)
    assert predicted == counted
    assert int(counted) > 0


def fed(path: Path, steps: list[dict[str, Any]]) -> str:
    """The file of what the steps are fed with."""
    np.savez(path, **{f"{i}/{n}": v for i, step in enumerate(steps) for n, v in step.items()})
    return str(path)


def assert_alike(got: Fetched, expected: Fetched) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, RTOL, ATOL, err_msg=name)


def assert_same_checkpoints(got: Path, expected: Path) -> None:
    ours, theirs = (tf.train.load_checkpoint(str(path)) for path in (got, expected))
    shapes = theirs.get_variable_to_shape_map()
    assert ours.get_variable_to_shape_map() == shapes
    assert_alike(*({n: c.get_tensor(n) for n in shapes} for c in (ours, theirs)))


@pytest.mark.parametrize(
    "k, lowering",
    [
        (4, "p2p"),
        *(pytest.param(k, "p2p", marks=pytest.mark.slow) for k in (2, 3)),
        pytest.param(4, "collective", marks=pytest.mark.slow),
    ],
)
def test_a_frozen_graph(k: int, lowering: str, tmp_path: Path, capsys: Any) -> None:
    graph, placed = tmp_path / "frozen.pb", tmp_path / "placed.pb"
    feeds = fed(tmp_path / "feeds.npz", [exports.frozen(graph)] * 2)
    fetches = ("logits:0", "probabilities:0", "best:0", "best:1")
    flags = (f"--devices={k}", f"--lowering={lowering}", f"--fetches={','.join(fetches)}")
    rewritten(capsys, graph, "--batch=11", *flags, f"--output={placed}")
    held: Counter[str] = Counter()
    for node in read_graph_def(placed).node:
        if node.op == "Const" and node.attr["dtype"].type == tf.float64.as_datatype_enum:
            held[node.device] += tf.make_ndarray(node.attr["value"].tensor).nbytes
    weights = 8 * (96 * 128 + 128 * 63)
    assert sum(held.values()) == weights
    assert max(held.values()) <= weights / k * 1.05  # 63 does not divide
    original = Job("session", str(graph), feeds, 2, fetches=fetches)
    expected = run(original)
    ours = dataclasses.replace(original, path=str(placed), devices=k)
    jobs = [ours, dataclasses.replace(ours, kind="wrapped")]
    if lowering == "collective":  # one fetch alone, which needs a part of the collectives
        jobs.append(dataclasses.replace(ours, fetches=fetches[2:3]))
    for job, got in zip(jobs, apart(jobs, tmp_path), strict=True):
        assert_alike(got, {n: v for n, v in expected.items() if n.endswith(job.fetches)})


@pytest.mark.parametrize(
    "k, lowering",
    [
        (2, "p2p"),
        *(pytest.param(k, "p2p", marks=pytest.mark.slow) for k in (3, 4)),
        pytest.param(4, "collective", marks=pytest.mark.slow),
    ],
)
def test_a_training_graph_with_its_saver(
    k: int, lowering: str, tmp_path: Path, capsys: Any
) -> None:
    """A CNN: three steps from its initialisers, three more from its checkpoint."""
    graph, files = tmp_path / "cnn.meta", [tmp_path / "placed.pb", tmp_path / "placed.meta"]
    feeds = fed(tmp_path / "feeds.npz", exports.cnn(graph))
    flags = ("--batch=8", f"--devices={k}", f"--lowering={lowering}", "--fetches=net/loss")
    for file in files:
        rewritten(capsys, graph, *flags, "--targets=net/train", f"--output={file}")
    start = Job(
        "meta",
        str(graph),
        feeds,
        3,
        fetches=("net/loss:0",),
        targets=("net/train",),
        initialize=("net/init",),
        save=str(tmp_path / "three"),
    )
    go_on = dataclasses.replace(
        start, initialize=(), restore=start.save, save=str(tmp_path / "six")
    )
    expected = [run(start), run(start), run(go_on)]
    here = dataclasses.replace(start, path=str(files[0]), devices=k, save="")
    jobs = [
        dataclasses.replace(here, kind="session"),
        dataclasses.replace(here, kind="wrapped"),
        dataclasses.replace(go_on, path=str(files[1]), devices=k, save=str(tmp_path / "ours")),
    ]
    for got, wanted in zip(apart(jobs, tmp_path), expected, strict=True):
        assert_alike(got, wanted)
    assert_same_checkpoints(tmp_path / "ours", tmp_path / "six")


@pytest.mark.parametrize("k", [3, *(pytest.param(k, marks=pytest.mark.slow) for k in (2, 4))])
def test_a_saved_models_training_signature(k: int, tmp_path: Path, capsys: Any) -> None:
    """A small GPT; what it saves after three steps loads into the model's own objects."""
    model, placed = tmp_path / "gpt", tmp_path / "placed"
    feeds = fed(tmp_path / "feeds.npz", exports.gpt(model))
    flags = ("--batch=6", "--signature=train", f"--devices={k}", f"--output={placed}")
    rewritten(capsys, model, *flags)
    original = tf.saved_model.load(str(model))
    job = Job("saved_model", str(model), feeds, 3, signature="train")
    expected = run(job)
    for step in range(3):
        original.signatures["train"](**{n: tf.constant(v) for n, v in job.fed(step).items()})
    ours = dataclasses.replace(job, path=str(placed), devices=k)
    saving = dataclasses.replace(ours, kind="saved_model_session", save=str(tmp_path / "saved"))
    for got in apart([ours, saving], tmp_path):
        assert_alike(got, expected)
    fresh = exports.GPT()
    tf.train.Checkpoint(fresh).read(saving.save).assert_consumed()
    for name in ("weights", "first", "second", "steps"):
        pairs = zip(
            tf.nest.flatten(getattr(fresh, name)),
            tf.nest.flatten(getattr(original, name)),
            strict=True,
        )
        for got, wanted in pairs:
            np.testing.assert_allclose(got.numpy(), wanted.numpy(), RTOL, ATOL)


@pytest.mark.slow
def test_a_saved_models_inference_signature(tmp_path: Path, capsys: Any) -> None:
    model, placed = tmp_path / "gpt", tmp_path / "placed"
    steps = [{"ids": step["ids"]} for step in exports.gpt(model)]
    feeds = fed(tmp_path / "feeds.npz", steps)
    rewritten(capsys, model, "--batch=6", "--devices=4", f"--output={placed}")
    job = Job("saved_model", str(model), feeds, 3, signature="serving_default")
    (got,) = apart([dataclasses.replace(job, path=str(placed), devices=4)], tmp_path)
    assert_alike(got, run(job))
