"""Every error kind of the package: each message says where, what was seen, what was expected, the
remedy.
"""

from __future__ import annotations


class TofuError(Exception):
    """An error a user can act on.

    Args:
      where: the thing at fault (layer, node, op, tensor, file, flag).
      seen: what was found there.
      expected: what would have been right; may be empty.
      remedy: what to do about it; may be empty.
    """

    ag_pass_through = True  # tf.function's autograph replaces other types by its own

    def __init__(self, where: str, seen: str, expected: str = "", remedy: str = "") -> None:
        self.where, self.seen, self.expected, self.remedy = where, seen, expected, remedy
        lines = [f"{where}: {seen}"]
        if expected:
            lines.append(f"  expected: {expected}")
        if remedy:
            lines.append(f"  remedy: {remedy}")
        super().__init__("\n".join(lines))


class DescriptionError(TofuError):
    """An operator's description cannot be analysed (non-affine access, wrong rank ...)."""


class UndescribedError(TofuError):
    """A graph holds ops that have no description."""


class CaptureError(TofuError):
    """A step cannot be traced into a flat graph with static shapes."""


class GraphError(TofuError):
    """A GraphDef cannot be read as a Graph."""


class DeviceError(TofuError):
    """Devices that do not exist, are too few, or can no longer be made."""


class PlanError(TofuError):
    """A plan that cannot be made, or that does not fit the graph or machine it is given to."""


class ConstraintError(PlanError):
    """A pinned layout that matches nothing or cannot be."""


class PlanFileError(PlanError):
    """A plan file that cannot be read."""


class RewriteError(TofuError):
    """A piece that cannot be made from the plan."""


class FlagError(TofuError):
    """A command-line flag or argument that cannot be understood."""


class ModelError(TofuError):
    """A model that cannot be distributed as it is."""
