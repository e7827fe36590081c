"""What is replayed: scenarios that run on any adapter. `pytest scenarios/` or `fencepost run`."""
