"""Whatever the layouts and strategies, the rewritten step computes what the step computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.rewrite import random_plans as plans
from tests.rewrite import steps
from tofu_tf.capture.functions import capture_function
from tofu_tf.rewrite.rewriting import rewrite


@pytest.fixture(scope="module", params=sorted(steps.STEPS))
def case(request: pytest.FixtureRequest) -> Any:
    """A captured step, its feeds, and outputs and variables after one run on one device."""
    step, feeds, variables = steps.STEPS[request.param]()
    captured = capture_function(step, [tf.TensorSpec(f.shape, f.dtype) for f in feeds])
    before = [v.numpy() for v in variables]
    outputs = [t.numpy() for t in tf.nest.flatten(tf.function(step)(*map(tf.constant, feeds)))]
    after = {name: v.numpy() for name, v in captured.variables.items()}
    for v, value in zip(variables, before, strict=True):
        v.assign(value)
    return captured, feeds, outputs, after


@pytest.mark.parametrize("workers", [2, 3, 4, 6])
@pytest.mark.parametrize("seed", range(6))
def test_equals_one_device(case: Any, workers: int, seed: int) -> None:
    captured, feeds, outputs, after = case
    plan = plans.random_plan(captured.graph, workers, seed)
    placed = rewrite(captured.graph, plan)
    got, variables = plans.run_placed(placed, captured, feeds)
    for a, b in zip(got, outputs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    for name, value in after.items():
        np.testing.assert_allclose(variables[name], value, rtol=1e-10, atol=1e-12, err_msg=name)
