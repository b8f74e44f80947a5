"""The flags of all commands, and what they say as values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from tofu_tf.errors import FlagError

if TYPE_CHECKING:  # it knows TensorFlow, which takes seconds to load
    from tofu_tf.plan.constraints import Wish


def new_flags() -> flags.FlagValues:
    """The flags of all commands with their defaults, to be called with a command line."""
    values = flags.FlagValues()
    flags.DEFINE_list(
        "fetches",
        [],
        "What is computed: names of tensors (softmax, split:1) or operations. Default: the nodes "
        "that no other node reads, of a graph without variables.",
        flag_values=values,
    )
    flags.DEFINE_list(
        "targets",
        [],
        "Operations that must run as well, such as weight updates.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "signature",
        "",
        "The signature of a SavedModel or MetaGraphDef that says what is computed, if --fetches "
        "does not. Default: serving_default.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "batch",
        None,
        "The size of unknown first dimensions of Placeholders.",
        lower_bound=1,
        flag_values=values,
    )
    flags.DEFINE_integer(
        "devices", 8, "How many devices there are.", lower_bound=1, flag_values=values
    )
    flags.DEFINE_enum(
        "device_type", "CPU", ["CPU", "GPU"], "What kind of devices they are.", flag_values=values
    )
    flags.DEFINE_list(
        "factors",
        [],
        "How the number of devices factors into cuts, outermost (slowest link) first, as 4,2. "
        "Default: its prime factors.",
        flag_values=values,
    )
    flags.DEFINE_string("algorithm", "recursion", "How plans are searched.", flag_values=values)
    flags.DEFINE_string("objective", "bytes", "What plans minimise.", flag_values=values)
    flags.DEFINE_enum(
        "undescribed",
        "whole",
        ["refuse", "whole"],
        "Run ops that nothing is known of whole on the first device, or refuse the graph.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "constraints",
        "",
        "Layouts that are asked for: name=cuts for each dimension, several with ; between them, as "
        "'dense/kernel=None,d0;x=d0d1,None'. A name may be a pattern.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "rows",
        20,
        "plan: how many tensors that are no variables are shown; -1: all.",
        lower_bound=-1,
        flag_values=values,
    )
    flags.DEFINE_string(
        "output",
        "",
        "plan: the JSON file to write the plan to. rewrite: the .pb, .pbtxt or .meta file, or the "
        "directory of a SavedModel, to write the placed graph to.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "plan",
        "",
        "show, rewrite: a plan file to follow instead of a search.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "lowering",
        "p2p",
        ["p2p", "collective"],
        "How data move between devices: from one to another, or by collective ops where one fits.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "text", False, "show: print the rewritten graph, one node a line.", flag_values=values
    )
    flags.DEFINE_string(
        "op", "", "show: an operation, of which the pieces are printed instead.", flag_values=values
    )
    flags.DEFINE_string(
        "tensor",
        "",
        "show: a variable or tensor, of which the layout is drawn as text instead.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "dot", "", "show: a file to write the graph to for Graphviz.", flag_values=values
    )
    flags.DEFINE_string(
        "tensorboard",
        "",
        "show: a directory to write the graph to for TensorBoard.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "all", False, "ops: list every op that is described, without a graph.", flag_values=values
    )
    flags.DEFINE_bool(
        "markdown", False, "ops --all: as the tables of docs/ops.md.", flag_values=values
    )
    return values


def parse_factors(texts: Sequence[str], devices: int) -> tuple[int, ...] | None:
    """The factors that were given; None for none.

    Raises:
      FlagError: not whole numbers from 2, or another product than `devices`.
    """
    if not texts:
        return None
    product = 1
    for text in texts:
        if not re.fullmatch(r"\d+", text.strip()) or int(text) < 2:
            raise FlagError(f"--factors={','.join(texts)}", f"{text!r}", "numbers from 2, as 4,2")
        product *= int(text)
    if product != devices:
        raise FlagError(
            f"--factors={','.join(texts)}",
            f"a product of {product}",
            f"{devices}, the number of devices",
            "change --factors or --devices",
        )
    return tuple(map(int, texts))


def parse_constraints(text: str) -> dict[str, Wish]:
    """``{"dense/kernel": (None, "d0")}`` for ``dense/kernel=None,d0``.

    Raises:
      FlagError: naming every part that is not ``name=cuts``.
    """
    found: dict[str, Wish] = {}
    wrong = []
    for part in filter(None, (p.strip() for p in text.split(";"))):
        name, equals, cuts = part.rpartition("=")
        entries = [c.strip() for c in cuts.split(",")] if cuts.strip() else []
        good = all(re.fullmatch(r"None|(d\d+)+", entry) for entry in entries)
        if not (name.strip() and equals and good):
            wrong.append(repr(part))
        elif name.strip() in found:
            wrong.append(f"{part!r} (the second for that name)")
        else:
            found[name.strip()] = tuple(None if e == "None" else e for e in entries)
    if wrong:
        raise FlagError(
            "--constraints",
            ", ".join(wrong),
            "name=cuts with None, d0 or d0d1 for each dimension and ; between names",
            "as in --constraints='dense/kernel=None,d0;x=d0,None'",
        )
    return found
