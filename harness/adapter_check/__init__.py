"""`fencepost adapter check`: an adapter on its own, before any race. Each check is one sentence of the contract.

A race on a wrong adapter fails in a roundabout way, or passes for nothing. These say what is wrong and what to do.
"""

from fencepost.harness.adapter_check.findings import CheckResult
from fencepost.harness.adapter_check.plan import check_adapter

__all__ = ["CheckResult", "check_adapter"]
