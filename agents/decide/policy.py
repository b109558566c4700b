"""The learned policy at work: a checked model folder run by onnxruntime. Needs neither torch nor Ray."""

from pathlib import Path

import numpy as np
import onnxruntime

from reinet.agents.decide.baselines import CapArray, FloatArray, StatsArray
from reinet.agents.decide.guard import INVALID_CAP_PKTS
from reinet.agents.model.artifact import INPUT_NAME, OUTPUT_NAME, Artifact, Manifest, load_artifact
from reinet.core import MAX_CAP_PKTS, Normaliser, PeriodConfig, caps_from_actions
from reinet.core.errors import ModelError


class Policy:
    """An agent that asks the network. States must come from a StateBank with this policy's feature set and
    normaliser."""

    def __init__(self, artifact: Artifact, ceiling_pkts: int = MAX_CAP_PKTS) -> None:
        self.name = str(artifact.folder)
        self.artifact = artifact
        self.ceiling_pkts = ceiling_pkts
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
    def load(cls, folder: Path | str, manifest_sha256: str | None = None, ceiling_pkts: int = MAX_CAP_PKTS) -> "Policy":
        """From a model folder, checked; raises ModelError."""
        return cls(load_artifact(folder, manifest_sha256), ceiling_pkts)

    @property
    def manifest(self) -> Manifest:
        """The model's manifest."""
        return self.artifact.manifest

    @property
    def normaliser(self) -> Normaliser:
        """The statistics the model was trained with."""
        return self.artifact.normaliser

    @property
    def feature_set(self) -> str:
        """Name of the feature set its states have."""
        return self.manifest.schema_.feature_set

    @property
    def head(self) -> str:
        """What its actions mean: "cwnd" or "bdp"."""
        return self.manifest.schema_.head

    @property
    def period(self) -> PeriodConfig:
        """When its records are due."""
        rule = self.manifest.period
        return PeriodConfig(round(rule.min_ms * 1e6), rule.packet_timed)

    def reset(self) -> None:
        """Holds no state; history lives in the StateBank."""

    def actions(self, states: FloatArray) -> FloatArray:
        """The network's output (N,) in [-1, 1] for states (N, S)."""
        if len(states) == 0:
            return np.empty(0, np.float32)
        (actions,) = self._session.run([OUTPUT_NAME], {INPUT_NAME: np.ascontiguousarray(states, np.float32)})
        return np.asarray(actions, np.float32).reshape(-1)

    def decide(self, stats: StatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """Caps in packets (N,), 0 = none; INVALID_CAP_PKTS where the network gave no finite number."""
        actions = self.actions(states)
        finite = np.isfinite(actions)
        caps = caps_from_actions(
            self.head,
            np.where(finite, actions, np.float32(0)),
            np.ascontiguousarray(stats["cwnd_pkts"]),
            rule_pkts,
            self.ceiling_pkts,
        )
        return np.where(finite, caps, np.uint32(INVALID_CAP_PKTS)).astype(np.uint32)
