"""The op types of real training steps, counted once, and what becomes of those without description.

The list comes from tracing 248 models and configurations of tf_keras 2.21 (applications, recurrent
nets, transformers, all optimizers, losses, metrics, mixed precision) with static batches.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

OPS = Path(__file__).with_name("census_ops.txt").read_text().split()

# Ops that are in no captured graph, or are no work there -> what becomes of them.
GONE = {
    "Const": "a value, which lies where it is needed",
    "Placeholder": "an input",
    "ReadVariableOp": "a version of the variable",
    "NoOp": "control edges",
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), "inlined"),
    **dict.fromkeys(
        ("Shape", "ShapeN", "Size", "Range", "VariableShape", "BroadcastGradientArgs"),
        "a constant: shapes are static",
    ),
    **dict.fromkeys(("If", "StatelessIf"), "both branches, of which the predicate chooses"),
    **dict.fromkeys(
        ("RandomUniform", "RandomStandardNormal", "RandomUniformInt"),
        "the stateless op that draws the same numbers, from a state",
    ),
    "Unique": "PaddedUnique: the distinct values in a vector of known size",
}

_LOOP = "loops run whole until they are unrolled"
_LIST = "a list of tensors, which only a loop fills"
_SIZE = "the size of its output depends on data"
_STRINGS = "strings are on the host"

# Ops that run whole on one device -> the reason.
WHOLE = {
    **dict.fromkeys(("While", "StatelessWhile"), _LOOP),
    **{op: _LIST for op in OPS if "TensorList" in op},
    **dict.fromkeys(("Where", "RaggedTensorToTensor", "ComputeAccidentalHits"), _SIZE),
    "DynamicStitch": "the size of its output is the largest of the given places",
    "SparseToDense": "how many elements there are depends on data",
    "LogUniformCandidateSampler": "one draw without a counter that could be divided",
    "CTCLoss": "labels of all rows are in one list, whose parts differ in length",
    "LookupTableFindV2": "the table is in one place",
    "PyFunc": "Python runs once",
    "Assert": "a check runs once, with all that it may report",
    "PrintV2": "printed once",
    **{op: _STRINGS for op in OPS if op.startswith(("String", "StaticRegex")) or op == "AsString"},
}


def census_markdown(described: Collection[str]) -> str:
    """How many of the ops are described, and why the others are not, for docs/ops.md."""
    known = [op for op in OPS if op in described]
    lines = [
        "| of the op types of real training steps | |",
        "|---|---|",
        f"| all | {len(OPS)} |",
        f"| described | {len(known)} |",
        f"| gone when a step is captured | {len(GONE)} |",
        f"| run whole | {len(WHOLE)} |",
        "",
        "| gone | what becomes of it |",
        "|---|---|",
        *(f"| {op} | {GONE[op]} |" for op in sorted(GONE)),
        "",
        "| run whole | why |",
        "|---|---|",
        *(f"| {op} | {WHOLE[op]} |" for op in sorted(WHOLE)),
    ]
    return "\n".join(lines) + "\n"
