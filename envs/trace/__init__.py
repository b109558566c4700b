"""Traces of delivery opportunities: read and written, imported from other formats, generated from a model."""

from reinet.envs.trace.importers import import_trace
from reinet.envs.trace.model import generate
from reinet.envs.trace.set_file import load_traces
from reinet.envs.trace.trace import Trace

__all__ = ["Trace", "generate", "import_trace", "load_traces"]
