"""Learners side by side: each trains from its own configuration, and all policies are judged over the same links."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reinet.agents.decide.names import make_agent
from reinet.agents.evaluation.frontier import against_frontier, require_rows
from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.learn.checkpoint import checkpoints, refuse_a_run
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.export import export, learned_by, uses
from reinet.agents.learn.loop import Progress, Result
from reinet.agents.learn.rllib.config import PeerConfig
from reinet.agents.learn.train import refuse_another_run, train
from reinet.agents.model.artifact import used_traces
from reinet.core import toml_file
from reinet.core.errors import ConfigError

JUDGED = (
    "frontier_mean", "frontier_p95", "throughput_ratio", "qdelay_mean_ms", "qdelay_p95_ms", "times_lower_mean",
    "times_lower_p95",
)  # fmt: skip
"""What of the judgement's mean row stands in a learner's row."""


def train_any(
    config: TrainConfig,
    run_dir: Path,
    resume: bool = True,
    minutes: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    ray_address: str | None = None,
) -> Result:
    """Trains as ``train`` does, or by RLlib's algorithm where the configuration names one, which resumes nothing."""
    if isinstance(config, PeerConfig):
        from reinet.agents.learn.rllib.peers import train_peer  # RLlib takes seconds to import

        return train_peer(config, run_dir, minutes, progress, ray_address)
    return train(config, run_dir, resume, minutes, progress, ray_address)


def seeded(config: TrainConfig, seeds: Sequence[int]) -> list[TrainConfig]:
    """Returns the configuration with each of these seeds, and a name that says which; unchanged without any.

    Raises ConfigError for a seed or name that no configuration may have: its checkpoints would be refused.
    """
    data, kind = config.model_dump(mode="json"), type(config)
    return [
        toml_file.check(data | {"seed": seed, "name": f"{config.name}-seed{seed}"}, f"--seeds {seed}", kind, "")
        for seed in dict.fromkeys(seeds)
    ] or [config]


def spread(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Returns median, least and most of what rows of one configuration with several seeds were judged by: of the valid
    ones, or of all where none is."""
    counted = [row for row in rows if row["valid"]] or rows
    columns = {key: [float(row[key]) for row in counted] for key in JUDGED}
    return {key: [float(np.median(values)), min(values), max(values)] for key, values in columns.items()}


def side_by_side(
    configs: Sequence[TrainConfig],
    scenarios: Sequence[Scenario],
    minutes: float | None,
    folder: Path,
    threads: int = 1,
) -> Iterator[dict[str, Any]]:
    """Yields a row for each configuration as it is trained, for ``minutes`` at most, and judged.

    The best checkpoint is judged, the newest where none was evaluated. Runs and models lie in ``folder`` by name; a run
    that lies there already goes on, or is judged as it is, and its row says from which checkpoint. ``stalled`` are the
    traces that are left out because a flow stalled, ``below_rule`` is the share of the others on which the policy's
    ratios to the frontier rank nothing; a row is not ``valid`` where every trace would be left out.
    Raises ConfigError before the first training as ``require_rows`` does; for a trace that a configuration learns from
    or selects by; for two configurations of one name; and where a run lies there that one cannot go on from: that of
    another configuration, or any for RLlib.
    """
    names = [config.name for config in configs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(
            f"--config: two trainings are called {twice[0]}, and each has a folder by its name; rename one"
        )
    require_rows(scenarios)
    judges = [(scenario.trace.name, scenario.trace.sha256) for scenario in scenarios]
    for config in configs:
        if found := used_traces(uses(config.traces), judges):
            name, use = found[0]
            raise ConfigError(f"traces: {name} has the content of {use.name}, which {config.name} learns or selects by")
    for config in configs:
        if isinstance(config, PeerConfig):
            refuse_a_run(folder / config.name)
        else:
            refuse_another_run(config, folder / config.name)
    for config in configs:
        run_dir = folder / config.name
        earlier = checkpoints(run_dir)
        result = train_any(config, run_dir, minutes=minutes).undisturbed()
        export(result.best or result.checkpoint, run_dir / "model")
        *each, mean = against_frontier([make_agent(str(run_dir / "model"))], scenarios, threads=threads)
        yield {
            "name": config.name,
            "learner": learned_by(config, result.iterations),
            "seed": config.seed,
            "went_on_from": str(earlier[-1]) if earlier else None,
            "minutes": result.wall_s / 60,
            "iterations": result.iterations,
            "env_steps": result.env_steps,
            "env_steps_per_s": result.env_steps / max(result.wall_s, 1e-9),
            "updates": result.updates,
            **{key: mean[key] for key in (*JUDGED, "below_rule", "valid")},
            "stalled": [row["trace"] for row in each if not row["valid"]],
            "model": str(run_dir / "model"),
        }
