"""Partial results combined element by element."""

from __future__ import annotations

from collections.abc import Sequence

from tofu_tf import errors
from tofu_tf.rewrite import naming
from tofu_tf.rewrite.building import Building

# reducer -> binary op; booleans are ordered False < True
BINARY = {"Max": "Maximum", "Min": "Minimum", "Prod": "Mul"}
BOOLEAN = {"Max": "LogicalOr", "Min": "LogicalAnd", "Sum": "LogicalOr", "Prod": "LogicalAnd"}


def combined(
    make: Building, reducer: str, tensors: Sequence[str], dtype: str, worker: int, name: str
) -> str:
    """The reduction of equally shaped partial results on `worker`."""
    if len(tensors) == 1:
        return tensors[0]
    if reducer == "Sum" and dtype != "bool":
        node = make.add(name, "AddN", worker, tensors, {"N": len(tensors), "T": dtype})
        return naming.tensor(node)
    op = (BOOLEAN if dtype == "bool" else BINARY).get(reducer)
    if op is None:
        raise errors.RewriteError(name, f"reducer {reducer}", f"one of {sorted(BINARY)} or Sum")
    attrs = {} if dtype == "bool" else {"T": dtype}
    total = tensors[0]
    for n, other in enumerate(tensors[1:]):
        part = name if n == len(tensors) - 2 else f"{name}/step{n}"
        total = naming.tensor(make.add(part, op, worker, (total, other), attrs))
    return total
