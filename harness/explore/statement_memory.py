"""What statements were found to touch, kept from one order to the next: a search sends the same few over and over."""

from __future__ import annotations

from fencepost.harness.explore.catalog import Catalog
from fencepost.harness.explore.dependency import Transaction, statement
from fencepost.harness.explore.footprint import Footprint
from fencepost.harness.gate.statements import Statement

MOST_KEPT = 65_536


class StatementMemory:
    """Of one database: what a statement touches depends on its text, its parameters and the transaction it is in."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._kept: dict[tuple[str, bytes | None, Transaction], tuple[Footprint, Transaction]] = {}

    def touched(self, sent: Statement, before: Transaction) -> tuple[Footprint, Transaction]:
        """What the statement touches, and the transaction after it."""
        key = (sent.sql, sent.bind, before)
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            found = self._kept[key] = statement(sent.sql, sent.parameters, before, self._catalog)
        return found
