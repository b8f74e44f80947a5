"""The groups of collectives: formed before a step first runs, checked, and known when broken.

A group is formed by the first collective that uses its key. Would an op of a step fail before that,
the key could never be used again; so a gather that cannot fail comes first. It tells the order of
ranks as well, which the rewritten graph relies on.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tofu_tf import errors
from tofu_tf.rewrite.placed import Placed

_log = logging.getLogger(__name__)

_FORMING = 0  # instance key; those of a step count from 1
_SECONDS = 60.0
# Group keys of probes: of the rewriter's keys none is so large.
_probes = itertools.count(1 << 30)


def gathering(groups: Mapping[int, Sequence[str]]) -> Placed:
    """A step in which every member of every group gathers the members' ranks."""
    graph = tf.Graph()
    fetches, effects = [], []
    with graph.as_default():
        for key, devices in groups.items():
            for rank, device in enumerate(devices):
                with tf.device(device):
                    made = tf.raw_ops.CollectiveGatherV2(
                        input=tf.constant([rank], tf.float32),
                        group_size=len(devices),
                        group_key=key,
                        instance_key=_FORMING,
                        ordering_token=[],
                        communication_hint="nccl" if "GPU" in device else "ring",
                        timeout_seconds=_SECONDS,
                    )
                fetches.append(made.name)
                effects.append(made.op.name)
    return Placed(graph.as_graph_def(), (), tuple(fetches), (), tuple(effects))


def check_ranks(groups: Mapping[int, Sequence[str]], gathered: Sequence[np.ndarray]) -> None:
    """Raises when TensorFlow ranks the members of some group otherwise than by their devices."""
    found = iter(gathered)
    for devices in groups.values():
        for _ in devices:
            ranks = [int(rank) for rank in next(found)]
            if ranks != list(range(len(devices))):
                raise errors.DeviceError(
                    f"collectives over {', '.join(devices)}",
                    f"TensorFlow ranks them {ranks}",
                    "the order of the devices",
                    'give the devices in that order, or use lowering="p2p"',
                )


def probe(devices: Sequence[str]) -> Mapping[int, tuple[str, ...]]:
    """A group of these devices under a key of its own."""
    return {next(_probes): tuple(devices)}


def say_broken(error: Exception) -> None:
    _log.warning(
        "a step failed amid collectives, which TensorFlow does not run again in this process: from "
        "now on data move point to point (%s)",
        str(error).splitlines()[0],
    )
