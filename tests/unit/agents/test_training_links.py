"""Links of training: every key of [links] is drawn as it says, defaults as ever; flows that end are experience."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reinet.agents.decide.baselines import NoCap
from reinet.agents.decide.policy import REFERENCE_QUEUEING_MS
from reinet.agents.evaluation.batch import figures_of, logs
from reinet.agents.learn.config import LinkSection, TrainConfig
from reinet.agents.learn.gatherer import Gatherer
from reinet.agents.learn.links import (
    STRATA,
    Ranges,
    domain_of,
    generated_selection_traces,
    generated_training_traces,
    ranges_of,
    selection_links,
    selection_traces,
    stratum_of,
    training_traces,
)  # fmt: skip
from reinet.core import Flag, Normaliser
from reinet.core.errors import ConfigError
from reinet.envs.link.conditions import Conditions
from reinet.envs.link.spec import LinkSpec
from reinet.envs.sim import SimBatch
from reinet.envs.trace import Trace

TRACE = Trace.constant(12.0, 20.0)
WIDE: dict[str, Any] = {
    "mrtt_ms": [4, 200], "buffer_bytes": [30_000, 2_000_000], "rate_scale": [0.5, 2], "loss": [0, 0.01],
    "codel_share": 0.2, "congestion_controls": ["cubic", "bbr", "reno"], "cross_share": 0.3, "app_limited_share": 0.2,
    "short_share": 0.2, "decision_ms": [0, 3], "reference_share": 0.0,
}  # fmt: skip


def draws(count: int = 300, **keys: Any) -> list[LinkSpec]:
    domain, rng = domain_of(LinkSection.model_validate(keys), [TRACE]), np.random.default_rng(4)
    return [domain.draw(rng) for _ in range(count)]


def config(periods: int = 40, **links: Any) -> TrainConfig:
    return TrainConfig.model_validate({
        "traces": {"train_count": 3, "select_count": 6, "seconds": 10},
        "rollout": {"workers": 0, "links": 6, "periods": periods},
        "links": links,
    })  # fmt: skip


def test_the_defaults_of_conditions_are_those_of_the_configuration() -> None:
    assert LinkSection().conditions() == Conditions()


def test_every_range_is_drawn_from_end_to_end() -> None:
    links = draws(**WIDE)
    for values, low, high in (
        ([link.mrtt_ms for link in links], 4, 200),
        ([link.buffer_bytes for link in links], 30_000, 2_000_000),
        ([link.loss for link in links], 0.0, 0.01),
        ([link.decision_ms for link in links], 0.0, 3.0),
    ):
        span = high - low
        assert low <= min(values) < low + 0.05 * span
        assert high - 0.2 * span < max(values) <= high
    ccs = [link.cc for link in links]
    assert all(ccs.count(cc) / 300 == pytest.approx(1 / 3, abs=0.1) for cc in ("cubic", "bbr", "reno"))


def test_a_range_with_equal_ends_draws_nothing() -> None:
    """The seed is the last thing drawn of a path: where it stays, nothing before it was drawn."""
    plain = draws(20)
    fixed = draws(20, loss=[0.01, 0.01], decision_ms=[2, 2], rate_scale=[1.5, 1.5])
    assert [link.seed for link in fixed] == [link.seed for link in plain]
    assert {(link.loss, link.decision_ms) for link in fixed} == {(0.01, 2.0)}
    assert all(isinstance(link.trace, Trace) and link.trace.mean_mbps == pytest.approx(18.0) for link in fixed)
    assert [link.seed for link in draws(20, loss=[0, 0.01])] != [link.seed for link in plain]


def test_a_model_is_selected_on_flows_that_go_on() -> None:
    links = selection_links(config(**{**WIDE, "short_share": 1.0, "app_limited_share": 1.0, "cross_share": 1.0}))
    assert len(links) == 12 * 2  # the seeds
    assert not any(link.flow_bytes or link.app_mbps for link in links)
    assert all(link.flows for link in links[1::2])
    assert not any(link.flows for link in links[::2])  # DeepCC's own
    assert {(link.mrtt_ms, link.buffer_bytes, link.queue) for link in links[::2]} == {(20.0, 150_000, "droptail")}


def test_each_selection_link_is_there_with_several_seeds_and_the_first_is_as_ever() -> None:
    one = config(cross_share=1.0)
    once, links = (
        selection_links(one.model_copy(update={"run": one.run.model_copy(update={"evaluate_seeds": seeds})}))
        for seeds in (1, 3)
    )
    assert [link.seed for link in links[: len(once)]] == [link.seed for link in once]
    assert len({link.seed for link in links[:: len(once)]}) == 3
    for again in links[len(once) :: len(once)]:
        assert (again.mrtt_ms, again.target_us, again.cc) == (once[0].mrtt_ms, once[0].target_us, once[0].cc)


@pytest.mark.parametrize(
    ("gap_ms", "outage_ms", "stratum"),
    [
        (6.0, 0.0, "slow_steady"),
        (2.0, 0.0, "middle_steady"),
        (0.5, 0.0, "fast_steady"),
        (6.0, 300.0, "slow_outages"),
        (0.5, 300.0, "fast_outages"),
        (0.5, 150.0, "fast_steady"),
    ],
)
def test_a_stratum_is_a_rate_and_whether_the_link_goes_out(gap_ms: float, outage_ms: float, stratum: str) -> None:
    times_ms = np.arange(gap_ms, 10_000, gap_ms)
    times_ms = times_ms[(times_ms < 5000) | (times_ms > 5000 + outage_ms)].astype(np.uint32)
    assert stratum_of(LinkSpec(Trace(times_ms, "made"))) == stratum
    assert stratum in STRATA


def test_a_training_on_the_reference_path_alone_is_selected_and_described_there() -> None:
    alone = config(reference_share=1.0, mrtt_ms=[4, 8])
    links = selection_links(alone)
    assert len(links) == alone.traces.select_count * alone.run.evaluate_seeds
    assert {(link.mrtt_ms, link.buffer_bytes, link.target_us) for link in links} == {(20.0, 150_000, 50_000)}
    assert ranges_of(alone.links) == Ranges((20.0, 20.0), (150_000, 150_000), (50.0, 50.0))
    assert LinkSpec.target_us / 1000 - LinkSpec.mrtt_ms == REFERENCE_QUEUEING_MS


def test_the_reference_path_counts_in_what_a_training_met() -> None:
    far = {"mrtt_ms": [100, 200], "buffer_bytes": [300_000, 400_000], "queueing_target_ms": [30, 80]}
    assert ranges_of(config(**far).links) == Ranges((20.0, 200.0), (150_000, 400_000), (50.0, 280.0))
    assert ranges_of(config(reference_share=0.0, **far).links) == Ranges(
        (100.0, 200.0), (300_000, 400_000), (130.0, 280.0)
    )


@pytest.mark.parametrize("of", ["train", "validation"])
def test_a_recording_that_is_a_generated_trace_of_the_other_role_is_refused(tmp_path: Path, of: str) -> None:
    mine = config()
    generated = {"train": generated_selection_traces, "validation": generated_training_traces}[of](mine.traces)[0]
    generated.save(tmp_path / "a.trace")
    section = mine.traces.model_dump() | {"sets": [{"path": str(tmp_path), "role": of}]}
    own = TrainConfig.model_validate(mine.model_dump() | {"traces": section})
    find = {"train": selection_traces, "validation": training_traces}[of]
    with pytest.raises(
        ConfigError, match=r"a\.trace has the content of the generated trace .*, which has another role"
    ):
        find(own)


def test_a_flow_that_ends_leaves_what_it_did() -> None:
    """Its closing record and the silence after it are no transitions, and nothing of them is left in the rewards.

    These are large enough for more than the first second, in which no flow is capped and which is no experience.
    """
    settings = config(120, short_share=1.0, short_bytes=[2_400_000, 2_400_000], reference_share=1.0)
    gathered = Gatherer(settings, [TRACE], 0).gather(None, Normaliser.reference(), 0)
    assert len(gathered.fragments) == settings.rollout.links
    for fragment in gathered.fragments:
        assert 3 <= len(fragment.actions) < 30
        assert np.isfinite(fragment.rewards).all()
        assert np.isfinite(fragment.frames).all()
    assert np.isfinite(list(gathered.summary.values())).all()


def test_a_flow_of_one_window_makes_no_transition_and_no_fault() -> None:
    settings = config(short_share=0.5, short_bytes=[5000, 5000], reference_share=1.0)
    gathered = Gatherer(settings, [TRACE], 0).gather(None, Normaliser.reference(), 0)
    counts = [len(fragment.actions) for fragment in gathered.fragments]
    assert 0 < len(counts) < settings.rollout.links
    assert min(counts) > 10
    assert np.isfinite(list(gathered.summary.values())).all()


def test_a_closed_flow_is_decided_for_no_more() -> None:
    batch = SimBatch([LinkSpec(TRACE, flow_bytes=100_000)])
    batch.reset()
    closed = []
    for _ in range(60):
        batch.step_caps([10])
        closed.append(bool(batch.stats["flags"][0] & Flag.CLOSED))
        assert not (closed[-1] and batch.decided[0])
    assert closed[-1]


@pytest.mark.parametrize(("role", "refused"), [("validation", True), ("train", False)])
def test_a_recording_that_begins_with_a_long_outage_cannot_select_and_may_be_learned_from(
    tmp_path: Path, role: str, refused: bool
) -> None:
    """An evaluation begins where the recording does, and ended a training that had gone well so far."""
    late = Trace(np.arange(40_000, 60_000, 5, dtype=np.uint32), "tunnel").save(tmp_path / "tunnel.trace")
    settings = config()
    own = {**settings.traces.model_dump(), "sets": [{"path": str(late), "role": role}]}
    asked = TrainConfig.model_validate({**settings.model_dump(), "traces": own})
    if not refused:
        assert len(selection_links(asked)) == len(selection_links(settings))
        return
    with pytest.raises(ConfigError, match=r"tunnel\.trace lets no data through in its first 40\.\d+ s, .* take 30 s"):
        selection_links(asked)


def test_a_lossy_link_that_would_let_no_data_through_while_it_is_judged_has_another_seed() -> None:
    """The answer to a SYN may be lost for longer than an evaluation, the first of which ended the training then."""
    lossy = config(loss=[0.5, 0.5])
    run = lossy.run.model_copy(update={"evaluate_s": 5.0})
    links = selection_links(lossy.model_copy(update={"run": run}))
    assert all(figures.packets for figures in figures_of(logs(NoCap(), links, 5.0), links, 5.0))
    drawn = [link.seed for link in selection_links(config(loss=[0.005, 0.005]))]
    others = [link.seed - seed for link, seed in zip(links, drawn, strict=True) if link.seed != seed]
    assert others
    assert all(more % run.evaluate_seeds == 0 for more in others), "no two seeds of a link become one"
