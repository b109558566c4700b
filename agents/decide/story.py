"""One flow's story: what was seen of it, what the agent was shown and said, what came of it."""

from typing import NamedTuple

import numpy as np

from reinet.agents.decide.facts import Story, facts_of
from reinet.agents.decide.protocol import Agent
from reinet.agents.decide.sight import Seen
from reinet.core.features import FeatureSet


class Asked(NamedTuple):
    """What a flow is asked for, and until when its cap acts."""

    target: str
    own_target: bool
    lease_ends_ns: int
    """0 where no lease is kept."""


def story_of(
    seen: Seen, agent: Agent, feature_set: FeatureSet, cap_pkts: int, verdict: str, asked: Asked, now_ns: int
) -> Story:
    """Returns the story of a flow; ``verdict`` is why it is uncapped, empty when it is capped.

    An agent that holds nothing is asked once more, in the caller's thread, for what it said.
    """
    state, features = seen.state[None], feature_set.features
    action, wanted = None, None
    if seen.decided_ns and agent.holds_nothing:
        actions = agent.outputs(state)
        action = None if actions is None else float(actions[0])
        wanted = int(agent.decide(seen.decided, state, np.array([seen.rule_pkts], np.float32))[0])
    return Story(
        records=seen.records,
        now_ns=now_ns,
        cap_pkts=cap_pkts,
        verdict=verdict,
        lease_left_ms=max(asked.lease_ends_ns - now_ns, 0) / 1e6 if cap_pkts else 0.0,
        target=asked.target,
        own_target=asked.own_target,
        feature_set=feature_set.name,
        features=tuple(feature.name for feature in features),
        units=tuple(feature.unit for feature in features),
        state=seen.state.reshape(-1, len(features)),
        decided_ns=seen.decided_ns,
        rule_pkts=seen.rule_pkts,
        head=facts_of(agent).head,
        action=action,
        wanted_pkts=wanted,
    )
