"""Every small change that `mutants.py` may make to a source file, each at its exact position.

A site is a place in a file: an operator, a comparison, a number, a condition, a call, a statement.
Each site has one or more mutants. Not changed are docstrings, annotations, decorators, `__all__`,
f-strings, the texts of exceptions, and code under `if TYPE_CHECKING`.
"""

from __future__ import annotations

import ast
import io
import itertools
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

OPERATORS: dict[type, tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
}
COMPARISONS: dict[type, tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.In: ("in", ("not in",)),
    ast.Is: ("is", ("is not",)),
}
SWAPPED = (
    ("min", "max"),
    ("minimum", "maximum"),
    ("fmin", "fmax"),
    ("amin", "amax"),
    ("argmin", "argmax"),
    ("any", "all"),
    ("floor", "ceil"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
    ("sum", "mean"),
    ("exp", "expm1"),
    ("log", "log1p"),
    ("sin", "cos"),
    ("clamp_min", "clamp_max"),
    ("softmax", "log_softmax"),
)
SWAPS = {a: b for pair in SWAPPED for a, b in (pair, pair[::-1])}
# Their arguments have different types, so swapped arguments would always fail.
NOT_SWAPPED = {"isinstance", "issubclass", "getattr", "setattr", "hasattr", "cast", "TypeVar"}
# Words in brackets after these names are types.
OF_TYPES = {"Annotated", "Literal", "Callable", "NDArray", "Sequence", "Mapping", "Iterator"}
OF_TYPES |= {"tuple", "list", "dict", "set", "frozenset", "type", "Optional", "Union"}

Place = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change: the bytes from `start` to `end` become `text`."""

    file: str
    kind: str
    start: Place  # line from 1, byte in it from 0
    end: Place
    text: str
    scope: tuple[int, int] | None  # lines of the function it is in, if it is not in its header
    names: tuple[str, ...]  # what a statement outside functions assigns

    def applied(self, source: bytes) -> bytes:
        """Return the changed source."""
        lines = source.splitlines(keepends=True)
        offsets = [0]
        for line in lines:
            offsets.append(offsets[-1] + len(line))
        first, last = (offsets[line - 1] + byte for line, byte in (self.start, self.end))
        return source[:first] + self.text.encode() + source[last:]

    def shown(self, source: bytes) -> tuple[str, str]:
        """Return the lines it changes, before and after, without indentation."""
        before = source.splitlines()[self.start[0] - 1 : self.end[0]]
        extra = len(self.applied(source).splitlines()) - len(source.splitlines())
        after = self.applied(source).splitlines()[self.start[0] - 1 : self.end[0] + extra]
        return _joined(before), _joined(after)


def _joined(lines: list[bytes]) -> str:
    return " ".join(line.decode().strip() for line in lines)


def sites(file: str, source: bytes) -> list[list[Mutant]]:
    """Return all sites of a file in the order of its text, each as the list of its mutants."""
    found: dict[tuple[Place, Place, str], list[Mutant]] = {}
    walker = _Walker(file, source)
    original = ast.dump(ast.parse(source))
    for mutant in walker.statements(walker.tree.body, None, ()):
        try:
            changed = ast.dump(ast.parse(mutant.applied(source)))
        except SyntaxError:
            continue
        if changed != original:
            key = (mutant.start, mutant.end, mutant.kind)
            found.setdefault(key, []).append(mutant)
    return [found[key] for key in sorted(found)]


class _Walker:
    """Walks a syntax tree and makes the mutants of each node."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.tree = file, ast.parse(source)
        self.lines = source.splitlines(keepends=True)
        tokens = tokenize.generate_tokens(io.StringIO(source.decode()).readline)
        self.tokens = [
            (self._bytes(t.start), self._bytes(t.end), t.string)
            for t in tokens
            if t.type in (tokenize.OP, tokenize.NAME)
        ]
        self.scope: tuple[int, int] | None = None
        self.names: tuple[str, ...] = ()

    def _bytes(self, place: Place) -> Place:
        line = self.lines[place[0] - 1].decode() if place[0] <= len(self.lines) else ""
        return place[0], len(line[: place[1]].encode())

    def _text(self, start: Place, end: Place) -> str:
        lines = list(self.lines[start[0] - 1 : end[0]])
        lines[-1] = lines[-1][: end[1]]
        lines[0] = lines[0][start[1] :]
        return b"".join(lines).decode()

    def _token(self, start: Place, end: Place, text: str) -> tuple[Place, Place]:
        """The place of the first token between two places with this text."""
        return next(t[:2] for t in self.tokens if start <= t[0] and t[1] <= end and t[2] == text)

    def _made(self, kind: str, start: Place, end: Place, *texts: str) -> Iterator[Mutant]:
        for text in texts:
            yield Mutant(
                file=self.file,
                kind=kind,
                start=start,
                end=end,
                text=text,
                scope=self.scope,
                names=self.names,
            )

    def _whole(self, kind: str, node: ast.AST, *texts: str) -> Iterator[Mutant]:
        yield from self._made(kind, _start(node), _end(node), *texts)

    def _code(self, node: ast.AST) -> str:
        return self._text(_start(node), _end(node))

    def statements(
        self, body: list[ast.stmt], scope: tuple[int, int] | None, names: tuple[str, ...]
    ) -> Iterator[Mutant]:
        for node in body:
            self.scope, self.names = scope, names
            yield from self._statement(node, scope, names)

    def _statement(
        self, node: ast.stmt, scope: tuple[int, int] | None, names: tuple[str, ...]
    ) -> Iterator[Mutant]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                inner = (node.body[0].lineno, node.end_lineno or node.lineno)
                # Defaults are evaluated on import; tests that execute the body notice them.
                self.scope = inner
                for default in (*node.args.defaults, *node.args.kw_defaults):
                    if default is not None:
                        yield from self._expression(default)
                yield from self.statements(node.body, inner, ())
                return
            case ast.ClassDef():
                yield from self.statements(node.body, None, (node.name,))
                return
            case ast.Import() | ast.ImportFrom() | ast.Pass():
                return
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                return
            case ast.Raise() | ast.Assert():
                if isinstance(node, ast.Raise) and scope is not None:
                    yield from self._whole("statement", node, "pass")
                return
            case ast.Expr(value=ast.Constant()):
                return  # a docstring
            case ast.Expr(value=ast.Call()):
                if scope is not None:
                    yield from self._whole("statement", node, "pass")
            case ast.Return(value=value) if value is not None:
                if not (isinstance(value, ast.Constant) and value.value is None):
                    yield from self._whole("return", node, "return None")
            case ast.Continue():
                yield from self._whole("loop", node, "break")
            case ast.Break():
                yield from self._whole("loop", node, "continue")
            case ast.AugAssign(op=op) if type(op) in OPERATORS:
                old, new = OPERATORS[type(op)]
                at = self._token(_end(node.target), _start(node.value), f"{old}=")
                yield from self._made("operator", *at, f"{new}=")
                yield from self._whole("statement", node, "pass")
            case ast.Assign(targets=[target]):
                if isinstance(target, ast.Name) and target.id == "__all__":
                    return
                if isinstance(target, ast.Attribute | ast.Subscript) and scope is not None:
                    yield from self._whole("statement", node, "pass")
                if scope is None:
                    self.names = (*names, *_assigned(target))
            case ast.AnnAssign(target=target, annotation=annotation):
                if "TypeAlias" in ast.dump(annotation):
                    return
                if scope is None:
                    self.names = (*names, *_assigned(target))
            case ast.If(test=test) | ast.While(test=test):
                yield from self._condition(test)
        for field, value in ast.iter_fields(node):
            if field in ("body", "orelse", "finalbody", "handlers", "cases"):
                for part in value:
                    inner = part.body if hasattr(part, "body") and not _is_statement(part) else None
                    if inner is None:
                        yield from self.statements([part], scope, self.names)
                    else:
                        yield from self.statements(inner, scope, self.names)
            elif field not in ("annotation", "target", "targets", "type_comment"):
                for part in value if isinstance(value, list) else [value]:
                    if isinstance(part, ast.expr):
                        yield from self._expression(part)
                    elif isinstance(part, ast.withitem):
                        yield from self._expression(part.context_expr)

    def _condition(self, test: ast.expr) -> Iterator[Mutant]:
        if not isinstance(test, ast.Compare | ast.UnaryOp | ast.Constant):
            yield from self._whole("condition", test, f"not ({self._code(test)})")

    def _expression(self, node: ast.expr) -> Iterator[Mutant]:
        match node:
            case ast.JoinedStr():
                return
            case ast.Subscript(value=ast.Name(id=name)) if name in OF_TYPES:
                return
            case ast.Call(func=ast.Name(id=name)) if name.endswith(("Error", "Warning")):
                return
            case ast.BinOp(op=op) if type(op) in OPERATORS:
                yield from self._operation(node)
            case ast.BoolOp(op=op, values=values):
                old, new = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                for a, b in itertools.pairwise(values):
                    yield from self._made("logic", *self._token(_end(a), _start(b), old), new)
            case ast.Compare():
                yield from self._comparison(node)
            case ast.UnaryOp(op=op, operand=operand):
                start, width = _start(node), 4 if isinstance(op, ast.Not) else 1
                kind = "logic" if isinstance(op, ast.Not) else "sign"
                yield from self._made(kind, start, (start[0], start[1] + width), "")
                if isinstance(operand, ast.Constant) and operand.value == 1:
                    yield from self._whole("sign", node, "0")  # the first axis for the last
            case ast.Constant(value=value):
                yield from self._constant(node, value)
                return
            case ast.IfExp(test=test):
                yield from self._condition(test)
            case ast.Call():
                yield from self._call(node)
            case ast.Name(id=name) if name in SWAPS:
                yield from self._whole("name", node, SWAPS[name])
            case ast.Attribute(value=value, attr=name) if name in SWAPS:
                end = _end(node)
                start = (end[0], end[1] - len(name.encode()))
                yield from self._made("name", start, end, SWAPS[name])
            case ast.Slice(lower=lower, upper=upper, step=None):
                lower, upper = (None if x is None else self._code(x) for x in (lower, upper))
                texts = [f"{lower or ''}:"] if upper else []
                texts += [f":{upper or ''}"] if lower else []
                yield from self._whole("slice", node, *texts)
            case ast.Lambda(body=body):
                yield from self._expression(body)
                return
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.expr):
                yield from self._expression(part)
            elif isinstance(part, ast.keyword):
                yield from self._expression(part.value)
            elif isinstance(part, ast.comprehension):
                yield from self._expression(part.iter)
                for test in part.ifs:
                    yield from self._condition(test)
                    yield from self._expression(test)

    def _operation(self, node: ast.BinOp) -> Iterator[Mutant]:
        old, new = OPERATORS[type(node.op)]
        at = self._token(_end(node.left), _start(node.right), old)
        yield from self._made("operator", *at, new)
        if isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
            texts = [self._whole_operand(node.left)]
            if isinstance(node.op, ast.Add | ast.Mult):
                texts.append(self._whole_operand(node.right))
            yield from self._whole("term", node, *texts)

    def _whole_operand(self, node: ast.expr) -> str:
        code = self._code(node)
        return f"({code})" if isinstance(node, ast.BinOp | ast.IfExp | ast.Compare) else code

    def _comparison(self, node: ast.Compare) -> Iterator[Mutant]:
        operands = [node.left, *node.comparators]
        for a, op, b in zip(operands[:-1], node.ops, operands[1:], strict=True):
            if type(op) in COMPARISONS:
                old, new = COMPARISONS[type(op)]
                at = self._token(_end(a), _start(b), old)
                yield from self._made("comparison", *at, *new)
            elif isinstance(op, ast.NotIn | ast.IsNot):
                word = "not"
                at = self._token(_end(a), _start(b), word)
                yield from self._made("comparison", *at, "")
        for text in operands:
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield from self._whole("text", text, repr(f"{text.value}-"))

    def _constant(self, node: ast.Constant, value: object) -> Iterator[Mutant]:
        match value:
            case bool():
                yield from self._whole("constant", node, str(not value))
            case int():
                texts = [str(value + 1), *([str(value - 1)] if value else [])]
                if value > 100:  # a size, where one more or less makes no difference
                    texts = ["1", f"-{value}"]
                yield from self._whole("constant", node, *texts)
            case float():
                texts = [repr(value + 1)]
                if value:
                    texts.append(f"-{value!r}")
                # Twice a tolerance makes no difference.
                if abs(value) > 1e-5 and value != float("inf"):
                    texts.append(repr(2 * value))
                yield from self._whole("constant", node, *texts)

    def _call(self, node: ast.Call) -> Iterator[Mutant]:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in NOT_SWAPPED or len(node.args) != 2:
            return
        first, second = node.args
        if any(isinstance(x, ast.Starred | ast.Constant) for x in node.args):
            return
        if name in SWAPS or getattr(node.func, "attr", "") in SWAPS:
            return  # mostly symmetrical
        between = self._text(_end(first), _start(second))
        text = f"{self._code(second)}{between}{self._code(first)}"
        yield from self._made("arguments", _start(first), _end(second), text)


def _assigned(target: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]


def _is_statement(node: ast.AST) -> bool:
    return isinstance(node, ast.stmt)


def _start(node: ast.AST) -> Place:
    return node.lineno, node.col_offset


def _end(node: ast.AST) -> Place:
    return node.end_lineno, node.end_col_offset
