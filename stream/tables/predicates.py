"""Parses predicates: SQL WHERE conditions, restricted to a list of allowed constructs.

A predicate combines conditions by AND, OR, NOT and parentheses. A condition is TRUE, FALSE, or a comparison of an
attribute with literals by = <> != < <= > >=, BETWEEN or IN. Attributes are names, bare or in double quotes; literals are
numbers and strings in single quotes. The tokens are checked before parsing, and the syntax tree afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, SqlglotError

from schemas import MAX_PREDICATE_LENGTH, Dates, Domain
from stream.tables.comparisons import Attribute, Constant, Operator, Ranges, ShapeCache, parse_number
from stream.tables.expressions import FALSE, TRUE, Predicate, conjunction, disjunction, negation
from stream.tables.table_errors import PredicateError, private_text_message, quote_name, quote_names

DOUBLE_QUOTES: Final = "put names in double quotes"
DOUBLED_QUOTE: Final = "double a quote inside a text, as in 'O''Brien'; a backslash does not escape it"
_ESCAPED_QUOTE: Final = "\\'"

MAX_TOKENS = 1024
"""Maximum number of tokens of a predicate; its syntax tree has at most two nodes for each token."""

MAX_NESTING = 16
"""Deepest nesting of parentheses and NOTs."""

MAX_LIST_LENGTH = 256
"""Maximum number of literals in one IN list."""

# In this dialect double quotes mark identifiers, and the only escape in a string is a doubled quote.
DIALECT: Final = Dialect.get_or_raise("postgres")

OPERATORS: Final[dict[type[exp.Expr], tuple[Operator, Operator]]] = {
    exp.EQ: ("=", "="),
    exp.NEQ: ("<>", "<>"),
    exp.LT: ("<", ">"),
    exp.LTE: ("<=", ">="),
    exp.GT: (">", "<"),
    exp.GTE: (">=", "<="),
}
"""The operator of each comparison, and the operator after its operands are exchanged."""

_ALLOWED_TOKENS: Final = frozenset(
    TokenType[name]
    for name in (
        *("AND", "OR", "NOT", "L_PAREN", "R_PAREN", "COMMA", "TRUE", "FALSE", "EQ", "NEQ", "LT", "LTE", "GT"),
        *("GTE", "BETWEEN", "IN", "VAR", "IDENTIFIER", "STRING", "NUMBER", "DASH"),
    )
)

_KNOWN_WORDS: Final = frozenset({*DIALECT.tokenizer_class.KEYWORDS, *DIALECT.tokenizer_class.SINGLE_TOKENS})
"""SQL's keywords and signs; they are public, so a message may name them."""

_MISSING_CELLS: Final = "rows with a missing cell are left out, or count as the category declared as 'other'"

_DATE_HINT: Final = "write a date in single quotes, as '2024-03-31'"

_HINTS: Final[dict[TokenType, str]] = {
    TokenType.SEMICOLON: "give one condition",
    TokenType.DOT: "name attributes alone, without a table",
    TokenType.NULL: _MISSING_CELLS,
    TokenType.IS: "compare with = or <>",
    TokenType.LIKE: "list the categories with IN",
    TokenType.DCOLON: "neither attributes nor literals need a cast",
    TokenType.SELECT: "a predicate is a condition over attributes alone",
    TokenType.PARAMETER: "write the value itself",
    TokenType.PLACEHOLDER: "write the value itself",
    TokenType.COLON: "write the value itself",
    TokenType.MOD: "write the value itself",
    TokenType.L_BRACKET: DOUBLE_QUOTES,
    TokenType.DATE: f"{_DATE_HINT}, without a type or function",
    TokenType.SLASH: f"{_DATE_HINT}; arithmetic is not possible",
}
_UNQUOTED_VALUE_HINT: Final = "no declared attribute has this name; put a value in single quotes"
_DEFAULT_HINT: Final = "use comparisons, BETWEEN, IN, AND, OR and NOT, and put names in double quotes"

_CONSTRUCTS: Final[tuple[tuple[tuple[type[exp.Expr], ...], str], ...]] = (
    ((exp.Column,), "an attribute"),
    ((exp.Literal, exp.Boolean), "a literal"),
    ((exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod), "arithmetic"),
    ((exp.Cast,), "a cast"),
    ((exp.Connector, exp.Not, exp.Predicate), "a condition"),
    ((exp.Func,), "a function call"),
)
"""Names of syntax nodes in messages; the first entry with a node's type applies."""


class PredicateParser:
    """Parses predicates over one table's declared attributes; thread-safe."""

    def __init__(self, attributes: Mapping[str, Domain], texts: Collection[str] = ()) -> None:
        """Set the attributes of conditions, and the ``texts`` that are refused, because their values are private."""
        self._texts = {name.casefold(): name for name in texts}
        self._attributes = {name: Attribute(name, domain) for name, domain in attributes.items()}
        self._shapes = ShapeCache(self._find_attribute, self._parse_and_locate)

    def parse(self, text: str) -> Predicate:
        """Return the predicate in normal form; only PredicateError is raised, if it is invalid."""
        return self._shapes.parse(text)

    def ranges(self, text: str) -> Ranges | None:
        """Return a predicate as a range for each attribute; None if ``ShapeCache`` does not know its shape."""
        return self._shapes.ranges(text)

    def _parse_and_locate(self, text: str) -> Predicate:
        try:
            return self._parse(text)
        except PredicateError as error:
            if error.culprit is None:
                raise
            starts = (token.start for token in DIALECT.tokenize(text) if token.text == error.culprit)
            place = next(starts, None)
            raise PredicateError(str(error) if place is None else f"character {place + 1}: {error}") from None

    def _parse(self, text: str) -> Predicate:
        if len(text) > MAX_PREDICATE_LENGTH:
            raise PredicateError(f"the predicate has more than {MAX_PREDICATE_LENGTH} characters; shorten it")
        tokens = self._read_tokens(text)
        try:
            trees = DIALECT.parser().parse_into(exp.Condition, tokens, text)
        except ParseError as error:
            where, remedy = describe_position(error), remedy_of(text, _DEFAULT_HINT)
            raise PredicateError(f"the predicate is not a valid condition{where}; {remedy}") from None
        except Exception:  # noqa: BLE001 - no text may crash the worker
            raise PredicateError("the predicate cannot be read; check its operators and parentheses") from None
        if len(trees) != 1 or trees[0] is None:
            raise PredicateError("the predicate is not one condition; give one, or TRUE for all rows")
        return self._parse_condition(trees[0])

    def _read_tokens(self, text: str) -> list[Token]:
        try:
            text.encode()
            tokens = list(DIALECT.tokenize(text))
        except Exception:  # noqa: BLE001 - see parse
            problem = (
                describe_unclosed_quote(text) or "the predicate cannot be read; check that every quote is closed"
            )
            raise PredicateError(problem) from None
        if not tokens:
            raise PredicateError("the predicate is empty; write TRUE for all rows")
        if len(tokens) > MAX_TOKENS:
            raise PredicateError(f"the predicate has more than {MAX_TOKENS} words and signs; shorten it")
        for place, token in enumerate(tokens):
            if token.comments:
                raise PredicateError("comments are not allowed in a predicate; remove them")
            if token.token_type in _ALLOWED_TOKENS:
                continue
            written = text[token.start : token.end + 1]
            # An attribute may have a name that SQL reserves, such as 'date'; E'date' is a string, not a name.
            if not written.isidentifier() or self._find_attribute(written) is None:
                hint = _remedy_for_token(tokens[place : place + 3]) or remedy_of(text, _DEFAULT_HINT)
                sign = written.upper() if written.upper() in _KNOWN_WORDS else "this word or sign"
                raise PredicateError(f"character {token.start + 1}: {sign} is not allowed in a predicate; {hint}")
            tokens[place] = Token(TokenType.VAR, written, token.line, token.col, token.start, token.end)
        _check_nesting(tokens)
        return tokens

    def _parse_condition(self, node: exp.Expr) -> Predicate:
        match node:
            case exp.Paren():
                return self._parse_condition(_operand(node))
            case exp.Not():
                return negation(self._parse_condition(_operand(node)))
            case exp.And():
                return conjunction([self._parse_condition(part) for part in _operands_of_chain(node, exp.And)])
            case exp.Or():
                return disjunction([self._parse_condition(part) for part in _operands_of_chain(node, exp.Or)])
            case exp.Boolean():
                return TRUE if node.this else FALSE
            case _:
                return self._parse_test(node)

    def _parse_test(self, node: exp.Expr) -> Predicate:
        match node:
            case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                return self._parse_comparison(node)
            case exp.Between():
                column, low, high = _checked_parts(node, "this", "low", "high")
                attribute = self._parse_attribute(column)
                return attribute.between(self._literal(low, attribute), self._literal(high, attribute))
            case exp.In():
                column, *literals = _checked_parts(node, "this", "expressions")
                if not 0 < len(literals) <= MAX_LIST_LENGTH:
                    raise PredicateError(f"an IN list has 1 to {MAX_LIST_LENGTH} literals; split it with OR")
                attribute = self._parse_attribute(column)
                values = [self._literal(literal, attribute) for literal in literals]
                return disjunction([attribute.compare("=", value) for value in values])
            case exp.Column():
                name = self._parse_attribute(node).name
                raise PredicateError(
                    f"attribute {quote_name(name)} alone is not a condition; compare it with a literal"
                )
        raise PredicateError(f"{_describe_node(node)} is not a condition; {_DEFAULT_HINT}")

    def _parse_comparison(self, node: exp.Expr) -> Predicate:
        left, right = (_without_parentheses(side) for side in _checked_parts(node, "this", "expression"))
        operator, mirrored = OPERATORS[type(node)]
        match left, right:
            case exp.Column(), exp.Column():
                names = [_name_of(side) for side in (left, right)]
                known = [name for name in names if name is not None and self._find_attribute(name) is not None]
                if len(known) == 1:
                    raise PredicateError(_UNQUOTED_VALUE_HINT, next(name for name in names if name not in known))
                raise PredicateError("two attributes are compared; compare each with a literal")
            case exp.Column(), _:
                attribute = self._parse_attribute(left)
                return attribute.compare(operator, self._literal(right, attribute))
            case _, exp.Column():
                attribute = self._parse_attribute(right)
                return attribute.compare(mirrored, self._literal(left, attribute))
            case _:
                compared = (side for side in (left, right) if not isinstance(side, exp.Literal | exp.Neg))
                culprit = next(compared, None)
                what = "two literals are compared" if culprit is None else f"{_describe_node(culprit)} is compared"
                raise PredicateError(
                    f"{what}; compare an attribute with a literal, and quote its name if it has special characters"
                )

    def _parse_attribute(self, node: exp.Expr) -> Attribute:
        column = _without_parentheses(node)
        if not isinstance(column, exp.Column):
            raise PredicateError(
                f"{_describe_node(column)} instead of an attribute's name; name a declared attribute"
            )
        identifier = _operand(column)
        if not isinstance(identifier, exp.Identifier):
            raise PredicateError(
                f"{_describe_node(identifier)} instead of an attribute's name; name a declared attribute"
            )
        name = str(identifier.this)
        if (attribute := self._find_attribute(name)) is None:
            if (text := self._texts.get(name.casefold())) is not None:
                raise PredicateError(private_text_message(text), name)
            raise PredicateError(
                f"no declared attribute has this name; declared are {quote_names(self._attributes)}", name
            )
        return attribute

    def _literal(self, node: exp.Expr, attribute: Attribute) -> Constant:
        bare = _without_parentheses(node)
        if isinstance(bare, exp.Boolean):
            raise PredicateError(attribute.refusal_of_truth(truth=bool(bare.this)))
        if (
            isinstance(bare, exp.Column)
            and (name := _name_of(bare)) is not None
            and self._find_attribute(name) is None
        ):
            raise PredicateError(_UNQUOTED_VALUE_HINT, name)
        if isinstance(bare, exp.Literal):
            return str(bare.this) if bare.is_string else parse_number(str(bare.this))
        if isinstance(bare, exp.Neg):
            inner = _operand(bare)
            if isinstance(inner, exp.Literal) and not inner.is_string:
                return parse_number(str(inner.this)).copy_negate()
        if isinstance(bare, exp.Sub | exp.Div) and isinstance(attribute.domain, Dates):
            raise PredicateError(f"{quote_name(attribute.name)} holds dates; {_DATE_HINT}")
        raise PredicateError(f"{_describe_node(bare)} instead of a number or a string; write the value itself")

    def _find_attribute(self, name: str) -> Attribute | None:
        if name in self._attributes:
            return self._attributes[name]
        folded = name.casefold()
        alike = [attribute for declared, attribute in self._attributes.items() if declared.casefold() == folded]
        return alike[0] if len(alike) == 1 else None


def parse(text: str, attributes: Mapping[str, Domain]) -> Predicate:
    """Return the predicate in normal form; only PredicateError is raised, if it is invalid."""
    return PredicateParser(attributes).parse(text)


def _check_nesting(tokens: Iterable[Token]) -> None:
    """Refuse deep nesting, because on some machines the stack is too small for it."""
    prefixes = [0]
    for token in tokens:
        match token.token_type:
            case TokenType.L_PAREN:
                prefixes.append(0)
            case TokenType.R_PAREN if len(prefixes) > 1:
                prefixes.pop()
            case TokenType.NOT | TokenType.DASH:
                prefixes[-1] += 1
            case TokenType.AND | TokenType.OR | TokenType.COMMA:
                prefixes[-1] = 0
        if len(prefixes) - 1 + sum(prefixes) > MAX_NESTING:
            raise PredicateError(f"the predicate nests deeper than {MAX_NESTING} parentheses and NOTs; flatten it")


def _operands_of_chain(node: exp.Expr, kind: type[exp.Expr]) -> Sequence[exp.Expr]:
    """Return the operands a, b, c … of the chain a AND b AND c …, which the parser nests to the left."""
    operands = []
    while isinstance(node, kind):
        node, right = _checked_parts(node, "this", "expression")
        operands.append(right)
    operands.append(node)
    return operands


def _checked_parts(node: exp.Expr, *names: str) -> list[exp.Expr]:
    """Return the node's named parts; PredicateError if it has other parts, which nothing checks."""
    if extra := [name for name, value in node.args.items() if value and name not in names]:
        raise PredicateError(f"{node.key.upper()} with {quote_name(extra[0])} is not allowed; {_DEFAULT_HINT}")
    parts: list[exp.Expr] = []
    for name in names:
        value = node.args.get(name)
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, exp.Expression):
                raise PredicateError(f"{_describe_node(node)} is incomplete; {_DEFAULT_HINT}")
            parts.append(part)
    return parts


def _operand(node: exp.Expr) -> exp.Expr:
    return _checked_parts(node, "this")[0]


def _without_parentheses(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Paren):
        node = _operand(node)
    return node


def _name_of(column: exp.Column) -> str | None:
    identifier = column.this
    return str(identifier.this) if isinstance(identifier, exp.Identifier) else None


def _describe_node(node: exp.Expr) -> str:
    names = (name for kinds, name in _CONSTRUCTS if isinstance(node, kinds))
    return next(names, f"the construct {node.key.upper()}")


def remedy_of(text: str, default: str) -> str:
    """Return the remedy for unreadable SQL: the rule of escapes if a quote is escaped wrongly, else ``default``."""
    return DOUBLED_QUOTE if _ESCAPED_QUOTE in text else default


def describe_unclosed_quote(text: str) -> str | None:
    """Return the message about a quote that nothing closes; None if all quotes are closed."""
    opened: int | None = None
    place = 0
    while place < len(text):
        if opened is None:
            opened = place if text[place] in "'\"" else None
        elif text[place] == text[opened]:
            if text[place + 1 : place + 2] == text[opened]:
                place += 1  # a doubled quote belongs to the text
            else:
                opened = None
        place += 1
    if opened is None:
        return None
    remedy = remedy_of(text, "close it; inside a text, double a quote, as in 'O''Brien'")
    return f"character {opened + 1}: this quote is not closed; {remedy}"


def _remedy_for_token(tokens: Sequence[Token]) -> str | None:
    """Return the remedy for the first token, which is not allowed; None without a special remedy."""
    first, *following = tokens
    kinds = [token.token_type for token in following]
    if first.text == "`":
        return DOUBLE_QUOTES
    if first.token_type is TokenType.DOT and kinds[:1] == [TokenType.NUMBER]:
        return "write a digit before the point, as in 0.5"
    if first.token_type is TokenType.IS and TokenType.NULL in kinds:
        remedy = (
            "leave this condition out, or exclude that category"
            if TokenType.NOT in kinds
            else "ask for that category"
        )
        return f"{_MISSING_CELLS}; {remedy}"
    return _HINTS.get(first.token_type)


def describe_position(error: SqlglotError) -> str:
    """Describe where a text cannot be parsed; empty if the error does not say it."""
    first = getattr(error, "errors", None) or [{}]
    line, column = first[0].get("line"), first[0].get("col")
    return f" near line {line}, column {column}" if line and column else ""
