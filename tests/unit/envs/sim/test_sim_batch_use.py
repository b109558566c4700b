"""Who may use a batch, and what it takes: one thread at a time, no child without its threads, whole numbers."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.links import constant
from reinet.core import ConfigError, PeriodConfig
from reinet.envs.sim import SimBatch

TRACE = constant(12.0, 5.0)
LINKS = 64


def started(threads: int = 1, links: int = LINKS, period: PeriodConfig | None = None) -> SimBatch:
    batch = SimBatch([{"trace": TRACE, "seed": seed} for seed in range(links)], period, threads=threads)
    batch.reset()
    return batch


CALLS: dict[str, Callable[[SimBatch], Any]] = {
    "step": lambda batch: batch.step(np.zeros(LINKS)),
    "step_caps": lambda batch: batch.step_caps(np.zeros(LINKS, np.uint32)),
    "reset": lambda batch: batch.reset([0]),
    "set_link": lambda batch: batch.set_link(0, {"trace": TRACE}),
    "clairvoyant_caps": lambda batch: batch.clairvoyant_caps(0),
    "hidden_pkts": lambda batch: batch.hidden_pkts([10]),
    "packets": lambda batch: batch.packets(0),
    "objects": lambda batch: batch.objects(0),
    "memory_bytes": lambda batch: batch.memory_bytes(0),
    "log": lambda batch: batch.log(0),
}


@pytest.mark.parametrize("threads", [1, 2])
def test_every_call_of_a_second_thread_is_refused_while_a_step_goes_on_and_harms_nothing(threads: int) -> None:
    slow = PeriodConfig(20 * 10**9)  # a step is 20 s of 64 flows, far longer than all calls together
    batch, alone = started(threads, period=slow), started(period=slow)
    caps = np.full(LINKS, 30, np.uint32)
    stepper = threading.Thread(target=batch.step_caps, args=(caps,))
    stepper.start()
    told = ""
    while stepper.is_alive() and not told:  # until the step has begun
        try:
            batch.packets(0)
        except RuntimeError as error:
            told = str(error)
    assert "another thread uses this batch" in told
    refused = []
    for name, call in CALLS.items():
        with contextlib.suppress(RuntimeError):
            call(batch)
            continue
        refused.append(name)
    assert stepper.is_alive()
    stepper.join()
    alone.step_caps(caps)
    assert refused == list(CALLS)
    assert np.array_equal(batch.stats, alone.stats)
    with pytest.raises(ValueError, match="keeps no log"):  # no longer that another thread has it
        batch.log(0)


def in_a_child(body: str, threads: int) -> subprocess.CompletedProcess[str]:
    """Runs ``body`` in a child that was forked after a batch had been made and stepped."""
    code = (
        "import os, sys, warnings\nimport numpy as np\nfrom reinet.envs.sim import SimBatch\n"
        "warnings.simplefilter('ignore')\n"
        "links = [{'trace': np.arange(1, 1001, dtype=np.uint32)}] * 8\n"
        f"batch = SimBatch(links, threads={threads})\nbatch.reset()\nbatch.step_caps(np.zeros(8, np.uint32))\n"
        f"child = os.fork()\nif child == 0:\n{body}\n    sys.exit(0)\n"
        "_, status = os.waitpid(child, 0)\n"
        "batch.step_caps(np.zeros(8, np.uint32))\nprint('parent goes on')\n"
        "sys.exit(os.waitstatus_to_exitcode(status))\n"
    )
    return subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=60)


def test_a_forked_child_is_told_that_the_batchs_threads_are_not_there_and_ends() -> None:
    body = (
        "    try:\n        batch.step_caps(np.zeros(8, np.uint32))\n"
        "    except RuntimeError as error:\n        print(error, flush=True)\n    del batch"
    )
    done = in_a_child(body, threads=2)
    assert done.returncode == 0, done.stderr
    assert "the batch's threads are not here; make a batch in the child" in done.stdout
    assert "parent goes on" in done.stdout


def test_a_batch_without_threads_goes_on_in_a_forked_child_and_a_child_may_have_a_batch_of_its_own() -> None:
    assert in_a_child("    batch.step_caps(np.zeros(8, np.uint32))", threads=1).returncode == 0
    own = "    own = SimBatch(links, threads=2)\n    own.reset()\n    own.step_caps(np.zeros(8, np.uint32))"
    assert in_a_child(own, threads=2).returncode == 0


@pytest.mark.skipif("san.so" in os.environ.get("LD_PRELOAD", ""), reason="sanitizers need all of the address space")
def test_threads_that_the_host_does_not_have_are_refused() -> None:
    code = (
        "import resource\nimport numpy as np\nfrom reinet.envs.sim import SimBatch\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))\n"
        "try:\n    SimBatch([{'trace': np.array([1], np.uint32)}], threads=1024)\n"
        "except RuntimeError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "of 1024 could be started" in done.stdout


@pytest.mark.parametrize(
    ("caps", "told"),
    [
        (np.full(4, 10.5), "caps_pkts: float64 are no whole numbers"),
        ([-1, 0, 0, 0], "caps_pkts: -1 to 0 reach outside 0 to 4294967295"),
        ([2**32, 0, 0, 0], "caps_pkts: 0 to 4294967296 reach outside"),
        ([True] * 4, "caps_pkts: bool are no whole numbers"),
        ([10, 10, None, 10], "caps_pkts: object are no whole numbers"),
    ],
)
def test_caps_that_are_no_whole_packets_are_refused(caps: Any, told: str) -> None:
    batch = started(links=4)
    with pytest.raises(ConfigError, match=told):
        batch.step_caps(caps)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, np.uint64])
def test_caps_of_any_whole_type_are_taken(dtype: type[np.integer[Any]]) -> None:
    batch, other = started(links=4), started(links=4)
    for _ in range(20):
        batch.step_caps(np.full(4, 20, dtype))
        other.step_caps([20] * 4)
    assert np.array_equal(batch.stats, other.stats)
    assert (batch.stats["cap_pkts"] == 20).all()


@pytest.mark.parametrize("horizon", [-1, 0.5, 2**41, np.array([1, 2, -3, 4])])
def test_horizons_that_are_no_whole_milliseconds_are_refused(horizon: Any) -> None:
    batch = started(links=4)
    with pytest.raises(ConfigError, match="horizon_ms: "):
        batch.clairvoyant_caps(horizon)
    with pytest.raises(ConfigError, match="horizons_ms: "):
        batch.hidden_pkts(np.atleast_1d(horizon))
    assert (
        batch.clairvoyant_caps(np.arange(4)).tolist() == batch.clairvoyant_caps(np.arange(4, dtype=np.uint64)).tolist()
    )


def test_a_horizon_of_years_is_as_many_packets_as_can_be_told() -> None:
    batch = SimBatch([{"trace": np.zeros(100, np.uint32) + 1, "mss_bytes": 88}])
    batch.reset()
    assert batch.clairvoyant_caps(2**40).tolist() == [2**32 - 1]
