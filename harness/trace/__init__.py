"""The trace: the event log of one run, as versioned JSON Lines. The only input of reports, replays and exports."""

from fencepost.harness.trace.canonical import canonical, canonical_hash
from fencepost.harness.trace.format import FORMAT_VERSION, Trace, TraceError, read_trace, write_trace
from fencepost.harness.trace.record import step_to_json

__all__ = [
    "FORMAT_VERSION",
    "Trace",
    "TraceError",
    "canonical",
    "canonical_hash",
    "read_trace",
    "step_to_json",
    "write_trace",
]
