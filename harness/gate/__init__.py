"""The gate: a proxy that frames the PostgreSQL protocol and holds any client before or after any statement."""

from fencepost.harness.gate.framing import ProtocolError
from fencepost.harness.gate.path import ConnectionView, GatePath, ParkedStatement
from fencepost.harness.gate.proxy import Gate, Upstream
from fencepost.harness.gate.rules import (
    Action,
    Cut,
    CutMidReply,
    Delay,
    InjectError,
    LoseReply,
    LoseRequest,
    ParkAfter,
    ParkBefore,
    Rule,
    SqlPattern,
    StatementAddress,
    StatementNumber,
    parse_action,
    parse_address,
    parse_rule,
)
from fencepost.harness.gate.statements import StatementRecord

__all__ = [
    "Action",
    "ConnectionView",
    "Cut",
    "CutMidReply",
    "Delay",
    "Gate",
    "GatePath",
    "InjectError",
    "LoseReply",
    "LoseRequest",
    "ParkAfter",
    "ParkBefore",
    "ParkedStatement",
    "ProtocolError",
    "Rule",
    "SqlPattern",
    "StatementAddress",
    "StatementNumber",
    "StatementRecord",
    "Upstream",
    "parse_action",
    "parse_address",
    "parse_rule",
]
