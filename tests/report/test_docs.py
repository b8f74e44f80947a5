"""docs/ops.md says what the registry says: ``pytest tests/report/test_docs.py --update-golden``."""

from __future__ import annotations

from pathlib import Path

import pytest
import tf_keras as keras

import tofu_tf.ops  # fills the registry
from tests.report import census
from tests.report.nets import NETS
from tofu_tf.capture.keras_steps import capture_step
from tofu_tf.ops.registry import REGISTRY
from tofu_tf.report.operators import operator, operators_markdown

PAGE = Path(__file__).parent.parent.parent / "docs" / "ops.md"

HEAD = """# Described ops

Made from the registry (`tofu_tf/ops/`) by `pytest tests/report/test_docs.py --update-golden`; do
not edit. `tofu-tf ops --all` prints each op with what a cut along each axis reads and writes,
`tofu-tf ops GRAPH` tells of the ops of a graph. What is said here is proven against TensorFlow's
kernels (`tests/conformance`).

An op's axes are the coordinates of its outputs and of its sums, with two elements and more, of the
sample that shows most. `[b, ky + 2*y, :]` reads: the first dimension at b, of the second row
ky + 2*y, the third dimension whole.

"""

# Of the registry: ops that are never cut, and those with some axes that are not. Whoever adds one
# says why in its entry, and here.
NEVER_CUT = {"PaddedUnique", "RngReadAndSkip", "StatelessRandomGetKeyCounter"}


def page() -> str:
    parts = [HEAD, operators_markdown(), "\n## Ops of real training steps\n\n"]
    return "".join((*parts, census.census_markdown(REGISTRY)))


def test_the_page_is_up_to_date(request: pytest.FixtureRequest) -> None:
    text = page()
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "pytest tests/report/test_docs.py --update-golden"


def test_ops_that_are_never_cut() -> None:
    cut = {
        name
        for name, entry in REGISTRY.items()
        if any(axes for sample in entry.samples for axes in sample.axes.values())
    }
    assert set(REGISTRY) - cut == NEVER_CUT
    assert [n for n, e in REGISTRY.items() if bool(e.uncuttable) != (n in NEVER_CUT)] == []


def test_what_becomes_of_every_op_of_real_steps() -> None:
    assert len(census.OPS) == len(set(census.OPS)) == 229
    for op in census.OPS:
        places = (op in REGISTRY, op in census.GONE, op in census.WHOLE)
        assert sum(places) == 1, f"{op}: described, gone, whole: {places}"
    assert set(census.GONE) | set(census.WHOLE) <= set(census.OPS)


@pytest.mark.parametrize("name", ["Conv1D", "DCGAN"])
def test_what_is_gone_is_in_no_captured_graph(name: str) -> None:
    keras.backend.clear_session()
    with tofu_tf.abstract():
        model, data = NETS[name]()
    graph = capture_step(model, "train", data, abstract=True).graph
    assert {node.op for node in graph} & set(census.GONE) <= {"Const", "Placeholder"}


SIGNATURES = [
    ("MatMul", "([i, k], [k, j]) -> [i, j]", ("in0[0], in1 whole", "in0[1], in1[0], reduce Sum")),
    ("Softmax", "([i0, :]) -> [i0, i1]", ("in0[0]",)),
    ("AddV2", "([i0, i1], [i0, i1]) -> [i0, i1]", ("in0[0], in1[0]", "in0[1], in1[1]")),
    ("Max", "([r0, i0, r1], [0, 2]) -> [i0]", ("in0[1]", "in0[0], reduce Max")),
]


@pytest.mark.parametrize("name, signature, cuts", SIGNATURES)
def test_strategies(name: str, signature: str, cuts: tuple[str, ...]) -> None:
    shown = operator(REGISTRY[name])
    assert shown.signature == signature
    assert set(cuts) <= {text for _, _, text in shown.cuts}


def test_a_halo() -> None:
    shown = operator(REGISTRY["Conv2D"])
    texts = {axis: text for axes, _, text in shown.cuts for axis in axes}
    assert texts["y"] == "in0[1]+2, in1 whole"  # a filter of three rows, stride 1
    assert dict(shown.whole) == {("ky", "kx"): "no kernel runs on a part of it"}
