"""``reinet export``: make a deployable model of a checkpoint."""

import os
from pathlib import Path
from typing import Annotated

import typer

from reinet.agents.model.artifact import MANIFEST_FILE
from reinet.cli.output import JsonOption, check_folder, say, write_json


def export(
    checkpoint: Annotated[
        Path,
        typer.Argument(help="Checkpoint folder, such as runs/NAME/best; with --spread also a model's folder."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Model folder to write (default: model, in CHECKPOINT's run; of a model's folder itself)."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also where the training's gate for no harm refused the checkpoint.")
    ] = False,
    spread: Annotated[
        Path | None,
        typer.Option(help="JSON of `reinet bench learners --seeds`: the card says what they reached."),
    ] = None,
    json_destination: JsonOption = None,
) -> None:
    """Export a checkpoint as a model folder: ONNX, weights, manifest and model card.

    A checkpoint that slows short transfers beyond what its training allows is refused, with the worst cells named.
    Of a model's folder only the card is made anew: it gets the spread over seeds that --spread names.

    Examples:

        reinet export runs/demo/best

        reinet export runs/default/best --out checkpoints/mine --json -

        reinet export checkpoints/mine --spread seeds.json
    """
    # Here, for torch takes seconds to import and --help needs none.
    from reinet.agents.learn import export as learned

    is_model = spread is not None and (checkpoint / MANIFEST_FILE).exists()
    model = out or (checkpoint if is_model else _run_of(checkpoint) / "model")
    check_folder("--out", model.parent)
    is_new = not model.exists()
    if spread is not None and is_model:
        digest = learned.tell_spread(checkpoint, model, spread)
    else:
        digest = learned.export(checkpoint, model, force, spread)
    say(f"model {model}, manifest sha256 {digest}" + ("" if is_new else ", in place of what was there"))
    write_json(json_destination, {"model": str(model), "manifest_sha256": digest})


def _run_of(checkpoint: Path) -> Path:
    """Returns runs/NAME for runs/NAME/best and for runs/NAME/checkpoints/iteration-000120."""
    parent = Path(os.path.realpath(checkpoint)).parent  # unlike resolve(), also of a loop of links, refused later
    return parent.parent if parent.name == "checkpoints" else parent
