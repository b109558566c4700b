"""The evaluation curves of training runs: means over seeds with their intervals, beside the rule and plain control."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from reinet.core.errors import ConfigError
from reinet.core.tensorboard.event_file import PREFIX

TAGS = (
    "eval/frontier_mean", "eval/frontier_p95", "eval/throughput_ratio", "eval/qdelay_ratio", "eval/utilization",
    "eval/qdelay_mean_ms", "eval/qdelay_p95_ms", "eval/score",
)  # fmt: skip
"""What is drawn of a training run, in this order; docs/scalars.md tells what they mean."""
REFERENCES: Mapping[str, tuple[str, ...]] = {
    "rule, best gain": ("eval/frontier_mean", "eval/frontier_p95"),
    "none": ("eval/throughput_ratio", "eval/qdelay_ratio"),
}
"""Who stands at 1 in a ratio by definition: the hand rule whose gain is right in hindsight, and plain control."""
_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t, 97.5 %, for 1 to 10 degrees of freedom; for more the last one stands, a little wide."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and the ends of its 95 % interval; of one seed all three are the same, for nobody knows."""

    mean: float
    low: float
    high: float


def estimate(values: Sequence[float]) -> Estimate:
    """Returns the mean of one value a seed, with Student's interval."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Estimate(mean, mean, mean)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    half = _T_975[min(len(values) - 2, len(_T_975) - 1)] * sd / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


Curves = dict[str, dict[int, Estimate]]
"""Tag -> iteration -> estimate."""


def run_folders(texts: Sequence[str]) -> dict[str, list[Path]]:
    """Returns the folders of ``NAME=FOLDER`` texts by name: those of one name are seeds of one configuration.

    Raises ConfigError.
    """
    found: dict[str, list[Path]] = {}
    for text in texts:
        name, equals, folder = text.partition("=")
        if not (name and equals and folder):
            raise ConfigError(f"run {text!r}: give NAME=FOLDER, once for each seed, such as mine=runs/mine-seed1")
        if not any(Path(folder).glob(f"*{PREFIX}*")):
            raise ConfigError(f"run {text!r}: {folder} holds no TensorBoard files; give the --run-dir of a training")
        seeds = found.setdefault(name, [])
        if Path(folder).resolve() in (seed.resolve() for seed in seeds):  # its interval would be too narrow
            raise ConfigError(f"run {text!r}: {folder} is there twice; give each seed's folder once")
        seeds.append(Path(folder))
    return found


def learning_curves(folders: Sequence[Path]) -> Curves:
    """Returns the curves of a configuration, over its seeds; an iteration counts those seeds that reached it.

    Raises ConfigError where TensorBoard's files cannot be read.
    """
    seeds = [_scalars(folder) for folder in folders]
    curves: Curves = {}
    for tag in TAGS:
        steps = sorted({step for seed in seeds for step in seed.get(tag, {})})
        if steps:
            curves[tag] = {
                step: estimate([seed[tag][step] for seed in seeds if step in seed.get(tag, {})]) for step in steps
            }
    return curves


def reference_curves(curves: Sequence[Curves]) -> dict[str, Curves]:
    """Returns by name the lines of who stands at 1, as long as the longest of these curves."""
    one = Estimate(1.0, 1.0, 1.0)
    found: dict[str, Curves] = {}
    for name, tags in REFERENCES.items():
        for tag in tags:
            steps = [step for curve in curves for step in curve.get(tag, {})]
            if steps:
                found.setdefault(name, {})[tag] = dict.fromkeys((min(steps), max(steps)), one)
    return found


def _scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Returns tag -> iteration -> value; what a resumed run wrote anew counts. Raises ConfigError."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    try:
        events.Reload()
    except OSError as error:  # TensorBoard names files by bytes
        raise ConfigError(f"run {folder}: a TensorBoard file in it cannot be read: {error.strerror}") from None
    except DecodeError:
        raise ConfigError(f"run {folder}: a TensorBoard file in it is damaged; take it away") from None
    known = set(events.Tags()["scalars"])
    return {tag: {point.step: point.value for point in events.Scalars(tag)} for tag in TAGS if tag in known}
