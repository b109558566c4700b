"""``reinet bench flywheel``: policies from estimated traces beside policies from the true ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reinet.cli.output import JsonOption, check_folder, print_table, say, write_json

COLUMNS = [
    "link", "mrtt_ms", "throughput_mbps_true", "throughput_mbps_estimated", "throughput", "qdelay_mean_ms_true",
    "qdelay_mean_ms_estimated", "delay",
]  # fmt: skip


def flywheel(
    config: Annotated[Path, typer.Argument(help="Training configuration; its traces are replaced.")] = Path(
        "configs/default.toml"
    ),
    model: Annotated[str, typer.Option(help="Who caps the recorded flows: a model folder or an agent's name.")] = (
        "checkpoints/default"
    ),
    traces: Annotated[int, typer.Option(min=4, help="Recorded flows, one over each trace.")] = 32,
    links: Annotated[int, typer.Option(min=1, help="Held-out links.")] = 10,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings on either side.")] = 3,
    seconds: Annotated[float, typer.Option(min=6, help="Length of traces, flows and runs.")] = 60.0,
    iterations: Annotated[int | None, typer.Option(min=1, help="Train this many, whatever the file says.")] = None,
    run_dir: Annotated[Path, typer.Option(help="Where traces, runs and models go; a run is taken up again.")] = Path(
        "runs/flywheel"
    ),
    json_destination: JsonOption = None,
) -> None:
    """Compare training on traces estimated from recorded flows with training on the true traces, in the simulator.

    Flows run over generated traces under the model; their records, as a daemon keeps them, become traces again
    (reinet traces from-flows). Policies learn from either side and run over links that neither has seen: delay and
    throughput are the estimated side's over the true side's, of medians over seeds; at the top level stand the
    geometric means over links. errors has each estimate's distance from its trace. Example:

        reinet bench flywheel --json flywheel.json
    """
    from reinet.agents.learn.config import TrainConfig
    from reinet.agents.service.flywheel import measure

    check_folder("--run-dir", run_dir)
    settings = TrainConfig.load(config)
    if iterations is not None:
        run = settings.run.model_copy(update={"iterations": iterations, "evaluate_every": iterations})
        settings = settings.model_copy(update={"run": run})
    found = measure(settings, model, run_dir, traces=traces, links=links, seeds=seeds, seconds=seconds, told=say)
    write_json(json_destination, found)
    if json_destination != "-":
        print_table(found["rows"], COLUMNS)
        say(
            f"delay {100 * found['delay']:.1f} % and throughput {100 * found['throughput']:.1f} % of the policies that "
            f"learned from the true traces ({found['seeds']} seeds, {len(found['rows'])} links)"
        )
