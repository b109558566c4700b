"""The Java client's matrix: how it is counted, and that the file is what its command makes."""

import numpy as np

from reinet.agents.learn import mdi
from reinet.alcc import jvm


def test_the_file_is_what_its_command_makes() -> None:
    made = mdi.text(*mdi.counted(mdi.simulated()))
    assert made == (jvm.SOURCES / "verus.tsv").read_text(), "run python -m reinet.agents.learn.mdi alcc/java/verus.tsv"


def test_an_epochs_change_is_counted_under_its_level_its_delay_and_the_epoch_before() -> None:
    delay_ms, window_pkts = [20.0, 30.0, 30.0, 60.0], [10.0, 20.0, 20.0, 15.0]
    flow = np.array([delay_ms, window_pkts, [20.0] * 4]).T
    counts, means = mdi.counted([flow] * 20)
    up, same, grown, still, shrunk = len(mdi.DELAY_RATIOS), 3, len(mdi.WINDOW_RATIOS), 4, 1
    half_above, threefold = 2, 5  # of LEVELS: an edge belongs to the bin above it
    assert {state: (np.flatnonzero(seen).tolist(), seen.sum()) for state, seen in counts.items()} == {
        (half_above, same): ([still], 20),
        (half_above, same, up, grown): ([still], 20),
        (threefold, up): ([shrunk], 20),
        (threefold, up, same, still): ([shrunk], 20),
    }
    assert (means[still], means[shrunk]) == (1.0, 0.75)


def test_a_state_that_was_seldom_seen_goes_by_its_level_and_delay_alone() -> None:
    flow = np.array([[20.0, 30.0, 30.0], [10.0, 20.0, 20.0], [20.0] * 3]).T
    assert {len(state) for state in mdi.counted([flow] * (mdi.LEAST_COUNT - 1))[0]} == {2}
    assert {len(state) for state in mdi.counted([flow] * mdi.LEAST_COUNT)[0]} == {2, 4}
