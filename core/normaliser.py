"""The normaliser: running statistics of the state's inputs, updated in training and frozen into the model."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from reinet.core import _core
from reinet.core.errors import ModelError
from reinet.core.features import INPUTS, STATISTICS
from reinet.core.records import as_bytes

# A path like DeepCC's: some 5 Mbit/s through a buffer of 100 packets, reported every 40 ms or so.
#   input: (mean, standard deviation, minimum)
_REFERENCE = {
    "delay_ms": (60.0, 40.0, 21.0),  # re-based, so 21 ms means an empty queue
    "samples": (12.0, 12.0, 1.0),  # a period without a sample is not observed
    "rate_bytes_per_s": (600_000.0, 600_000.0, 0.0),
    "cwnd_pkts": (40.0, 40.0, 2.0),  # two packets are Cubic's least ssthresh
}


class Normaliser:
    """Count, mean, sum of squared deviations and minimum of each input (rows ``INPUTS``, columns ``STATISTICS``).

    A normalised input is its distance from the smallest value seen, in standard deviations. Only ``observe`` and
    ``merge`` change the statistics; a ``StateBank`` or ``SimBatch`` takes a copy.
    """

    def __init__(self) -> None:
        self.table: npt.NDArray[np.float64] = np.zeros((len(INPUTS), len(STATISTICS)))

    @classmethod
    def reference(cls) -> "Normaliser":
        """Fixed statistics of a typical cellular path, for use before any training.

        They weigh as much as two records, so that training that starts from them soon forgets them.
        """
        normaliser = cls()
        count = 2.0
        for row, name in enumerate(INPUTS):
            mean, sd, minimum = _REFERENCE[name]
            normaliser.table[row] = (count, mean, sd * sd * count, minimum)
        return normaliser

    def observe(self, stats: npt.NDArray[np.void]) -> None:
        """Add FlowStats records, in order; those without an RTT sample are passed over."""
        _core.observe(self.table, as_bytes(stats))

    def merge(self, other: "Normaliser") -> None:
        """Add what the other has seen, as if it had been observed here."""
        _core.merge(self.table, other.table)

    def copy(self) -> "Normaliser":
        """An independent copy."""
        twin = Normaliser()
        twin.table = self.table.copy()
        return twin

    def to_dict(self) -> dict[str, dict[str, float]]:
        """``{input: {statistic: value}}``, ready for JSON; exact, since JSON keeps all digits of a float."""
        return {
            name: {key: float(value) for key, value in zip(STATISTICS, row, strict=True)}
            for name, row in zip(INPUTS, self.table, strict=True)
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Normaliser":
        """Inverse of ``to_dict``. ModelError for another layout or impossible statistics."""
        if not isinstance(values, Mapping) or set(values) != set(INPUTS):
            raise ModelError(f"normaliser: the inputs must be {', '.join(INPUTS)}; export the model again")
        normaliser = cls()
        for row, name in enumerate(INPUTS):
            normaliser.table[row] = _row_from(name, values[name])
        return normaliser

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Normaliser) and np.array_equal(self.table, other.table)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Normaliser({self.to_dict()})"


def _row_from(name: str, entry: object) -> list[float]:
    if not isinstance(entry, Mapping) or set(entry) != set(STATISTICS):
        raise ModelError(f"normaliser.{name}: the statistics must be {', '.join(STATISTICS)}; export the model again")
    row = [entry[key] for key in STATISTICS]
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in row):
        raise ModelError(f"normaliser.{name}: {row} are not all finite numbers; export the model again")
    count, mean, m2, minimum = row
    if count < 0 or m2 < 0 or (count > 0 and minimum > mean + 1e-9 * abs(mean)):
        raise ModelError(f"normaliser.{name}: {dict(entry)} cannot be statistics of anything; export the model again")
    return [float(v) for v in row]
