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


@dataclass(frozen=True, eq=False)
class Catalog:
    """Compared by identity: it is read once per database and is the key of a cache."""

    tables: Mapping[str, Table] = field(default_factory=lambda: MappingProxyType({}))
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


def catalog(
    *tables: Table, search_path: tuple[str, ...] = ("public",), read_committed: bool = True
) -> Catalog:
    return Catalog(MappingProxyType({table.name: table for table in tables}), search_path, read_committed)


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
    row = connection.execute(
        "SELECT current_schemas(false)::text[], current_setting('default_transaction_isolation')"
    ).fetchone()
    assert row is not None
    search_path, isolation = row
    return catalog(*tables, search_path=tuple(search_path), read_committed=isolation == "read committed")
