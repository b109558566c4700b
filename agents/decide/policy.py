"""The learned policy at work: a checked model folder run by onnxruntime. Needs neither torch nor Ray."""

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reinet.agents.decide.protocol import MODEL_IDENTITY, Agent, CapArray, FloatArray, Network, View
from reinet.agents.model.artifact import INPUT_NAME, OUTPUT_NAME, Artifact, Manifest, load_artifact
from reinet.agents.model.layers import layers_of
from reinet.alcc.launch import Law
from reinet.alcc.model import text_of
from reinet.core import FEATURE_SETS
from reinet.core.errors import ModelError
from reinet.core.records import FlowStatsArray
from reinet.core.states.caps import learned_caps

COST_STATES = 256
"""So many flows may have a record in one tick: a thousand with an RTT of 20 ms and ticks of 5 ms."""
MAX_COST_MS = 100.0
"""A fifth of a lease. The paper's network, the largest in use, took 10 to 18 ms on a core that others used too."""
COST_TRIES = 5
REFERENCE_QUEUEING_MS = 30.0
"""What DeepCC's target leaves for queueing, 50 ms on a path of 20: a training may have had no other."""


class Policy(Agent):
    """An agent that asks the network. Its view is its manifest's: it must be shown no other states."""

    aims_at_target = True

    def __init__(self, artifact: Artifact) -> None:
        manifest = artifact.manifest
        view = View(manifest.schema_.feature_set, artifact.normaliser, manifest.period.rule(), manifest.room_beyond_ms)
        super().__init__(str(artifact.folder), view)
        self.artifact = artifact
        self.trace_uses = manifest.training.traces
        self.target_range_ms = manifest.target_range_ms
        self.queueing_target_range_ms = _queueing_target_range_ms(manifest)
        self.congestion_controls = manifest.congestion_controls
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # newer versions would report their use
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # a batch takes tens of microseconds; threads would cost more than they give
        options.inter_op_num_threads = 1
        # What it refuses its exception says. By itself it writes the file's names to the terminal as they stand there,
        # and prints that it is going to try the same again.
        options.log_severity_level = 4
        try:
            with contextlib.redirect_stdout(None):
                self._session = onnxruntime.InferenceSession(
                    artifact.onnx_bytes, options, providers=["CPUExecutionProvider"]
                )
        except Exception as error:  # onnxruntime's exceptions share no base of their own
            raise ModelError(f"{artifact.folder}: onnxruntime refuses the model: {error}") from None
        self._check_cost()

    @classmethod
    def load(cls, folder: Path | str, manifest_sha256: str | None = None) -> "Policy":
        """Returns the policy of a model folder, checked; raises ModelError."""
        return cls(load_artifact(folder, manifest_sha256))

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns how to make it again, in another process or as a copy: onnxruntime's session is neither."""
        return Policy, (self.artifact,), {"ceiling_pkts": self.ceiling_pkts}

    def _check_cost(self) -> None:
        """Raises ModelError where a batch takes longer than a decision may be old.

        The shortest of a few counts, so that a busy host refuses no model.
        """
        states = np.zeros((COST_STATES, self.view.bank(1).feature_set.state_size), np.float32)
        took_ms = []
        for _ in range(COST_TRIES):
            start_s = time.perf_counter()
            self._session.run([OUTPUT_NAME], {INPUT_NAME: states})
            took_ms.append((time.perf_counter() - start_s) * 1e3)
            if took_ms[-1] <= MAX_COST_MS:
                return
        raise ModelError(
            f"{self.artifact.folder}: a batch of {COST_STATES} states takes {min(took_ms):.0f} ms, and at most "
            f"{MAX_COST_MS:g} ms are allowed: caps would answer what is long past; train a smaller network"
        )

    @property
    def manifest(self) -> Manifest:
        """Returns the model's manifest."""
        return self.artifact.manifest

    @property
    def identity(self) -> str:
        """Returns the hash of the manifest, which pins every other byte of the model."""
        return MODEL_IDENTITY + self.artifact.manifest_sha256

    @property
    def called(self) -> str:
        """Returns the folder, and the hash of the schema that its states must have."""
        return f"{self.name} (schema {self.manifest.schema_.hash})"

    def law_of_the_gate(self) -> Law:
        """Returns the network as plain layers; raises ModelError where a process of others cannot decide as it does."""
        schema, view = self.manifest.schema_, self.view
        text = text_of(
            FEATURE_SETS[schema.feature_set], schema.head, view.period, view.normaliser, layers_of(self.artifact),
            self.manifest.calm_rtts, view.room_beyond_ms, self.name,
        )  # fmt: skip
        return Law(self.name, text)

    def network(self) -> Network | None:
        """Returns the model's layers where its graph is a plain chain of them."""
        try:
            layers = layers_of(self.artifact)
        except ModelError:
            return None
        return Network(layers, self.manifest.schema_.head, self.manifest.calm_rtts)

    def outputs(self, states: FloatArray) -> FloatArray:
        """Returns the network's actions (N,) in [-1, 1] for states (N, S)."""
        if len(states) == 0:
            return np.empty(0, np.float32)
        (actions,) = self._session.run([OUTPUT_NAME], {INPUT_NAME: np.ascontiguousarray(states, np.float32)})
        return np.asarray(actions, np.float32).reshape(-1)

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """Returns caps in packets (N,), 0 = none; INVALID_CAP_PKTS where the network gave no finite number."""
        manifest = self.manifest
        return learned_caps(
            manifest.schema_.head, self.outputs(states), stats, rule_pkts, manifest.calm_rtts, self.ceiling_pkts
        )


def _queueing_target_range_ms(manifest: Manifest) -> tuple[float, float] | None:
    """Returns the range of targets above the minimum RTT that the training drew from, None where nothing says so."""
    links = manifest.training.config.get("links")  # as the version that trained it wrote it down
    if not isinstance(links, Mapping):
        return None
    if links.get("reference_share") == 1:
        return REFERENCE_QUEUEING_MS, REFERENCE_QUEUEING_MS
    match links.get("queueing_target_ms"):
        case [int() | float() as low_ms, int() | float() as high_ms]:
            return float(low_ms), float(high_ms)
    return None
