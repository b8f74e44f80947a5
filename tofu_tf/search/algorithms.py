"""The searches by name, all of one signature: a Problem in, an Outcome out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tofu_tf.search.baselines import chopping, parallel
from tofu_tf.search.joint import joint
from tofu_tf.search.problem import Outcome, Problem
from tofu_tf.search.recursion import recursion

Algorithm = Callable[[Problem], Outcome]

# Those that are compared with.
BASELINES: Mapping[str, Algorithm] = {
    "all-row": chopping.all_row,
    "spartan": chopping.spartan,
    "equal-chop": chopping.equal_chop,
    "icml18": chopping.icml18,
    "data-parallel": parallel.data_parallel,
    "fully-sharded": parallel.fully_sharded,
    "megatron": parallel.megatron,
}

ALGORITHMS: Mapping[str, Algorithm] = {"joint": joint, "recursion": recursion, **BASELINES}

# What a plan can minimise.
OBJECTIVES = {"bytes": "bytes that cross between groups of workers (the paper's)"}
