"""The simulator's results do not move unless somebody means them to: digests over many runs, record by record.

Copa, Verus and Sprout have a digest of their own: a mend of these ports moves no result of the kernel's controls.

A change that must keep every result (a new layout, a faster event loop) keeps the digest. A change that means to alter
results prints the new one, `python tests/unit/envs/test_same_runs.py`, and its commit message says why it moved.
"""

import hashlib
import platform
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from reinet.envs.trace import Trace

CONTROLS = ("reno", "cubic", "bbr", "westwood", "illinois", "vegas", "ledbat", "c2tcp", "allegro", "vivace")
PORTS = ("copa", "copa-default", "verus", "sprout")
STEPS = 150


def cellular(seed: int, seconds: int = 20) -> Trace:
    """Rates that change every 100 ms, with outages."""
    rng = np.random.Generator(np.random.PCG64(seed))
    counts = np.minimum(rng.integers(0, 4, seconds * 1000), np.repeat(rng.integers(0, 4, seconds * 10), 100))
    times_ms = np.repeat(np.arange(1, seconds * 1000 + 1), counts)
    return Trace(np.append(times_ms, seconds * 1000).astype(np.uint32), "cellular")


def single(digest: Any, seed: int, steps: int = STEPS, **arguments: Any) -> None:
    """One flow under actions of its own: every state, reward and record."""
    env = gym.make("reinet/SimLink-v0", disable_env_checker=True, **arguments)
    state, info = env.reset(seed=seed)
    digest.update(state.tobytes())
    for action in np.random.Generator(np.random.PCG64(seed)).integers(-64, 65, steps) / 64:
        state, reward, terminated, truncated, info = env.step(np.array([action], np.float32))
        digest.update(state.tobytes())
        digest.update(np.float64(reward).tobytes())
        digest.update(repr(sorted((k, float(v)) for k, v in info.items())).encode())
        digest.update(bytes([terminated, truncated]))


def digest_of_controls(digest: Any, controls: tuple[str, ...]) -> str:
    first, second = cellular(1), cellular(2)
    steady = Trace.constant(12.0, 5.0)
    for number, cc in enumerate(controls):
        single(digest, number, trace=first, cc=cc)
        single(digest, number, trace=steady, cc=cc, mrtt_ms=40.0, target_ms=100.0, head="bdp", random_start=True)
        link = {"flows": [{"cc": "cubic", "start_ms": 300.0}, {"cc": cc, "mrtt_ms": 60.0, "cap_pkts": 20}]}
        single(digest, number, trace=second, cc=cc, link=link)
    return str(digest.hexdigest())


def digest_of_runs() -> str:
    digest = hashlib.sha256()
    digest_of_controls(digest, CONTROLS)
    first, second = cellular(1), cellular(2)
    steady = Trace.constant(12.0, 5.0)
    for queue in ("infinite", "droptail", "drophead", "codel", "pie"):
        single(digest, 20, trace=first, link={"queue": queue, "buffer_pkts": 60})
    cell = {
        "scheduler": "proportional-fair",
        "flows": [
            {"cc": "bbr", "trace": second.opportunities_ms},
            {"trace": steady.opportunities_ms, "stop_ms": 900.0},
        ],
    }
    for link in (
        {"loss": 0.01},
        {"loss": 0.02, "forward_jitter_us": 3000, "jitter_us": 5000, "pkts_per_ack": 2.4},
        {"wired_mbps": [(0.0, 30.0), (500.0, 6.0), (1500.0, 30.0)], "wired_buffer_bytes": 60_000},
        {"detour_ms": [(300.0, 25.0), (900.0, 0.0)]},
        cell,
        {**cell, "queue": "codel", "fair_window_ms": 50.0},
        {"late_us": 0, "jitter_us": 0},
        {"flow_bytes": 400_000},
        {"app_mbps": 3.0},
        {"forward_ms": 3.0, "mss_bytes": 1200, "start_ms": 50.0, "stop_ms": 4000.0},
        {"flows": [{"stepped": True, "target_us": 70_000}, {"stepped": True, "forward_ms": 1.0, "mrtt_ms": 9.0}]},
    ):
        for cc in ("cubic", "bbr"):
            single(digest, 30, trace=first, cc=cc, link=link)
    vector = gym.make_vec(
        "reinet/SimLink-v0", num_envs=24, threads=2, traces=(first, second), random_start=True, mrtt_ms=(4.0, 80.0),
        buffer_bytes=(30_000.0, 1_000_000.0), target_ms=(25.0, 100.0), loss=(0.0, 0.01), jitter_us=(0.0, 2000.0),
        cc=("cubic", "reno", "vegas"), queue=("droptail", "codel"), head="bdp", episode_periods=40,
    )  # fmt: skip
    states, _ = vector.reset(seed=7)
    for action in np.random.Generator(np.random.PCG64(9)).integers(-64, 65, STEPS) / 64:
        states, rewards, *_, info = vector.step(np.full((24, 1), action, np.float32))
        digest.update(states.tobytes() + rewards.tobytes() + info["cwnd_pkts"].tobytes() + info["time_ns"].tobytes())
    return digest.hexdigest()


DIGEST = "a2260bd1c18a5e78966ba9feac7e3e4a853d2f63eadf122e58924f4dd7b25957"
"""On x86-64 with glibc; another libm may round a logarithm otherwise."""
PORTS_DIGEST = "f836dcaa3465b2881710494d86f70cb888380203df22e615683bc42a0e2cc852"
"""Of the ports alone."""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the digest is of x86-64; other libms round otherwise")
@pytest.mark.filterwarnings("ignore")  # Gymnasium's advice about observations that the checker would give
def test_the_same_runs_give_the_same_records() -> None:
    assert digest_of_runs() == DIGEST


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the digest is of x86-64; other libms round otherwise")
@pytest.mark.filterwarnings("ignore")
def test_the_same_runs_of_the_ports_give_the_same_records() -> None:
    assert digest_of_controls(hashlib.sha256(), PORTS) == PORTS_DIGEST


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(platform.machine(), digest_of_runs(), digest_of_controls(hashlib.sha256(), PORTS))
