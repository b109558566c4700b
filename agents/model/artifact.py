"""A deployable model: a folder of ``policy.onnx``, ``weights.safetensors``, ``manifest.json`` and ``README.md``.

The manifest pins the digest of every other file; a policy file may pin the manifest's. Each file is read once, and the
bytes that were checked are the bytes that are used.
"""

import hashlib
import json
import math
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from reinet.agents.model import gru
from reinet.agents.model.period import PeriodTable
from reinet.core import MOST_CALM_RTTS, Normaliser, toml_file
from reinet.core.disk import durable
from reinet.core.errors import ModelError, unread
from reinet.core.features import FEATURE_SETS, HEADS, schema_hash

MANIFEST_FILE = "manifest.json"
ONNX_FILE = "policy.onnx"
WEIGHTS_FILE = "weights.safetensors"
CARD_FILE = "README.md"
PINNED_FILES = (ONNX_FILE, WEIGHTS_FILE, CARD_FILE)
MODEL_FILES = (MANIFEST_FILE, *PINNED_FILES)

MAX_FILE_BYTES = 32 * 1024 * 1024
"""The paper's network, 100-1000-1000-1 in float32, is 4.4 MB; nothing here needs more than a few times that."""
ALLOWED_OPS = frozenset({"Gemm", "Relu", "Tanh"})
"""A folded actor consists of these alone, behind a GRU's own nodes where it has one (``gru.nodes``). A short list
refuses custom operators, control flow and functions alike."""
MAX_NODES = 64
"""The paper's actor has 6: three layers, each with its non-linearity."""
MAX_PARAMETERS = 4_000_000
"""The paper's actor has 1.1 million."""
INPUT_NAME = "states"
OUTPUT_NAME = "actions"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Schema(_Strict):
    """The meaning of the network's input and output."""

    feature_set: str
    head: str
    hash: str = Field(pattern="^[0-9a-f]{64}$")


class TraceUse(_Strict):
    """One trace that shaped the model, named by content."""

    name: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    role: Literal["train", "select"]
    """A "train" trace was learned from, a "select" one chose among checkpoints; neither may judge the model."""


class Training(_Strict):
    """The model's origin: the seed, length, configuration and traces of its training."""

    seed: int
    env_steps: int = Field(ge=0)
    updates: int = Field(ge=0)
    config: dict[str, Any]
    traces: list[TraceUse]


class Manifest(_Strict):
    """The content of ``manifest.json``."""

    format: Literal[1]
    name: str = Field(min_length=1, max_length=100)
    schema_: Schema = Field(alias="schema")
    period: PeriodTable
    """It says when a record was due in training; a model is served with the rule it was trained with."""
    calm_rtts: float = Field(default=0.0, ge=0, le=MOST_CALM_RTTS)
    """Caps go 1 - 1 / e of the way to what the network wants in so many minimum RTTs, as in training; 0 = at once."""
    room_beyond_ms: float | None = Field(default=None, gt=0)
    """The network is told of as much room for queueing as a path's minimum RTT is longer than this; None = of what the
    target leaves, on every path."""
    normaliser: dict[str, Any]
    target_range_ms: tuple[float, float]
    congestion_controls: list[str] = Field(min_length=1)
    training: Training
    versions: dict[str, str]
    metrics: dict[str, float]
    files: dict[str, str]

    @field_validator("period", mode="before")
    @classmethod
    def _say_all_of_the_period(cls, value: Any) -> Any:
        """Returns the period if it has all its keys: a training configuration may leave some to their defaults, but a
        manifest says in full what its model was trained with."""
        if isinstance(value, Mapping) and (missing := sorted(set(PeriodTable.model_fields) - set(value))):
            raise ValueError(f"{missing[0]} is missing")
        return value

    def to_bytes(self) -> bytes:
        """Returns JSON: keys in a fixed order, one value a line, a newline at the end.

        A model without them has no such key: daemons from before it refuse keys that they do not know.
        """
        unsaid = {key for key in ("calm_rtts", "room_beyond_ms") if not getattr(self, key)}
        return (json.dumps(self.model_dump(by_alias=True, exclude=unsaid), indent=1, sort_keys=True) + "\n").encode()


@dataclass(frozen=True)
class Artifact:
    """A model folder whose content was checked."""

    folder: Path
    manifest: Manifest
    manifest_sha256: str
    normaliser: Normaliser
    onnx_bytes: bytes


def load_artifact(folder: Path | str, manifest_sha256: str | None = None) -> Artifact:
    """Returns a model folder's content, checked; with a digest also that its manifest is the one that was pinned.

    Raises ModelError that names the file, what is wrong with it and the cure.
    """
    folder = Path(folder)
    manifest_bytes = _read(folder / MANIFEST_FILE)
    digest = hashlib.sha256(manifest_bytes).hexdigest()
    if manifest_sha256 is not None and digest != manifest_sha256:
        raise ModelError(
            f"{folder / MANIFEST_FILE}: sha256 is {digest} but {manifest_sha256} is pinned; "
            "restore the pinned model or pin this one after a look at it"
        )
    manifest = parse_manifest(manifest_bytes, folder / MANIFEST_FILE)
    normaliser = _check_schema(manifest, folder / MANIFEST_FILE)
    content = {name: _read(folder / name) for name in PINNED_FILES}
    for name, data in content.items():
        actual = hashlib.sha256(data).hexdigest()
        if actual != manifest.files[name]:
            raise ModelError(
                f"{folder / name}: sha256 is {actual} but {MANIFEST_FILE} says {manifest.files[name]}; "
                "the file changed after export: export the model again"
            )
    features = FEATURE_SETS[manifest.schema_.feature_set]
    check_onnx(content[ONNX_FILE], features.state_size, folder / ONNX_FILE, features.history)
    return Artifact(folder, manifest, digest, normaliser, content[ONNX_FILE])


def parse_manifest(data: bytes, path: Path) -> Manifest:
    """Returns the manifest in ``data``; ``path`` is only for messages. Raises ModelError."""
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        raise ModelError(f"{path}: {toml_file.first_fault(error)}; export the model again with this version") from None
    if set(manifest.files) != set(PINNED_FILES):
        raise ModelError(f"{path}: files: must list exactly {', '.join(PINNED_FILES)}; export the model again")
    low_ms, high_ms = manifest.target_range_ms
    if not 0 < low_ms <= high_ms:
        raise ModelError(f"{path}: target_range_ms: [{low_ms}, {high_ms}] is not a range of delays above 0 ms")
    return manifest


def _check_schema(manifest: Manifest, path: Path) -> Normaliser:
    schema = manifest.schema_
    if schema.feature_set not in FEATURE_SETS:
        raise ModelError(
            f"{path}: feature set {schema.feature_set!r} is unknown here (known: {', '.join(FEATURE_SETS)}); "
            "use the version of reinet that made the model, or train one with this version"
        )
    if schema.head not in HEADS:
        raise ModelError(f"{path}: head {schema.head!r} is unknown here (known: {', '.join(HEADS)})")
    expected = schema_hash(schema.feature_set, schema.head)
    if schema.hash != expected:
        raise ModelError(
            f"{path}: schema hash {schema.hash[:12]}... does not match this version's {expected[:12]}... for "
            f"{schema.feature_set} / {schema.head}: states would mean something else to the model; "
            "use the version of reinet that made it, or train one with this version"
        )
    try:
        return Normaliser.from_dict(manifest.normaliser, schema.feature_set)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def check_onnx(data: bytes, state_size: int, path: Path, history: int = 1) -> None:
    """Raises ModelError for anything but a plain MLP, float32 (batch, state_size) -> (batch, 1), with or without a GRU
    before it that reads the state's ``history`` records.
    """
    import onnx  # here, for its import takes a while and only loading a model needs it

    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's DecodeError has moved between versions
        raise ModelError(f"{path}: not an ONNX model ({error}); export the model again") from None
    domains = {opset.domain for opset in model.opset_import} | {node.domain for node in model.graph.node}
    if foreign := sorted(domains - {"", "ai.onnx"}):
        raise ModelError(f"{path}: uses the operator set {foreign[0]!r}; only ONNX's own operators are loaded")
    if model.functions:
        raise ModelError(f"{path}: defines functions of its own; only plain graphs are loaded")
    if model.graph.sparse_initializer:
        raise ModelError(f"{path}: has sparse tensors; only dense ones are loaded")
    for tensor in model.graph.initializer:
        if tensor.external_data or tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ModelError(
                f"{path}: tensor {tensor.name!r} lies outside the file; only self-contained ones are loaded"
            )
    try:
        units = gru.units_of(model.graph, INPUT_NAME, history, state_size // history)
    except ValueError as error:
        raise ModelError(f"{path}: {error}; export the model again") from None
    rest = model.graph.node[gru.NODES :] if units else model.graph.node
    if unknown := sorted({node.op_type for node in rest} - ALLOWED_OPS):
        raise ModelError(f"{path}: uses operator {unknown[0]}; an actor needs only {', '.join(sorted(ALLOWED_OPS))}")
    _check_cost(model.graph, gru.multiplications(history, state_size // history, units), path)
    _check_port(model.graph.input, INPUT_NAME, state_size, path)
    _check_port(model.graph.output, OUTPUT_NAME, 1, path)


def _check_cost(graph: Any, more: int, path: Path) -> None:
    """Raises ModelError where one state costs more than a few million multiplications, a GRU's ``more`` among them.

    A layer multiplies by weights of its own: by anything computed, its cost would grow with the square of the batch.
    """
    if len(graph.node) > MAX_NODES:
        raise ModelError(f"{path}: has {len(graph.node)} nodes; an actor has at most {MAX_NODES}")
    parameters = sum(math.prod(tensor.dims) for tensor in graph.initializer) + more
    if parameters > MAX_PARAMETERS or any(size < 0 for tensor in graph.initializer for size in tensor.dims):
        raise ModelError(f"{path}: has {parameters} parameters; an actor has at most {MAX_PARAMETERS}")
    own = {tensor.name for tensor in graph.initializer}
    used: set[str] = set()
    for node in graph.node:
        if node.op_type != "Gemm":
            continue
        if not node.input or not node.output:
            raise ModelError(f"{path}: layer {node.name!r} reads or makes nothing; export the model again")
        weights = set(node.input[1:])
        if not weights <= own or node.input[0] in own:
            raise ModelError(
                f"{path}: layer {node.name or node.output[0]!r} does not multiply states by its own weights"
            )
        if any(attribute.name == "transA" and attribute.i for attribute in node.attribute):
            raise ModelError(f"{path}: layer {node.name or node.output[0]!r} mixes the states of different flows")
        if weights & used:
            raise ModelError(f"{path}: layer {node.name or node.output[0]!r} uses another layer's weights")
        used |= weights


def _check_port(ports: Any, name: str, width: int, path: Path) -> None:
    import onnx

    found = [f"{port.name}{_shape(port)}" for port in ports]
    if (
        len(ports) != 1
        or ports[0].name != name
        or ports[0].type.tensor_type.elem_type != onnx.TensorProto.FLOAT
        or len(_shape(ports[0])) != 2
        or _shape(ports[0])[1] != width
        or isinstance(_shape(ports[0])[0], int)
    ):
        raise ModelError(
            f"{path}: has {', '.join(found) or 'nothing'} where float32 {name}[batch, {width}] is expected"
        )


def _shape(port: Any) -> list[int | str]:
    return [d.dim_value if d.HasField("dim_value") else d.dim_param for d in port.type.tensor_type.shape.dim]


def _read(path: Path) -> bytes:
    try:
        # Without waiting: a pipe in the place of a file would have whoever asks wait for somebody to write.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            data = file.read(MAX_FILE_BYTES + 1) if is_file else b""
    except OSError as error:
        raise ModelError(f"{path}: {unread(error)}; a model folder holds {', '.join(MODEL_FILES)}") from None
    if not is_file:
        raise ModelError(f"{path}: is no regular file; export the model again")
    if len(data) > MAX_FILE_BYTES:
        raise ModelError(f"{path}: larger than {MAX_FILE_BYTES} bytes; no model of this project is")
    return data


def write_artifact(folder: Path, files: dict[str, bytes], manifest: Manifest) -> str:
    """Writes a model folder in one step, replacing an older *model* there; returns the manifest's sha256.

    ``manifest.files`` is filled in here. Refuses to replace what is not a model and nothing else (ModelError). Where
    ``folder`` is a link, what it leads to is replaced.
    """
    folder = Path(os.path.realpath(folder))
    if set(files) != set(PINNED_FILES):
        raise ValueError(f"a model folder holds {PINNED_FILES}, not {sorted(files)}")
    _refuse_to_replace(folder)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    manifest_bytes = manifest.model_copy(update={"files": digests}).to_bytes()
    write_folder(folder, {**files, MANIFEST_FILE: manifest_bytes})
    return hashlib.sha256(manifest_bytes).hexdigest()


def _refuse_to_replace(folder: Path) -> None:
    """Raises ModelError for anything but an older model, an empty folder or nothing at all."""
    if folder.is_symlink():  # though its links were followed
        raise ModelError(f"{folder}: is a link that leads to itself; choose another place or remove it")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ModelError(f"{folder}: exists and is no folder; choose another place or move it away")
    found = sorted(path.name for path in folder.iterdir())
    if not found:
        return
    if MANIFEST_FILE not in found:
        raise ModelError(f"{folder}: exists and is not a model folder; choose another place or empty it")
    if others := [name for name in found if name not in MODEL_FILES]:
        raise ModelError(
            f"{folder}: holds {', '.join(others[:3])} beside what a model's folder holds, which would be lost; "
            "choose another place or move that away"
        )
    try:
        parse_manifest(_read(folder / MANIFEST_FILE), folder / MANIFEST_FILE)
    except ModelError:
        raise ModelError(
            f"{folder}: its {MANIFEST_FILE} is no model's of this version; choose another place or move it away"
        ) from None


def write_folder(
    folder: Path,
    files: Mapping[str, bytes],
    staging: Path | None = None,
    mode: int | None = None,
    check: Callable[[Path], object] = lambda _made: None,
) -> None:
    """Writes a folder of files and moves it to its place, replacing an older one; it is on the disk then.

    It is made in ``staging``, a folder of the same file system, by default the one that it is to lie in. The files have
    ``mode``, by default what the umask leaves. A power cut leaves the older folder or the new one, whole: a name never
    reaches the disk before what it names. Raises OSError, and what ``check`` makes of the folder before it is moved.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=".staged-", dir=staging or folder.parent))
    made = staged / "made"
    try:
        made.mkdir()
        made.chmod(0o755)
        for name, data in files.items():
            durable.put(made / name, data, mode)
        durable.sync_folder(made)
        check(made)
        replaced = staged / "replaced"
        try:
            if folder.exists():
                os.rename(folder, replaced)  # to remove it first would leave none for as long as that takes
            os.rename(made, folder)
        except BaseException:  # an alarm or a second Ctrl-C may come between the two
            if replaced.exists() and not folder.exists():
                os.rename(replaced, folder)
            raise
        durable.sync_folder(folder.parent)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def used_traces(shaped_by: Sequence[TraceUse], given: Iterable[tuple[str, str]]) -> list[tuple[str, TraceUse]]:
    """Returns which of the given traces (name, sha256) shaped a model, as (name, use) pairs: none can judge it.

    Traces of different folders may bear the same name; each of them is looked at.
    """
    uses = {use.sha256: use for use in shaped_by}
    return [(name, uses[sha256]) for name, sha256 in given if sha256 in uses]


def finite_metrics(metrics: dict[str, float]) -> dict[str, float]:
    """Returns metrics rounded for the manifest; raises ModelError for one that is no number: the training failed."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise ModelError(f"metric {name} is {value}: the training went wrong; do not ship this model")
    return {name: round(value, 6) for name, value in metrics.items()}
