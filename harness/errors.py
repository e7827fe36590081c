"""What can go wrong on the user's side of the harness, each as one sentence with the next step."""

from __future__ import annotations


class FencepostError(Exception):
    """Anything the harness says to its user instead of a traceback."""


class UsageError(FencepostError):
    """Bad input: a wrong option, a missing adapter, an unreachable server, a corrupt trace.

    The command exits with 2; pytest stops with its usage error.
    """


class StepDeadline(FencepostError):
    """A wait reached its deadline. The message names who was waited for, where, and what the server did."""
