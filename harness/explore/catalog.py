"""What the dependency analysis must know of a database's tables. Only plain tables are in it: anything else
(a view, a partition, a trigger, a rule, a policy, a deferrable constraint) makes a table unknown, and with it every
statement that names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import psycopg


@dataclass(frozen=True, slots=True)
class Reference:
    """A foreign key: `columns` of the table that has it, in the order of `target_columns`."""

    columns: tuple[str, ...]
    target: str
    target_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """`columns` are compared; `depends_on` also has those of its expressions and of its WHERE."""

    columns: frozenset[str]
    depends_on: frozenset[str]


@dataclass(frozen=True, slots=True)
class Table:
    """As the server describes it; `name` is with its schema."""

    name: str
    key: tuple[str, ...] = ()  # of the primary key; empty: none
    key_types: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    unique: tuple[UniqueIndex, ...] = ()  # beside the primary key
    references: tuple[Reference, ...] = ()
    from_sequence: frozenset[str] = frozenset()  # columns whose default draws from a sequence
    generated: frozenset[str] = frozenset()
    reads_clock: bool = False  # some column's default may


@dataclass(frozen=True, slots=True)
class Drawn:
    """A column whose default draws from a sequence that no session keeps values of."""

    table: str
    column: str
    sequence: str  # as SQL names it
    start: int


@dataclass(frozen=True, eq=False)
class Catalog:
    """Compared by identity: it is read once per database and is the key of a cache."""

    tables: Mapping[str, Table] = field(default_factory=lambda: MappingProxyType({}))
    drawn: tuple[Drawn, ...] = ()
    search_path: tuple[str, ...] = ("public",)
    read_committed: bool = True  # the default of a transaction that does not say

    def find(self, schema: str | None, name: str) -> Table | None:
        if schema is not None:
            return self.tables.get(f"{schema}.{name}")
        return next(
            (self.tables[f"{s}.{name}"] for s in self.search_path if f"{s}.{name}" in self.tables), None
        )

    def referring_to(self, table: str) -> tuple[tuple[Table, Reference], ...]:
        return tuple(
            (other, reference)
            for other in self.tables.values()
            for reference in other.references
            if reference.target == table
        )

    def unsteady(self, restarted: frozenset[str]) -> frozenset[str]:
        """Tables of which one and the same row may have another key in another run of the same order.

        Only numbers from a sequence that begins anew for each run are the same in each, and what refers to such.
        """
        steady = {(drawn.table, drawn.column) for drawn in self.drawn if drawn.sequence in restarted}
        while (
            more := {
                (table.name, column)
                for table in self.tables.values()
                for reference in table.references
                for column, target in zip(reference.columns, reference.target_columns, strict=True)
                if (reference.target, target) in steady
            }
            - steady
        ):
            steady |= more
        return frozenset(
            table.name
            for table in self.tables.values()
            if any((table.name, column) not in steady for column in table.key)
        )


def catalog(
    *tables: Table,
    drawn: tuple[Drawn, ...] = (),
    search_path: tuple[str, ...] = ("public",),
    read_committed: bool = True,
) -> Catalog:
    named = MappingProxyType({table.name: table for table in tables})
    return Catalog(named, drawn, search_path, read_committed)


_TABLES: Final = """
SELECT
    n.nspname || '.' || c.relname,
    ARRAY(
        SELECT a.attname::text FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
    ),
    ARRAY(
        SELECT a.attname::text
        FROM pg_attribute a LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            AND (a.attidentity <> '' OR pg_get_expr(d.adbin, d.adrelid) LIKE '%nextval(%')
    ),
    ARRAY(
        SELECT a.attname::text FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attgenerated <> '' AND NOT a.attisdropped
    ),
    EXISTS (
        -- Anything but a constant, a sequence or a generated column may read the clock or worse.
        SELECT FROM pg_attribute a JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
        WHERE a.attrelid = c.oid AND a.attgenerated = '' AND pg_get_expr(d.adbin, d.adrelid) LIKE '%(%'
            AND pg_get_expr(d.adbin, d.adrelid) NOT LIKE '%nextval(%'
    )
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence IN ('p', 'u') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
    AND NOT c.relispartition AND NOT c.relhassubclass AND NOT c.relhasrules AND NOT c.relrowsecurity
    AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal)
    AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid)
    AND NOT EXISTS (
        SELECT FROM pg_constraint k WHERE c.oid IN (k.conrelid, k.confrelid)
            AND (
                k.condeferrable OR k.contype = 'x'
                OR (k.contype = 'f' AND (k.confdeltype, k.confupdtype) <> ('a', 'a'))
            )
    )
    -- A default or a check that calls a function nobody knows could do anything at all.
    AND NOT EXISTS (
        SELECT FROM pg_depend p
        WHERE p.refclassid = 'pg_proc'::regclass AND (
            (p.classid = 'pg_attrdef'::regclass AND p.objid IN (SELECT oid FROM pg_attrdef WHERE adrelid = c.oid))
            OR (
                p.classid = 'pg_constraint'::regclass
                AND p.objid IN (SELECT oid FROM pg_constraint WHERE conrelid = c.oid)
            )
        )
    )
"""

_INDEXES: Final = """
SELECT
    n.nspname || '.' || c.relname,
    i.indisprimary,
    ARRAY(
        SELECT DISTINCT a.attname::text FROM pg_depend p
        JOIN pg_attribute a ON a.attrelid = p.refobjid AND a.attnum = p.refobjsubid
        WHERE p.classid = 'pg_class'::regclass AND p.objid = i.indexrelid
            AND p.refclassid = 'pg_class'::regclass AND p.refobjid = c.oid AND p.refobjsubid > 0
    ),
    ARRAY(
        SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
        WHERE k.place <= i.indnkeyatts ORDER BY k.place
    ),
    ARRAY(
        SELECT format_type(a.atttypid, NULL) FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
        WHERE k.place <= i.indnkeyatts ORDER BY k.place
    )
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE i.indisunique AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
"""

_REFERENCES: Final = """
SELECT
    n.nspname || '.' || c.relname,
    tn.nspname || '.' || t.relname,
    ARRAY(
        SELECT a.attname::text FROM unnest(k.conkey) WITH ORDINALITY AS o (attnum, place)
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = o.attnum ORDER BY o.place
    ),
    ARRAY(
        SELECT a.attname::text FROM unnest(k.confkey) WITH ORDINALITY AS o (attnum, place)
        JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = o.attnum ORDER BY o.place
    )
FROM pg_constraint k
JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class t ON t.oid = k.confrelid JOIN pg_namespace tn ON tn.oid = t.relnamespace
WHERE k.contype = 'f'
"""

_DRAWN: Final = """
-- By a default, or as an identity, which depends on its table instead.
WITH uses AS (
    SELECT d.adrelid AS reloid, d.adnum AS attnum, p.refobjid AS seqoid
    FROM pg_attrdef d JOIN pg_depend p ON p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid
    WHERE p.refclassid = 'pg_class'::regclass
    UNION
    SELECT p.refobjid, p.refobjsubid, p.objid FROM pg_depend p
    WHERE p.classid = 'pg_class'::regclass AND p.refclassid = 'pg_class'::regclass AND p.deptype = 'i'
        AND p.refobjsubid > 0
)
SELECT n.nspname || '.' || c.relname, a.attname::text, s.seqrelid::regclass::text, s.seqstart
FROM uses u
JOIN pg_sequence s ON s.seqrelid = u.seqoid
JOIN pg_class c ON c.oid = u.reloid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = u.reloid AND a.attnum = u.attnum
WHERE s.seqcache = 1
ORDER BY 1, 2
"""


def read_catalog(connection: psycopg.Connection[Any]) -> Catalog:
    """As the database is now; a schema change makes it stale."""
    keys: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    unique: dict[str, list[UniqueIndex]] = {}
    for name, primary, depends_on, columns, types in connection.execute(_INDEXES.encode()):
        if primary:
            keys[name] = (tuple(columns), tuple(types))
        else:
            index = UniqueIndex(frozenset(columns), frozenset(columns) | frozenset(depends_on))
            unique.setdefault(name, []).append(index)
    references: dict[str, list[Reference]] = {}
    for name, target, columns, target_columns in connection.execute(_REFERENCES.encode()):
        references.setdefault(name, []).append(Reference(tuple(columns), target, tuple(target_columns)))
    tables = []
    for name, columns, from_sequence, generated, reads_clock in connection.execute(_TABLES.encode()):
        key, key_types = keys.get(name, ((), ()))
        tables.append(
            Table(
                name,
                key,
                key_types,
                tuple(columns),
                tuple(unique.get(name, ())),
                tuple(references.get(name, ())),
                frozenset(from_sequence),
                frozenset(generated),
                reads_clock,
            )
        )
    drawn = tuple(Drawn(*row) for row in connection.execute(_DRAWN.encode()))
    row = connection.execute(
        "SELECT current_schemas(false)::text[], current_setting('default_transaction_isolation')"
    ).fetchone()
    assert row is not None
    search_path, isolation = row
    return catalog(
        *tables,
        drawn=drawn,
        search_path=tuple(search_path),
        read_committed=isolation == "read committed",
    )
