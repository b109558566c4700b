"""The page: one TensorBoard folder in which runs are agents and each link has its panels.

<folder>/<agent>/     curves on every link, hyper-parameters, mean figures
<folder>/link/        capacity, target and minimum RTT of every link; layout of the page, pictures, the table
<folder>/<NAME>/      evaluation curves of trainings, means over seeds with intervals
"""

import json
import re
import shutil
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.plugins.hparams import summary_v2 as hparams

from reinet.agents.evaluation.compare import figures
from reinet.agents.evaluation.compare.learning import TAGS, Curves, reference_curves
from reinet.agents.evaluation.compare.series import Curve, by_step, curves_of, curves_of_link
from reinet.agents.evaluation.plan import training_notes
from reinet.agents.evaluation.run import Run
from reinet.agents.model.artifact import Manifest
from reinet.core.disk import durable
from reinet.core.tensorboard.curves import bounds, intervals, layout, panels, tag
from reinet.core.tensorboard.event_file import PREFIX, EventFile, image, page, scalar, text
from reinet.core.visible import visible

SUFFIX = "compare"
"""It ends the names of this module's files; a new comparison removes those of the last, and nothing else."""
LINK_RUN = "link"
"""The run of what belongs to no agent."""
FIGURES = ("throughput_mbps", "utilization", "qdelay_mean_ms", "qdelay_p95_ms", "delay_mean_ms")
"""What is averaged over links, for the page's table of hyper-parameters and figures."""
RATIOS = ("throughput_ratio", "qdelay_ratio")
"""What is had beside them where plain control ran too: a mean of the links' ratios to it."""
URL_FRAGMENT = "custom_scalars&_smoothingWeight=0"
"""It opens the panels, unsmoothed: a cap is a step, not a trend."""


@dataclass(frozen=True)
class Content:
    """What a page shows."""

    runs: Sequence[Run]
    """The runs of every agent over every link."""
    manifests: Mapping[str, Manifest] = field(default_factory=dict)
    """Agent -> its model's manifest; agents that are not learned have none."""
    learning: Mapping[str, Curves] = field(default_factory=dict)
    """Name -> evaluation curves of its trainings."""
    trained_on: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Agent -> the names of those traces that shaped it."""


def write_page(content: Content, folder: Path) -> list[str]:
    """Writes the folder anew, and returns the links' names as their panels have them. Raises OSError, and an earlier
    page stays then.

    Pictures are left out where there is no matplotlib.
    """
    folder.mkdir(parents=True, exist_ok=True)
    durable.clear_staged(folder)
    earlier = set(folder.glob(f"**/{PREFIX}*.{SUFFIX}"))
    staged = folder / f".staged-{SUFFIX}"
    try:
        links = _write(content, staged)
        for path in staged.glob(f"**/{PREFIX}*.{SUFFIX}"):
            place = folder / path.relative_to(staged)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)
            earlier.discard(place)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    for old in earlier:
        old.unlink()
    return links


def _write(content: Content, folder: Path) -> list[str]:
    wall_s = time.time()
    links = _by_link(content.runs)
    labels = agent_labels([run.agent for run in content.runs], content.manifests)
    for name, label in labels.items():
        curves = {
            tag(link, curve): points
            for link, runs in links.items()
            if name in runs
            for curve, points in curves_of(runs[name]).items()
        }
        with EventFile(folder / label, wall_s, SUFFIX) as file:
            own = [runs[name] for runs in links.values() if name in runs]
            file.add(_session(label, name, content.manifests), 0, wall_s)
            file.add([scalar(*one) for one in _figures(own, links.values()).items()], 0, wall_s)
            for step_ms, values in by_step(curves):
                file.add([scalar(*one) for one in values.items()], step_ms, wall_s + step_ms / 1000)
    for label, learned in _learning(content.learning, labels).items():
        _write_learning(folder / label, learned, wall_s)
    with EventFile(folder / LINK_RUN, wall_s, SUFFIX) as file:
        for shown in _report(content, links, labels):
            file.add(shown, 0, wall_s)
        for step_ms, points in by_step(_curves_of_links(links)):
            file.add([scalar(*one) for one in points.items()], step_ms, wall_s + step_ms / 1000)
    return list(links)


def agent_labels(agents: Iterable[str], manifests: Mapping[str, Manifest]) -> dict[str, str]:
    """Returns the agents' labels, which are folders below the page's: a model's is the end of its path. Labels that
    would be the same are numbered, the first one aside, for TensorBoard takes what is in one folder for one run."""
    names = list(dict.fromkeys(agents))
    paths = {name: Path(name).resolve().parts for name in names if name in manifests}
    parts = 2
    while parts < 10 and len({path[-parts:] for path in paths.values()}) < len(paths):
        parts += 1
    labels: dict[str, str] = {}
    for name in names:
        label = "/".join(map(_safe, paths[name][-parts:] if name in paths else [name]))
        labels[name] = _numbered(label, label, labels.values())
    return labels


def _numbered(name: str, plain: str, taken: Container[str]) -> str:
    """Returns the name, or where that is taken the first of ``plain``-2, ``plain``-3, ... that is not."""
    return next(one for one in chain([name], (f"{plain}-{number}" for number in count(2))) if one not in taken)


def _safe(text: str) -> str:
    return re.sub(r"[^\w.:+=-]", "_", visible(text)).lstrip(".") or "_"


def _by_link(runs: Sequence[Run]) -> dict[str, dict[str, Run]]:
    """Returns the runs by link, by agent; a link is called by its trace, and by more where two would be the same."""
    names: dict[int, str] = {}
    links: dict[str, dict[str, Run]] = {}
    for run in runs:
        key = id(run.scenario)
        if key not in names:
            name = plain = _safe(run.scenario.trace.name)
            if name in links:
                name = f"{plain}-{_safe(run.scenario.path.cc)}"
            names[key] = _numbered(name, plain, links)
        links.setdefault(names[key], {})[run.agent] = run
    return links


def _figures(own: Sequence[Run], links: Iterable[Mapping[str, Run]]) -> dict[str, float]:
    """Returns an agent's figures by tag, means over its links, and over plain control's on the same where it ran."""
    sound = figures.believed(own)
    means = {f"figures/{name}": float(np.mean([getattr(run.metrics, name) for run in sound])) for name in FIGURES}
    plain = {id(run.scenario): run for runs in links for agent, run in runs.items() if agent == "none"}
    if all(id(run.scenario) in plain for run in own):
        both = [run for run in sound if plain[id(run.scenario)].invalid_reason is None] or own
        pairs = [(run.metrics, plain[id(run.scenario)].metrics) for run in both]
        ratios = (
            [m.throughput_mbps / p.throughput_mbps for m, p in pairs],
            [m.qdelay_mean_ms / max(p.qdelay_mean_ms, 1.0) for m, p in pairs],  # as docs/scalars.md has it
        )
        means |= {f"figures/{name}": float(np.mean(each)) for name, each in zip(RATIOS, ratios, strict=True)}
    return means


HyperParameters = dict[str, float | str]


def _hyper_parameters(label: str, name: str, manifests: Mapping[str, Manifest]) -> HyperParameters:
    """Returns what made a model, and those parts of its training's configuration in which the models differ."""
    values: HyperParameters = {"agent": label}
    if (manifest := manifests.get(name)) is not None:
        values |= {
            "feature_set": manifest.schema_.feature_set,
            "head": manifest.schema_.head,
            "seed": manifest.training.seed,
            "env_steps": manifest.training.env_steps,
            "updates": manifest.training.updates,
        }
        flat = {other: _flat(found.training.config) for other, found in manifests.items()}
        for key, own in flat[name].items():
            others = [one[key] for one in flat.values() if key in one]
            if len(others) < len(flat) or len(set(others)) > 1:
                mixed = any(isinstance(other, str) for other in others)  # null beside numbers, as it may be
                values[key] = str(own) if mixed else own
    return values


def _session(label: str, name: str, manifests: Mapping[str, Manifest]) -> list[Any]:
    """Returns an agent's hyper-parameters, with the figures of its model's manifest."""
    metrics = manifests[name].metrics if name in manifests else {}
    summary = hparams.hparams_pb(_hyper_parameters(label, name, manifests), trial_id=label, start_time_secs=0)
    return [*summary.value, *(scalar(f"manifest/{key}", value) for key, value in metrics.items())]


def _experiment(made: Sequence[HyperParameters], manifests: Mapping[str, Manifest]) -> list[Any]:
    """Returns which hyper-parameters and figures there are: without it TensorBoard would take every curve for one."""
    infos = []
    for key in dict.fromkeys(key for values in made for key in values):
        values = [one[key] for one in made if key in one]
        numbers = [value for value in values if not isinstance(value, str)]
        texts = sorted({value for value in values if isinstance(value, str)})
        domain = hparams.Discrete(texts) if texts else hparams.RealInterval(float(min(numbers)), float(max(numbers)))
        infos.append(hparams.HParam(key, domain))
    known = {f"manifest/{key}" for manifest in manifests.values() for key in manifest.metrics}
    metrics = [*(f"figures/{name}" for name in (*FIGURES, *RATIOS)), *sorted(known)]
    summary = hparams.hparams_config_pb(infos, [hparams.Metric(name) for name in metrics], time_created_secs=0)
    return list(summary.value)


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, float | str]:
    """Returns a configuration's values by dotted keys; what is neither number nor text as JSON."""
    found: dict[str, float | str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            plain = isinstance(value, int | float | str) and not isinstance(value, bool)
            found[f"{prefix}{key}"] = value if plain else json.dumps(value)
    return found


def _learning(given: Mapping[str, Curves], labels: Mapping[str, str]) -> dict[str, Curves]:
    """Returns the evaluation curves by the folder that they are written to: an agent's own, where they are named so."""
    found = {labels.get(name, name): curves for name, curves in reference_curves(list(given.values())).items()}
    for name, curves in given.items():
        label = labels.get(name, "")
        if not label or label in found:  # nobody's, or that of who stands at 1 there
            label = _numbered(_safe(name), _safe(name), {*found, *labels.values(), LINK_RUN})
        found[label] = curves
    return found


def _write_learning(folder: Path, curves: Curves, wall_s: float) -> None:
    with EventFile(folder, wall_s, f"training.{SUFFIX}") as file:
        for name, points in curves.items():
            lower, upper = bounds(name)
            for step, value in points.items():
                ends = [scalar(name, value.mean), scalar(lower, value.low), scalar(upper, value.high)]
                file.add(ends, step, wall_s)


def _curves_of_links(links: Mapping[str, Mapping[str, Run]]) -> dict[str, Curve]:
    return {
        tag(link, curve): points
        for link, runs in links.items()
        for curve, points in curves_of_link(next(iter(runs.values()))).items()
    }


def _report(content: Content, links: Mapping[str, Mapping[str, Run]], labels: Mapping[str, str]) -> Iterator[list[Any]]:
    """Yields the layout with the table, then one picture at a time."""
    learned = [name for name in TAGS if any(name in curves for curves in content.learning.values())]
    categories = [panels(link) for link in links]
    if learned:
        categories.append(intervals("training: means over seeds, 95 % intervals", learned))
    shown = {link: {labels[name]: run for name, run in runs.items()} for link, runs in links.items()}
    made = [_hyper_parameters(label, name, content.manifests) for name, label in labels.items()]
    yield [
        page(layout(categories)),
        text("figures", _table(shown, content.trained_on)),
        *_experiment(made, content.manifests),
    ]
    if figures.have_matplotlib():
        agents = {label: [runs[label] for runs in shown.values() if label in runs] for label in labels.values()}
        yield [image("throughput against delay", figures.throughput_against_delay(agents))]
        if learned:
            yield [image("learning curves", figures.learning(content.learning))]
        for link, runs in shown.items():
            yield [image(f"time series/{link}", figures.time_series(runs))]


def _table(shown: Mapping[str, Mapping[str, Run]], trained_on: Mapping[str, Sequence[str]]) -> str:
    """Returns the figures of every run as a table in Markdown, which runs are not valid, and whose figures are of
    traces that shaped it."""
    lines = ["| link | agent | " + " | ".join(FIGURES) + " |", "|---" * (2 + len(FIGURES)) + "|"]
    for link, runs in shown.items():
        for label, run in runs.items():
            values = " | ".join(f"{getattr(run.metrics, name):.2f}" for name in FIGURES)
            lines.append(f"| {link} | {label} | {values} |")
    notes = [
        f"{label} on {link}: {run.invalid_reason}; do not use its figures, which enter no mean of others"
        for link, runs in shown.items()
        for label, run in runs.items()
        if run.invalid_reason
    ]
    lines += [line for note in [*notes, *training_notes(trained_on)] for line in ("", visible(note))]
    return "\n".join(lines)
