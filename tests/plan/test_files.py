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
