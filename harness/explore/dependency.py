"""What a SQL statement touches, read off its text and parameters by PostgreSQL's own parser.

Sound before precise: rows count as single rows only where equality on the whole primary key proves it; a scan, a
join or a sub-query touches whole tables; what is not in the lists below (a function, a kind of statement, a table that
is not plain, an isolation level other than READ COMMITTED) is unknown and depends on everything.

Known limits, each for a queue odd enough: an operator or cast defined by the user with side effects, and an
application that reads two rows' time stamps one by one and compares them itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import pgparse

from fencepost.harness.explore.catalog import Catalog, Table
from fencepost.harness.explore.footprint import NOTHING, UNKNOWN, Access, Footprint, Key, Mode

CLOCK: Final = "clock"
UNTOLD: Final = object()
"""A parameter whose value nobody could read off the wire."""

_CLOCK_FUNCTIONS: Final = frozenset(
    {"now", "clock_timestamp", "statement_timestamp", "transaction_timestamp", "timeofday"}
)
_PURE_FUNCTIONS: Final = frozenset(
    """
    abs any_value array_agg array_append array_length array_position array_remove array_to_string avg
    bool_and bool_or btrim cardinality ceil ceiling concat concat_ws count date_part date_trunc decode
    dense_rank encode every extract floor format gen_random_uuid generate_series hashtext isfinite
    json_agg json_build_array json_build_object jsonb_agg jsonb_array_elements jsonb_array_length
    jsonb_build_array jsonb_build_object jsonb_set jsonb_typeof left length lower ltrim make_interval max
    md5 min mod position power random rank replace right round row_number row_to_json rtrim sign
    split_part sqrt starts_with string_agg string_to_array strpos substr substring sum to_char to_json
    to_jsonb to_timestamp trunc unnest upper
    """.split()  # noqa: SIM905 - a list of a hundred quoted words is unreadable
)
_KNOWN_NODES: Final = frozenset(
    """
    SelectStmt InsertStmt UpdateStmt DeleteStmt TransactionStmt DefElem RangeVar RangeSubselect
    RangeFunction JoinExpr CommonTableExpr SubLink LockingClause ResTarget ColumnRef A_Star A_Const A_Expr
    A_ArrayExpr A_Indirection A_Indices BoolExpr NullTest BooleanTest ParamRef TypeCast CaseExpr CaseWhen
    CoalesceExpr MinMaxExpr RowExpr SetToDefault MultiAssignRef CollateClause FuncCall SQLValueFunction
    SortBy WindowDef IndexElem List String Integer Float Boolean BitString
    """.split()  # noqa: SIM905 - a list of a hundred quoted words is unreadable
)
_INTEGERS: Final = frozenset({"smallint", "integer", "bigint", "int2", "int4", "int8"})
_TEXTS: Final = frozenset({"text", "character varying", "varchar"})

Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Transaction:
    """A session's open transaction: what it touched so far. True after each statement that went well."""

    open: bool = False
    touched: Footprint = NOTHING


IDLE: Final = Transaction()


def statement(
    sql: str, parameters: Sequence[object], transaction: Transaction, catalog: Catalog
) -> tuple[Footprint, Transaction]:
    """What the statement touches, and the transaction after it. `parameters` are $1, $2, … as Python values."""
    shape = _shape(sql, catalog)
    if shape.begins:
        touched = UNKNOWN if shape.unknown else transaction.touched
        return _READS_CLOCK | (UNKNOWN if shape.unknown else NOTHING), Transaction(True, touched)
    if shape.ends is not None:
        return ended(transaction, committed=shape.ends), IDLE
    touched = UNKNOWN if shape.unknown else _bound(shape, parameters)
    after = Transaction(True, transaction.touched | touched)
    if transaction.open:
        # In a transaction that is not READ COMMITTED a plain read may be as old as the transaction.
        return (UNKNOWN if transaction.touched.unknown else touched), after
    return touched | ended(after, committed=True), IDLE


def ended(transaction: Transaction, *, committed: bool) -> Footprint:
    """What the end of a transaction does to others. A statement's error ends it as a rollback does, at once."""
    if transaction.touched.unknown:
        return UNKNOWN
    wrote = {(a.thing, a.key) for a in transaction.touched.accesses if a.mode is Mode.WRITE}
    locked = {(a.thing, a.key) for a in transaction.touched.accesses if a.mode is Mode.LOCK}
    accesses = {Access(thing, Mode.RELEASE, key) for thing, key in locked | wrote}
    if committed:
        accesses |= {Access(thing, Mode.PUBLISH, key) for thing, key in wrote}
    return Footprint(frozenset(accesses))


_READS_CLOCK: Final = Footprint(frozenset({Access(CLOCK, Mode.READ)}))

# -- the statement's shape, without its parameters -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Term:
    """A value in the text or a parameter; with `each`, an array of them."""

    value: object = None
    parameter: int = 0
    each: bool = False


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a table by their key, or all of them, and what is done to them."""

    table: Table
    modes: tuple[Mode, ...]
    keys: tuple[tuple[_Term, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class _Shape:
    rows: tuple[_Rows, ...] = ()
    also: frozenset[Access] = frozenset()
    unknown: bool = False
    begins: bool = False
    ends: bool | None = None  # True: by a commit


_UNKNOWN: Final = _Shape(unknown=True)
_READ: Final = (Mode.READ,)
_CHECK: Final = (Mode.READ, Mode.LOCK)
_CHANGE: Final = (Mode.READ, Mode.LOCK, Mode.WRITE)


@lru_cache(maxsize=4_096)
def _shape(sql: str, catalog: Catalog) -> _Shape:
    try:
        parsed = pgparse.parse(sql)
    except pgparse.PGQueryError:
        return _UNKNOWN
    if not parsed:
        return _Shape()
    if len(parsed) > 1:
        return _UNKNOWN
    ((kind, body),) = parsed[0]["stmt"].items()
    if not all(name in _KNOWN_NODES for name in _node_names(parsed[0]["stmt"])):
        return _UNKNOWN
    if kind == "TransactionStmt":
        return _transaction(body, catalog)
    functions = _functions(body)
    if functions is None:
        return _UNKNOWN
    shape = _one_table(kind, body, catalog) or _whole_tables(kind, body, catalog)
    return replace(shape, also=shape.also | _READS_CLOCK.accesses) if functions else shape


def _transaction(body: Node, catalog: Catalog) -> _Shape:
    kind = body["kind"]
    if body.get("chain"):
        return _UNKNOWN
    if kind in ("TRANS_STMT_BEGIN", "TRANS_STMT_START"):
        levels = [
            option["DefElem"]["arg"]["A_Const"]["sval"]["sval"]
            for option in body.get("options", ())
            if option["DefElem"]["defname"] == "transaction_isolation"
        ]
        committed = levels == ["read committed"] if levels else catalog.read_committed
        return _Shape(begins=True, unknown=not committed)
    if kind in ("TRANS_STMT_COMMIT", "TRANS_STMT_ROLLBACK"):
        return _Shape(ends=kind == "TRANS_STMT_COMMIT")
    return _UNKNOWN


def _dicts(tree: object) -> Iterator[Node]:
    if isinstance(tree, Mapping):
        yield tree
        for value in tree.values():
            yield from _dicts(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _dicts(value)


def _node_names(tree: object) -> Iterator[str]:
    return (name for node in _dicts(tree) for name in node if name[0].isupper())


def _functions(body: Node) -> bool | None:
    """Whether the clock is read; None: something is called, or written as an operator, that could do anything."""
    clock = False
    for node in _dicts(body):
        if "funcname" in node:
            names = [part["String"]["sval"] for part in node["funcname"]]
            if len(names) > 1 and names[0] != "pg_catalog":
                return None
            if names[-1] in _CLOCK_FUNCTIONS:
                clock = True
            elif names[-1] not in _PURE_FUNCTIONS:
                return None
        if "SQLValueFunction" in node:
            clock = True
        if "A_Expr" in node and len(node["A_Expr"].get("name", ())) > 1:
            return None  # OPERATOR(schema.+)
        # 'now'::timestamptz reads the clock, whatever letters it is written in.
        if "TypeCast" in node and "sval" in node["TypeCast"]["arg"].get("A_Const", {}):
            clock = clock or _type_name(node["TypeCast"]["typeName"]) in (
                "timestamptz", "timestamp", "date", "time", "timetz",
            )  # fmt: skip
    return clock


def _type_name(type_name: Node) -> str:
    return str(type_name["names"][-1]["String"]["sval"])


def _table(node: Node, catalog: Catalog) -> Table | None:
    return None if "catalogname" in node else catalog.find(node.get("schemaname"), node["relname"])


# -- one table, perhaps by its key -----------------------------------------------------------------------------------


def _one_table(kind: str, body: Node, catalog: Catalog) -> _Shape | None:
    """None: not of that simple form."""
    named = [node for node in _dicts(body) if "relname" in node]
    if len(named) != 1 or "withClause" in body:
        return None
    table = _table(named[0], catalog)
    if table is None:
        return _UNKNOWN
    if kind == "InsertStmt":
        return _insert(body, table, catalog)
    if kind == "SelectStmt":
        source = body.get("fromClause", ())
        if len(source) != 1 or source[0].get("RangeVar") is not named[0] or body["op"] != "SETOP_NONE":
            return None
        modes: tuple[Mode, ...] = _CHECK if "lockingClause" in body else _READ
        touched: frozenset[str] | None = frozenset()
    elif kind in ("UpdateStmt", "DeleteStmt") and body["relation"] is named[0]:
        modes = _CHANGE
        touched = _set_columns(body, table) if kind == "UpdateStmt" else None
    else:
        return None
    keys = _keys(body.get("whereClause"), table, named[0])
    if kind == "UpdateStmt" and "SetToDefault" in _node_names(body["targetList"]):
        return None  # a default may draw from a sequence
    if keys is None or not _keeps_to_its_row(table, touched):
        return None
    rows = [_Rows(table, modes, keys)]
    also: set[Access] = set()
    if modes is _CHANGE:
        also.add(Access(table.name, Mode.MARK))
        rows += _checks_of_references(table, touched, catalog)
    if len(keys) != 1 or any(term.each for key in keys for term in key):
        also.add(Access(table.name, Mode.REVEAL))
    return _Shape(tuple(rows), frozenset(also))


def _set_columns(body: Node, table: Table) -> frozenset[str]:
    """With the generated ones, which any other may change."""
    return frozenset(target["ResTarget"]["name"] for target in body["targetList"]) | table.generated


def _keeps_to_its_row(table: Table, touched: frozenset[str] | None) -> bool:
    """Whether a change by key cannot meet another row in some unique index. None: a delete, which frees values."""
    key = frozenset(table.key)
    foreign = [index for index in table.unique if not key <= index.columns]
    if touched is None:
        return not foreign
    return not touched & key and not any(index.depends_on & touched for index in foreign)


def _checks_of_references(table: Table, touched: frozenset[str] | None, catalog: Catalog) -> list[_Rows]:
    """Rows of other tables a foreign key makes a change look at. None: all columns."""
    rows = []
    for reference in table.references:
        if touched is None or touched & set(reference.columns):
            target = catalog.tables.get(reference.target)
            rows.append(_Rows(target or Table(reference.target), _CHECK))
    for other, reference in catalog.referring_to(table.name):
        if touched is None or touched & set(reference.target_columns):
            rows.append(_Rows(other, _CHECK))
    return rows


def _insert(body: Node, table: Table, catalog: Catalog) -> _Shape:
    columns = [column["ResTarget"]["name"] for column in body.get("cols", ())] or list(table.columns)
    lists = [
        row["List"]["items"]
        for row in body.get("selectStmt", {}).get("SelectStmt", {}).get("valuesLists", ())
    ]
    given = [dict(zip(columns, map(_term, row), strict=False)) for row in lists]
    key = frozenset(table.key)
    keys = None
    if given and all(key <= index.columns for index in table.unique) and "onConflictClause" not in body:
        keys = _terms_of(given, table.key)
    rows = [_Rows(table, _CHANGE, keys)]
    for reference in table.references:
        target = catalog.tables.get(reference.target)
        if target is None:
            return _UNKNOWN
        pairs = dict(zip(reference.target_columns, reference.columns, strict=True))
        through = [pairs.get(column, "") for column in target.key]
        rows.append(_Rows(target, _CHECK, _terms_of(given, through)))
    also = {Access(table.name, Mode.MARK)}
    if table.from_sequence - {column for row in given[:1] for column in row}:
        also.add(Access(f"sequences of {table.name}", Mode.SET))
    if table.reads_clock:
        also |= _READS_CLOCK.accesses
    return _Shape(tuple(rows), frozenset(also))


def _terms_of(
    given: Sequence[Mapping[str, _Term | None]], columns: Sequence[str]
) -> tuple[tuple[_Term, ...], ...] | None:
    """Each row's values of these columns; None where one of them is not plain to see."""
    keys = []
    for row in given:
        terms = [row.get(column) for column in columns]
        if not terms or any(term is None for term in terms):
            return None
        keys.append(tuple(term for term in terms if term is not None))
    return tuple(keys) or None


def _keys(where: Node | None, table: Table, named: Node) -> tuple[tuple[_Term, ...], ...] | None:
    """The keys the condition confines the statement to; None: it may touch any row."""
    if where is None or not table.key:
        return None
    found: dict[str, tuple[_Term, ...]] = {}
    for part in _conjuncts(where):
        column, terms = _equality(part, named)
        if column in table.key and column not in found:
            found[column] = terms
    if set(found) != set(table.key):
        return None
    if len(table.key) == 1:
        return tuple((term,) for term in found[table.key[0]])
    if any(len(terms) != 1 or terms[0].each for terms in found.values()):
        return None
    return (tuple(found[column][0] for column in table.key),)


def _conjuncts(where: Node) -> Iterator[Node]:
    if where.get("BoolExpr", {}).get("boolop") == "AND_EXPR":
        for part in where["BoolExpr"]["args"]:
            yield from _conjuncts(part)
    else:
        yield where


def _equality(part: Node, named: Node) -> tuple[str, tuple[_Term, ...]]:
    """`column = value`, `column IN (values)`, `column = ANY(array)`; else no column at all."""
    nothing = ("", ())
    expression = part.get("A_Expr", {})
    if [name["String"]["sval"] for name in expression.get("name", ())] != ["="]:
        return nothing
    column = _column(expression["lexpr"], named)
    right = expression["rexpr"]
    match expression["kind"]:
        case "AEXPR_OP":
            if column is None:
                column, right = _column(right, named), expression["lexpr"]
            terms = [_term(right)]
        case "AEXPR_IN":
            terms = [_term(item) for item in right["List"]["items"]]
        case "AEXPR_OP_ANY" if "A_ArrayExpr" in right:
            terms = [_term(item) for item in right["A_ArrayExpr"].get("elements", ())]
        case "AEXPR_OP_ANY":
            term = _term(right, array=True)
            terms = [None if term is None else replace(term, each=True)]
        case _:
            return nothing
    if column is None or not terms or any(term is None for term in terms):
        return nothing
    return column, tuple(term for term in terms if term is not None)


def _column(node: Node, named: Node) -> str | None:
    fields = [field.get("String", {}).get("sval") for field in node.get("ColumnRef", {}).get("fields", ())]
    if not fields or None in fields:
        return None
    called = named.get("alias", {}).get("aliasname", named["relname"])
    if len(fields) == 1 or (len(fields) == 2 and fields[0] == called):
        return str(fields[-1])
    return None


def _term(node: Node, *, array: bool = False) -> _Term | None:
    if "ParamRef" in node:
        return _Term(parameter=node["ParamRef"]["number"])
    if "TypeCast" in node:
        # A cast may change the value ('1.6'::int), unless it is to a type keys are compared in anyway.
        kept = _INTEGERS | _TEXTS | {"uuid"}
        is_array = "arrayBounds" in node["TypeCast"]["typeName"]
        if _type_name(node["TypeCast"]["typeName"]) in kept and is_array == array:
            return _term(node["TypeCast"]["arg"], array=array)
        return None
    constant = node.get("A_Const")
    if constant is None or array or constant.get("isnull"):
        return None
    if "ival" in constant:
        return _Term(value=int(constant["ival"].get("ival", 0)))
    if "sval" in constant:
        return _Term(value=str(constant["sval"].get("sval", "")))
    return None


# -- anything else: whole tables -------------------------------------------------------------------------------------


def _whole_tables(kind: str, body: Node, catalog: Catalog) -> _Shape:
    own = {node["CommonTableExpr"]["ctename"] for node in _dicts(body) if "CommonTableExpr" in node}
    changed = [node["relation"] for node in [{kind: body}, *_dicts(body)] for node in node.values()
               if isinstance(node, Mapping) and isinstance(node.get("relation"), Mapping)]  # fmt: skip
    locks = any("lockingClause" in node for node in _dicts(body))
    rows: list[_Rows] = []
    also: set[Access] = set()
    for node in _dicts(body):
        if "relname" not in node:
            continue
        is_changed = any(node is target for target in changed)
        if not is_changed and "schemaname" not in node and node["relname"] in own:
            continue
        table = _table(node, catalog)
        if table is None:
            return _UNKNOWN
        also.add(Access(table.name, Mode.REVEAL))
        rows.append(_Rows(table, _CHANGE if is_changed else _CHECK if locks else _READ))
        if is_changed:
            rows += _checks_of_references(table, None, catalog)
            also |= {Access(table.name, Mode.MARK), Access(f"sequences of {table.name}", Mode.SET)}
            also |= _READS_CLOCK.accesses if table.reads_clock else frozenset()
    return _Shape(tuple(rows), frozenset(also))


# -- with its parameters ---------------------------------------------------------------------------------------------


def _bound(shape: _Shape, parameters: Sequence[object]) -> Footprint:
    accesses = set(shape.also)
    for rows in shape.rows:
        keys = _bound_keys(rows, parameters)
        for mode in rows.modes:
            accesses |= {Access(rows.table.name, mode, key) for key in keys}
    return Footprint(frozenset(accesses))


def _bound_keys(rows: _Rows, parameters: Sequence[object]) -> Sequence[Key | None]:
    if rows.keys is None:
        return [None]
    found: list[Key | None] = []
    for terms in rows.keys:
        values = [_value(term, parameters) for term in terms]
        if terms[0].each:
            if not isinstance(values[0], list | tuple):
                return [None]
            choices = [[value] for value in values[0]]
        else:
            choices = [values]
        for choice in choices:
            key = [_comparable(value, of) for value, of in zip(choice, rows.table.key_types, strict=True)]
            if None in key:
                return [None]
            found.append(tuple(key))
    return found


def _value(term: _Term, parameters: Sequence[object]) -> object:
    if not term.parameter:
        return term.value
    return parameters[term.parameter - 1] if term.parameter <= len(parameters) else UNTOLD


def _comparable(value: object, column_type: str) -> int | str | UUID | None:
    """Equal exactly if the server takes them for equal; None where that is not certain."""
    try:
        if isinstance(value, str) and value.startswith("\\x"):
            # Off the wire in binary; a text that happens to look so is no number and no UUID either.
            binary = bytes.fromhex(value[2:])
            if column_type in _INTEGERS and len(binary) in (2, 4, 8):
                return int.from_bytes(binary, signed=True)
            return UUID(bytes=binary) if column_type == "uuid" else None
        if column_type in _INTEGERS and isinstance(value, int | str) and not isinstance(value, bool):
            return int(value)
        if column_type == "uuid" and isinstance(value, str | UUID):
            return UUID(str(value))
    except ValueError:
        return None
    return value if column_type in _TEXTS and isinstance(value, str) else None
