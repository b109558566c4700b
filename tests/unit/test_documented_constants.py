"""Numbers that a page states and the code holds are the same.

Each line below is a piece of a page with ``{}`` where a number stands, and where the code has it: whichever side
changes, the piece is not found any more.
"""

import json
import re
from pathlib import Path

import pytest

from helpers.places import ROOT
from reinet.agents.evaluation import harm
from reinet.agents.evaluation.fidelity import TOLERANCES
from reinet.agents.evaluation.frontier import RULE_GAINS, Baseline, Point
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.train import SCORE_FLOOR, SCORE_FLOOR_WEIGHT, SCORE_WORST_WEIGHT, judged
from reinet.core import PeriodConfig, _core
from reinet.core.features import DEFAULT_FEATURE_SET, FEATURE_SETS
from reinet.core.guard import HOLD_PER_PATH, LOOK_AFTER_S, LOOK_EVERY_S
from reinet.core.period import SILENCE_NS
from reinet.core.records import FLOW_STATS_DTYPE, OPPORTUNITY_BYTES
from reinet.core.states.caps import MAX_CAP_PKTS, MIN_CAP_PKTS, RULE_GAIN
from reinet.core.target import LEAST_TARGET_PER_RTT
from reinet.daemon.config import DaemonConfig
from reinet.daemon.registry import POLL_S
from reinet.envs.link.spec import DEFAULT_TARGET_MS, LinkSpec
from reinet.envs.link.stalls import STALL_SLACK_MS
from reinet.envs.mahimahi.validity import LATE_ONCE_US, LATE_SHARE, LOGGED_SHARE
from reinet.envs.trace.estimate import LEAST_QUEUE_MS, LEAST_S
from reinet.envs.trace.importers import MAX_HOLD_S
from reinet.envs.trace.trace import BIN_MS, DESCRIBE_BYTES, OUTAGE_MS
from reinet.kshim.leases import IDLE_AFTER_NS, LEASE_MS, RENEWALS_PER_LEASE
from reinet.kshim.recorded import RECORD_DTYPE

RING_HEADER_BYTES = 8
"""What the kernel puts before each entry of a ring buffer (BPF_RINGBUF_HDR_SZ)."""

WORDS = {2: "two", 3: "three", 4: "four", 10: "ten", 20: "twenty"}
PERIOD_MS = PeriodConfig().min_period_ns / 1e6
DEEPCC = TrainConfig.load(ROOT / "configs" / "deepcc.toml")
SHIPPED = json.loads((ROOT / "checkpoints" / "default" / "manifest.json").read_text())
SET = FEATURE_SETS[DEFAULT_FEATURE_SET]
LINK = LinkSpec.__dataclass_fields__
(RULE_PERIODS,) = map(int, re.findall(r"last (\d+) periods", SET.rule))
MRTT_MS, BUFFER_KB = LINK["mrtt_ms"].default, LINK["buffer_bytes"].default // 1000
DAEMON = {name: field.default for name, field in DaemonConfig.model_fields.items()}
ADDED_MS = DAEMON["target"].amount
(MOST_LEASE_MS,) = (limit.le for limit in DaemonConfig.model_fields["lease_ms"].metadata if hasattr(limit, "le"))
RECORD_BYTES = FLOW_STATS_DTYPE.itemsize
OTHERS = {
    name: float(value.replace("'", ""))
    for name, value in re.findall(
        r"constexpr [\w:]+ (k\w+) = ([\d.e']+);", (ROOT / "core" / "guard" / "others.hpp").read_text()
    )
}
SHARES = {metric: (100 * share, slack) for metric, (share, slack) in TOLERANCES.items()}

STATEMENTS: list[tuple[str, str, tuple[float, ...]]] = [
    ("README.md", "the last {} of them", (SET.history,)),
    ("README.md", "A target below {} times the path's minimum RTT", (LEAST_TARGET_PER_RTT,)),
    ("README.md", "it has been busy for {} s", (LOOK_AFTER_S,)),
    ("README.md", "in over {} % of its wakes", (100 * LATE_SHARE,)),
    ("README.md", "or more than {} ms late once; if fewer than {} %", (LATE_ONCE_US / 1000, 100 * LOGGED_SHARE)),
    ("README.md", "left the link for {} s longer", (STALL_SLACK_MS / 1000,)),
    (
        "README.md",
        "a path of {} ms, a droptail buffer of {} KB, a target of {} ms",
        (MRTT_MS, BUFFER_KB, DEFAULT_TARGET_MS),
    ),
    (
        "docs/scalars.md",
        "/ 2 - {} frontier_worst - {} x` (shortfall of the mean throughput ratio below {})",
        (SCORE_WORST_WEIGHT, SCORE_FLOOR_WEIGHT, SCORE_FLOOR),
    ),
    (
        "docs/scalars.md",
        "the paper's link ({} ms, {} KB, target {} ms)",
        (MRTT_MS, BUFFER_KB, DEFAULT_TARGET_MS),
    ),
    ("docs/scalars.md", "its gain swept from {} to {}", (min(RULE_GAINS), max(RULE_GAINS))),
    ("docs/deviations.md", "at least {} ms; the paper says", (PERIOD_MS,)),
    ("docs/deviations.md", "the code uses {} ms on a timer", (DEEPCC.period.min_ms,)),
    ("docs/deviations.md", "cap = {} x 2^a x (max delivery rate of {} periods", (RULE_GAIN, RULE_PERIODS)),
    ("docs/simulator.md", "does so every {} ms", (SILENCE_NS / 1e6,)),
    ("docs/traces.md", "count {} bytes per opportunity in bins of {} ms", (DESCRIBE_BYTES, BIN_MS)),
    ("docs/traces.md", "a gap of at least {} ms", (OUTAGE_MS,)),
    ("docs/traces.md", "delivers {} bytes per opportunity", (OPPORTUNITY_BYTES,)),
    ("docs/traces.md", "more than {} s after a line of a phone's log", (MAX_HOLD_S,)),
    ("docs/architecture.md", "{} to {} packets", (MIN_CAP_PKTS, MAX_CAP_PKTS)),
    ("docs/architecture.md", "at least {} ms after its start", (PERIOD_MS,)),
    ("docs/architecture.md", "after {} ms of silence", (SILENCE_NS / 1e6,)),
    ("docs/architecture.md", "`checkpoints/default` decides every {} ms", (SHIPPED["period"]["min_ms"],)),
    ("README.md", "Once per *period* ({} ms, or a round trip", (SHIPPED["period"]["min_ms"],)),
    ("docs/architecture.md", "the same with a gain of {} and twice the reach", (_core.WIDE_GAIN,)),
    ("docs/architecture.md", "A cap is a lease of {} ms", (LEASE_MS,)),
    ("docs/architecture.md", "renewed every {}rd of it", (RENEWALS_PER_LEASE,)),
    ("docs/architecture.md", "gave no record for {} ms and has nothing outstanding is idle", (IDLE_AFTER_NS / 1e6,)),
    ("README.md", "at every multiple of {} s of the host's clock", (LOOK_EVERY_S,)),
    ("docs/architecture.md", "at each multiple of {} s of the host's clock", (LOOK_EVERY_S,)),
    ("docs/architecture.md", "for {} s and whose queue never drained", (LOOK_AFTER_S,)),
    ("docs/no-harm.md", "{} and {} where plain builds no queue", harm.LIMITS_QUIET),
    ("docs/no-harm.md", "{} and {} elsewhere", harm.LIMITS_QUEUED),
    ("docs/no-harm.md", "{} for the 99th percentile", (harm.LIMIT_P99,)),
    (
        "docs/no-harm.md",
        "For {} round trips and {} s no RTT sample",
        (OTHERS["kForeignRounds"], OTHERS["kForeignNs"] / 1e9),
    ),
    ("docs/no-harm.md", "and the flow gets less than {} of the rate it had. Or", (OTHERS["kForeignRateShare"],)),
    ("docs/no-harm.md", "Up to {} s without a cap, or limited by", (OTHERS["kLongestPauseNs"] / 1e9,)),
    ("docs/no-harm.md", "after {} round trips under the cap that came back", (OTHERS["kAgainRounds"],)),
    (
        "docs/no-harm.md",
        "stays within {} times its least, and the flow gets less than {} of",
        (OTHERS["kSteadyTimes"], OTHERS["kSteadyRateShare"]),
    ),
    (
        "docs/no-harm.md",
        "the mean RTT must not rise by {}, and the rate must rise by {} and",
        (OTHERS["kSteadyTimes"], OTHERS["kAskedRateTimes"]),
    ),
    (
        "docs/no-harm-measured.md",
        "a cell has {} pairs, on a recording {}",
        (harm.REPEAT, harm.REPEAT * harm.OFFSETS_PER_REPEAT),
    ),
    (
        "docs/no-harm-measured.md",
        "paths of {} to {} ms at {}, {} and {} Mbit/s",
        (min(harm.MRTTS_MS), max(harm.MRTTS_MS), *harm.RATES_MBPS),
    ),
    ("docs/service.md", "above the minimum RTT by {} ms and by twice the samples' distance", (LEAST_QUEUE_MS,)),
    ("docs/service.md", "a trace for each stretch of {} s or more", (LEAST_S,)),
    ("docs/service.md", "holds no more streams is asked every {} s", (POLL_S,)),
    ("docs/service.md", "window, cap and flags, {} bytes", (RECORD_DTYPE.itemsize,)),
    ("docs/fidelity.md", "throughput is within {} %, mean queueing delay", SHARES["throughput_mbps"][:1]),
    ("docs/fidelity.md", "within {} % or {} ms and its 95th percentile", SHARES["qdelay_mean_ms"]),
    ("docs/fidelity.md", "95th percentile within {} % or {} ms", SHARES["qdelay_p95_ms"]),
    ("configs/daemon.toml", "more than target / {} stay", (LEAST_TARGET_PER_RTT,)),
    ("configs/daemon.toml", "with +{}ms those beyond {} ms", (ADDED_MS, ADDED_MS / (LEAST_TARGET_PER_RTT - 1))),
    ("configs/daemon.toml", '# target = "+{}ms"', (ADDED_MS,)),
    ("configs/daemon.toml", "every client has {} ms for a queue", (ADDED_MS,)),
    ("README.md", "The daemon's default is `+{}ms`", (ADDED_MS,)),
    ("configs/daemon.toml", "(at most {})", (MOST_LEASE_MS,)),
    *(
        ("configs/daemon.toml", f"# {key} = {{}}", (DAEMON[key],))
        for key in ("lease_ms", "tick_ms", "gather_ms", "ceiling_pkts", "max_flows", "records_mb", "log_max_mb")
    ),
    ("configs/daemon.toml", "# min_period_ms = {}", (PERIOD_MS,)),
    ("configs/daemon.toml", "hands over records of {} bytes", (RECORD_BYTES + RING_HEADER_BYTES,)),
    ("daemon/config.py", "A record takes {} bytes, header included", (RECORD_BYTES + RING_HEADER_BYTES,)),
    ("kshim/kernel.py", "records of {} bytes, header included", (RECORD_BYTES + RING_HEADER_BYTES,)),
    ("daemon/processes/decide.py", "So many records of {} bytes", (RECORD_BYTES,)),
    ("daemon/processes/plain.py", "{} are its record", (RECORD_BYTES,)),
    ("envs/sim_link.py", "rounded, between {} and {}.", (MIN_CAP_PKTS, MAX_CAP_PKTS)),
    ("envs/sim_link.py", "ConfigError below {} x ``mrtt_ms``. None = {} ms", (LEAST_TARGET_PER_RTT, DEFAULT_TARGET_MS)),
    ("envs/sim_link.py", "is at least {} ms long", (PERIOD_MS,)),
    ("envs/sim_link.py", "every {} ms a record", (SILENCE_NS / 1e6,)),
    ("envs/kernel_link.py", "under a lease of {} ms", (LEASE_MS,)),
    (
        "agents/learn/train.py",
        "p95) / 2 - {} x the worst of them - {} x shortfall of the mean throughput below {} %",
        (SCORE_WORST_WEIGHT, SCORE_FLOOR_WEIGHT, 100 * SCORE_FLOOR),
    ),
]


def pieces(template: str, values: tuple[float, ...]) -> list[str]:
    """The piece with its numbers in figures and, where they have one, in words."""
    figures = template.format(*(f"{value:g}" if value < 1e5 else str(value) for value in values))
    words = [WORDS.get(int(value), f"{value:g}") for value in values]
    return [figures, template.format(*words), template.format(*words).capitalize()]


def page(name: str) -> str:
    """A page's text, its line breaks and comment signs gone."""
    return " ".join(re.sub(r"\n# (?!\w+ = )", "\n", Path(ROOT / name).read_text()).split())


def states(text: str, piece: str) -> bool:
    """Whether the piece stands there, not as part of a longer number."""
    return re.search(rf"(?<![\d.]){re.escape(piece)}(?!\d|\.0*[1-9])", text) is not None


@pytest.mark.parametrize(("name", "template", "values"), STATEMENTS, ids=[f"{s[0]}: {s[1]}" for s in STATEMENTS])
def test_a_page_says_what_the_code_has(name: str, template: str, values: tuple[float, ...]) -> None:
    text = page(name)
    assert any(states(text, piece) for piece in pieces(template, values)), (
        f"{name} lacks {pieces(template, values)[0]!r}"
    )


def test_the_page_of_scalars_lists_what_an_evaluation_writes() -> None:
    point = Point(0.9, 10.0, 20.0)
    written = {f"eval/{name}" for name in judged([point], [Baseline([point], point)])}
    assert set(re.findall(r"`(eval/\w+)`", page("docs/scalars.md"))) == written


def test_defaults_of_the_same_thing_are_the_same() -> None:
    assert DAEMON["target"].resolve_ms(MRTT_MS) == DEFAULT_TARGET_MS == LINK["target_us"].default / 1000
    assert DAEMON["target_ms"] is None
    assert (DAEMON["lease_ms"], DAEMON["ceiling_pkts"]) == (LEASE_MS, MAX_CAP_PKTS)
    assert HOLD_PER_PATH == 0.75  # README: a quarter below; architecture.md: three quarters


def test_a_changed_number_is_noticed() -> None:
    template = "throughput_ratio - {} qdelay_ratio"
    assert not any(states(page("docs/scalars.md"), piece) for piece in pieces(template, (0.3,)))
    assert states("# lease_ms = 500 # more", "# lease_ms = 500")
    assert not states("# lease_ms = 5000", "# lease_ms = 500")
    assert not states("within 12.5 %", "within 12")
