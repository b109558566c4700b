"""The learned policy at work: a checked model folder run by onnxruntime. Needs neither torch nor Ray."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime

from reinet.agents.decide.guard import INVALID_CAP_PKTS
from reinet.agents.decide.protocol import Agent, CapArray, FloatArray, StatsArray, View
from reinet.agents.model.artifact import INPUT_NAME, OUTPUT_NAME, Artifact, Manifest, load_artifact
from reinet.core import caps_from_actions
from reinet.core.errors import ModelError


class Policy(Agent):
    """An agent that asks the network. Its view is its manifest's: it must be shown no other states."""

    def __init__(self, artifact: Artifact) -> None:
        manifest = artifact.manifest
        view = View(manifest.schema_.feature_set, artifact.normaliser, manifest.period.rule())
        super().__init__(str(artifact.folder), view)
        self.artifact = artifact
        self.trace_uses = manifest.training.traces
        self.target_range_ms = manifest.target_range_ms
        self.queueing_target_range_ms = _queueing_target_range_ms(manifest)
        self.congestion_controls = manifest.congestion_controls
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # a batch takes tens of microseconds; threads would cost more than they give
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(
                artifact.onnx_bytes, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's exceptions share no base of their own
            raise ModelError(f"{artifact.folder}: onnxruntime refuses the model: {error}") from None

    @classmethod
    def load(cls, folder: Path | str, manifest_sha256: str | None = None) -> "Policy":
        """Returns the policy of a model folder, checked; raises ModelError."""
        return cls(load_artifact(folder, manifest_sha256))

    @property
    def manifest(self) -> Manifest:
        """Returns the model's manifest."""
        return self.artifact.manifest

    @property
    def identity(self) -> str:
        """Returns the hash of the manifest, which pins every other byte of the model."""
        return f"sha256:{self.artifact.manifest_sha256}"

    @property
    def called(self) -> str:
        """Returns the folder, and the hash of the schema that its states must have."""
        return f"{self.name} (schema {self.manifest.schema_.hash})"

    def actions(self, states: FloatArray) -> FloatArray:
        """Returns the network's output (N,) in [-1, 1] for states (N, S)."""
        if len(states) == 0:
            return np.empty(0, np.float32)
        (actions,) = self._session.run([OUTPUT_NAME], {INPUT_NAME: np.ascontiguousarray(states, np.float32)})
        return np.asarray(actions, np.float32).reshape(-1)

    def outputs(self, states: FloatArray) -> FloatArray:
        """Returns the actions for states (N, S)."""
        return self.actions(states)

    def decide(self, stats: StatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """Returns caps in packets (N,), 0 = none; INVALID_CAP_PKTS where the network gave no finite number."""
        actions = self.actions(states)
        finite = np.isfinite(actions)
        caps = caps_from_actions(
            self.manifest.schema_.head,
            np.where(finite, actions, np.float32(0)),
            np.ascontiguousarray(stats["cwnd_pkts"]),
            rule_pkts,
            self.ceiling_pkts,
        )
        return np.where(finite, caps, np.uint32(INVALID_CAP_PKTS)).astype(np.uint32)


def _queueing_target_range_ms(manifest: Manifest) -> tuple[float, float] | None:
    """Returns the range of targets above the minimum RTT that the training drew from, None where nothing says so."""
    links = manifest.training.config.get("links")  # as the version that trained it wrote it down
    limits = links.get("queueing_target_ms") if isinstance(links, Mapping) else None
    match limits:
        case [int() | float() as low_ms, int() | float() as high_ms]:
            return float(low_ms), float(high_ms)
    return None
