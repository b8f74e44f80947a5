"""The command tofu-tf: ``tofu-tf COMMAND GRAPH``; exit code 0, 2 for bad input, 1 for all else."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from tofu_tf.cli.flags import new_flags
from tofu_tf.errors import FlagError, TofuError

FINE, BROKEN, BAD_INPUT = 0, 1, 2

_HELP = ("--help", "-help", "-h", "--helpshort", "--helpfull", "-helpfull")
_LINES, _COLUMNS = 20, 400  # of an error's screen


@dataclasses.dataclass(frozen=True)
class Command:
    """What a command does, in a line, and what runs it on its arguments and the parsed flags."""

    summary: str
    run: Callable[[Sequence[str], Any], None]


def _plan(arguments: Sequence[str], values: Any) -> None:
    from tofu_tf.cli import plan

    plan.run(arguments, values)


def _show(arguments: Sequence[str], values: Any) -> None:
    from tofu_tf.cli import show

    show.run(arguments, values)


def _rewrite(arguments: Sequence[str], values: Any) -> None:
    from tofu_tf.cli import rewrite

    rewrite.run(arguments, values)


def _count(arguments: Sequence[str], values: Any) -> None:
    from tofu_tf.cli import count

    count.run(arguments, values)


def _ops(arguments: Sequence[str], values: Any) -> None:
    from tofu_tf.cli import ops

    ops.run(arguments, values)


# Commands import TensorFlow, so they are imported when they run.
COMMANDS: Mapping[str, Command] = {
    "plan": Command("search how a GraphDef lies on the devices, print and save the plan", _plan),
    "show": Command("show each device's share of a GraphDef and what moves between them", _show),
    "rewrite": Command("write a graph placed on devices, which stock TensorFlow runs", _rewrite),
    "count": Command("count the bytes that a placed GraphDef moves between devices", _count),
    "ops": Command("list the ops of a GraphDef, or with --all those that are described", _ops),
}


def run() -> None:
    """The console command."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """The exit code of the command line `arguments`; results on stdout, errors on stderr."""
    values = new_flags()
    if any(a in _HELP for a in arguments):
        print(usage(values))
        return FINE
    try:
        name, *rest = _parse(values, arguments)
        with _quiet_start():
            import tensorflow as tf
        tf.get_logger().setLevel("ERROR")
        COMMANDS[name].run(rest, values)
        sys.stdout.flush()
    except TofuError as error:
        print(_screen(f"tofu-tf: {error}"), file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except Exception:
        traceback.print_exc()
        return BROKEN
    return FINE


def usage(values: flags.FlagValues) -> str:
    """Every command and every flag."""
    commands = "\n".join(f"  {name:7} {c.summary}" for name, c in COMMANDS.items())
    return (
        "usage: tofu-tf COMMAND GRAPH [--flags]\n\n"
        "GRAPH is a GraphDef file (.pb, .pbtxt), a MetaGraphDef (.meta) or a SavedModel's "
        f"directory. Commands:\n{commands}\n\n"
        f"Flags:\n{values.module_help(new_flags.__module__).partition(chr(10))[2]}\n\n"
        "Exit codes: 0 fine, 2 bad input (nothing is written), 1 otherwise."
    )


def _parse(values: flags.FlagValues, arguments: Sequence[str]) -> list[str]:
    """The command's name and its arguments; flags go into `values`."""
    known = "one of " + ", ".join(COMMANDS)
    try:
        names: list[str] = values(["tofu-tf", *arguments])[1:]
    except flags.Error as error:
        raise FlagError("flags", str(error), remedy="tofu-tf --helpfull lists them") from error
    if not names:
        remedy = "tofu-tf plan graph.pb; tofu-tf --helpfull says more"
        raise FlagError("tofu-tf", "no command", known, remedy)
    if names[0] not in COMMANDS:
        close = difflib.get_close_matches(names[0], COMMANDS, 1)
        remedy = f"did you mean {close[0]}?" if close else "tofu-tf --helpfull says more"
        raise FlagError(f"tofu-tf {names[0]}", "no such command", known, remedy)
    return names


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    """Holds back what TensorFlow's libraries write to stderr as they load, unless they fail to."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "tensorflow" in sys.modules:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(kept, held.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _screen(text: str) -> str:
    """`text` on one screen: long lines and long lists end in an ellipsis."""
    lines = [x if len(x) <= _COLUMNS else x[: _COLUMNS - 4] + " ..." for x in text.splitlines()]
    if len(lines) > _LINES:
        # The last lines say what to do.
        lines = [*lines[: _LINES - 4], f"  ... {len(lines) - _LINES + 1} more", *lines[-3:]]
    return "\n".join(lines)


if __name__ == "__main__":
    run()
