"""A small learned policy on its way into a process: checked here, flat there, where nothing parses ONNX."""

import base64
import struct

import numpy as np
from numpy.typing import NDArray

from reinet.core.errors import ModelError
from reinet.core.features import HEADS, FeatureSet
from reinet.core.normaliser import Normaliser
from reinet.core.period import PeriodConfig
from reinet.core.state import room_beyond_us

MAGIC = b"REINETM3"
MOST_CHARACTERS = 120 * 1024
"""Linux takes 128 KiB as one variable of an environment. ``checkpoints/small`` needs 20 KB, ``default`` 31 KB, the
paper's network 6 MB."""

Layers = list[tuple[NDArray[np.float32], NDArray[np.float32]]]
"""The weight (out, in) and bias (out,) of each layer."""


def text_of(
    feature_set: FeatureSet,
    head: str,
    period: PeriodConfig,
    normaliser: Normaliser,
    layers: Layers,
    calm_rtts: float,
    room_beyond_ms: float | None,
    name: str,
) -> str:
    """Returns the model as ``alcc/laws/model.hpp`` reads it; raises ModelError for one that is too large."""
    parts = [
        MAGIC,
        struct.pack(
            "<7IQdd",
            feature_set.number, feature_set.version, feature_set.history, HEADS.index(head), period.packet_timed,
            len(normaliser.table), len(layers), period.min_period_ns, calm_rtts,
            room_beyond_us(room_beyond_ms),
        ),
        normaliser.table.astype("<f8").tobytes(),
    ]  # fmt: skip
    for weight, bias in layers:
        parts += [struct.pack("<2I", *weight.T.shape), weight.T.astype("<f4").tobytes(), bias.astype("<f4").tobytes()]
    text = base64.b64encode(b"".join(parts)).decode()
    if len(text) > MOST_CHARACTERS:
        raise ModelError(
            f"{name}: too large to decide in a program's own process ({len(text) // 1000} KB of at most "
            f"{MOST_CHARACTERS // 1000}); take a smaller model, such as checkpoints/small"
        )
    return text
