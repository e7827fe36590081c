"""One connection, spoken to in named statements and plain transactions.

Every statement is one round trip, in the order the code reads: no pipeline, no savepoint, nothing implicit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.rows import DictRow, dict_row

Parameters = Mapping[str, object]

_IN_TRANSACTION = (TransactionStatus.INTRANS, TransactionStatus.INERROR)


class Session:
    """Runs named statements. Never used by two threads at once."""

    def __init__(self, connection: psycopg.Connection[Any], statements: Mapping[str, str]) -> None:
        if not connection.autocommit:
            raise ValueError(
                "the connection must be in autocommit mode: the queue sends BEGIN and COMMIT itself"
            )
        self.connection = connection
        self._statements = statements
        self._cursor: psycopg.Cursor[DictRow] = connection.cursor(row_factory=dict_row)

    def rows(self, name: str, parameters: Parameters) -> list[DictRow]:
        return self._execute(name, parameters).fetchall()

    def row(self, name: str, parameters: Parameters) -> DictRow | None:
        return self._execute(name, parameters).fetchone()

    def run(self, name: str, parameters: Parameters) -> None:
        self._execute(name, parameters)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What `commit` has not been called for is rolled back: a refusal as well as an error."""
        self.begin()
        try:
            yield
        except BaseException:
            # The reason the transaction failed is worth more than the failure to roll it back on a dead
            # connection, where the server does it.
            with suppress(psycopg.Error):
                self._roll_back_if_open()
            raise
        self._roll_back_if_open()

    def begin(self) -> None:
        self._control("begin")

    def commit(self) -> None:
        self._control("commit")

    def _execute(self, name: str, parameters: Parameters) -> psycopg.Cursor[DictRow]:
        # Prepared from the first execution on: psycopg's default, after the fifth, would change what goes
        # over the wire in the middle of a run.
        return self._cursor.execute(self._statements[name].encode(), parameters, prepare=True)

    def _control(self, name: str) -> None:
        # Not prepared: without parameters it travels as a simple query, which is as short as it gets.
        self._cursor.execute(self._statements[name].encode(), prepare=False)

    def _roll_back_if_open(self) -> None:
        connection = self.connection
        if connection.info.transaction_status not in _IN_TRANSACTION:
            return
        # Not through psycopg's cursor: at a ROLLBACK it throws its prepared statements away (DEALLOCATE ALL
        # and a new Parse for each), because they may name objects the transaction created. Ours never do, and
        # a refusal must not change which statements the next operation sends.
        result = connection.pgconn.exec_(self._statements["rollback"].encode())
        if result.status != ExecStatus.COMMAND_OK:
            raise psycopg.OperationalError(result.get_error_message())
