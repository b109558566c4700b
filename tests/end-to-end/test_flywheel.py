"""The whole circle: flows are recorded, links estimated, a model trained, judged, shadowed, served and rolled back."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from helpers.daemons import Daemon, has_capped, write_config
from helpers.trainer import TINY, Service, small_gate
from reinet.agents.decide.names import make_agent
from reinet.agents.evaluation.run import simulate
from reinet.agents.evaluation.scenario import Scenario
from reinet.daemon.processes.flow_recorder import LEAST_S, FlowRecorder
from reinet.envs.trace.flow_records import FlowRecording, flow_files
from reinet.envs.trace.model import generate


def reinet(*arguments: object, service: Service) -> str:
    """Runs a command as a user would; returns what it wrote."""
    code = "from reinet.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments), "--json", "-"], capture_output=True, text=True,
        env={"REINET_TRAINER": f"unix:{service.socket}", "PATH": "/usr/bin:/bin", "HOME": str(service.folder)},
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def record(folder: Path) -> None:
    """Three links' flows under the hand rule, as the daemon's recorder gets them: some records at a time."""
    links = [generate("lte-walking", 20, seed) for seed in (1, 2, 3)]
    scenarios = [Scenario.of(link, "sim", seconds=19.0, target="+30ms", mrtt_ms=40.0) for link in links]
    recorder = FlowRecorder(folder, 1.0, 10**7, bytes(range(32)))
    for cookie, run in enumerate(simulate(make_agent("rule", "sim"), scenarios), 1):
        records = np.array(run.records)
        records["cookie"] = cookie
        for start in range(0, len(records), 100):
            recorder.take(records[start : start + 100])
    recorder.close()


def test_what_flows_showed_becomes_a_model_that_the_daemon_serves_until_it_is_rolled_back(tmp_path: Path) -> None:
    record(tmp_path / "flows")
    service = Service(tmp_path, more=small_gate(tmp_path))
    service.start()
    daemon = None
    try:
        made = json.loads(reinet("traces", "from-flows", tmp_path / "flows", "-o", tmp_path / "est", service=service))
        assert len(made["rows"]) == 3
        assert len(json.loads(reinet("traces", "upload", tmp_path / "est", service=service))["sent"]) == 3
        with service.client() as client:
            first = list(client.watch(client.submit(TINY)["job"]))[-1][0]["model"]
            client.promote(first, "production", why="the first")

            job = client.submit(TINY, [tmp_path / "est"], parent=first)  # what was uploaded is not sent again
            second = list(client.watch(job["job"]))[-1][0]["model"]
            assert {use["sha256"] for use in client.model(second)["traces"]} == {row["sha256"] for row in made["rows"]}

            path = write_config(tmp_path, "registry:production", mode="shadow")
            where = f'address = "unix:{service.socket}", folder = "{tmp_path}/models", called = "host-1"'
            path.write_text(
                path.read_text()
                + f"registry = {{ {where} }}\n"
                + f'record = {{ folder = "{tmp_path}/own-flows", share = 1.0, send = true }}\n'
            )
            daemon = Daemon(path)
            daemon.wait_for(lambda control: first in control.health().model)
            verdict = client.promote(second, "production", why="this week's flows", force=True)
            assert verdict["gate"]
            daemon.wait_for(lambda _control: client.fleet()[0]["model"] == second)
            daemon.wait_for(lambda control: control.flows().flows)
            daemon.wait_for(lambda control: not has_capped(control))  # a shadow decides and caps nobody

            path.write_text(path.read_text().replace('"shadow"', '"enforce"'))
            daemon.wait_for(has_capped)
            client.rollback("production", "slower at noon")
            daemon.wait_for(lambda _control: client.fleet()[0]["model"] == first)
            daemon.wait_for(has_capped)
            time.sleep(LEAST_S)  # of a shorter flow no recording is kept
        code, _, log = daemon.end(signal.SIGTERM)
        assert code == 0, log
        assert "a process of the daemon failed" not in [entry["event"] for entry in log]
        (seen,) = flow_files([tmp_path / "own-flows"])
        assert len(FlowRecording.load(seen).records) > 50, "the daemon recorded its own flow all the while"
        (sent,) = (service.folder / "flows" / "local" / "host-1").iterdir()
        assert sent.read_bytes() == seen.read_bytes(), "and sent it to the service"
    finally:
        if daemon is not None:
            daemon.process.kill()
        service.close()
