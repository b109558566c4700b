"""checkpoints/default: worth having; and all models here were made by the configurations of their names."""

import numpy as np
import pytest

from helpers.places import ROOT
from reinet.agents.decide.names import make_agent
from reinet.agents.decide.policy import Policy
from reinet.agents.evaluation.batch import figures
from reinet.agents.evaluation.frontier import Point, baselines, ratio
from reinet.agents.evaluation.run import simulate
from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.links import training_traces
from reinet.envs.trace.model import generate

MODEL = ROOT / "checkpoints" / "default"


@pytest.mark.parametrize("name", ["default", "small", "per-rtt"])
def test_it_was_made_by_the_configuration_of_its_name(name: str) -> None:
    manifest = Policy.load(ROOT / "checkpoints" / name).manifest
    config = TrainConfig.load(ROOT / "configs" / f"{name}.toml")
    trained = TrainConfig.model_validate(manifest.training.config)
    # The manifest got this after the training, which does not read it: see checkpoints/README.md.
    assert trained.model_copy(update={"room_beyond_ms": manifest.room_beyond_ms}) == config
    learned = [use.sha256 for use in manifest.training.traces if use.role == "train"]
    assert learned == [trace.sha256 for trace in training_traces(config)]


def test_it_is_small_enough_to_keep() -> None:
    assert sum(path.stat().st_size for path in MODEL.iterdir()) < 1_000_000


@pytest.mark.parametrize(
    ("preset", "least_throughput", "most_delay"),
    [
        ("lte-walking", 0.95, 0.36),
        # A steady link, of which nearly all is asked for, and the frontier below.
        ("lte-stationary", 0.995, 0.38),
        ("umts-driving", 0.95, 0.2),
        # Fast links whose rate jumps: Cubic itself queues for 40 to 80 ms only, and no window outgrows its own.
        ("lte-driving", 0.92, 0.66),
    ],
)
def test_it_cuts_delay_and_keeps_throughput(preset: str, least_throughput: float, most_delay: float) -> None:
    """On the paper's link, over generated traces that training has not seen, in the simulator; shares of Cubic's."""
    scenarios = [Scenario.of(generate(preset, 40, seed), link="sim", seconds=40) for seed in range(900, 904)]
    plain, capped = ([done.metrics for done in simulate(make_agent(name), scenarios)] for name in ("none", str(MODEL)))
    throughput = [ours.throughput_mbps / theirs.throughput_mbps for ours, theirs in zip(capped, plain, strict=True)]
    delay = [ours.qdelay_mean_ms / theirs.qdelay_mean_ms for ours, theirs in zip(capped, plain, strict=True)]
    assert np.mean(throughput) >= least_throughput, throughput
    assert np.mean(delay) <= most_delay, delay


def test_on_a_steady_link_no_setting_of_the_hand_rule_does_as_well() -> None:
    """Delay and throughput of a steady link buy each other; what counts is who is ahead at the same utilisation."""
    links = [Scenario.of(generate("lte-stationary", 40, seed), link="sim", seconds=40).path for seed in range(900, 904)]
    policy = make_agent(str(MODEL))
    rules = [baseline.rule for baseline in baselines(links, 40.0, policy.view.period)]
    ratios = [ratio(Point.of(ours), rule) for ours, rule in zip(figures(policy, links, 40.0), rules, strict=True)]
    assert np.mean([found.mean for found in ratios]) <= 0.94, ratios
    assert np.mean([found.p95 for found in ratios]) <= 0.94, ratios
