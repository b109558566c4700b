"""Mahimahi and the kernel's own TCP in virtual time: one flow in a User-Mode Linux, whose clock the host cannot delay.

The machine boots in a second with the host's files as its root, runs the helpers of ``mahimahi`` around the same
``mm-delay`` and ``mm-link``, and ends (``helpers/uml-init.sh``). ``docker/uml/build.sh`` makes its kernel: Linux 6.1
with every congestion control. Its time stands still while anything computes, so that no run depends on how busy the
host is, and no process is ever late. It needs no root and changes nothing on the host. It has no shim: no records, no
caps.
"""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from reinet.core.errors import LinkError
from reinet.envs.link.metrics import compute, first_data_ms
from reinet.envs.link.spec import LinkSpec
from reinet.envs.link.stalls import held_up_ms
from reinet.envs.mahimahi.link import DRAIN_MS, LinkRun
from reinet.envs.mahimahi.log import parse_log
from reinet.envs.mahimahi.namespace import LINK_USER
from reinet.envs.mahimahi.process import Event, find_program, find_xtables, helper_folder
from reinet.envs.mahimahi.spec import downlink_ms, queue_options, require_emulated, trace_files
from reinet.envs.mahimahi.validity import Sleeper, judge

MEMORY = "1G"
"""It is enough for a stock kernel's sockets, whose limits follow from it; what is not used is not taken."""

START_NS = 10**18
"""The machine's wall clock at its boot, in ns since 1970: always the same."""

LONGEST_START_S = 120.0
SLOWEST = 60.0
"""Wall-clock limits of a run, in seconds: to boot, and per second of the flow, which takes half a second on an idle
core."""

_FILES = ("events", "received", "log", "status")


def find_kernel(given: Path | None = None) -> Path:
    """Returns the User-Mode Linux to run: the one given, else where the build leaves it.

    Raises LinkError where there is none.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = given or cache / "reinet" / "uml" / "linux"
    if not os.access(path, os.X_OK) or not path.is_file():
        cure = "build it with docker/uml/build.sh" if given is None else "build one with docker/uml/build.sh FOLDER"
        raise LinkError(f"{path}: no User-Mode Linux is there; {cure} (Debian 12, some ten minutes)")
    return path.resolve()


def run_flow(kernel: Path, spec: LinkSpec, seconds: float) -> LinkRun:
    """Sends one flow for ``seconds`` of virtual time, without a cap, and returns the link's log and figures.

    Raises LinkError when it did not work out, ConfigError for a path that Mahimahi cannot do.
    """
    require_emulated(spec)
    with tempfile.TemporaryDirectory(prefix="reinet-uml-") as name:
        folder = Path(name)
        (folder / "out").mkdir()
        _write_job(folder, spec, seconds)
        console = _boot(kernel, folder, LONGEST_START_S + SLOWEST * seconds)
        files = {name: _read(folder / "out" / name) for name in _FILES}
    events, received = _events(files["events"]), _events(files["received"])
    times_ns = {event["event"]: int(event["time_ns"]) for event in events if "time_ns" in event}
    if files["status"].strip() != "0" or not times_ns.keys() >= {"sending", "end"}:
        said = [line for line in files["received"].splitlines() if not line.startswith("{")] or console.splitlines()
        raise LinkError(f"the flow in {kernel} did not work out: {' | '.join(said[-4:]) or 'it said nothing'}")
    log, _ = parse_log(files["log"], "the downlink's log")
    start_ms = first_data_ms(log)
    end_ms = start_ms + (times_ns["end"] - times_ns["sending"]) / 1e6
    metrics = compute(log, spec.mrtt_ms, end_ms)
    sleeper = Sleeper(0, 0, 0)  # in virtual time nothing is late
    return LinkRun(
        log=log,
        metrics=metrics,
        invalid_reason=judge(log, metrics, downlink_ms(spec), start_ms, end_ms, sleeper, held_up_ms(spec)),
        zero_ns=0,
        start_ms=start_ms,
        end_ms=end_ms,
        closed=[event for event in events if event["event"] == "closed"],
        received=[event for event in received if event["event"] == "received"],
    )


def _write_job(folder: Path, spec: LinkSpec, seconds: float) -> None:
    for name, text in trace_files(spec).items():
        (folder / name).write_text(text)
    for program in ("mm-link", "mm-delay", "ip", "setpriv"):
        find_program(program)
    iptables = find_program("iptables").resolve()
    job = {
        "cc": spec.cc,
        "queue": " ".join(queue_options(spec)),
        "delay_ms": int(spec.mrtt_ms) // 2,
        "seconds": seconds,
        "drain_s": (spec.mrtt_ms / 2 + DRAIN_MS) / 1000,
        "user_id": LINK_USER,
        "helpers": helper_folder(),
        "iptables": iptables,
        "xtables": find_xtables(iptables),
    }
    (folder / "flow").write_text("".join(f"{name}={shlex.quote(str(value))}\n" for name, value in job.items()))


def _boot(kernel: Path, folder: Path, timeout_s: float) -> str:
    """Runs the machine to its end; returns what its console said."""
    init = Path(__file__).parent / "helpers" / "uml-init.sh"
    shutil.copy(init, folder)  # a path without spaces, which the kernel's command line could not quote
    command = [
        str(kernel),
        f"mem={MEMORY}",
        "time-travel=inf-cpu",
        f"time-travel-start={START_NS}",
        "random.trust_cpu=on",  # nothing waits for randomness
        "root=none",
        "rootfstype=hostfs",
        "ro",
        f"uml_dir={folder}",
        "con=null",
        "con0=null,fd:1",
        "init=/bin/sh",
        "--",
        f"{folder}/{init.name}",
        str(folder),
    ]
    # A group of its own: the machine is several processes, and all of them end with this call.
    machine = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        said, _ = machine.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise LinkError(f"{kernel}: the flow did not end within {timeout_s:.0f} s of real time") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(machine.pid, signal.SIGKILL)
        machine.wait()
    return said.decode(errors="replace")


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _events(text: str) -> list[Event]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
