"""However every op is cut, and however its tensors lie, a step computes what it computes.

The zoo's steps hold every described op. A plan forces a strategy on each of its nodes at once; in
as many plans as the op with most strategies has, each op was cut in every legal way.
"""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest

from tests.rewrite import random_plans
from tests.rewrite.forcing import Forcing
from tests.zoo import zoo
from tofu_tf.cost.evaluation import evaluate
from tofu_tf.ops.registry import REGISTRY
from tofu_tf.plan.plans import Plan
from tofu_tf.report.counting import count_communication
from tofu_tf.rewrite.rewriting import rewrite

# A gradient that is zero but for rounding (a bias before a softmax) is compared to this.
FLOOR = 1e-2
# Ops that no captured step holds: importing reads through them.
BYPASSED = ("Identity", "IdentityN", "PlaceholderWithDefault", "PreventGradient", "StopGradient")
# By default one plan each, of steps whose plans are quickly placed; what the others hold, those do.
LARGE = (
    *("unet", "cnn", "conv1d", "autoencoder", "convnext", "vit", "lstm", "recurrent", "vae"),
    *("attention-1", "attention-3", "gpt", "bert", "siamese", "dcgan", "mlp-clipped"),
)
QUICK = [name for name in zoo.NAMES if name not in LARGE]


def check(case: zoo.Case, plan: Plan, forcing: Forcing) -> None:
    graph = case.captured.graph
    placed = rewrite(graph, plan, forcing.describing)
    outputs, after = random_plans.run_placed(placed, case.captured, list(case.feeds))
    for ref, got, expected in zip(graph.outputs, outputs, case.outputs, strict=True):
        node = graph.nodes[ref.node]
        close(got, expected, case, f"{ref} of {node.op} cut {plan.strategies.get(node.name)}")
    for name, value in case.after.items():
        close(after[name], value, case, name)
    moved = count_communication(placed.graph_def, placed.feed_nodes, placed.result_nodes)
    assert moved.total == evaluate(graph, plan, forcing.describing)


def close(got: np.ndarray, expected: np.ndarray, case: zoo.Case, where: str) -> None:
    if not np.issubdtype(expected.dtype, np.inexact):
        np.testing.assert_array_equal(got, expected, where)
        return
    largest = float(np.max(np.abs(expected[np.isfinite(expected)]), initial=FLOOR))
    np.testing.assert_allclose(
        got, expected, rtol=case.tolerance, atol=case.tolerance * largest, err_msg=where
    )


@pytest.mark.parametrize("name", QUICK)
def test_some_cuts(name: str) -> None:
    """One plan, drawn by the name."""
    rng = random.Random(zlib.crc32(name.encode()))
    case = zoo.case(name)
    forcing = Forcing(case.captured.graph, rng.choice((2, 3)))
    check(case, forcing.plan(rng.randrange(forcing.turns), rng.randrange(1000)), forcing)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("name", zoo.NAMES)
def test_every_cut(name: str, workers: int) -> None:
    """Every axis of every op, and every pair of them over four workers."""
    case = zoo.case(name)
    forcing = Forcing(case.captured.graph, workers)
    for turn in range(forcing.turns):
        check(case, forcing.plan(turn, turn), forcing)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3, 4, 6])
@pytest.mark.parametrize("name", zoo.NAMES)
def test_random_plans(name: str, workers: int) -> None:
    """Layouts and strategies drawn anew, sixteen times."""
    case = zoo.case(name)
    forcing = Forcing(case.captured.graph, workers)
    for seed in range(1000, 1016):
        check(case, forcing.plan(random.Random(seed).randrange(forcing.turns), seed), forcing)


def test_every_op_is_held() -> None:
    """Quick steps alone hold every op but those that importing takes out."""
    left = set(REGISTRY) - set(BYPASSED)
    for name in QUICK:
        left -= {node.op for node in zoo.case(name).captured.graph}
    assert not left, f"ops in no step of the zoo: {sorted(left)}"
    everywhere = {node.op for name in QUICK for node in zoo.case(name).captured.graph}
    assert not everywhere & set(BYPASSED)
