"""Names of what a node becomes: ``<node>/piece3`` on worker 3, and what belongs to that piece below
it.
"""

from __future__ import annotations


def piece(node: str, worker: int, part: str = "") -> str:
    """The name of a node's piece, or of the auxiliary node `part` of it."""
    return f"{node}/piece{worker}/{part}" if part else f"{node}/piece{worker}"


def tensor(name: str, index: int = 0) -> str:
    """``name:index``."""
    return f"{name}:{index}"


def node_of(tensor_name: str) -> str:
    """The node that makes ``name:index``."""
    return tensor_name.rpartition(":")[0]
