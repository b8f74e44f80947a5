"""The command tofu-tf, in this process and in one of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tofu_tf.cli import main as cli
from tofu_tf.graph.files import read_graph_def, write_graph_def
from tofu_tf.graph.persistence import step_of
from tofu_tf.pipeline import partition
from tofu_tf.plan.files import load_plan
from tofu_tf.rewrite.text import placed_text

ROOT = Path(__file__).parent.parent.parent


def frozen(batch: int | None = None) -> graph_pb2.GraphDef:
    """Two layers with constant weights."""
    rng = np.random.default_rng(0)
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (batch, 24), "x")
        w = tf.constant(rng.normal(size=(24, 64)), tf.float32, name="w")
        v = tf.constant(rng.normal(size=(64, 32)), tf.float32, name="v")
        h = tf.nn.relu(tf.matmul(x, w, name="first"), name="relu")
        tf.nn.softmax(tf.matmul(h, v, name="second"), name="probabilities")
    return graph.as_graph_def()


def trained() -> graph_pb2.GraphDef:
    """A training step of one layer on a variable."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (8, 64), "x")
        w = tf.Variable(np.zeros((64, 48), np.float32), name="w", shape=(64, 48))
        loss = tf.reduce_sum(tf.matmul(x, w) ** 2.0, name="loss")
        with tf.name_scope("train"):
            w.assign_sub(tf.gradients(loss, w)[0], name="step")
    return graph.as_graph_def()


def traced() -> graph_pb2.GraphDef:
    """A tf.function over two variables, which are fed to it."""
    with tf.device("/device:CPU:0"):
        w, b = tf.Variable(tf.ones((4, 3))), tf.Variable(tf.ones(3))
    function = tf.function(lambda x: tf.matmul(x, w) + b)
    return function.get_concrete_function(tf.TensorSpec((2, 4))).graph.as_graph_def()


STEP = next(n.name for n in trained().node if n.op == "AssignSubVariableOp")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with graphs, as the working directory."""
    write_graph_def(frozen(), tmp_path / "frozen.pb")
    write_graph_def(trained(), tmp_path / "trained.pbtxt")
    write_graph_def(traced(), tmp_path / "traced.pb")
    half = frozen(16)
    half.node[0].device, half.node[1].device = "/device:CPU:0", "/device:CPU:1"
    write_graph_def(half, tmp_path / "half.pb")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], files: Path) -> Callable[[str], tuple[int, str, str]]:
    """A function from a command line to exit code, stdout and stderr."""

    def run(line: str) -> tuple[int, str, str]:
        code = cli.main(line.split())
        out, err = capsys.readouterr()
        return code, out, err

    return run


TRAINED = f"trained.pbtxt --fetches=loss,{STEP}"
GOOD = {
    "plan_frozen": "plan frozen.pb --batch=16 --devices=4",
    "plan_trained": f"plan {TRAINED} --devices=2 --constraints=w=None,d0",
    "show_frozen": "show frozen.pb --batch=16 --devices=4 --constraints=relu=None,d0d1",
    "show_trained": f"show {TRAINED} --devices=3",
    "show_op": f"show {TRAINED} --devices=2 --op=loss --tensor=w --constraints=w=None,d0",
    "ops_all": "ops --all",
    "ops_trained": f"ops {TRAINED}",
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_printed(call, golden, name: str) -> None:
    code, out, err = call(GOOD[name])
    assert (code, err) == (cli.FINE, "")
    golden(out, name)


BAD = [
    ("", "no command", "plan, show"),
    ("pln frozen.pb", "no such command", "did you mean plan?"),
    ("plan", "no graph", "one GraphDef file"),
    ("plan a.pb b.pb", "2 arguments", "one GraphDef file"),
    ("ops", "no graph", "one GraphDef file"),
    ("ops frozen.pb", "x (None, 24)", "--batch"),
    ("ops frozen.pb --batch=16 --markdown", "without --all", "--all --markdown"),
    ("ops frozen.pb --all", "a graph, frozen.pb", "lists those of the graph"),
    ("plan --device=4 frozen.pb", "Unknown command line flag 'device'", "--helpfull"),
    ("plan frozen.pb --devices=none", "none", "--helpfull"),
    ("plan absent.pb", "No such file", "a readable file"),
    ("plan frozen.pb", "x (None, 24)", "--batch"),
    ("plan frozen.pb --batch=16 --fetches=second,secnd", "secnd", "names of its nodes"),
    ("plan trained.pbtxt", "it has variables", "--fetches"),
    ("plan traced.pb", "2 Placeholders for variables", "convert_variables_to_constants_v2"),
    ("plan frozen.pb --batch=16 --factors=4,4", "a product of 16", "8, the number of devices"),
    ("plan frozen.pb --batch=16 --factors=8,a", "'a'", "numbers from 2"),
    ("plan frozen.pb --batch=16 --algorithm=magic", "magic", "recursion"),
    ("plan frozen.pb --batch=16 --objective=fame", "fame", "bytes"),
    ("plan frozen.pb --batch=16 --constraints=relu", "'relu'", "name=cuts"),
    ("plan frozen.pb --batch=16 --constraints=relu=0,1", "'relu=0,1'", "name=cuts"),
    ("plan frozen.pb --batch=16 --constraints=rleu=d0,None", "rleu", "matches no"),
    ("plan frozen.pb --batch=16 --output=absent/plan.json", "No such file", "a file to write"),
    ("plan frozen.pb --batch=1 --devices=997", "997", "fewer devices"),
    ("show frozen.pb --batch=16 --op=frist", "op frist", "did you mean first?"),
    ("show frozen.pb --batch=16 --tensor=relu:3", "tensor relu:3", "did you mean relu?"),
    ("show frozen.pb --batch=16 --dot=absent/x.dot", "No such file", "a place to write to"),
    ("show frozen.pb --batch=16 --lowering=magic", "magic", "--helpfull"),
    ("count absent.pb", "No such file", "a readable file"),
    ("count half.pb", "no device", "a device on every node"),
    ("show frozen.pb --batch=16 --plan=absent.json", "cannot be read", "a plan file"),
    ("show frozen.pb --batch=16 --plan=frozen.pb", "frozen.pb", "a plan file"),
]


@pytest.mark.parametrize("line, seen, remedy", BAD)
def test_bad_input(call, files: Path, line: str, seen: str, remedy: str) -> None:
    before = sorted(files.iterdir())
    code, out, err = call(line)
    assert (code, out) == (cli.BAD_INPUT, "")
    assert seen in err
    assert remedy in err
    assert len(err.splitlines()) <= 24
    assert sorted(files.iterdir()) == before


@pytest.mark.parametrize("flag", ["--help", "--helpfull"])
def test_help_names_every_command_and_flag(call, flag: str) -> None:
    code, out, err = call(flag)
    assert (code, err) == (cli.FINE, "")
    assert all(f"  {name} " in out for name in cli.COMMANDS)
    assert all(f"{name}:" in out for name in cli.new_flags())


def test_a_saved_plan_is_followed(call, files: Path) -> None:
    code, out, _ = call("plan frozen.pb --batch=16 --devices=4 --factors=4 --output=p.json")
    assert code == cli.FINE
    assert "written to p.json" in out
    assert load_plan("p.json").machine.factors == (4,)
    code, followed, _ = call("show frozen.pb --batch=16 --plan=p.json")
    assert code == cli.FINE
    assert "4 CPU devices = 4 (d0)" in followed
    for line, seen in [
        ("show frozen.pb --batch=32 --plan=p.json", "another model or other input shapes"),
        ("show frozen.pb --batch=16 --plan=p.json --devices=8", "is for 4 devices"),
    ]:
        code, _, err = call(line)
        assert code == cli.BAD_INPUT
        assert seen in err


def test_the_text_is_that_of_the_pass(call) -> None:
    code, out, _ = call(f"show {TRAINED} --devices=2 --constraints=w=None,d0 --text")
    placed, _ = partition(
        trained(), fetches=["loss"], targets=[STEP], machine=2, constraints={"w": (None, "d0")}
    )
    assert (code, out) == (cli.FINE, placed_text(step_of(placed)))


def test_a_placed_graph_is_counted_as_it_is(call, files: Path) -> None:
    placed, plan = partition(
        trained(), fetches=["loss"], targets=[STEP], machine=4, constraints={"w": ("d0", "d1")}
    )
    write_graph_def(placed, "placed.pb")
    code, out, err = call("show placed.pb")
    assert (code, err) == (cli.FINE, "")
    assert f"({plan.predicted_bytes} bytes) per step" in out
    assert all(f"/device:CPU:{i}" in out for i in range(4))
    code, text, _ = call("show placed.pb --text")
    assert code == cli.FINE
    assert len(text.splitlines()) == len(read_graph_def("placed.pb").node)
    code, _, err = call("plan placed.pb --fetches=loss")
    assert code == cli.BAD_INPUT
    assert "already placed on 4 devices" in err


@pytest.mark.parametrize("lowering", ["p2p", "collective"])
def test_bytes_are_counted_for_each_pair_of_devices(call, lowering: str) -> None:
    placed, plan = partition(
        trained(),
        fetches=["loss"],
        targets=[STEP],
        machine=2,
        constraints={"w": ("d0", None), "x": (None, "d0"), "MatMul": (None, "d0")},
        lowering=lowering,
    )
    write_graph_def(placed, "placed.pb")
    code, out, err = call("count placed.pb")
    assert (code, err) == (cli.FINE, "")
    assert f"({plan.predicted_bytes} bytes) per step" in out
    rows = [line.split() for line in out.splitlines()]
    pairs = {(r[0][-5:], r[1][-5:]): int(r[-1]) for r in rows if r and r[0].startswith("/device")}
    assert set(pairs) == {("CPU:0", "CPU:1"), ("CPU:1", "CPU:0")}
    assert sum(pairs.values()) == plan.predicted_bytes
    assert ("Collective" in out) == (lowering == "collective")


def test_a_graph_that_tensorflow_users_placed_is_counted(call) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device("/gpu:1"):
            x = tf.ones((4, 8), name="x")
        with tf.device("/job:worker/task:1/cpu:0"):
            tf.negative(tf.negative(x))
    write_graph_def(graph.as_graph_def(), "mine.pbtxt")
    code, out, _ = call("count mine.pbtxt")
    assert code == cli.FINE
    assert "128 B per step" in out
    assert re.search(r"^/device:GPU:1 +/job:worker/replica:0/task:1/device:CPU:0 +1 ", out, re.M)


@pytest.mark.parametrize(
    "device, why", [("", "no node names a device"), ("/device:CPU:0", "all nodes are on /device")]
)
def test_one_device_moves_nothing(call, device: str, why: str) -> None:
    graph_def = frozen()
    for node in graph_def.node:
        node.device = device
    write_graph_def(graph_def, "one.pb")
    code, out, err = call("count one.pb")
    assert (code, err) == (cli.FINE, "")
    assert out.startswith(f"counted communication: 0 B per step, as {why}")


def test_drawings_are_written(call, files: Path) -> None:
    line = "show frozen.pb --batch=16 --devices=4 --dot=x.dot --tensorboard=logs"
    code, out, err = call(line)
    assert (code, err) == (cli.FINE, "")
    assert (files / "x.dot").read_text().startswith("digraph")
    (event,) = (files / "logs").iterdir()
    assert out == f"written to x.dot\nwritten to logs/{event.name}\n"
    placed, _ = partition(frozen(16), fetches=["probabilities"], machine=4)
    write_graph_def(placed, "placed.pb")
    assert call("show placed.pb --dot=y.dot")[0] == cli.FINE
    assert (files / "y.dot").read_text() == (files / "x.dot").read_text()
    code, _, err = call("show placed.pb --op=first")
    assert code == cli.BAD_INPUT
    assert "--op: the graph is placed already" in err


def test_what_goes_wrong_inside_is_not_bad_input(call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(arguments: object, values: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(cli.COMMANDS, "plan", cli.Command("", fails))  # type: ignore[arg-type]
    code, _, err = call("plan frozen.pb")
    assert code == cli.BROKEN
    assert "ZeroDivisionError" in err


def run(files: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tofu_tf.cli.main", *arguments],
        cwd=files,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_a_process_of_its_own_says_nothing_but_its_tables(files: Path) -> None:
    done = run(files, "plan", "frozen.pb", "--batch=16", "--devices=4", "--output=p.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("plan for 4 CPU devices")
    assert load_plan(files / "p.json").machine.workers == 4


def test_a_process_of_its_own_fails_with_one_message(files: Path) -> None:
    (files / "broken.pb").write_bytes((files / "frozen.pb").read_bytes()[:-7])
    done = run(files, "show", "broken.pb")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tofu-tf: broken.pb: a file of")
    assert "truncated" in done.stderr
