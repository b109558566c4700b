"""What an option brings: variants differ from what they stand beside in one thing, judged over the same links."""

from pathlib import Path

import pytest

from helpers.places import ROOT
from reinet.agents.evaluation.picture import save_effects
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.effects import Plan, Variant, measure, over_seeds
from reinet.core.errors import ConfigError
from reinet.envs.trace import Trace
from reinet.envs.trace.model import generate

BASE = TrainConfig.load(ROOT / "configs" / "default.toml")
PLANS = {path.stem: Plan.load(path) for path in sorted((ROOT / "configs" / "effects").glob("*.toml"))}
PAIRS = [(name, one) for name, plan in PLANS.items() for one in plan.variant if one.beside]
CONSEQUENCES = {
    "deepcc-20ms": {"ddpg.normaliser_iterations", "hindsight.iterations", "run.iterations", "run.evaluate_every"},
    "ddpg-alone": {"ddpg.cold_start_iterations", "ddpg.privileged", "ddpg.steps"},
}
"""DeepCC's inputs are normalised, so iterations come first that gather statistics; policy gradients that hindsight has
not started need what keeps them from drifting."""


def flat(config: TrainConfig) -> dict[str, object]:
    said = config.model_dump(exclude={"name"})
    tables = {key: value for key, value in said.items() if isinstance(value, dict)}
    return {key: said[key] for key in said if key not in tables} | {
        f"{table}.{key}": value for table, values in tables.items() for key, value in values.items()
    }


@pytest.mark.parametrize(("plan", "variant"), PAIRS, ids=[f"{name}-{one.name}" for name, one in PAIRS])
def test_a_variant_differs_from_the_one_beside_it_in_what_it_says(plan: str, variant: Variant) -> None:
    beside = next(one for one in PLANS[plan].variant if one.name == variant.beside)
    own, other = (flat(PLANS[plan].config(one, BASE, 1)) for one in (variant, beside))
    found = {key for key in own if own[key] != other[key]}
    said = {key for key in variant.keys if variant.keys[key] != beside.keys.get(key)}
    assert found
    assert found - {"run.evaluate_every", "hindsight.weight"} <= said | CONSEQUENCES.get(variant.name, set())


def test_deepcc_is_taught_by_hindsight_alone() -> None:
    for one in PLANS["deepcc"].variant:
        config = PLANS["deepcc"].config(one, BASE, 1)
        assert config.hindsight.iterations == config.run.iterations
        assert config.links.congestion_controls == [one.cc]


def test_a_variant_is_trained_once_and_judged(tmp_path: Path) -> None:
    small = BASE.model_copy(
        update={
            "traces": BASE.traces.model_copy(update={"train_count": 2, "select_count": 1, "seconds": 10.0}),
            "rollout": BASE.rollout.model_copy(update={"periods": 256}),
            "run": BASE.run.model_copy(update={"updates": 2, "evaluate_s": 5.0, "evaluate_seeds": 1}),
            "harm": BASE.harm.model_copy(update={"repeat": 0}),  # how its checkpoint is chosen is no matter here
        }
    )
    plan = PLANS["deepcc"]
    few = {"rollout.links": 2, "rollout.workers": 0}
    variant = next(one for one in plan.variant if one.name == "clean-slate-20ms")
    plan = plan.model_copy(update={"variant": (variant,), "common": plan.common | few})
    traces = [Trace.constant(12, 10)]
    rows = list(measure(small, plan, traces, 5.0, tmp_path, iterations=1))
    state = tmp_path / "clean-slate-20ms-seed1" / "checkpoints" / "iteration-000001" / "state.json"
    stamp = state.stat().st_mtime_ns
    assert rows == list(measure(small, plan, traces, 5.0, tmp_path, iterations=1))
    assert state.stat().st_mtime_ns == stamp
    other = variant.model_copy(update={"keys": variant.keys | {"ddpg.noise": 0.7}})
    later = plan.model_copy(update={"variant": (variant.model_copy(update={"name": "first"}), other)})
    with pytest.raises(ConfigError, match=r"clean-slate-20ms-seed1: its run has ddpg\.noise"):
        list(measure(small, later, traces, 5.0, tmp_path, iterations=1))
    assert not (tmp_path / "first-seed1" / "checkpoints").exists(), "it is refused before the first training"
    (row,) = rows
    assert 0 < row["throughput_ratio"] < 1.1
    assert row["frontier_mean"] > 0
    assert 20 < row["decisions_per_s"] <= 1000 / 20
    again = row | {"seed": 2, "frontier_mean": row["frontier_mean"] + 0.2}
    (median,) = over_seeds([row, again])
    assert median["seeds"] == 2
    assert median["frontier_mean"] == pytest.approx(row["frontier_mean"] + 0.1)
    save_effects([row, again], tmp_path / "pictures" / "effects.png")
    assert (tmp_path / "pictures" / "effects.png").stat().st_size > 5_000
    assert median["frontier_mean_range"] == f"{row['frontier_mean']:.2f} to {again['frontier_mean']:.2f}"


def test_a_training_cut_short_still_learns_before_its_evolution() -> None:
    plan = PLANS["gradients"]
    (variant,) = (one for one in plan.variant if one.name == "evolution")
    cut, whole = (plan.config(variant, BASE, 1, iterations) for iterations in (10, None))
    assert (cut.run.iterations, cut.evolution.generations) == (10, 5)
    assert (whole.run.iterations, whole.evolution.generations) == (80, 40)


def test_a_generated_trace_that_is_learned_from_judges_nobody(tmp_path: Path) -> None:
    preset, seconds, seed = BASE.traces.presets[0], BASE.traces.seconds, BASE.traces.seed
    with pytest.raises(ConfigError, match=r"renamed has the content of .*, which variant .* learns from"):
        next(
            measure(
                BASE,
                PLANS["deepcc"],
                [Trace(generate(preset, seconds, seed).opportunities_ms, "renamed")],
                5.0,
                tmp_path,
            )
        )


def test_a_wrong_key_is_named_before_anything_is_trained() -> None:
    plan = Plan(about="", variant=(Variant(name="wrong", what="", keys={"ddpg.noice": 0.2}),))
    with pytest.raises(ConfigError, match=r"variant wrong: a configuration has no key 'ddpg\.noice'"):
        plan.config(plan.variant[0], BASE, 1)


@pytest.mark.parametrize(
    ("names", "more", "match"),
    [
        (["a", "a"], "", "the variant a is there twice"),
        (["a"], 'beside = "b"\n', "stands beside"),
        (["a"], '[[path]]\nname = "p"\n[[path]]\nname = "p"\nmrtt_ms = 80\n', "the path p is there twice"),
    ],
)
def test_a_plan_without_sense_is_refused(tmp_path: Path, names: list[str], more: str, match: str) -> None:
    rows = "".join(f'[[variant]]\nname = "{name}"\nwhat = "x"\n' for name in names)
    file = tmp_path / "plan.toml"
    file.write_text('about = "x"\n' + rows + more)
    with pytest.raises(ConfigError, match=match):
        Plan.load(file)


def test_who_judges_is_not_learned_from(tmp_path: Path) -> None:
    recordings = [Trace.constant(mbps, 10) for mbps in (6, 12)]
    for number, trace in enumerate(recordings):
        trace.save(tmp_path / "own" / f"{number}.trace")
    section = BASE.traces.model_dump() | {"presets": [], "sets": [{"path": str(tmp_path / "own")}]}
    own = TrainConfig.model_validate(BASE.model_dump() | {"traces": section})
    with pytest.raises(ConfigError, match=r"renamed has the content of own/1\.trace, which variant .* learns from"):
        next(measure(own, PLANS["deepcc"], [Trace(recordings[1].opportunities_ms, "renamed")], 5.0, tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own"]
