"""The searches by name, all of one signature: a Problem in, an Outcome out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tofu_tf.search.joint import joint
from tofu_tf.search.problem import Outcome, Problem
from tofu_tf.search.recursion import recursion

Algorithm = Callable[[Problem], Outcome]

ALGORITHMS: Mapping[str, Algorithm] = {"joint": joint, "recursion": recursion}

# What a plan can minimise.
OBJECTIVES = {"bytes": "bytes that cross between groups of workers (the paper's)"}
