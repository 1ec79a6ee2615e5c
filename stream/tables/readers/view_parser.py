"""Parses the SELECT of a view: SQL restricted to a list of allowed constructs.

Allowed are expressions of one row (``view_syntax``), WHERE and joins. A lookup table is joined on all columns of its
key, and a table of people on the person.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NoReturn

from sqlglot import exp

from schemas import TableSource, View
from stream.optional_packages import pl
from stream.tables.readers import view_terms as terms
from stream.tables.readers.view_rows import PERSON_KIND, Join, TableUse, UsedKind, ViewPlan, column_label
from stream.tables.readers.view_syntax import SUPPORTED_JOINS_HINT, ExpressionParser, ViewError, ViewText
from stream.tables.readers.view_terms import ViewTerm
from stream.tables.table_errors import quote_name, quote_names

MAX_COLUMNS: Final = 256


def parse_view(source: TableSource) -> ViewPlan:
    """Return the plan of a source's view; only ViewError is raised, if the view is not accepted."""
    if source.view is None:
        raise ViewError("view: the source has none; give one")
    plan = _ViewParser(source.view, source.person).parse()
    wanted = map(source.column_of, (*source.attributes, *source.texts))
    if (missing := next((name for name in wanted if name not in plan.outputs), None)) is not None:
        raise ViewError(
            f"view: it selects no column {quote_name(missing)}; select it, or name the attribute's column in columns"
        )
    return plan


class _ViewParser:
    """Parses one view; ``_uses`` has the tables that are already parsed, by alias."""

    def __init__(self, view: View, person: str | None) -> None:
        columns = (name for table in view.tables.values() for name in (*table.columns, table.person or ""))
        self._text = ViewText(view.select, {*view.tables, *columns})
        self._tables = view.tables
        self._person = person
        self._uses: dict[str, TableUse] = {}
        self._columns: dict[str, dict[str, UsedKind]] = {}
        self._expressions = ExpressionParser(self._text, self._parse_column)

    def parse(self) -> ViewPlan:
        tree = self._text.parse()
        if not isinstance(tree, exp.Select):
            self._text.refuse(tree, "the text is no SELECT", "give SELECT … FROM …")
        select = self._text.parts(tree, "expressions", "from_", "joins", "where")
        if select["from_"] is None:
            self._text.refuse(tree, "a SELECT without FROM", "name a table of people after FROM")
        [table] = self._text.operands(select["from_"], "this")
        first = self._add_table(table)
        if first.table.key:
            self._text.refuse(
                table,
                f"FROM names the lookup table {quote_name(first.name)}",
                "name a table of people, and join the lookup table",
            )
        joins = tuple(map(self._parse_join, select["joins"] or ()))
        outputs = self._parse_outputs(select["expressions"] or ())
        where = None
        if select["where"] is not None:
            [inside] = self._text.operands(select["where"], "this")
            term = self._expressions.parse(inside)
            where = self._expressions.call_checked(inside, lambda: terms.require_condition(term))
        if unused := self._tables.keys() - {use.name for use in self._uses.values()}:
            raise ViewError(
                f"tables: the view does not use {quote_names(sorted(unused))}; join it, or leave it out"
            )
        if not first.columns:
            raise ViewError(f"view: it uses no column of {quote_name(first.alias)}; select one")
        return ViewPlan(first, joins, where, outputs)

    def _add_table(self, node: exp.Expr) -> TableUse:
        if not isinstance(node, exp.Table):
            self._text.refuse(
                node, "no table's name after FROM or JOIN", f"name one of {quote_names(self._tables)}"
            )
        parts = self._text.parts(node, "this", "alias")
        written = alias = self._text.name(parts["this"])
        if (name := _find_name(written, self._tables)) is None:
            self._text.refuse(
                node, f"no table {quote_name(written)} is declared", f"name one of {quote_names(self._tables)}"
            )
        if parts["alias"] is not None:
            alias = self._text.name(self._text.parts(parts["alias"], "this")["this"])
        if not alias.isidentifier():  # Polars reads a name that begins with ^ and ends with $ as a pattern.
            problem = f"the alias {quote_name(alias)} is no plain name"
            self._text.refuse(parts["alias"], problem, "use letters, digits and _", node)
        if _find_name(alias, self._uses) is not None:
            self._text.refuse(
                node, f"two tables are called {quote_name(alias)}", "give one of them an alias with AS"
            )
        table = self._tables[name]
        columns: dict[str, UsedKind] = {column: table.columns[column] for column in table.key}
        if table.person is not None:
            columns[table.person] = PERSON_KIND
        self._columns[alias] = columns
        self._uses[alias] = TableUse(name, alias, table, columns)
        return self._uses[alias]

    def _parse_join(self, node: exp.Expr) -> Join:
        parts = self._text.parts(node, "this", "on", "side", "kind")
        words = (str(parts["side"] or "").upper(), str(parts["kind"] or "").upper())
        if words not in {("", ""), ("", "INNER"), ("LEFT", ""), ("LEFT", "OUTER")} or parts["on"] is None:
            self._text.refuse(
                node, f"{' '.join(filter(None, words))} JOIN without ON".lstrip(), SUPPORTED_JOINS_HINT
            )
        earlier = list(self._uses)
        use = self._add_table(parts["this"])
        wanted = use.table.key or (() if use.table.person is None else (use.table.person,))
        found: dict[str, pl.Expr] = {}
        for equation in self._equations(parts["on"]):
            column, value = self._parse_equation(equation, use, earlier, node)
            if column not in wanted or column in found:
                self._refuse_join(equation, use, node)
            found[column] = value
        if not found or len(found) < len(wanted):
            self._refuse_join(parts["on"], use, node)
        return Join(use, {column: found[column] for column in wanted}, is_inner=not words[0])

    def _equations(self, node: exp.Expr) -> Iterator[exp.Expr]:
        if isinstance(node, exp.Paren | exp.And):
            names = ("this",) if isinstance(node, exp.Paren) else ("this", "expression")
            for part in self._text.operands(node, *names):
                yield from self._equations(part)
        else:
            yield node

    def _parse_equation(
        self, node: exp.Expr, use: TableUse, earlier: Sequence[str], join: exp.Expr
    ) -> tuple[str, pl.Expr]:
        """Return the joined table's column of an equation, and the expression on the equation's other side."""
        if not isinstance(node, exp.EQ):
            self._refuse_join(node, use, join)
        left, right = self._text.operands(node, "this", "expression")
        if isinstance(left, exp.Column) and self._find_column(left)[0] == use.alias:
            left, right = right, left
        if not isinstance(right, exp.Column) or (named := self._find_column(right))[0] != use.alias:
            self._refuse_join(node, use, join)
        if any(self._find_column(one)[0] not in earlier for one in left.find_all(exp.Column)):
            self._refuse_join(node, use, join)
        column, term = named[1], self._expressions.parse(left)
        if not use.table.key:
            # Only rows of one person are joined, so the other side must be the person of an earlier table.
            is_person = isinstance(left, exp.Column) and self._kind_of(*self._find_column(left)) == PERSON_KIND
            if use.table.person is None or not is_person:
                self._refuse_join(node, use, join)
        elif term.kind != use.table.columns.get(column, term.kind):
            key = f"the key {quote_name(column)} is {use.table.columns[column]}"
            if term.kind == "raw":
                remedy = "check its name, or declare its kind"
                self._text.refuse(node, f"{key}, and the other side is not declared", remedy)
            remedy = "declare both as one kind, or cast the other side"
            self._text.refuse(node, f"{key}, and the other side {term.kind}", remedy)
        return column, term.value

    def _refuse_join(self, node: exp.Expr, use: TableUse, join: exp.Expr) -> NoReturn:
        if use.table.key:
            self._text.refuse(
                node,
                f"the lookup table {quote_name(use.name)} is not joined on its key",
                f"compare each of {quote_names(use.table.key)} by = with a value of the tables before it, and nothing else",
                join,
            )
        self._text.refuse(
            node,
            f"the table {quote_name(use.name)} of people is not joined on the person",
            "compare its person by = with the person of a table before it, and nothing else; a public table needs a key",
            join,
        )

    def _parse_outputs(self, nodes: Sequence[exp.Expr]) -> dict[str, pl.Expr]:
        if len(nodes) > MAX_COLUMNS:
            raise ViewError(f"view: it selects more than {MAX_COLUMNS} columns; select fewer")
        outputs: dict[str, pl.Expr] = {}
        for node in nodes:
            inside = node
            if isinstance(node, exp.Alias):
                inside, alias = self._text.operands(node, "this", "alias")
                name = self._text.name(alias)
            elif isinstance(node, exp.Column):
                name = self._find_column(node)[1]
            else:
                self._text.refuse(node, "an expression without a name", "name it with AS")
            if name in outputs:
                self._text.refuse(node, f"two columns are called {quote_name(name)}", "name one of them with AS")
            if name == self._person:
                self._require_person(inside)
            outputs[name] = self._expressions.parse(inside).value
        if self._person is not None and self._person not in outputs:
            raise ViewError(
                f"view: it selects no person {quote_name(self._person)}; select the person's column under this name"
            )
        return outputs

    def _require_person(self, node: exp.Expr) -> None:
        """Refuse an expression other than the first table's person, to whom all joined rows belong."""
        first = next(iter(self._uses.values()))
        if not isinstance(node, exp.Column) or self._find_column(node) != (first.alias, first.table.person):
            self._text.refuse(
                node,
                f"the person is not column {quote_name(first.table.person or '')} of {quote_name(first.alias)}",
                "select the person of the table after FROM",
            )

    def _parse_column(self, node: exp.Column) -> ViewTerm:
        alias, column = self._find_column(node)
        kind = self._columns[alias][column] = self._kind_of(alias, column)
        return ViewTerm("text" if kind == PERSON_KIND else kind, pl.col(column_label(alias, column)))

    def _kind_of(self, alias: str, column: str) -> UsedKind:
        table = self._uses[alias].table
        return PERSON_KIND if column == table.person else table.columns.get(column, "raw")

    def _find_column(self, node: exp.Column) -> tuple[str, str]:
        """Return the alias of a column's table, and the column's name."""
        parts = self._text.parts(node, "this", "table")
        written = self._text.name(parts["this"])
        if parts["table"] is not None:
            given = self._text.name(parts["table"])
            if (alias := _find_name(given, self._uses)) is None:
                self._text.refuse(
                    node, f"no table is called {quote_name(given)}", f"name one of {quote_names(self._uses)}"
                )
            return alias, _find_name(written, _list_declared_columns(self._uses[alias])) or written
        declared = ((alias, _find_name(written, _list_declared_columns(use))) for alias, use in self._uses.items())
        found = [(alias, name) for alias, name in declared if name is not None]
        if not found and len(self._uses) == 1:
            return next(iter(self._uses)), written
        if len(found) != 1:
            self._text.refuse(
                node,
                f"column {quote_name(written)} is declared in {len(found)} tables",
                f"name its table, as in {next(iter(self._uses))}.{written}",
            )
        return found[0]


def _list_declared_columns(use: TableUse) -> list[str]:
    return [*use.table.columns, *(() if use.table.person is None else (use.table.person,))]


def _find_name(written: str, names: Collection[str]) -> str | None:
    """Return the declared name: an equal one, or else the only one that differs in case alone."""
    if written in names:
        return written
    alike = [name for name in names if name.casefold() == written.casefold()]
    return alike[0] if len(alike) == 1 else None
