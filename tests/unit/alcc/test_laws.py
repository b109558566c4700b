"""The deciders in the process decide as those of the daemon do, on the same records."""

import base64
import ctypes
import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from helpers.gated import seen_of, serving
from helpers.gated.server import pattern
from helpers.places import ROOT
from reinet.agents.decide.decider import Decider
from reinet.agents.decide.loop import ControlLoop
from reinet.agents.decide.names import make_agent
from reinet.agents.decide.policy import Policy
from reinet.agents.decide.protocol import Agent
from reinet.alcc.launch import Law, Settings, find_preload
from reinet.alcc.model import text_of
from reinet.alcc.sums import Sums
from reinet.core import FEATURE_SETS, FLOW_STATS_DTYPE, Flag, Normaliser
from reinet.core.errors import ModelError
from reinet.core.guard import Guard
from reinet.core.peers import PEER_EVERYBODY, Peers, peer_of
from reinet.core.period import PeriodConfig
from reinet.core.records import FlowStatsArray
from reinet.core.states.reflex import Reflex
from reinet.core.target import Target
from reinet.envs.link.spec import LinkSpec
from reinet.envs.sim import SimBatch
from reinet.envs.trace import Trace
from reinet.kshim.fake import FakeShim


def _records(seed: int, count: int = 400) -> FlowStatsArray:
    """A flow whose queue grows, drains and grows again, with silences and restarts."""
    rng = np.random.default_rng(seed)
    records = np.zeros(count, FLOW_STATS_DTYPE)
    period_ns = rng.integers(10, 80, count) * 1_000_000
    records["cookie"] = 7
    records["period_ns"] = period_ns
    records["time_ns"] = 10**12 + np.cumsum(period_ns)
    records["min_rtt_us"] = rng.choice([20_000, 45_000, 300])
    queue_us = np.abs(np.cumsum(rng.normal(0, 6000, count))).astype(np.int64)
    records["rtt_least_us"] = records["min_rtt_us"] + queue_us
    records["rtt_mean_us"] = records["rtt_least_us"] + 2000
    records["srtt_us"] = records["rtt_mean_us"]
    records["rtt_samples"] = rng.integers(0, 30, count)
    records["delivered_bytes"] = rng.integers(0, 120_000, count)
    records["delivery_rate_bytes_per_s"] = records["delivered_bytes"] * 10**9 // period_ns.astype(np.uint64)
    records["mss_bytes"] = 1448
    records["cwnd_pkts"] = rng.integers(2, 300, count)
    records["inflight_pkts"] = records["cwnd_pkts"]
    flags = (rng.random(count) < 0.05) * int(Flag.APP_LIMITED) + (rng.random(count) < 0.02) * int(Flag.RESTARTED)
    records["flags"] = flags | np.where(records["rtt_samples"] == 0, int(Flag.NO_SAMPLE), 0)
    return records


def _in_process(settings: Settings, records: FlowStatsArray) -> tuple[np.ndarray, np.ndarray]:
    targets_us, caps_pkts = np.zeros(len(records), np.uint32), np.zeros(len(records), np.uint32)
    replay = ctypes.CDLL(str(find_preload())).reinet_alcc_replay
    failed = replay(
        settings.text().encode(), records.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(len(records)),
        targets_us.ctypes.data_as(ctypes.c_void_p), caps_pkts.ctypes.data_as(ctypes.c_void_p),
    )  # fmt: skip
    assert failed == 0
    return targets_us, caps_pkts


def _in_daemon(agent: Agent, records: FlowStatsArray, guard: Guard) -> list[int]:
    bank = agent.view.bank(1)
    decider = Decider(agent, 1, guard)
    caps_pkts = []
    for i in range(len(records)):
        batch = bank.update([0], records[i : i + 1])
        decider.decide(records[i : i + 1], batch.states, batch.rule_pkts, batch.decided, batch.may_cap)
        caps_pkts.append(int(decider.caps_pkts[0]))
    return caps_pkts


@pytest.mark.parametrize("law", ["fixed:25", "rule:1.5", "rule:0.9", "none"])
@pytest.mark.parametrize("target", ["+30ms", "50ms", "2.5x", "1.1x", "+1ms"])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_same_caps_as_in_the_daemon(law: str, target: str, seed: int) -> None:
    records = _records(seed)
    records["min_rtt_us"][:3] = 0  # unknown at first
    targets_us, caps_pkts = _in_process(Settings(law=Law(law), target=Target.parse(target)), records)
    records["target_us"] = Target.parse(target).resolve_us(records["min_rtt_us"])
    np.testing.assert_array_equal(targets_us, records["target_us"])
    np.testing.assert_array_equal(caps_pkts, _in_daemon(make_agent(law), records, Guard()))
    if law != "none" and target == "+30ms" and records["min_rtt_us"][10] > 1000:
        assert 0 < np.count_nonzero(caps_pkts) < len(records), "both answers were to be seen"


def _over_a_detour(law: str) -> tuple[FlowStatsArray, list[int]]:
    """The records of a flow of the simulator's whose path is 20 ms longer from the fifth second on, and its caps."""
    link = LinkSpec(Trace.constant(24.0, 20.0), detour_ms=[(5000.0, 20.0)])
    agent = make_agent(law)
    sim, decider = SimBatch([link], agent.view.period), Decider(agent, 1, Guard())
    sim.reset()
    records, caps_pkts = [], []
    while sim.stats["time_ns"][0] < 20 * 10**9:
        records.append(sim.stats.copy())
        sim.step_caps(decider.decide(sim.stats, sim.states, sim.rule_pkts, sim.decided, sim.may_cap))
        caps_pkts.append(int(decider.caps_pkts[0]))
    return np.concatenate(records), caps_pkts


@pytest.mark.parametrize("law", ["rule:1.5", "rule:1.2"])
def test_on_a_path_that_became_longer_too(law: str) -> None:
    records, caps_pkts = _over_a_detour(law)
    _, in_process = _in_process(Settings(law=Law(law), target=Target.parse("50ms")), records)
    np.testing.assert_array_equal(in_process, caps_pkts)
    late = in_process[len(in_process) * 3 // 4 :]
    assert np.median(late) > 0.9 * float(law.partition(":")[2]) * 24e6 / 8 * 0.042 / 1448


@pytest.mark.parametrize("decides", ["process", "loop", "reflex"])
def test_a_relative_target_follows_a_path_that_became_longer(decides: str) -> None:
    """By the kernel's minimum, which is the least of five minutes, +30ms would soon be less than the path itself."""
    records, target = _over_a_detour("rule:1.5")[0], Target.parse("+30ms")
    if decides == "process":
        targets_us = _in_process(Settings(law=Law("rule:1.5"), target=target), records)[0]
    elif decides == "reflex":
        agent = _model("small")
        network = agent.network()
        assert network is not None
        reflex = Reflex(agent.view.bank(1), Guard(), network.layers, network.head, 1.0, 40_000, 10**9)
        reflex.set_target(*target.line())
        owners = np.array(records["cookie"][:1], np.uint64)
        reflex.begin(owners, Peers())
        each = (reflex.answer(records[i : i + 1].copy(), int(records["time_ns"][i])) for i in range(len(records)))
        targets_us = np.array([done.records["target_us"][0] for done in each])
    else:
        shim = FakeShim()
        loop = ControlLoop(shim, make_agent("rule:1.5"), target, clock_ns=lambda: shim.now_ns)
        shim.open_flow(7)
        told = []
        for record in records:
            shim.now_ns = int(record["time_ns"])
            names = [name for name in FLOW_STATS_DTYPE.names or () if name not in ("slot", "cookie", "target_us")]
            shim.feed(7, **{name: int(record[name]) for name in names})
            loop.tick()
            told.append(int(loop.snapshot().stats["target_us"][0]))
        targets_us = np.array(told)
    late, least_us = targets_us[-len(targets_us) // 4 :], int(records["min_rtt_us"][-1])
    assert set(targets_us[: len(targets_us) // 8].tolist()) <= {0, least_us + 30_000, *targets_us[:8].tolist()}
    assert np.median(late) == pytest.approx(least_us + 20_000 + 30_000, abs=3000)


MODELS = ("small", "default")


def _model(name: str) -> Policy:
    return Policy.load(ROOT / "checkpoints" / name)


@pytest.mark.parametrize("name", MODELS)
def test_the_layers_in_the_process_act_as_onnxruntime_does(name: str) -> None:
    policy = _model(name)
    feature_set = FEATURE_SETS[policy.manifest.schema_.feature_set]
    rng = np.random.default_rng(5)
    spread = rng.choice([0.1, 1.0, 4.0], (5000, 1))
    states = np.clip(rng.normal(0, spread, (5000, feature_set.state_size)), feature_set.low(), feature_set.high())
    states = states.astype(np.float32)
    actions = np.zeros(len(states), np.float32)
    size = ctypes.CDLL(str(find_preload())).reinet_alcc_act(
        policy.law_of_the_gate().model.encode(), states.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(len(states)),
        actions.ctypes.data_as(ctypes.c_void_p),
    )  # fmt: skip
    assert size == feature_set.state_size
    np.testing.assert_allclose(actions, policy.outputs(states), atol=1e-5)
    assert np.ptp(actions) > 0.5, "the states were to move the action"


@pytest.mark.parametrize("target", ["+30ms", "50ms", "1.1x"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_model_in_the_process_decides_as_in_the_daemon(name: str, target: str, seed: int) -> None:
    """Features, network, head, gate and guard; a cap may differ by a packet, where an action lies near a half."""
    policy = _model(name)
    records = _records(seed)
    records["min_rtt_us"][:3] = 0
    records["cap_pkts"] = np.random.default_rng(seed).integers(0, 90, len(records))
    targets_us, caps_pkts = _in_process(Settings(policy.law_of_the_gate(), Target.parse(target)), records)
    records["target_us"] = targets_us
    expected = np.array(_in_daemon(policy, records, Guard(bounds_steps=True)))
    np.testing.assert_array_equal(caps_pkts == 0, expected == 0)
    assert np.abs(caps_pkts.astype(np.int64) - expected).max() <= 1
    assert np.mean(caps_pkts == expected) > 0.99
    if target == "+30ms" and records["min_rtt_us"][10] > 1000:
        assert len(np.unique(caps_pkts)) > 10, "the network was to say something of its own"


def test_a_model_that_is_not_whole_is_refused() -> None:
    act = ctypes.CDLL(str(find_preload())).reinet_alcc_act
    whole = base64.b64decode(_model("small").law_of_the_gate().model)

    def accepted(content: bytes) -> bool:
        return bool(act(base64.b64encode(content), None, ctypes.c_size_t(0), None) >= 0)

    assert accepted(whole)
    for broken in (b"", whole[:-1], whole[: len(whole) // 2], whole + b"\0", b"X" + whole[1:], whole[:8] + b"\xff" * 32,
                   whole[:-4] + np.float32(np.nan).tobytes()):  # fmt: skip
        assert not accepted(broken)
    for place in range(8, 8 + 7 * 4 + 8 + 8 + 8 + 8):  # of the head only period, calm and room may be others
        assert not accepted(whole[:place] + b"\xfe" + whole[place + 1 :]) or 36 <= place < 60, place
    for calm_rtts in (-0.1, 10.1, np.inf, np.nan):
        assert not accepted(whole[:44] + np.float64(calm_rtts).tobytes() + whole[52:]), calm_rtts
    for room_beyond_us in (-1.0, np.nan):
        assert not accepted(whole[:52] + np.float64(room_beyond_us).tobytes() + whole[60:]), room_beyond_us
    assert act(b"no base64!", None, ctypes.c_size_t(0), None) == -1
    replay = ctypes.CDLL(str(find_preload())).reinet_alcc_replay
    assert replay(b"law=policy", None, ctypes.c_size_t(0), None, None) == -1


def _bend_otherwise(graph: onnx.GraphProto) -> None:
    graph.node[1].op_type = "Tanh"


def _skip_a_layer(graph: onnx.GraphProto) -> None:
    graph.node[2].input[0] = "sum0"


def _transpose(graph: onnx.GraphProto) -> None:
    del graph.node[2].attribute[:]


@pytest.mark.parametrize("change", [_bend_otherwise, _skip_a_layer, _transpose])
def test_a_graph_that_is_no_plain_chain_does_not_run_in_a_process(change: Callable[[onnx.GraphProto], None]) -> None:
    policy = _model("small")
    model = onnx.load_model_from_string(policy.artifact.onnx_bytes)
    change(model.graph)
    policy.artifact = replace(policy.artifact, onnx_bytes=model.SerializeToString())
    with pytest.raises(ModelError, match="no plain chain"):
        policy.law_of_the_gate()


def test_bytes_pass_whole_under_a_model() -> None:
    size = 1_000_003
    law = _model("small").law_of_the_gate()
    sums = Sums()
    asked = Settings(law, Target.parse("+30ms"), always=True, report=sums.path)
    digest = hashlib.sha256()
    with serving("edge", size, 1, asked) as server, server.connect(receive_buffer_bytes=4096) as sock:
        while block := sock.recv(1 << 14):
            digest.update(block)
            time.sleep(0.002)  # a path slow enough for periods to pass
        server.ended()
    assert digest.digest() == hashlib.sha256(pattern(size)).digest()
    total = sums.total()
    assert total["decisions"] >= total["capped"] > 0


@pytest.mark.parametrize(("shared_uplink", "peer"), [(False, peer_of("127.0.0.1")), (True, PEER_EVERYBODY)])
def test_behind_an_uplink_that_all_share_every_connection_has_the_same_peer(
    shared_uplink: bool, peer: int, tmp_path: Path
) -> None:
    records = tmp_path / "records"
    asked = Settings(Law("rule"), Target.parse("+30ms"), always=True, shared_uplink=shared_uplink, records=records)
    with serving("edge", 1_000_000, 1, asked) as server, server.connect(receive_buffer_bytes=4096) as sock:
        while sock.recv(1 << 14):
            time.sleep(0.002)  # a path slow enough for periods to pass
        server.ended()
    found = np.fromfile(records, FLOW_STATS_DTYPE)["peer"]
    assert found.size
    assert set(found.tolist()) == {peer}


def test_a_network_that_is_too_large_is_refused() -> None:
    layers = [(np.zeros((1000, 24), np.float32), np.zeros(1000, np.float32)), (np.zeros((1, 1000), np.float32),) * 2]
    name = "timescales-24x1"
    with pytest.raises(ModelError, match="too large"):
        text_of(FEATURE_SETS[name], "wide", PeriodConfig(), Normaliser(name), layers, 0.0, None, "a model")


def test_settings_that_make_no_sense_are_refused() -> None:
    replay = ctypes.CDLL(str(find_preload())).reinet_alcc_replay
    for text in ("law=fixed:2", "law=fixed:99999", "law=rule:", "law=nothing", "target=1", "ports=0", "what=1", "law",
                 "ports=80.5", "shadow=true", "always=yes", "no_io_uring=", "shared_uplink=2", "law=rule:inf",
                 "target=1:4294967296"):  # fmt: skip
        assert replay(text.encode(), None, ctypes.c_size_t(0), None, None) == -1, text


def test_a_program_that_starts_without_memory_for_its_model_is_not_gated(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended by SIGABRT before it began."""
    monkeypatch.setenv("REINET_TEST_NO_PAGES", "1")
    asked = Settings(_model("default").law_of_the_gate(), Target.parse("+30ms"))
    status, lines, words = seen_of(program, "no_pages_left", asked)
    assert (status, lines) == (0, ["begins", "ends"])
    assert words == "reinet: there is no memory for what REINET_ALCC says: nothing is gated\n"
