"""A training that is told to end: what it leaves, and who must not take that for a whole one."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.trainer import TINY
from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.learn import loop
from reinet.agents.learn.checkpoint import Checkpoint, checkpoints
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.effects import Plan, Variant, measure
from reinet.agents.learn.export import export, learned_by
from reinet.agents.learn.learners import side_by_side
from reinet.agents.learn.train import Run, train
from reinet.agents.service import flywheel
from reinet.cli import demo
from reinet.envs.trace import Trace, generate

CONFIG = TrainConfig.model_validate(TINY)


def test_sigterm_leaves_a_checkpoint_that_resumes_exactly_however_often_it_comes(tmp_path: Path) -> None:
    whole = train(CONFIG, tmp_path / "whole")
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))  # as Ray does, whose actors gather

    def end(step: Any) -> None:
        if step.iteration == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        stopped = train(CONFIG, tmp_path / "parts", progress=end)
        assert signal.getsignal(signal.SIGTERM) not in (before, signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (stopped.interrupted, stopped.iterations) == (True, 3)
    assert Checkpoint(stopped.checkpoint).state.iteration == 3
    ours = Checkpoint(train(CONFIG, tmp_path / "parts").checkpoint).learner
    assert all(torch.equal(tensor, ours[name]) for name, tensor in Checkpoint(whole.checkpoint).learner.items())


def test_a_second_ctrl_c_ends_a_training_at_once_also_after_sigterm(tmp_path: Path) -> None:
    def end(step: Any) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        if step.iteration == 1:
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)

    assert train(CONFIG, tmp_path, progress=end).iterations == 1


def test_an_iteration_that_nobody_gathers_for_any_more_does_not_outlast_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's processes are told to end with the training, and a call to them waits for good."""
    whole = Run.iterate

    def iterate(self: Run) -> dict[str, float]:
        if self.iteration == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        return whole(self)

    monkeypatch.setattr(Run, "iterate", iterate)
    monkeypatch.setattr(loop, "LAST_S", 0.2)
    started_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path)
    assert time.monotonic() - started_s < 30
    assert [Checkpoint(folder).state.iteration for folder in checkpoints(tmp_path)] == [2]
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def _effects(folder: Path) -> Any:
    plan = Plan(about="", variant=(Variant(name="it", what="it"),))
    return list(measure(CONFIG, plan, [Trace.constant(12, 10)], 5.0, folder))


def _learners(folder: Path) -> Any:
    scenario = Scenario.of(Trace.constant(12, 10), "sim", seconds=5)
    return list(side_by_side([CONFIG, CONFIG.model_copy(update={"name": "next"})], [scenario], None, folder))


def _flywheel(folder: Path) -> Any:
    side = folder / "side"
    for seed in range(2):
        generate("lte-walking", 10, seed).save(side / f"{seed}.trace")
    return flywheel._trained(CONFIG, folder, side, 1)


def _demo(folder: Path) -> Any:
    return demo._train(1.0, folder)


@pytest.mark.parametrize("benchmark", [_effects, _learners, _flywheel, _demo])
def test_ctrl_c_ends_what_trains_on_the_way_and_half_a_training_is_never_judged(
    benchmark: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Run.iterate

    def iterate(self: Run) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGINT)
        return whole(self)

    monkeypatch.setattr(Run, "iterate", iterate)
    monkeypatch.setattr(TrainConfig, "load", lambda _path: CONFIG)
    with pytest.raises(KeyboardInterrupt):
        benchmark(tmp_path)
    assert list(tmp_path.rglob("iteration-000001")), "it is there to go on from"
    assert not list(tmp_path.rglob("model")), "and no model was made of it"


def test_a_models_card_says_what_has_made_it_and_not_what_was_planned(tmp_path: Path) -> None:
    changes = {"hindsight": {"iterations": 3}, "evolution": {"generations": 1, "members": 4, "links": 1, "seconds": 2}}
    config = TrainConfig.model_validate({**TINY, **changes})
    told = ["hindsight (2 iterations)", "hindsight (3 iterations), then DDPG (1 iterations)",
            "hindsight (3 iterations), then DDPG (2 iterations), then evolution (1 iterations)"]  # fmt: skip
    assert [learned_by(config, done) for done in (2, 4, 6)] == told

    def end(step: Any) -> None:
        if step.iteration == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    export(train(config, tmp_path / "run", progress=end).checkpoint, tmp_path / "model")
    assert f"Method: {told[0]}; " in (tmp_path / "model" / "README.md").read_text()


@pytest.mark.parametrize(
    ("head", "bound"),
    [("cwnd", "the window, of which it is half to twice,"), ("wide", "the hand rule inside the head")],
)
def test_a_models_card_says_what_its_own_head_bounds_a_cap_by(head: str, bound: str, tmp_path: Path) -> None:
    """Of the paper's head it said that the hand rule was inside."""
    changes = {"head": head, "run": {**TINY["run"], "iterations": 2}}
    export(train(TrainConfig.model_validate({**TINY, **changes}), tmp_path / "run").checkpoint, tmp_path / "model")
    assert f"of them {bound} still bounds the cap" in (tmp_path / "model" / "README.md").read_text()
