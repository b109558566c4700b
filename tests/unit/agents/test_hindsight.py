"""Hindsight: what it would have done is what the link then carries, and the actor learns the quantile asked for."""

import dataclasses

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from helpers.links import cellular, constant
from reinet.agents.learn.config import DdpgSection, HindsightSection, TrainConfig
from reinet.agents.learn.ddpg import Ddpg, Teachers
from reinet.agents.learn.gatherer import Gatherer
from reinet.agents.learn.hindsight import LEAST_DEAR, MOST_DEAR, dearness, prices, teach
from reinet.agents.learn.replay import Batch
from reinet.agents.model.mlp import Folded, act
from reinet.core import Normaliser, caps_from_actions
from reinet.envs.sim import SimBatch
from reinet.envs.trace import Trace

SIZE = 4


pytestmark = pytest.mark.usefixtures("one_thread")


# ---- the teacher


@pytest.mark.parametrize("head", ["cwnd", "bdp", "wide"])
@pytest.mark.parametrize("room_share", [0.0, 0.12])
def test_on_a_steady_link_it_takes_what_the_path_holds_and_so_much_of_the_room(head: str, room_share: float) -> None:
    paths = [(12.0, 20.0), (24.0, 20.0), (12.0, 40.0)]
    batch = SimBatch([{"trace": constant(mbps), "mrtt_ms": ms, "target_us": 100_000} for mbps, ms in paths])
    batch.reset()
    for _ in range(80):
        batch.step_caps([40, 40, 40])
    actions = teach(batch, HindsightSection(room_share=room_share), head)[:, 0]
    caps_pkts = caps_from_actions(head, actions, batch.stats["cwnd_pkts"], batch.rule_pkts)
    min_rtt_ms = batch.stats["min_rtt_us"] / 1000
    lasting_ms = min_rtt_ms + room_share * (100 - min_rtt_ms)
    expected_pkts = np.array([mbps for mbps, _ in paths]) * lasting_ms / 12 + 1
    np.testing.assert_allclose(caps_pkts, expected_pkts, atol=2)


def test_of_the_room_it_takes_no_more_than_was_said_and_all_of_it_for_waits() -> None:
    batch = SimBatch([{"trace": constant(24.0), "mrtt_ms": 20.0, "target_us": 80_000}])
    batch.reset()
    for _ in range(80):
        batch.step_caps([80])
    section = HindsightSection(room_share=0.5, most_room_ms=5.0, waits=[1.0])
    actions = teach(batch, section, "wide")
    caps_pkts = [caps_from_actions("wide", actions[:, k], batch.stats["cwnd_pkts"], batch.rule_pkts) for k in (0, 1)]
    min_rtt_ms = float(batch.stats["min_rtt_us"][0] / 1000)
    expected_pkts = np.array([2 * (min_rtt_ms + 5.0) + 1, 2 * 80.0 + 1])
    np.testing.assert_allclose(np.concatenate(caps_pkts), expected_pkts, atol=3)


def test_a_packet_too_many_is_as_dear_as_the_target_and_the_path_make_it() -> None:
    section = HindsightSection(room_power=0.5, path_power=1.0)
    paths = {  # minimum RTT, room: how dear
        (20.0, 30.0): 1.0,  # DeepCC's evaluation
        (10.0, 30.0): 1.0,
        (20.0, 7.5): 2.0,  # a quarter of the room
        (20.0, 120.0): 0.5,
        (40.0, 60.0): 2.0,  # twice as long; a multiple of 2.5 is as usual there as a room of 30 ms at 20
        (150.0, 30.0): 1.5,  # a queue of 30 ms is what such a path is to have, as usual
        (20.0, 0.1): MOST_DEAR,
        (4.0, 100_000.0): LEAST_DEAR,
    }
    min_rtts_ms, rooms_ms = np.array(list(paths)).T
    np.testing.assert_allclose(dearness(min_rtts_ms, rooms_ms, section), list(paths.values()), rtol=1e-6)
    np.testing.assert_array_equal(dearness(min_rtts_ms, rooms_ms, HindsightSection()), 1.0)


def test_on_a_changing_link_it_takes_what_is_about_to_come_and_not_what_was() -> None:
    trace = cellular(3)
    batch = SimBatch([{"trace": trace, "mrtt_ms": 20.0, "target_us": 50_000}])
    batch.reset()
    taken, coming = [], []
    for _ in range(300):
        batch.step_caps([30])
        if not batch.decided[0]:
            continue
        action = teach(batch, HindsightSection(room_share=0.0), "wide")[:, 0]
        (cap_pkts,) = caps_from_actions("wide", action, batch.stats["cwnd_pkts"], batch.rule_pkts)
        now_ms, until_ms = (int(us) // 1000 for us in np.cumsum([batch.stats["time_ns"][0] / 1e3,
                                                                 batch.stats["min_rtt_us"][0]]))  # fmt: skip
        pkts = np.count_nonzero((trace > now_ms) & (trace <= until_ms)) + 1
        if abs(action[0]) < 1 and cap_pkts > 4:
            taken.append(int(cap_pkts))
            coming.append(pkts)
    assert len(taken) > 100
    assert np.std(coming) > 5
    np.testing.assert_allclose(taken, coming, atol=2)


def experience(**hindsight: float) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Frames and taught actions of an iteration's fragments."""
    config = TrainConfig.model_validate({
        "traces": {"train_count": 3, "seconds": 10}, "rollout": {"workers": 0, "links": 4, "periods": 60},
        "links": {"reference_share": 1.0}, "hindsight": hindsight,
    })  # fmt: skip
    gathered = Gatherer(config, [Trace.constant(12.0, 20.0)], 0).gather(None, Normaliser.reference(), 0)
    return [f.frames for f in gathered.fragments], [f.taught for f in gathered.fragments]


def test_experience_tells_what_hindsight_would_have_done_and_is_the_same_without() -> None:
    frames, taught = experience(iterations=2)
    plain_frames, untaught = experience()
    assert len(frames) == len(plain_frames) > 0
    for ours, theirs in zip(frames, plain_frames, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert not np.concatenate(untaught).any()
    steady = np.concatenate(taught)[:, 0]
    # The link is steady, and the bdp head's action 0 is 1.5 of what the path holds: with 12 % of the room less than 0.
    assert (np.abs(steady) < 1).all()
    assert np.median(steady) < 0 < np.median(steady) + 1


# ---- the learner


def batch(rng: np.random.Generator, size: int = 256) -> Batch:
    """What was right lies in a band of 0.4 above -0.6 or 0.1, as the first input's sign says; rewards say nothing."""
    states = rng.normal(size=(size, SIZE)).astype(np.float32)
    taught = (least_of(states) + 0.4 * rng.random((size, 1))).astype(np.float32)
    taught = np.concatenate([taught, np.ones((size, 1), np.float32)], axis=1)
    column = np.zeros((size, 1), np.float32)
    nothing = np.zeros((size, 0), np.float32)
    return Batch(states, nothing, column, taught, column, column, states, nothing)


def least_of(states: np.ndarray) -> np.ndarray:
    return np.where(states[:, :1] > 0, 0.1, -0.6)


@pytest.mark.parametrize("teachers", [0, 3])
@pytest.mark.parametrize("quantile", [0.25, 0.85])
def test_while_it_is_taught_the_actor_learns_the_quantile_of_what_was_right(quantile: float, teachers: int) -> None:
    section = HindsightSection(iterations=10, quantile=quantile, lr=1e-2, teachers=teachers)
    learner = Ddpg(DdpgSection(hidden=[32, 32]), SIZE, 1, section)
    rng = np.random.default_rng(0)
    for iteration in range(10):
        learner.set_progress(iteration, 20)
        assert learner.taught
        for _ in range(40):
            learner.update(batch(rng))
    drawn = batch(rng, 4000)
    actions = act(learner.actor.folded(), drawn.states)
    clear = np.abs(drawn.states[:, 0]) > 0.3  # at the step itself a small network is between both
    assert np.mean(drawn.taught[:, 0] < actions) == pytest.approx(quantile, abs=0.06)
    assert np.mean(np.abs(actions - least_of(drawn.states)[:, 0] - 0.4 * quantile)[clear]) < 0.06


def test_a_packet_too_many_costs_more_the_longer_it_would_wait() -> None:
    """Two kinds of moments of one chance to be too large: in the second, what is too much waits for an outage."""
    section = HindsightSection(iterations=10, quantile=0.8, lr=1e-2, room_share=0.0, waits=[1.0, 3.0], wait_price=2.0)
    np.testing.assert_allclose(prices(section), 0.2 * np.array([1.0, 2.0, 4.0]), rtol=1e-6)
    learner = Ddpg(DdpgSection(hidden=[32, 32]), SIZE, 1, section)
    rng = np.random.default_rng(0)

    def waiting() -> Batch:
        drawn = batch(rng)
        suffices = 0.4 * rng.random((256, 1)).astype(np.float32)
        outage = drawn.states[:, :1] > 0
        later = np.where(outage, suffices, suffices + 0.5)  # where the wait passes the room, and three times it
        return dataclasses.replace(drawn, taught=np.concatenate([suffices, later, later, np.ones_like(later)], axis=1))

    for iteration in range(10):
        learner.set_progress(iteration, 20)
        for _ in range(40):
            learner.update(waiting())
    drawn = waiting()
    actions = act(learner.actor.folded(), drawn.states)
    clear, outage = np.abs(drawn.states[:, 0]) > 0.3, drawn.states[:, 0] > 0
    assert np.mean(actions[clear & ~outage]) == pytest.approx(0.4 * 0.8, abs=0.04)
    # short / (short + all prices) = 0.8 / (0.8 + 1.4)
    assert np.mean(actions[clear & outage]) == pytest.approx(0.4 * 0.8 / 2.2, abs=0.04)


@pytest.mark.parametrize("teachers", [0, 3])
def test_where_a_packet_too_many_is_dearer_a_lower_quantile_is_learned(teachers: int) -> None:
    section = HindsightSection(iterations=10, quantile=0.8, lr=1e-2, teachers=teachers)
    learner = Ddpg(DdpgSection(hidden=[32, 32]), SIZE, 1, section)
    rng = np.random.default_rng(0)

    def dear(size: int = 256) -> Batch:
        drawn = batch(rng, size)
        drawn.taught[:, 1] = np.where(drawn.states[:, 0] > 0, 4.0, 1.0)
        return drawn

    for iteration in range(10):
        learner.set_progress(iteration, 20)
        for _ in range(40):
            learner.update(dear())
    drawn = dear(4000)
    suffices = drawn.taught[:, 0] < act(learner.actor.folded(), drawn.states)
    assert np.mean(suffices[drawn.states[:, 0] > 0]) == pytest.approx(0.5, abs=0.08)  # 0.8 / (0.8 + 4 x 0.2)
    assert np.mean(suffices[drawn.states[:, 0] < 0]) == pytest.approx(0.8, abs=0.08)


def test_each_teacher_learns_as_if_it_were_alone() -> None:
    """Its answers are those of plain layers with its weights, and what the others learn moves none of them."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        teachers = Teachers(3, SIZE, [8, 8])
    states = torch.from_numpy(batch(np.random.default_rng(0)).states)
    each = [
        [
            (w[i].detach().numpy().T, b[i, 0].detach().numpy())
            for w, b in zip(teachers.weights, teachers.biases, strict=True)
        ]
        for i in range(3)
    ]
    alone = np.stack([act(Folded(layers), states.numpy()).reshape(-1) for layers in each], axis=1)
    np.testing.assert_allclose(teachers(states).detach().numpy(), alone, atol=1e-6)
    assert np.abs(alone[:, 0] - alone[:, 1]).mean() > 0.01, "they begin apart"
    teachers(states)[:, 1].sum().backward()
    for parameter in teachers.parameters():
        assert parameter.grad is not None
        assert not parameter.grad[[0, 2]].any()
        assert parameter.grad[1].any()


def test_with_teachers_the_actor_follows_their_mean_and_not_hindsight() -> None:
    section = HindsightSection(iterations=10, teachers=2, lr=1e-2)
    learner = Ddpg(DdpgSection(hidden=[16], batch_norm=False), SIZE, 1, section)
    assert learner.teachers is not None
    assert learner.teachers_optimiser is not None
    learner.set_progress(0, 10)
    with torch.no_grad():
        for weight in learner.teachers.weights:
            weight.zero_()
        learner.teachers.biases[-1].copy_(torch.atanh(torch.tensor([[[0.2]], [[0.6]]])))
    mean = float(np.tanh(np.arctanh([0.2, 0.6]).mean()))
    for group in learner.teachers_optimiser.param_groups:
        group["lr"] = 0.0
    rng = np.random.default_rng(0)
    for _ in range(300):
        losses = learner.update(batch(rng))
    np.testing.assert_allclose(act(learner.actor.folded(), batch(rng).states), mean, atol=0.02)
    assert float(losses["losses/actor"]) < 0.01 < float(losses["losses/teachers"])


def test_state_restores_teachers_too() -> None:
    section = HindsightSection(iterations=10, teachers=2)
    learner, twin = (Ddpg(DdpgSection(hidden=[8]), SIZE, seed, section) for seed in (1, 2))
    rng = np.random.default_rng(0)
    learner.set_progress(0, 10)
    learner.update(batch(rng))
    twin.set_progress(0, 10)
    twin.load(learner.state())
    drawn = batch(rng)
    for either in (learner, twin):
        for _ in range(3):
            either.update(drawn)
    ours, theirs = learner.state(), twin.state()
    assert sum(name.startswith(("teachers/", "teachers_optimiser/")) for name in ours) == 4 + 3 * 4
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_waits_that_do_not_rise_are_refused() -> None:
    for waits in ([0.1], [1.0, 1.0], [2.0, 1.0]):
        with pytest.raises(ValidationError, match=r"they must rise, from above room_share, 0\.12"):
            HindsightSection(waits=waits)


def test_hindsight_comes_first_with_its_own_learning_rate_and_then_the_critic() -> None:
    hindsight = HindsightSection(iterations=20, lr=1e-2)
    learner = Ddpg(DdpgSection(hidden=[8], actor_lr=1e-3, critic_lr=2e-3, lr_end=0.5), SIZE, 1, hindsight)
    seen = []
    for iteration in (0, 10, 19, 20, 60, 100):
        learner.set_progress(iteration, 100)
        (actor,), (critic, _) = ([g["lr"] for g in o.param_groups]
                                 for o in (learner.actor_optimiser, learner.critic_optimiser))  # fmt: skip
        seen.append((learner.taught, actor, critic))
    assert [taught for taught, *_ in seen] == [True, True, True, False, False, False]
    assert [lr for _, lr, _ in seen] == pytest.approx([1e-2, 5.25e-3, 9.75e-4, 1e-3, 7.5e-4, 5e-4])
    assert [lr for *_, lr in seen] == pytest.approx([2e-3, 2e-3, 2e-3, 2e-3, 1.5e-3, 1e-3])


def test_where_hindsight_is_all_no_critic_learns_and_the_actor_is_the_same() -> None:
    actors, critics = [], []
    for iterations in (10, 11):  # with one iteration more somebody is going to ask the critic
        learner = Ddpg(DdpgSection(hidden=[8]), SIZE, 1, HindsightSection(iterations=10))
        before = {name: value.clone() for name, value in learner.critic.state_dict().items()}
        learner.set_progress(0, iterations)
        rng = np.random.default_rng(0)
        losses = [learner.update(batch(rng)) for _ in range(3)]
        assert ("losses/critic" in losses[-1]) == (iterations == 11)
        critics.append(all(torch.equal(value, before[name]) for name, value in learner.critic.state_dict().items()))
        actors.append(act(learner.actor.folded(), batch(rng).states))
    assert critics == [True, False]
    np.testing.assert_array_equal(*actors)


def advised(weight: float, taught: float, critic_slope: float) -> float:
    """What an actor does in the end of which a critic wants less and hindsight ``taught``; all states are alike."""
    config = DdpgSection(hidden=[4], batch_norm=False, actor_lr=1e-2, critic_lr=1e-30, critic_l2=0.0)
    learner = Ddpg(config, SIZE, 1, HindsightSection(quantile=0.5, weight=weight))
    learner.set_progress(0, 1)
    assert not learner.taught
    out = learner.critic.each[0].get_submodule("out")
    with torch.no_grad():  # Q = 10 - slope x action, whatever the state
        out.get_parameter("weight").copy_(torch.tensor([[0.0] * 4 + [-critic_slope]]))
        out.get_parameter("bias").fill_(10.0)
    drawn = batch(np.random.default_rng(0), 32)
    drawn.taught[:, 0] = taught
    for _ in range(300):
        learner.update(drawn)
    return float(np.mean(act(learner.actor.folded(), drawn.states)))


def test_afterwards_the_weight_says_how_much_of_it_stays_beside_the_critics_advice() -> None:
    """The critic's slope is a tenth of its values' size; hindsight's at its median is half the weight."""
    assert advised(0.0, 0.5, 1.0) < -0.9
    assert advised(0.1, 0.5, 1.0) < -0.5
    assert advised(1.0, 0.5, 1.0) == pytest.approx(0.5, abs=0.05)


def test_the_critics_advice_is_scaled_to_one_only_beside_hindsights() -> None:
    for weight in (0.0, 0.7):
        config = DdpgSection(hidden=[8], batch_norm=False, critic_lr=1e-30, critic_l2=0.0)
        learner = Ddpg(config, SIZE, 1, HindsightSection(quantile=0.8, weight=weight))
        learner.set_progress(0, 1)
        drawn = batch(np.random.default_rng(0))
        states = torch.from_numpy(drawn.states)
        with torch.no_grad():
            proposed = learner.actor(states)
            (values,) = learner.critic(states, proposed)
        short = drawn.taught[:, :1] - proposed.numpy()
        pinball = np.where(short > 0, 0.8 * short, -0.2 * short).mean()
        scale = float(values.abs().mean()) if weight else 1.0
        expected = weight * pinball - float(values.mean()) / scale
        assert float(learner.update(drawn)["losses/actor"]) == pytest.approx(expected, rel=1e-4)
