"""Which ops read, write or merely carry variables, and which have effects of their own."""

from __future__ import annotations

from collections.abc import Sequence

from tensorflow.core.framework import node_def_pb2

from tofu_tf.graph.registered import op_definition

READ = "ReadVariableOp"

# Resource operands of these are only read.
READERS = frozenset(
    {READ, "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"}
)
# Ops that pass a value (and a handle) on unchanged.
CARRIERS = frozenset(
    {"Identity", "IdentityN", "StopGradient", "PreventGradient", "PlaceholderWithDefault"}
)
# Ops whose output i stands for the handle at input i.
LOOPS = frozenset({"While", "StatelessWhile"})
HANDLE_MAKERS = frozenset({"VarHandleOp"})

# Stateful only through a generator that belongs to the node: unused, they change nothing; twice,
# they differ.
RANDOM = frozenset(
    {
        "RandomUniform",
        "RandomUniformInt",
        "RandomStandardNormal",
        "ParameterizedTruncatedNormal",
        "TruncatedNormal",
        "RandomShuffle",
        "Multinomial",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomCrop",
        "SampleDistortedBoundingBox",
        "SampleDistortedBoundingBoxV2",
        "AllCandidateSampler",
        "FixedUnigramCandidateSampler",
        "LearnedUnigramCandidateSampler",
        "LogUniformCandidateSampler",
        "ThreadUnsafeUnigramCandidateSampler",
        "UniformCandidateSampler",
        "FakeQueue",
    }
)


def is_stateful(op: str) -> bool:
    """Whether TensorFlow registers `op` as stateful."""
    definition = op_definition(op)
    return definition is not None and definition.is_stateful


def written_operands(node: node_def_pb2.NodeDef, handles: Sequence[int]) -> tuple[int, ...]:
    """Those of the input positions `handles` (variables) whose variable `node` may write.

    Named readers and stateless ops write none. Calls, conditionals and loops say which they only
    read; every other stateful op is taken to write all its variables, as ResourceApply* and
    ResourceScatter* do.
    """
    if node.op in READERS or not is_stateful(node.op):
        return ()
    listed = node.attr.get("_read_only_resource_inputs")
    if listed is None:
        return tuple(handles)
    only_read = set(listed.list.i)
    return tuple(i for i in handles if i not in only_read)


def has_own_effect(op: str, variables: int) -> bool:
    """Whether `op` does something beside writing the `variables` it touches: prints, checks."""
    if not is_stateful(op) or op in RANDOM or op in READERS or op in HANDLE_MAKERS:
        return False
    return variables == 0 or op in _CALLS


_CALLS = frozenset({"If", "While", "Case", "StatefulPartitionedCall", "PyFunc", "EagerPyFunc"})


def is_pure(op: str) -> bool:
    """Whether two nodes of this op with the same inputs and attributes give the same value."""
    return op == "ResourceGather" or op == "ResourceGatherNd" or not is_stateful(op)
