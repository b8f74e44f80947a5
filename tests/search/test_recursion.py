"""Plans of the recursion: never above simple ones, the same under any names, for any k."""

from __future__ import annotations

import pytest

from tests.search import steps
from tofu_tf import errors
from tofu_tf.coarsen.coarsening import coarsen
from tofu_tf.cost.communication import Pricing
from tofu_tf.graph.ir import CONST, Graph, Ref
from tofu_tf.ops.applicable import Describing
from tofu_tf.ops.registry import REGISTRY
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.machine import imagined
from tofu_tf.search.checking import check_plan
from tofu_tf.search.planning import find_plan
from tofu_tf.search.problem import Problem
from tofu_tf.search.recursion import recursion

SIZES = (96, 160, 64, 128)


def single_strategy_bytes(graph: Graph, k: int, dimension: int) -> int:
    """The cost when every large tensor is cut along one dimension only."""
    machine = imagined(k)
    wanted = {
        ref: Layout((min(dimension, len(spec.shape) - 1),) * len(machine.factors))
        for node in graph
        if node.op != CONST
        for ref, spec in zip(node.refs, node.outputs, strict=True)
        if spec.nbytes > 1024
    }
    coarse = coarsen(graph, Describing(graph), wanted)
    return recursion(Problem(coarse, machine, Pricing())).bytes


@pytest.mark.parametrize("batch", [32, 2048])
@pytest.mark.parametrize("k", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("dimension", [0, 1])
def test_never_above_a_single_strategy(batch: int, k: int, dimension: int) -> None:
    graph = steps.training(batch, SIZES)
    assert find_plan(graph, imagined(k)).search_bytes <= single_strategy_bytes(graph, k, dimension)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 6, 7, 8, 12, 64])
def test_plans_for_any_k_check(k: int) -> None:
    graph = steps.training(33, SIZES)
    plan = find_plan(graph, imagined(k))
    check_plan(plan, graph, imagined(k))
    assert (plan.predicted_bytes == 0) == (k == 1)
    large = [r for r in graph.refs() if graph.spec(r).nbytes > 1024]
    assert all(None not in plan.layouts[r].cuts for r in large if graph.nodes[r.node].op != CONST)


@pytest.mark.parametrize("k", [2, 4, 6])
def test_renaming_changes_nothing(k: int) -> None:
    plans = [
        find_plan(steps.training(64, SIZES, names), imagined(k)) for names in ("w", "z/omega_")
    ]
    first, second = ([str(layout) for layout in p.layouts.values()] for p in plans)
    assert first == second
    assert plans[0].predicted_bytes == plans[1].predicted_bytes
    assert plans[0].fingerprint == plans[1].fingerprint
    assert list(plans[0].strategies.values()) == list(plans[1].strategies.values())


def test_a_large_batch_is_cut_along_it_and_a_small_one_is_not() -> None:
    large, small = (
        find_plan(steps.training(batch, (256, 256, 256)), imagined(2)) for batch in (1 << 14, 8)
    )
    assert large.layouts[Ref("MatMul")] == Layout((0,))
    assert small.layouts[Ref("MatMul")] == Layout((1,))


def test_bookkeeping_happens_once() -> None:
    graph = steps.training(64, SIZES)
    plan = find_plan(graph, imagined(4))
    assert plan.layouts[graph.variables["steps"].ref].home
    assert plan.strategies["count"].home
    assert plan.reasons[graph.variables["steps"].ref] == "happens once"


def test_reasons_for_what_is_not_cut() -> None:
    graph = steps.product(40, 3, 3)
    plan = find_plan(graph, imagined(8), small_bytes=16)
    w = graph.variables["w"].ref
    assert plan.layouts[w].cuts.count(None) == 1
    assert plan.reasons[w] == "no dimension of [3, 3] can still be cut in 2 by d2"


def test_more_workers_than_anything_can_be_cut_for() -> None:
    with pytest.raises(errors.PlanError, match=r"largest dimension is 9, of w:0 \[7, 9\]"):
        find_plan(steps.product(5, 7, 9), imagined(11))


def test_undescribed_ops_are_all_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(REGISTRY, "MatMul")
    monkeypatch.delitem(REGISTRY, "ReluGrad")
    with pytest.raises(errors.UndescribedError) as caught:
        find_plan(steps.training(32, SIZES), imagined(2), undescribed="refuse")
    assert "MatMul (8 nodes, such as MatMul); ReluGrad (2 nodes, " in str(caught.value)


@pytest.mark.parametrize(
    "given, text",
    [
        ({"algorithm": "magic"}, r"algorithm 'magic': is not known\n  expected: one of .*'recurs"),
        ({"objective": "fun"}, r"objective 'fun': is not known\n  expected: one of .*'bytes'"),
    ],
)
def test_unknown_names_list_the_known(given: dict[str, str], text: str) -> None:
    with pytest.raises(errors.PlanError, match=text):
        find_plan(steps.product(64, 64, 64), imagined(2), **given)  # type: ignore[arg-type]
