"""TensorBoard event files, with TensorBoard's own record format and messages; TensorFlow and torch are not needed."""

import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.custom_scalar import metadata as custom_scalars
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from reinet.core.closing import Closing

PREFIX = "events.out.tfevents."
"""TensorBoard reads files with this in their names."""
RECORD_OVERHEAD_BYTES = 16
"""The record's length and two checksums."""
_PNG_SIZE = struct.Struct(">II")
_PNG_SIZE_AT = 16
"""A PNG begins with 8 bytes of signature, 4 of length and 4 of type; width and height follow."""
_RGBA = 4


class EventFile(Closing):
    """One event file, which makes its folder a run."""

    def __init__(
        self, folder: Path, wall_s: float, suffix: str, spend_bytes: Callable[[int], None] | None = None
    ) -> None:
        """Makes the folder and the file; raises OSError where it cannot be written.

        ``spend_bytes`` is told the size of each record before it is written; what it raises keeps the record out.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._spend_bytes = spend_bytes
        self._file = self.path(folder, wall_s, suffix).open("wb")
        try:
            self._append(Event(wall_time=wall_s, file_version="brain.Event:2"))
        except BaseException:
            self._file.close()
            raise

    @staticmethod
    def path(folder: Path, wall_s: float, suffix: str) -> Path:
        """Returns where a file with these arguments lies: names sort by the time of their start."""
        return folder / f"{PREFIX}{int(wall_s):010d}.reinet.{os.getpid()}.{suffix}"

    @property
    def name(self) -> str:
        """Returns the file's path."""
        return self._file.name

    def add(self, values: Sequence[Any], step: int, wall_s: float) -> None:
        """Writes values (``Summary.Value``) of one step; raises OSError."""
        self._append(Event(wall_time=wall_s, step=step, summary=Summary(value=values)))

    def begin_again(self, step: int, wall_s: float) -> None:
        """Has TensorBoard forget what earlier files of the folder say of this step and later ones; raises OSError."""
        self._append(Event(wall_time=wall_s, step=step, session_log=SessionLog(status=SessionLog.START)))

    def flush(self) -> None:
        """Hands what was written to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Ends the file; raises OSError where its tail cannot be written."""
        self._file.close()

    def _append(self, event: Any) -> None:
        data = event.SerializeToString()
        if self._spend_bytes is not None:
            self._spend_bytes(len(data) + RECORD_OVERHEAD_BYTES)
        RecordWriter(self._file).write(data)


def scalar(tag: str, value: float) -> Any:
    """Returns a scalar."""
    return Summary.Value(tag=tag, simple_value=value)


def page(layout: Any) -> Any:
    """Returns the layout of the page *Custom Scalars*, of ``reinet.core.tensorboard.curves.layout``."""
    return _bytes(custom_scalars.CONFIG_SUMMARY_TAG, custom_scalars.PLUGIN_NAME, layout.SerializeToString())


def text(tag: str, markdown: str) -> Any:
    """Returns a text, which TensorBoard shows as Markdown."""
    return _bytes(tag, text_metadata.PLUGIN_NAME, markdown.encode())


def image(tag: str, png: bytes) -> Any:
    """Returns a picture, of the content of a PNG file."""
    width, height = _PNG_SIZE.unpack_from(png, _PNG_SIZE_AT)
    picture = Summary.Image(width=width, height=height, colorspace=_RGBA, encoded_image_string=png)
    return Summary.Value(tag=tag, image=picture)


def _bytes(tag: str, plugin: str, content: bytes) -> Any:
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))
    return Summary.Value(tag=tag, metadata=metadata, tensor=TensorProto(dtype=DT_STRING, string_val=[content]))
