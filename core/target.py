"""The delay that is asked for: an RTT to stay below, absolute or told from the minimum RTT of each flow's own path."""

import re
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from reinet.core import _core
from reinet.core.errors import ConfigError
from reinet.core.records import Flag, FlowStatsArray

LEAST_TARGET_PER_RTT: float = _core.LEAST_TARGET_PER_RTT
"""The least target that can be kept, in minimum RTTs of the path; ``states/delay_ratio.hpp`` has the reason."""
MOST_MS = 10_000.0
"""Nobody waits longer for a round trip on purpose; a larger number was meant in microseconds."""
MOST_MIN_RTTS = 100.0
"""A larger multiple is ten seconds on a path of 100 ms: no target at all."""
_LIMIT_MS = f"milliseconds are above 0 and at most {MOST_MS:g}"
UNKNOWN_RTT_US = 0xFFFF_FFFF
"""The kernel's ``tcp_min_rtt()`` before the first sample; a record that nobody filled has 0."""

_RELATIVE = np.uint32(Flag.RELATIVE)
_TEXT = re.compile(r"(?P<plus>\+?)\s*(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>ms|x|)", re.ASCII)


class Form(Enum):
    """How a target is told."""

    ABSOLUTE = "ms"
    """``50ms``: an RTT of 50 ms, whatever the path."""
    ABOVE = "+ms"
    """``+30ms``: 30 ms above the path's minimum RTT, so 30 ms for queueing on every path."""
    MULTIPLE = "x"
    """``2.5x``: 2.5 times the path's minimum RTT."""


@dataclass(frozen=True)
class Target:
    """An RTT to stay below. Raises ConfigError for an amount outside its form's limits."""

    form: Form
    amount: float
    """In milliseconds, for a MULTIPLE in minimum RTTs."""

    def __post_init__(self) -> None:
        if self.form is Form.MULTIPLE:
            if not LEAST_TARGET_PER_RTT <= self.amount <= MOST_MIN_RTTS:
                raise ConfigError(
                    f"target {self}: a multiple of the path's minimum RTT is from {LEAST_TARGET_PER_RTT:g}x (less "
                    f"leaves no room for a queue) to {MOST_MIN_RTTS:g}x"
                )
        elif not 0.0 < self.amount <= MOST_MS:
            raise ConfigError(f"target {self}: {_LIMIT_MS}")

    @classmethod
    def parse(cls, text: str | float) -> "Target":
        """Returns the target that a text names; a bare number means milliseconds. Raises ConfigError."""
        if isinstance(text, int | float) and not isinstance(text, bool):
            try:
                return cls(Form.ABSOLUTE, float(text))
            except OverflowError:
                raise ConfigError(f"target: a number of {len(str(text))} digits; {_LIMIT_MS}") from None
        found = _TEXT.fullmatch(text.strip()) if isinstance(text, str) else None
        if found is None or (found["plus"] and found["unit"] == "x"):
            raise ConfigError(
                f"target {text!r}: write 50ms (an RTT), +30ms (above the path's minimum RTT) or 2.5x (times it)"
            )
        told_in_ms = Form.ABOVE if found["plus"] else Form.ABSOLUTE
        return cls(Form.MULTIPLE if found["unit"] == "x" else told_in_ms, float(found["number"]))

    @property
    def is_relative(self) -> bool:
        """Returns whether it hangs on the path's minimum RTT, and so is unknown for as long as that is."""
        return self.form is not Form.ABSOLUTE

    def resolve_us(self, min_rtt_us: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Returns the RTT to stay below on paths of these minimum RTTs; both are uint32 (N,), in microseconds.

        0 means "no target yet": a relative target where the minimum RTT is unknown, 0 or UNKNOWN_RTT_US. An absolute
        one is always known.
        """
        min_rtts, extra_us = self.line()
        if self.form is Form.MULTIPLE:
            # Rounded up: 1.1x must pass the guard, which compares with 1.1 x the minimum RTT in floating point.
            target_us = np.ceil(min_rtts * min_rtt_us.astype(np.float64))
        else:  # in whole numbers, since the daemon asks for every record
            target_us = int(min_rtts) * min_rtt_us.astype(np.int64) + extra_us
        found = np.minimum(np.maximum(target_us, 1), UNKNOWN_RTT_US).astype(np.uint32)
        if self.is_relative:
            found[(min_rtt_us == 0) | (min_rtt_us == UNKNOWN_RTT_US)] = 0
        return found

    def write(self, records: FlowStatsArray, longer_us: npt.NDArray[np.uint32]) -> None:
        """Writes into N records the RTT to stay below (``resolve_us``) and whether it is relative.

        ``longer_us`` (N,) is what a flow's path has become, where that is longer than the record says.
        """
        records["target_us"] = self.resolve_us(np.maximum(records["min_rtt_us"], longer_us))
        records["flags"] &= ~_RELATIVE
        if self.is_relative:
            records["flags"] |= _RELATIVE

    def resolve_ms(self, min_rtt_ms: float) -> float:
        """Returns the RTT to stay below, in ms, on one path of a known minimum RTT."""
        min_rtts, extra_us = self.line()
        return min_rtts * min_rtt_ms + extra_us / 1000

    def __str__(self) -> str:
        """Returns the canonical text, of which ``parse`` makes an equal target."""
        sign, unit = ("+" if self.form is Form.ABOVE else ""), self.form.value.lstrip("+")
        return f"{sign}{np.format_float_positional(self.amount, trim='-')}{unit}"

    def line(self) -> tuple[float, int]:
        """Returns the slope, in minimum RTTs, and the offset in microseconds of the target over the minimum RTT."""
        if self.form is Form.MULTIPLE:
            return self.amount, 0
        return float(self.form is Form.ABOVE), round(1000 * self.amount)
