"""What kernel runs of ``reinet fidelity`` came to, kept in a file of one line each."""

import json
from dataclasses import dataclass
from pathlib import Path

from reinet.core.disk import durable
from reinet.core.errors import ConfigError

Figures = dict[str, float | None]

METRICS = ("throughput_mbps", "utilization", "qdelay_mean_ms", "qdelay_p95_ms", "retrans_pkts", "cwnd_mean_pkts")


@dataclass(frozen=True)
class KernelResult:
    """The figures of one run on the kernel."""

    key: str
    begin_ms: float
    """The trace time at which the sender answered the SYN: its path began there."""
    figures: Figures


class Results:
    """The results file: one JSON object a line, appended as runs end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, list[KernelResult]] = {}
        if path.exists():
            for number, line in enumerate(durable.lines_of(path), 1):
                self._remember(self._parse(line, number))

    def of(self, key: str) -> list[KernelResult]:
        """Returns the runs of a combination so far."""
        return self._found.get(key, [])

    def of_other_kernels(self, key: str, key_of_any_kernel: str) -> int:
        """Returns how many runs of the same combination are there that another kernel made, or links of other programs.

        Among them are those of a reinet that did not yet write down which.
        """
        others = [one for one in self._found if one != key and f"{one} ".startswith(f"{key_of_any_kernel} ")]
        return sum(len(self._found[one]) for one in others)

    def add(self, result: KernelResult) -> None:
        """Writes a run down, in the place of a last line that is not whole: that run is made again."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        durable.append(self._path, json.dumps(result.__dict__) + "\n")
        self._remember(result)

    def _remember(self, result: KernelResult) -> None:
        self._found.setdefault(result.key, []).append(result)

    def _parse(self, line: bytes, number: int) -> KernelResult:
        try:
            return _checked(KernelResult(**json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:  # of ValueError are what is no JSON and no UTF-8
            raise ConfigError(
                f"{self._path}:{number}: not a result of this command ({error}); remove that line, or name another file"
            ) from None


def _checked(found: KernelResult) -> KernelResult:
    """Returns the same result; raises ValueError where something in it is missing, or of another kind."""
    if not isinstance(found.key, str) or not isinstance(found.begin_ms, int | float):
        raise ValueError("key is to be a text, begin_ms a number")
    if not isinstance(found.figures, dict):
        raise ValueError("figures are to be an object")
    for metric in METRICS:
        value = found.figures.get(metric, "")
        if value is not None and not isinstance(value, int | float):
            raise ValueError(f"its figures have no number or null as {metric}")
    return found
