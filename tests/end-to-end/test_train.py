"""Training: fragments tell what happened, interruption changes nothing, and a model comes out at the end."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from helpers.places import ROOT
from helpers.trainer import TINY
from reinet.agents.decide.baselines import NoCap, Rule
from reinet.agents.decide.loop import ControlLoop
from reinet.agents.decide.policy import Policy
from reinet.agents.evaluation.frontier import Point
from reinet.agents.evaluation.run import run as evaluate
from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.learn import checkpoint, links
from reinet.agents.learn.checkpoint import Checkpoint
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.export import export
from reinet.agents.learn.gatherer import Gatherer
from reinet.agents.learn.links import training_traces
from reinet.agents.learn.loop import Result
from reinet.agents.learn.train import judged, train
from reinet.agents.learn.workers import RAY_STARTS, start_ray
from reinet.agents.model.mlp import act
from reinet.agents.service.running.ray_left import ray_processes_left
from reinet.cli import doctor
from reinet.core import FEATURE_SETS, FLOW_STATS_DTYPE, Normaliser, StateBank, schema_hash
from reinet.core.errors import ConfigError, LinkError, ModelError, ReinetError
from reinet.core.target import Target
from reinet.envs.trace import Trace
from reinet.envs.trace.model import generate
from reinet.kshim.fake import FakeShim

SMALL: dict[str, Any] = TINY | {"name": "small", "run": TINY["run"] | {"checkpoint_every": 100}}


def config(**changes: Any) -> TrainConfig:
    sections = {
        key: {**SMALL.get(key, {}), **value} if isinstance(value, dict) else value for key, value in changes.items()
    }
    return TrainConfig.model_validate({**SMALL, **sections})


def run(folder: Path, iterations: int, **changes: Any) -> Result:
    return train(config(**{**changes, "run": {"iterations": iterations, **changes.get("run", {})}}), folder)


def assert_same(a: Path, b: Path) -> None:
    """Two checkpoints hold the same, bit for bit."""
    ours, theirs = Checkpoint(a), Checkpoint(b)
    assert ours.learner.keys() == theirs.learner.keys()
    for name, tensor in ours.learner.items():
        assert torch.equal(tensor, theirs.learner[name]), name
    assert ours.replay is not None
    assert theirs.replay is not None
    for name, array in ours.replay.items():
        np.testing.assert_array_equal(array, theirs.replay[name], err_msg=name)
    for key in ("iteration", "env_steps", "updates", "normaliser", "rng", "baselines", "best"):
        assert getattr(ours.state, key) == getattr(theirs.state, key), key


# --- interruption ---


def test_n_and_m_iterations_are_n_plus_m(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 6)
    # It is told to end inside the normaliser's calibration.
    train(config(), tmp_path / "parts", progress=lambda _step: os.kill(os.getpid(), signal.SIGINT))
    run(tmp_path / "parts", 3)
    parts = run(tmp_path / "parts", 6)
    assert whole.updates == 25
    assert_same(whole.checkpoint, parts.checkpoint)


def test_another_seed_gives_another_model(tmp_path: Path) -> None:
    a, b = (run(tmp_path / str(seed), 3, seed=seed) for seed in (1, 2))
    assert not torch.equal(
        Checkpoint(a.checkpoint).learner["actor/out.weight"], Checkpoint(b.checkpoint).learner["actor/out.weight"]
    )


CURRICULUM = {"share": 0.5, "candidates": 2, "seconds": 2.0}


@pytest.mark.parametrize(
    "options",
    [{}, {"hindsight": {"iterations": 4, "teachers": 2}}, {"ddpg": {"gru": 4}, "curriculum": CURRICULUM}],
    ids=["paper", "teachers", "gru-curriculum"],
)
def test_ctrl_c_leaves_a_checkpoint_that_resumes_exactly(tmp_path: Path, options: dict[str, Any]) -> None:
    """The handler waits for the iteration at hand, so what is written is a whole state."""
    before = signal.getsignal(signal.SIGINT)  # Ray Tune leaves its own in a process that has used it
    whole = run(tmp_path / "whole", 6, **options)
    settings = config(**options)

    def interrupt(step: Any) -> None:
        if step.iteration == 2:
            os.kill(os.getpid(), signal.SIGINT)

    stopped = train(settings, tmp_path / "parts", progress=interrupt)
    assert stopped.interrupted
    assert stopped.iterations == 2
    assert_same(whole.checkpoint, train(settings, tmp_path / "parts").checkpoint)
    assert signal.getsignal(signal.SIGINT) is before


def test_ray_workers_are_repeatable_and_resume_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # another program's cluster, which nobody asked to train
    whole = run(tmp_path / "whole", 4, rollout={"workers": 2})
    assert not ray.is_initialized()
    start_ray(ray, 2)  # a Ray that is there already serves both parts
    try:
        run(tmp_path / "parts", 3, rollout={"workers": 2})
        parts = run(tmp_path / "parts", 4, rollout={"workers": 2})
        assert ray.is_initialized()
    finally:
        ray.shutdown()
    assert_same(whole.checkpoint, parts.checkpoint)
    assert whole.env_steps == 4 * 2 * 3 * 41


def test_what_a_worker_refuses_is_said_as_it_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "data_leaves_ms", lambda *_: 0.0)  # which is refused before Ray starts, as a rule
    late = Trace(np.arange(40_000, 60_000, 5, dtype=np.uint32), "late").save(tmp_path / "late.trace")
    traces = {**config().traces.model_dump(), "sets": [{"path": str(late), "role": "validation"}]}
    with pytest.raises(LinkError, match=r"^over late.trace: link log: (nothing left the link|the interval is empty)"):
        run(tmp_path / "run", 4, rollout={"workers": 1}, traces=traces)


class FailingRay:
    """A Ray that does not come up the first few times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls: list[str] = []

    def init(self, **_: Any) -> None:
        self.calls.append("init")
        if self.calls.count("init") <= self.failures:
            raise Exception("The current node timed out during startup.")

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def test_a_ray_that_does_not_start_is_started_again() -> None:
    ray = FailingRay(failures=RAY_STARTS - 1)
    start_ray(ray, 2)
    assert ray.calls == [*["init", "shutdown"] * (RAY_STARTS - 1), "init"]
    with pytest.raises(ReinetError, match=r"timed out.*rollout\.workers = 0"):
        start_ray(FailingRay(failures=RAY_STARTS), 2)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("nowhere", "nowhere"),
        ("127.0.0.1:1", "Connection refused"),
        ("ray://127.0.0.1:1", "Connection refused"),
        ("ray://127.0.0.1", "no port; ray:// needs 10001"),
        ("ray://[::1]", "no port"),
    ],
)
def test_a_cluster_that_cannot_be_joined_is_said_in_words_at_once(tmp_path: Path, address: str, why: str) -> None:
    """It was a traceback, a warning of Ray's a minute without an end, or half a minute without a word."""
    with pytest.raises(
        ReinetError, match=rf"^the Ray cluster at {re.escape(address)} cannot be joined \(.*{why}.*\); give"
    ):
        train(config(rollout={"workers": 1}), tmp_path / "run", ray_address=address)
    assert not ray.is_initialized()


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    result = run(tmp_path, 2)
    path = result.checkpoint / "replay.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(ModelError, match=r"replay\.safetensors: damaged"):
        run(tmp_path, 3)


def test_another_configuration_does_not_resume(tmp_path: Path) -> None:
    run(tmp_path, 2)
    with pytest.raises(ConfigError, match=r"its run has ddpg\.gamma = .*choose another --run-dir"):
        run(tmp_path, 3, ddpg={"gamma": 0.5})
    with pytest.raises(ConfigError, match="holds a run already"):
        train(config(), tmp_path, resume=False)


def test_old_checkpoints_go_and_a_time_limit_stops(tmp_path: Path) -> None:
    result = run(tmp_path, 5, run={"checkpoint_every": 1, "keep": 2})
    assert [folder.name for folder in checkpoint.checkpoints(tmp_path)] == ["iteration-000004", "iteration-000005"]
    assert not list((tmp_path / "checkpoints").glob(".staged*"))
    assert train(config(run={"iterations": 9, "checkpoint_every": 1, "keep": 2}), tmp_path, minutes=0).iterations == 5
    assert result.checkpoint.name == "iteration-000005"


# --- what training leaves ---


def test_the_exported_model_is_the_trained_network(tmp_path: Path) -> None:
    result = run(tmp_path / "run", 3)
    assert result.best is not None
    export(result.best, tmp_path / "model")
    policy = Policy.load(tmp_path / "model")
    states = (
        np.random.default_rng(0)
        .uniform(0, 3, (50, FEATURE_SETS[policy.view.feature_set].state_size))
        .astype(np.float32)
    )
    tensors = Checkpoint(result.best).learner
    assert tensors["actor/hidden.0.weight"].shape == (16, states.shape[1])
    from reinet.agents.learn.ddpg import Ddpg

    learner = Ddpg(config().ddpg, states.shape[1], seed=9)
    learner.load(tensors)
    with torch.no_grad():
        expected = learner.actor.eval()(torch.from_numpy(states)).numpy()[:, 0]
    np.testing.assert_allclose(policy.outputs(states), expected, atol=5e-6)
    np.testing.assert_allclose(act(learner.actor.folded(), states), expected, atol=5e-6)
    manifest = policy.manifest
    assert {use.role for use in manifest.training.traces} == {"train", "select"}
    assert len(manifest.training.traces) == 4
    assert manifest.training.config["ddpg"]["hidden"] == [16]
    assert manifest.metrics["throughput_ratio"] > 0
    assert policy.view.normaliser == Normaliser.from_dict(Checkpoint(result.best).state.normaliser)


@pytest.mark.parametrize(("name", "gru"), [("scalefree-5x20", 0), ("timescales-24x20", 4)])
def test_another_feature_set_is_trained_exported_evaluated_and_served(tmp_path: Path, name: str, gru: int) -> None:
    result = run(tmp_path / "run", 4, feature_set=name, head="bdp", reward={"kind": "regret"}, ddpg={"gru": gru})
    assert result.best is not None
    assert Checkpoint(result.best).state.normaliser == {}
    export(result.best, tmp_path / "model")
    policy = Policy.load(tmp_path / "model")
    assert (policy.view.feature_set, policy.manifest.schema_.hash) == (name, schema_hash(name, "bdp"))
    assert policy.view.normaliser == Normaliser(name)

    measured = evaluate(policy, Scenario.of(generate("lte-walking", 10.0, 9), "sim", seconds=8.0))
    capped = measured.caps_pkts[measured.caps_pkts > 0]
    assert len(capped) > 50
    assert len(np.unique(capped)) > 5

    shim = FakeShim()
    loop = ControlLoop(shim, policy, Target.parse("50ms"), 500, clock_ns=lambda: shim.now_ns)
    shim.open_flow(7)
    record = {
        "rtt_mean_us": 30_000, "rtt_least_us": 28_000, "rtt_samples": 20, "min_rtt_us": 20_000, "srtt_us": 30_000,
        "cwnd_pkts": 60, "mss_bytes": 1448, "delivered_bytes": 1000 * 1448, "delivery_rate_bytes_per_s": 1_448_000,
        "inflight_pkts": 30, "period_ns": 1_000_000_000,
    }  # fmt: skip
    shim.feed(7, **record)
    loop.tick()
    stats = np.zeros(1, FLOW_STATS_DTYPE)
    for field, value in record.items():
        stats[field] = value
    stats["time_ns"] = shim.now_ns
    batch = StateBank(1, name).update([0], stats)
    assert batch.rule_pkts[0] == pytest.approx(20)
    assert shim.cap_pkts(7) == policy.decide(stats, batch.states, batch.rule_pkts)[0] > 0


def test_tensorboard_has_every_documented_scalar_and_no_other(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(tmp_path, 3, hindsight={"iterations": 2, "teachers": 2}, curriculum=CURRICULUM)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    page = (ROOT / "docs" / "scalars.md").read_text()
    documented = {word for word in page.replace("`", " ").replace(",", " ").split() if word.count("/") == 1}
    tags = set(events.Tags()["scalars"])
    assert tags == {
        tag
        for tag in documented
        if tag.split("/")[0] in ("charts", "losses", "curriculum", "eval") and not tag.endswith("/")
    }


def test_a_checkpoint_without_its_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"No such file.*give a checkpoint folder"):
        export(tmp_path / "none", tmp_path / "model")


# --- experience ---


def test_a_fragment_is_what_the_flow_did() -> None:
    """Frames cut from the replay give back the states that the simulator showed."""
    settings = config()
    gathered = Gatherer(settings, training_traces(settings), 0).gather(None, Normaliser.reference(), 0)
    history = FEATURE_SETS[settings.feature_set].history
    assert len(gathered.fragments) == 3
    for fragment in gathered.fragments:
        count = len(fragment.actions)
        assert 10 < count <= 40
        assert fragment.frames.shape == (history + count, 5)
        assert np.sum(np.diff(fragment.actions) > 0) <= 1  # the walk goes down, and once around
        assert np.all(np.isfinite(fragment.rewards))


def test_gathering_depends_on_seed_and_iteration_alone() -> None:
    settings = config()
    traces = training_traces(settings)
    worker = Gatherer(settings, traces, 0)
    first, other = (worker.gather(None, Normaliser.reference(), i) for i in (5, 6))
    again = Gatherer(settings, traces, 0).gather(None, Normaliser.reference(), 5)
    for a, b in zip(first.fragments, again.fragments, strict=True):
        np.testing.assert_array_equal(a.frames, b.frames)
        np.testing.assert_array_equal(a.rewards, b.rewards)
    assert not np.array_equal(first.fragments[0].rewards, other.fragments[0].rewards)


def test_the_walk_raises_delay_where_the_multiplier_is_high() -> None:
    settings = config(rollout={"periods": 160}, links={"reference_share": 1.0})
    gathered = Gatherer(settings, [Trace.constant(12.0, 10.0)], 0).gather(None, Normaliser.reference(), 0)
    fragment = gathered.fragments[0]
    rho = fragment.frames[-len(fragment.actions) :, :2]  # over the target, and below it
    high = fragment.actions > 0.5
    assert rho[high, 0].mean() > 0
    assert gathered.summary["charts/rho_above_1_share"] > 0


def test_scores_compare_with_the_rule_and_with_plain_congestion_control() -> None:
    settings = config()
    from reinet.agents.learn.links import selection_links

    links = selection_links(settings)
    worker = Gatherer(settings, [], 0)
    baselines = worker.baselines(links, settings.period.rule())
    none, rule = ([Point.of(m) for m in worker.evaluate(links, agent)] for agent in (NoCap(), Rule(1.5)))
    plain = judged(none, baselines)
    assert (plain["throughput_ratio"], plain["qdelay_ratio"]) == (pytest.approx(1), pytest.approx(1))
    against = judged(rule, baselines)
    assert against["qdelay_ratio"] < 0.9
    assert against["throughput_ratio"] > 0.8
    # The rule's own setting is one of those that the frontier is made of.
    assert 1 <= against["frontier_mean"] < plain["frontier_mean"]
    assert against["score"] > plain["score"]


def test_training_off_the_main_thread_leaves_signals_alone(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(run(tmp_path, 2)))
    thread.start()
    thread.join(60)
    assert results[0].iterations == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_what_a_killed_training_leaves_of_ray_is_listed() -> None:
    code = """
import ray, time
from reinet.agents.learn.workers import start_ray
start_ray(ray, 1)
print("started", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "started\n"
        finally:
            program.kill()
    end_s = time.monotonic() + 60
    left: dict[int, str] = {}
    try:
        while not any("Agent" in name for name in left.values()):
            assert time.monotonic() < end_s
            time.sleep(0.2)
            left = {found.pid: found.name for found in ray_processes_left() if found.program == program.pid}
        assert str(next(iter(left))) in doctor.prerequisites()["leftovers.ray"].why
    finally:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
