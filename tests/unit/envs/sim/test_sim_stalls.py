"""A flow that nothing of gets through, beside others that go on for ever: the simulator says so instead of going on."""

import numpy as np
import pytest

from reinet.core import ConfigError
from reinet.envs.sim import SimBatch

EVERY_MS = np.arange(1, 1001, dtype=np.uint32)


def test_a_flow_without_a_record_is_refused_by_its_row_and_the_others_go_on() -> None:
    in_30_years = {"trace": EVERY_MS, "start_ms": 1e12, "flows": [{"cc": "cubic"}]}  # until then another one sends
    batch = SimBatch([{"trace": EVERY_MS}, in_30_years], threads=2)
    with pytest.raises(ConfigError, match=r"link 1: .* no record for an hour or more, up to \d+ ms .*start_ms.*reset"):
        batch.reset()
    alone = SimBatch([{"trace": EVERY_MS}])
    alone.reset()
    assert batch.stats["time_ns"][0] == alone.stats["time_ns"][0]
    with pytest.raises(ValueError, match="reset"):
        batch.step_caps([0, 0])
    batch.set_link(1, {"trace": EVERY_MS})
    batch.reset([1])
    batch.step_caps([0, 0])
    alone.step_caps([0])
    assert batch.stats["time_ns"].tolist() == [alone.stats["time_ns"][0]] * 2
