"""From a checkpoint to a deployable model: ONNX graph, weights, manifest and model card."""

import importlib.metadata
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import safetensors.numpy
from onnx import TensorProto, helper, numpy_helper
from pydantic import BaseModel, ConfigDict, Field

from reinet.agents.learn.checkpoint import Checkpoint, State
from reinet.agents.learn.config import TraceSection, TrainConfig
from reinet.agents.learn.ddpg import Ddpg
from reinet.agents.learn.links import generated_selection_traces, generated_training_traces, ranges_of
from reinet.agents.learn.recordings import recordings
from reinet.agents.learn.rllib.config import PeerConfig, kind_of
from reinet.agents.model import gru
from reinet.agents.model.artifact import (
    CARD_FILE,
    INPUT_NAME,
    ONNX_FILE,
    OUTPUT_NAME,
    WEIGHTS_FILE,
    Manifest,
    Schema,
    TraceUse,
    Training,
    finite_metrics,
    load_artifact,
    write_artifact,
)
from reinet.agents.model.mlp import Folded
from reinet.core import FEATURE_SETS, schema_hash
from reinet.core.errors import ModelError
from reinet.envs.trace import Trace

SPREAD, LIMITS = "\n## Spread over seeds ", "\n## Limits\n"
"""How these two sections of a card begin, the second right after the first."""
OPSET = 17
IR_VERSION = 8
"""Both are of 2022: every onnxruntime that the serving extra admits loads them."""


def export(folder: Path, out: Path, force: bool = True, spread: Path | None = None) -> str:
    """Makes the model folder ``out`` from a checkpoint folder; returns the manifest's sha256. Raises ModelError.

    Without ``force`` a checkpoint that the training's gate for no harm refused makes no model. ``spread`` is a JSON
    file of ``reinet bench learners --seeds``: the card then has what other seeds of the configuration reached.
    """
    checkpoint = Checkpoint(folder)
    state = checkpoint.state
    judged = state.best if state.best and state.best.iteration == state.iteration else None
    if judged and judged.harms and not force:
        raise ModelError(f"{folder}: {judged.harms}; train on, or export it all the same with --force")
    config = state.config
    features = FEATURE_SETS[config.feature_set]
    learner = Ddpg(config.ddpg, features.state_size, config.seed, history=features.history)
    learner.load(checkpoint.learner)
    actor = learner.best_actor().folded()
    weights = {
        f"{i}.{kind}": array
        for i, layer in enumerate(actor.layers)
        for kind, array in zip(("weight", "bias"), layer, strict=True)
    }
    if actor.gru is not None:
        weights |= {f"gru.{name}": array for name, array in vars(actor.gru).items()}
    if lost := [name for name, array in weights.items() if not np.isfinite(array).all()]:
        raise ModelError(f"{folder}: {lost[0]} is not finite: its training diverged; export an earlier checkpoint")
    manifest = _manifest(state, judged.metrics if judged else {})
    found = Spread.load(spread, config.name, config.seed) if spread else None
    files = {
        ONNX_FILE: onnx_bytes(actor, features.history),
        WEIGHTS_FILE: safetensors.numpy.save(weights),
        CARD_FILE: model_card(manifest, state.iteration, found).encode(),
    }
    return write_artifact(out, files, manifest)


def _manifest(state: State, metrics: dict[str, float]) -> Manifest:
    """Returns what is to be known of a checkpoint's model; the digests of its files follow."""
    config = state.config
    return Manifest(
        format=1,
        name=config.name,
        schema=Schema(
            feature_set=config.feature_set, head=config.head, hash=schema_hash(config.feature_set, config.head)
        ),
        period=config.period,
        calm_rtts=config.calm_rtts,
        room_beyond_ms=config.room_beyond_ms,
        normaliser=state.normaliser,
        target_range_ms=ranges_of(config.links).target_ms,
        congestion_controls=list(dict.fromkeys(config.links.congestion_controls)),
        training=Training(
            seed=config.seed,
            env_steps=state.env_steps,
            updates=state.updates,
            config=config.model_dump(mode="json"),
            traces=generated_uses(config.traces) + state.recordings,
        ),
        versions={"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in ("reinet", "torch", "ray", "numpy", "onnx")},
        metrics=finite_metrics(metrics),
        files={},
    )


def tell_spread(model: Path, out: Path, spread: Path) -> str:
    """Writes a model as ``out`` whose card alone is another: it has the spread over seeds of that file, as ``export``
    puts it there. Returns the manifest's sha256; raises ModelError.
    """
    manifest = load_artifact(model).manifest
    found = Spread.load(spread, manifest.name, manifest.training.seed)
    files = {name: (model / name).read_bytes() for name in (ONNX_FILE, WEIGHTS_FILE, CARD_FILE)}
    card, limits, rest = files[CARD_FILE].decode().partition(LIMITS)
    if not limits:
        raise ModelError(f"{model / CARD_FILE}: is no card of `reinet export`, which has a section {LIMITS.strip()!r}")
    files[CARD_FILE] = (card.partition(SPREAD)[0] + found.section() + LIMITS + rest).encode()
    return write_artifact(out, files, manifest)


def onnx_bytes(actor: Folded, history: int = 1) -> bytes:
    """Returns the folded actor as a graph of Gemm, Relu and Tanh, behind a GRU's nodes where it has one: states
    (batch, S) -> actions (batch, 1).

    Built node by node: a plain MLP needs no tracing, and the tracing exporter's graph depends on torch's version.
    """
    nodes, tensors, x, size = [], [], INPUT_NAME, actor.layers[0][0].shape[1]
    if actor.gru is not None:
        frame = actor.gru.records.shape[1]
        nodes, x, size = gru.nodes(INPUT_NAME, actor.gru.units), gru.SEEN, history * frame
        own = actor.gru.tensors() | gru.constants(history, frame)
        tensors = [numpy_helper.from_array(values, name) for name, values in own.items()]
    for index, (weight, bias) in enumerate(actor.layers):
        tensors += [numpy_helper.from_array(weight, f"weight{index}"), numpy_helper.from_array(bias, f"bias{index}")]
        nodes.append(helper.make_node("Gemm", [x, f"weight{index}", f"bias{index}"], [f"sum{index}"], transB=1))
        last = index == len(actor.layers) - 1
        x = OUTPUT_NAME if last else f"hidden{index}"
        nodes.append(helper.make_node("Tanh" if last else "Relu", [f"sum{index}"], [x]))
    graph = helper.make_graph(
        nodes,
        "actor",
        [helper.make_tensor_value_info(INPUT_NAME, TensorProto.FLOAT, ["batch", size])],
        [helper.make_tensor_value_info(OUTPUT_NAME, TensorProto.FLOAT, ["batch", 1])],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def generated_uses(section: TraceSection) -> list[TraceUse]:
    """Returns what a model learned from and was selected by, of the generated traces."""
    return _uses(generated_training_traces(section), "train") + _uses(generated_selection_traces(section), "select")


def uses(section: TraceSection) -> list[TraceUse]:
    """Returns all that a training's model will have learned from or been selected by. Raises ConfigError."""
    return generated_uses(section) + recordings(section).uses


def _uses(traces: Sequence[Trace], role: Literal["train", "select"]) -> list[TraceUse]:
    return [TraceUse(name=trace.name, sha256=trace.sha256, role=role) for trace in traces]


CONDITIONS = {
    "cross_share": "several flows in one queue",
    "codel_share": "active queue management",
    "loss": "random loss",
    "app_limited_share": "applications slower than the link",
    "short_share": "flows that end",
    "decision_ms": "caps later than their records",
}
"""What a share of the flows may meet, by the key of [links] that says so."""


def learned_by(config: TrainConfig, done: int) -> str:
    """Returns the methods that have made a training's weights after so many iterations, in their order."""
    if isinstance(config, PeerConfig):
        return f"RLlib's {config.rllib.algorithm} (at most {config.run.iterations} iterations)"
    gathering = min(done, config.run.iterations - config.evolution.generations)
    taught = min(gathering, config.hindsight.iterations)
    steps = {"hindsight": taught, "DDPG": gathering - taught, "evolution": done - gathering}
    return ", then ".join(f"{name} ({count} iterations)" for name, count in steps.items() if count > 0)


def _sources(training: Training) -> str:
    """Returns where the traces came from, in words."""
    traces = training.config["traces"]
    presets = ", ".join(dict.fromkeys(traces["presets"]))
    generated = f"generated traces ({presets})" if presets else ""
    if not traces["sets"]:
        return f"{generated} only"
    own = training.traces[traces["train_count"] + traces["select_count"] if presets else 0 :]
    learned, chosen = (len({use.sha256 for use in own if use.role == role}) for role in ("train", "select"))
    if not learned and not chosen:
        return f"{generated} only"
    recordings = f"{learned} recordings" + (f" (and {chosen} to choose among checkpoints)" if chosen else "")
    return f"{generated} and {recordings}" if generated else f"{recordings} only"


class Spread(BaseModel):
    """What several seeds of a configuration reached, as ``reinet bench learners --seeds`` records it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seeds: list[int] = Field(min_length=1)
    traces: int
    seconds: float
    figures: dict[str, tuple[float, float, float]]
    """Median, least and most over the seeds."""

    @classmethod
    def load(cls, path: Path, name: str, seed: int) -> "Spread":
        """Returns what a file has of the configuration with this name; raises ModelError.

        One of the bench's own trainings is called by its seed, too (``seeded``), and is found by what they all share.
        """
        try:
            found = json.loads(path.read_bytes())["spread"]
            return cls.model_validate(found[name if name in found else name.removesuffix(f"-seed{seed}")])
        except OSError as error:
            raise ModelError(f"{path}: {error.strerror}; give a file of `reinet bench learners --seeds`") from None
        except (ValueError, KeyError, TypeError):
            raise ModelError(
                f"{path}: has no spread over seeds of {name}; give a file of `reinet bench learners --seeds`"
            ) from None

    def section(self) -> str:
        """Returns the card's section."""
        rows = "\n".join(
            f"| {name} | {middle:.3f} | {least:.3f} to {most:.3f} |"
            for name, (middle, least, most) in self.figures.items()
        )
        return f"""{SPREAD}{", ".join(map(str, self.seeds))} ({self.traces} traces of {self.seconds:g} s at most)

Weights differ between seeds and machines. These are trainings of the same configuration, each judged on traces that
it has not seen (`reinet bench learners --seeds`): means over the traces.

| figure | median | range |
|---|---|---|
{rows}
"""


def _harm(metrics: dict[str, float]) -> str:
    """Returns the card's section on what the policy costs short transfers; nothing where that was not asked."""
    if "harm_cells" not in metrics:
        return ""
    verdict = "It passed the gate" if metrics["harm_ok"] else "The gate refused it, and it was exported all the same"
    return f"""
## Harm to short transfers (simulator, a part of `reinet bench harm`)

{verdict}: {metrics["harm_failed"]:.0f} of {metrics["harm_cells"]:.0f} cells are above a limit, and in the worst one
objects take {metrics["harm_worst_ratio"]:.2f} times as long as without a cap, on the mean (`[harm]` in the
configuration).
"""


def model_card(manifest: Manifest, done: int, spread: Spread | None = None) -> str:
    """Returns what a person should know before using a model of so many iterations, as Markdown."""
    training, schema = manifest.training, manifest.schema_
    config = kind_of(training.config).model_validate(training.config)
    method, ranges = learned_by(config, done), ranges_of(config.links)
    links = training.config["links"]
    met = [words for key, words in CONDITIONS.items() if np.max(links[key]) > 0]
    unmet = [words for key, words in CONDITIONS.items() if np.max(links[key]) == 0]
    mrtt_ms = "{:g}-{:g} ms".format(*ranges.mrtt_ms)
    buffers = "{:g}-{:g} KB".format(*(size / 1000 for size in ranges.buffer_bytes))
    ddpg = training.config["ddpg"]
    bound = "the window, of which it is half to twice," if schema.head == "cwnd" else "the hand rule inside the head"
    features, units = FEATURE_SETS[schema.feature_set], ddpg.get("gru", 0)
    seen = gru.seen_size(features.history, len(features.features), units)
    shape = " - ".join(str(size) for size in (seen, *ddpg["hidden"], 1))
    if units:
        shape = f"{shape} (behind a GRU of {units} over {features.history} records)"
    figures = "\n".join(f"| {name} | {value:.4g} |" for name, value in manifest.metrics.items()) or "| none | |"
    return f"""# {manifest.name}

Caps the congestion window of a {", ".join(manifest.congestion_controls)} flow: {schema.feature_set} states through a
{shape} network to the `{schema.head}` head. Made by `reinet train` and `reinet export`; the configuration, the seed
and the content hashes of all traces are in `manifest.json`.

## Use

Targets from {manifest.target_range_ms[0]:.0f} to {manifest.target_range_ms[1]:.0f} ms (RTT, not queueing delay), at
least 1.1 x the path's minimum RTT. `reinet evaluate --agents none,PATH --traces ...` compares it with the plain
congestion control; `reinet serve` applies it.

## Training

Method: {method}; {training.env_steps} periods of simulated flows, {training.updates} updates, seed
{training.seed}.
Links: {", ".join(manifest.congestion_controls)} over {_sources(training)}, paths of {mrtt_ms}, buffers of {buffers}.
Some of the flows also met: {", ".join(met) or "nothing else"}.

## Figures on the selection links (simulator, traces that were not trained on but chose the checkpoint)

`frontier_*` are queueing delays over the best setting's of the hand rule at equal utilisation, swept in hindsight;
other ratios are to plain congestion control on the same link; all are means over links (`docs/scalars.md`, `eval/`).

| figure | value |
|---|---|
{figures}

{_harm(manifest.metrics)}{spread.section() if spread else ""}{LIMITS}
Not trained for: {", ".join([*unmet, "other congestion controls"])}, paths or targets outside the ranges above. Outside
of them {bound} still bounds the cap, but nothing was measured.
"""
