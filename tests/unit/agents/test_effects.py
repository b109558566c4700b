"""What a part brings: variants differ from what they stand beside in one thing, and are judged over the same links."""

from pathlib import Path

import pytest

from helpers.places import ROOT
from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.effects import VARIANTS, measure
from reinet.envs.trace import Trace

BASE = TrainConfig.load(ROOT / "configs" / "default.toml")
CONFIGS = {one.name: one.config(BASE, 1, 40) for one in VARIANTS}
DIFFER = {"cadence": {"period"}, "the paper's state": {"feature_set", "ddpg", "hindsight", "run"},
          "without": {"feature_set"}, "Clean-Slate": {"links"}}  # fmt: skip
"""DeepCC's inputs are normalised, so iterations come first that gather statistics."""


@pytest.mark.parametrize("variant", [one for one in VARIANTS if one.beside], ids=lambda one: one.name)
def test_a_variant_differs_in_what_it_is_named_for_alone(variant: object) -> None:
    name, beside, what = (getattr(variant, key) for key in ("name", "beside", "what"))
    own, other = (CONFIGS[one].model_dump(exclude={"name"}) for one in (name, beside))
    found = {key for key in own if own[key] != other[key]}
    assert found == next(keys for start, keys in DIFFER.items() if what.startswith(start))


def test_hindsight_alone_teaches_every_variant() -> None:
    for config in CONFIGS.values():
        assert config.hindsight.iterations == config.run.iterations
        assert config.links.congestion_controls in (["cubic"], ["clean-slate"])


def test_a_variant_is_trained_once_and_judged(tmp_path: Path) -> None:
    small = BASE.model_copy(
        update={
            "rollout": BASE.rollout.model_copy(update={"links": 2, "periods": 256}),
            "run": BASE.run.model_copy(update={"updates": 2}),
        }
    )
    links = [Scenario.of(Trace.constant(12, 10), "sim").path]
    chosen = [one for one in VARIANTS if one.name == "clean-slate-20ms"]
    rows = list(measure(small, chosen, links, 5.0, tmp_path, iterations=1))
    folder = tmp_path / "clean-slate-20ms-seed1"
    stamp = (folder / "checkpoints" / "iteration-000001" / "state.json").stat().st_mtime_ns
    assert rows == list(measure(small, chosen, links, 5.0, tmp_path, iterations=1))
    assert (folder / "checkpoints" / "iteration-000001" / "state.json").stat().st_mtime_ns == stamp
    (row,) = rows
    assert 0 < row["throughput_ratio"] < 1.1
    assert row["frontier_mean"] > 0
