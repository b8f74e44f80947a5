"""What the step runs on: devices, how their number factors into cuts, links, memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tofu_tf import errors


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """What joins the groups of one cut: seconds per message, bytes per second and device."""

    latency: float = 10e-6
    bandwidth: float = 10e9


@dataclasses.dataclass(frozen=True)
class Machine:
    """k devices and the factors of k, outermost cut (slowest link) first.

    A worker is an index into `devices`; its digits in the mixed radix of `factors`, most
    significant first, say in which group of each cut it is.
    """

    devices: tuple[str, ...]
    factors: tuple[int, ...]
    links: tuple[Link, ...]
    memory: int | None = None  # bytes per device
    flops: float = 10e12  # per second and device
    memory_bandwidth: float = 500e9  # bytes per second and device

    def __post_init__(self) -> None:
        k = 1
        for f in self.factors:
            k *= f
        if k != len(self.devices) or len(self.links) != len(self.factors):
            raise errors.PlanError(
                "machine",
                f"{len(self.devices)} devices, factors {self.factors}, {len(self.links)} links",
                "factors whose product is the number of devices, one link per factor",
            )

    @property
    def workers(self) -> int:
        return len(self.devices)

    @property
    def device_type(self) -> str:
        """``CPU`` or ``GPU``."""
        return self.devices[0].rsplit("/device:", 1)[-1].split(":")[0]


def factorise(k: int) -> tuple[int, ...]:
    """The prime factors of k, largest first; () for k = 1."""
    factors, p = [], 2
    while k > 1:
        while k % p == 0:
            factors.append(p)
            k //= p
        p += 1 if p * p <= k else max(k - p, 1)
    return tuple(sorted(factors, reverse=True))


def machine_of(devices: Sequence[str], memory: int | None = None) -> Machine:
    """A machine of equal links over full device names."""
    factors = factorise(len(devices))
    return Machine(tuple(devices), factors, (Link(),) * len(factors), memory)


def imagined(k: int, device_type: str = "CPU", memory: int | None = None) -> Machine:
    """A made-up machine of k devices of one type on this host."""
    return machine_of(
        [f"/job:localhost/replica:0/task:0/device:{device_type}:{i}" for i in range(k)], memory
    )
