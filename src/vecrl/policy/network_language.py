"""The network language: networks as text, such as `Linear(obs, 16) >> Tanh() >> Linear(16, act)`, for command lines.

    net      := layer (">>" layer)*
    layer    := NAME "(" arguments ")" | "(" net ")"
    argument := value | layer
    value    := literal | tuple | list | dict | CONSTANT | value "[" value "]" | value arithmetic value | "(" value ")"

`NAME` is a module of `torch.nn` or a layer of vecrl, `CONSTANT` is a name for which the caller gave a value, and
`arithmetic` is one of `+ - * / // % **` on numbers. Line breaks and comments are allowed everywhere. The text is parsed
with `ast` and never evaluated: text that is not in the grammar is a `NetParsingError` with its line and column.
"""

from __future__ import annotations

import ast
import difflib
import io
import operator
import tokenize
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from numbers import Integral, Real
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..errors import NetParsingError
from . import layers
from .functional import count_parameters

VECRL_LAYERS: dict[str, type[nn.Module]] = {
    cls.__name__: cls
    for cls in (
        *(layers.Apply, layers.Bin, layers.Clip, layers.Round, layers.Slice, layers.RNN, layers.LSTM),
        *(layers.FeedForwardNet, layers.StructuredControlNet, layers.LocomotorNet),
    )
}
ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
SIGNS: dict[type[ast.unaryop], Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
# With more, a short text, of a file perhaps, could compute without end or fill the memory
MAX_POWER_OPERAND = 256
MAX_LAYERS = 250  # in layers of several, such as Transformer
MAX_COPIES = 20_000  # of modules in layers that are copied
MAX_NUMBERS = 2**30  # parameters and buffers of the network


def str_to_net(text: str, /, **constants: object) -> nn.Module:
    """Makes the module that `text` describes.

    Args:
        text: a description in the network language (see this module's docstring).
        constants: the values of names in the description.

    Returns:
        A `MultiLayered` of the chained layers, or the layer if there is only one.

    Raises:
        NetParsingError: the text is not in the language, a layer rejected its arguments, or the network has more than
            2**30 parameters or, in layers such as Transformer, more than 250 layers.

    >>> net = str_to_net('''
    ...     Linear(obs_shape[0], 2 * n)   # the observation
    ...     >> Tanh() >> Linear(2 * n, act_length, bias=False)
    ... ''', obs_shape=(4,), n=8, act_length=2)
    >>> len(net), net[0].out_features
    (3, 16)
    """
    with _nesting_errors():
        wrapped, tree = _parse(text)
        if all(map(_is_plain, constants.values())):
            _make_without_memory(wrapped, tree, constants)
        return _Parser(wrapped, constants).net(tree)


def num_parameters(text: str, /, **constants: object) -> int:
    """Returns the number of parameters of the network that `str_to_net` would make, without memory for them.

    Args:
        text: a description in the network language.
        constants: the values of names in it: numbers, text, and tuples and lists of these.

    Raises:
        NetParsingError: as `str_to_net`.

    >>> num_parameters("Linear(n, n) >> Tanh()", n=10**4)
    100010000
    """
    with _nesting_errors():
        return count_parameters(_make_without_memory(*_parse(text), constants))


def _parse(text: str) -> tuple[str, ast.expr]:
    """Returns the text in brackets, and its syntax tree."""
    text_before, null_byte, _ = text.partition("\0")
    if null_byte:  # the parser reports no position for it
        position = text_before.count("\n") + 1, len(text_before) - text_before.rfind("\n")
        raise NetParsingError("null bytes are not in the network language", *position)
    wrapped = f"(\n{text}\n)"  # brackets allow line breaks everywhere; they add one line before the text
    _check_brackets(wrapped)
    try:
        tree = ast.parse(wrapped, mode="eval")
    except SyntaxError as error:
        raise NetParsingError(f"not in the network language: {error.msg}", *_error_position(error, text)) from error
    except ValueError as error:  # invalid Unicode
        raise NetParsingError(f"not in the network language: {error}", 1, 1) from error
    return wrapped, tree.body


@contextmanager
def _nesting_errors() -> Iterator[None]:
    try:
        yield
    except (RecursionError, MemoryError) as error:
        raise NetParsingError("not in the network language: nested too deeply", 1, 1) from error


class _Parser:
    """Converts the syntax tree to modules; `wrapped` is the text with one line before it. A trial ignores devices."""

    def __init__(self, wrapped: str, constants: Mapping[str, object], is_trial: bool = False):
        self.lines = wrapped.splitlines()
        self.constants = constants
        self.is_trial = is_trial
        self.num_layers = self.num_copies = 0  # in layers of several, so far

    def error(self, node: ast.expr, message: str) -> NetParsingError:
        if node.lineno == 1:  # the brackets around the text
            return NetParsingError(message, 1, 1)
        text_before = self.lines[node.lineno - 1].encode()[: node.col_offset].decode(errors="ignore")
        return NetParsingError(message, node.lineno - 1, len(text_before) + 1)

    def net(self, node: ast.expr) -> nn.Module:
        """Returns a layer, or a chain of layers; brackets within a chain have no effect."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.RShift):
            return layers.MultiLayered(*self.chain(node))
        if isinstance(node, ast.Call):
            return self.layer(node)
        if isinstance(node, ast.Name):
            raise self.error(node, f"expected a layer such as {node.id}(…), got the name {node.id!r} alone")
        raise self.error(node, f"expected a layer such as Linear(4, 2), got {_describe_node(node)}")

    def chain(self, node: ast.expr) -> list[nn.Module]:
        parts: list[list[nn.Module]] = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.RShift):
            parts.append(self.chain(node.right))
            node = node.left
        return [self.net(node), *(layer for part in reversed(parts) for layer in part)]

    def layer(self, node: ast.Call) -> nn.Module:
        if not isinstance(node.func, ast.Name):
            raise self.error(node.func, f"expected the name of a layer, got {_describe_node(node.func)}")
        cls = _find_layer(node.func.id)
        if cls is None:
            raise self.error(node.func, f"no layer is called {node.func.id!r}{_suggestion(node.func.id)}")
        positional = [self.argument(a) for a in node.args]
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self.error(keyword.value, "'**' is not in the network language")
            keywords[keyword.arg] = self.argument(keyword.value)
        try:
            return self.make(cls, positional, keywords)
        except Exception as error:
            raise self.error(node, f"{node.func.id} rejected its arguments: {error}") from error

    def make(self, cls: type[nn.Module], positional: list[Any], keywords: dict[str, Any]) -> nn.Module:
        has_hidden_names = issubclass(cls, nn.RNNBase) and cls is not nn.RNNBase  # it takes any arguments
        try:
            named = nn.RNNBase if has_hidden_names else cls
            bound = signature(named).bind(*[""] * has_hidden_names, *positional, **keywords)
        except TypeError:  # the layer has the better message
            return cls(*positional, **keywords)
        self.count_layers(bound.arguments)
        if self.is_trial and bound.arguments.pop("device", None) is not None:
            positional, keywords = list(bound.args[has_hidden_names:]), bound.kwargs
        return cls(*positional, **keywords)

    def count_layers(self, arguments: Mapping[str, object]) -> None:
        """Counts the layers that a layer makes: new ones, or copies of a layer among its arguments."""
        copied = sum(sum(1 for _ in value.modules()) for value in arguments.values() if isinstance(value, nn.Module))
        for name, value in arguments.items():
            if not name.endswith("layers") or not isinstance(value, int):
                continue
            self.num_layers += value
            self.num_copies += value * copied
            if self.num_layers > MAX_LAYERS:
                raise ValueError(
                    f"expected at most {MAX_LAYERS:,} layers in layers of several, got {self.num_layers:,}"
                )
            if self.num_copies > MAX_COPIES:
                raise ValueError(f"expected at most {MAX_COPIES:,} copies of modules, got {self.num_copies:,}")

    def argument(self, node: ast.expr) -> Any:
        is_chain = isinstance(node, ast.BinOp) and isinstance(node.op, ast.RShift)
        return self.net(node) if is_chain or isinstance(node, ast.Call) else self.value(node)

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() | float() | str() | None):
                return node.value
            case ast.Name(id=name):
                return self.constant(node, name)
            case ast.Tuple(elts=items):
                return tuple(map(self.value, items))
            case ast.List(elts=items):
                return [self.value(item) for item in items]
            case ast.Dict(keys=keys, values=values) if None not in keys:
                try:
                    return {self.value(k): self.value(v) for k, v in zip(keys, values, strict=True) if k is not None}
                except TypeError as error:  # a list
                    raise self.error(node, f"expected keys of a dict that can be hashed: {error}") from error
            case ast.UnaryOp(op=op, operand=operand) if type(op) in SIGNS:
                return SIGNS[type(op)](self.number(operand))
            case ast.BinOp(op=op) if type(op) in ARITHMETIC:
                return self.arithmetic(node)
            case ast.Subscript(value=base, slice=index) if not isinstance(index, ast.Slice):
                return self.item(node, self.value(base), self.value(index))
            case _:
                raise self.error(
                    node, f"expected a value, got {_describe_node(node)}, which is not in the network language"
                )

    def constant(self, node: ast.expr, name: str) -> Any:
        if name in self.constants:
            return self.constants[name]
        description = (
            f"the constants are {_quote_list(self.constants)}" if self.constants else "no constants were given"
        )
        raise self.error(node, f"unknown name {name!r}: {description}")

    def number(self, node: ast.expr) -> float:
        value = self.value(node)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise self.error(node, f"expected numbers in arithmetic, got {value!r}")
        return int(value) if isinstance(value, Integral) else float(value)  # NumPy's integers would overflow

    def arithmetic(self, node: ast.BinOp) -> float:
        left, right = self.number(node.left), self.number(node.right)
        if isinstance(node.op, ast.Pow) and max(abs(left), abs(right)) > MAX_POWER_OPERAND:
            raise self.error(node, f"expected numbers not beyond {MAX_POWER_OPERAND} in a power")
        try:
            return ARITHMETIC[type(node.op)](left, right)
        except (ArithmeticError, ValueError) as error:
            raise self.error(node, f"cannot compute this: {error}") from error

    def item(self, node: ast.expr, base: Any, index: Any) -> Any:
        try:
            return base[index]
        except (LookupError, TypeError) as error:
            raise self.error(node, f"cannot take item {_short(index)} of {_short(base)}") from error


def _make_without_memory(wrapped: str, tree: ast.expr, constants: Mapping[str, object]) -> nn.Module:
    """Makes the network without memory for its parameters, and raises if there are too many of them."""
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they come when the network is made
        net = _Parser(wrapped, constants, is_trial=True).net(tree)
    size = sum(tensor.numel() for tensor in (*net.parameters(), *net.buffers()) if not is_lazy(tensor))
    if size > MAX_NUMBERS:
        raise NetParsingError(f"expected a network of at most {MAX_NUMBERS:,} parameters, got {size:,}", 1, 1)
    return net


def _short(value: object) -> str:
    try:
        return f"{value!r:.80}"
    except ValueError:  # an int of more digits than Python writes
        return "a large number"


def _is_plain(value: object) -> bool:
    """Returns whether a constant can be used twice, unlike a module or an iterator."""
    return isinstance(value, Real | str | None) or (isinstance(value, tuple | list) and all(map(_is_plain, value)))


def _find_layer(name: str) -> type[nn.Module] | None:
    found = VECRL_LAYERS.get(name) or getattr(nn, name, None)
    return found if isinstance(found, type) and issubclass(found, nn.Module) else None


def _suggestion(name: str) -> str:
    matches = difflib.get_close_matches(name, [*VECRL_LAYERS, *dir(nn)])
    return f": did you mean {_quote_list(matches)}?" if matches else ": use one of torch.nn or of vecrl.policy"


def _quote_list(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _describe_node(node: ast.expr) -> str:
    if isinstance(node, ast.Tuple) and not node.elts:
        return "nothing"
    names = {"Call": "a call", "Lambda": "a lambda", "Attribute": "an attribute", "BinOp": "an operator"}
    return names.get(type(node).__name__, f"a {type(node).__name__.lower()}")


def _check_brackets(wrapped: str) -> None:
    """Checks that the brackets added around the text match each other, and none within the text."""
    last_line = wrapped.count("\n") + 1
    open_brackets: list[tuple[int, int]] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(wrapped).readline):
            line, column = token.start
            if token.type == tokenize.OP and token.string in "([{":
                open_brackets.append(token.start)
            elif token.type == tokenize.OP and token.string in ")]}" and open_brackets:
                start = open_brackets.pop()
                if line < last_line and not open_brackets:
                    raise NetParsingError("this bracket was never opened", line - 1, column + 1)
                if line == last_line and open_brackets:
                    raise NetParsingError("this bracket was never closed", start[0] - 1, start[1] + 1)
    except (tokenize.TokenError, IndentationError):
        return  # the parser has the better message


def _error_position(error: SyntaxError, text: str) -> tuple[int, int]:
    """Returns line and column in `text`, at most its end."""
    lines = text.splitlines() or [""]
    line = (error.lineno or 1) - 1
    if line > len(lines):
        return len(lines), len(lines[-1]) + 1
    return max(line, 1), error.offset or 1
