"""Plans as files: the same plan back, and files that are none refused in one screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.search import steps
from tofu_tf import errors
from tofu_tf.plan.files import load_plan, save_plan
from tofu_tf.plan.machine import imagined
from tofu_tf.plan.plans import Plan
from tofu_tf.search.planning import find_plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return find_plan(steps.training(64, (96, 160, 64)), imagined(6, memory=12 << 30))


def test_round_trip(plan: Plan, tmp_path: Path) -> None:
    save_plan(plan, tmp_path / "a.json")
    again = load_plan(tmp_path / "a.json")
    assert again == plan
    assert list(again.layouts) == list(plan.layouts)
    save_plan(again, tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.parametrize("algorithm", ["recursion", "joint"])
def test_the_bound_is_kept(algorithm: str, tmp_path: Path) -> None:
    found = find_plan(steps.training(64, (96, 160)), imagined(4), algorithm=algorithm)
    save_plan(found, tmp_path / "a.json")
    assert load_plan(tmp_path / "a.json").bound == found.bound
    assert (found.bound is None) == (algorithm == "recursion")


def without(name: str) -> Any:
    return lambda data: data.pop(name)


def edited(*path: str | int, to: Any) -> Any:
    def edit(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = to

    return edit


@pytest.mark.parametrize(
    "edit, text",
    [
        (without("layouts"), "layouts is missing"),
        (without("machine"), "machine is missing"),
        (without("fingerprint"), "fingerprint is missing"),
        (without("format"), "not a plan"),
        (edited("version", to=99), "version 99"),
        (edited("layouts", "w0:0", to=[0]), r"layouts of 'w0:0' is \[0\]"),
        (edited("layouts", "w0:0", to=[0, "x"]), "layouts of 'w0:0'"),
        (edited("strategies", "MatMul", to={"axes": ["i"]}), "strategies of 'MatMul'"),
        (edited("strategies", "MatMul", to={}), "strategies of 'MatMul'"),
        (edited("machine", "factors", to=[7]), "machine: .*factors"),
        (edited("machine", "links", to=[1, 2]), "machine"),
        (edited("predicted_bytes", to="many"), "predicted_bytes is 'many'"),
        (edited("predicted_bytes", to=-1), "predicted_bytes is -1, less than 0"),
        (edited("search_bytes", to=1.5), "search_bytes is 1.5, not a int"),
        (edited("bound", to=-3), "bound is -3"),
        (edited("layouts", "w0:0", to=[True, None]), r"layouts of 'w0:0' is \[True, None\]"),
        (edited("layouts", "w0:0", to=[5, None]), r"'w0:0' is \[5, None\], its shape \[96, 160\]"),
        (edited("layouts", "w0:0", to=[-1, None]), "layouts of 'w0:0'"),
        (edited("layouts", "w0", to=[0, None]), "layouts of 'w0' comes twice"),
        (edited("specs", "wo:0", to=["float32", 3]), "specs of 'wo:0': no tensor of a layout"),
        (edited("specs", "w0:0", to=["float32", 64, 96.5]), "specs of 'w0:0'"),
        (edited("specs", "w0:0", to=["float32", True, 96]), "specs of 'w0:0'"),
        (edited("reasons", "wo:0", to="so"), "reasons of 'wo:0': no tensor of a layout"),
        (edited("strategies", "MatMul", to={"axes": "ij"}), "strategies of 'MatMul'"),
        (edited("strategies", "MatMul", to={"axes": ["i", 3]}), "strategies of 'MatMul'"),
        (edited("whole", "x", to=["Foo", "why", -4]), "whole of 'x'"),
        (edited("machine", "factors", to=[3, 2.0]), "machine: 2.0: not a whole number"),
        (edited("machine", "memory", to=-1), "machine: -1"),
        (edited("machine", "flops", to=0), "machine: 0"),
        (edited("machine", "links", to=[[1e-5, -1], [1e-5, 1]]), "machine: -1"),
        (edited("machine", "devices", to=[1, 2, 3, 4, 5, 6]), "machine: 1"),
    ],
)
def test_edited_files(plan: Plan, tmp_path: Path, edit: Any, text: str) -> None:
    path = tmp_path / "plan.json"
    save_plan(plan, path)
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data))
    with pytest.raises(errors.PlanFileError, match=text) as caught:
        load_plan(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 24


def test_everything_wrong_is_one_screen(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_plan(plan, path)
    data = json.loads(path.read_text())
    data["layouts"] = dict.fromkeys(data["layouts"], 5)
    path.write_text(json.dumps(data))
    with pytest.raises(errors.PlanFileError, match=r"and \d+ more") as caught:
        load_plan(path)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    "content, text",
    [
        (b"", "not JSON"),
        (b'{"format": "tofu_tf plan", ', "not JSON"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"[1, 2]", "not a plan"),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, text: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(errors.PlanFileError, match=text):
        load_plan(tmp_path / "x")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(errors.PlanFileError, match="cannot be read"):
        load_plan(tmp_path / "none")
