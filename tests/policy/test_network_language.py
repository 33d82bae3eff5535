"""The network language: accepted input, and the position in error messages."""

import random
import string

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from vecrl.errors import NetParsingError
from vecrl.policy import (
    LSTM,
    RNN,
    Apply,
    Bin,
    Clip,
    FeedForwardNet,
    LocomotorNet,
    MultiLayered,
    Round,
    Slice,
    StructuredControlNet,
    str_to_net,
)


def test_contract_example_parses():
    """Covers `Linear(obs_length, 16) >> Tanh() >> Linear(16, act_length)`."""
    net = str_to_net("Linear(obs_length, 16) >> Tanh() >> Linear(16, act_length)", obs_length=4, act_length=2)
    assert isinstance(net, MultiLayered)
    assert [type(layer) for layer in net] == [nn.Linear, nn.Tanh, nn.Linear]
    assert net(torch.zeros(4)).shape == (2,)


def test_a_single_layer_is_returned_unwrapped():
    assert isinstance(str_to_net(" Linear(3, 2) "), nn.Linear)


def test_vecrl_layers_take_precedence_over_torch():
    """Names are looked up in vecrl's layers first, then in torch.nn."""
    text = """Clip(0, 1) >> Bin(0, 1) >> Slice(0, 1) >> Round(2) >> Apply("+", 1) >> RNN(1, 2, nonlinearity="relu")
              >> LSTM(2, 3) >> FeedForwardNet(3, [(4, "tanh"), (2, None, False)])
              >> StructuredControlNet(in_features=2, out_features=2, num_layers=1, hidden_size=3)
              >> LocomotorNet(in_features=2, out_features=1) >> LayerNorm([1])"""
    expected = [Clip, Bin, Slice, Round, Apply, RNN, LSTM, FeedForwardNet, StructuredControlNet, LocomotorNet]
    net = str_to_net(text)
    assert [type(layer) for layer in net] == [*expected, nn.LayerNorm]
    assert net(torch.zeros(5))[0].shape == (1,)


def test_arguments_may_be_constant_expressions():
    """Covers positional and keyword arguments, literals, arithmetic on constants and indexing into constants."""
    net = str_to_net(
        "Linear(shape[0] + 2 * n - 1, sizes['out'] // -2, bias=False) >> Clip(lb=-1e-1, ub=+(3 % 2) / 2 ** 1)",
        shape=(4, 3),
        n=5,
        sizes={"out": -8},
    )
    assert (net[0].in_features, net[0].out_features, net[0].bias) == (13, 4, None)
    assert (net[1].lb, net[1].ub) == (-0.1, 0.5)
    assert str_to_net("Linear(pairs[1][-1], 1)", pairs=[(1, 2), (3, 4)]).in_features == 4
    assert str_to_net("Unflatten(0, (2, 3))").unflattened_size == (2, 3)


def test_numpy_numbers_may_be_constants():
    """Covers arithmetic on constants from spaces, which are NumPy numbers."""
    net = str_to_net("Linear(2 * n, n ** 2 - 1) >> Clip(-high, high)", n=np.int64(3), high=np.float32(0.5))
    assert (net[0].in_features, net[0].out_features, net[1].lb, net[1].ub) == (6, 8, -0.5, 0.5)
    with pytest.raises(NetParsingError, match="beyond 256"):
        str_to_net("Linear(1, n ** n)", n=np.int64(300))
    with pytest.raises(NetParsingError, match="expected numbers in arithmetic"):
        str_to_net("Linear(1, flag + 1)", flag=np.bool_(True))


def test_comments_and_line_breaks_are_ignored():
    net = str_to_net("""
        # the observation comes in
        Linear(4,
               8)      # (eight units
        >> Tanh()
        >> Linear(8, 2)""")
    assert len(net) == 3


def test_networks_can_be_nested():
    net = str_to_net(
        "Linear(2, 3) >> (Tanh() >> Sequential(Linear(3, 3), ReLU())) >> Sequential(Tanh() >> Linear(3, 1))"
    )
    assert [type(layer) for layer in net] == [nn.Linear, nn.Tanh, nn.Sequential, nn.Sequential]
    assert isinstance(net[-1][0], MultiLayered)
    assert net(torch.zeros(2)).shape == (1,)


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("", 1, 1, "got nothing"),
        ("Tanh(), Tanh()", 1, 1, "got a tuple"),
        ("Linear(4, 2) >>", 1, 16, "not in the network language"),
        ("Linear(4, 2\n>> Tanh()", 1, 7, "never closed"),
        ("Linear(4, 2)) >> (Tanh()", 1, 13, "never opened"),
        ("Linear(4, 2)\n  >> Liner(2, 2)", 2, 6, "'Liner'.*did you mean.*'Linear'"),
        ("Tanh", 1, 1, "Tanh\\(…\\)"),
        ("3 >> Tanh()", 1, 1, "a constant"),
        ("Linear(4, 2) + Tanh()", 1, 1, "an operator"),
        ("Linear(obs, 2)", 1, 8, "unknown name 'obs'.*'obs_length'"),
        ("Linear(4, obs_length.real)", 1, 11, "an attribute"),
        ("Linear(4, 'é' + 2)", 1, 11, "expected numbers in arithmetic"),
        ("Linear('é', Tahn)", 1, 13, "unknown name 'Tahn'"),
        ("Linear(4, True + 2)", 1, 11, "expected numbers in arithmetic"),
        ("Linear(4, 1 // 0)", 1, 11, "cannot compute"),
        ("Linear(4, 9 ** 9 ** 9 ** 9)", 1, 16, "beyond 256"),
        ("Linear(4, 1 << 3)", 1, 11, "not in the network language"),
        ("Linear(4, [1, 2][5])", 1, 11, "cannot take item 5"),
        ("Linear(4, [1, 2][0:1])", 1, 11, "a subscript"),
        ("Linear(*(4, 2))", 1, 8, "a starred"),
        ("Linear(**{'a': 1})", 1, 10, "\\*\\*"),
        ("Linear(4, lambda: 3)", 1, 11, "a lambda"),
        ("Linear(4, [i for i in (1,)])", 1, 11, "a listcomp"),
        ("Linear(4, f'{obs_length}')", 1, 11, "a joinedstr"),
        ("Linear(4, 1 if True else 2)", 1, 11, "a ifexp"),
        ("Linear(4, (y := 2))", 1, 12, "a namedexpr"),
        ("Linear(4, b'2')", 1, 11, "a constant"),
        ("__import__('os').system('true')", 1, 1, "an attribute"),
        ("functional(1)", 1, 1, "no layer is called 'functional'"),
        ("Linear(4)", 1, 1, "Linear rejected its arguments: .*out_features"),
        ("Tanh() >> Linear(4, 2, color=1)", 1, 11, "color"),
        ("x = Tanh()", 1, 1, "not in the network language"),
        ("Tanh(); Tanh()", 1, 7, "not in the network language"),
    ],
)
def test_syntax_errors_have_a_position(text, line, column, words):
    """Text is parsed, never evaluated. Text outside the grammar is a NetParsingError with line and column."""
    with pytest.raises(NetParsingError, match=words) as exc_info:
        str_to_net(text, obs_length=4)
    assert (exc_info.value.line, exc_info.value.column) == (line, column)


def test_null_bytes_have_a_position():
    """Text outside the grammar is a NetParsingError with line and column."""
    with pytest.raises(NetParsingError) as exc_info:
        str_to_net("Tanh()\n>> Tanh()\0")
    assert (exc_info.value.line, exc_info.value.column) == (2, 10)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "Tanh()" + ")" * 5000,
        "Clip(0, " + "-" * 20_000 + "1)",
        "Clip(0, 1" + " + 1" * 20_000 + ")",
        "Clip(0, n" + "[0]" * 20_000 + ")",
    ],
    ids=["brackets", "signs", "sums", "items"],
)
def test_deep_nesting_is_a_parsing_error(text):
    """Nesting that is too deep is a NetParsingError with line and column."""
    with pytest.raises(NetParsingError) as exc_info:
        str_to_net(text, n=())
    assert exc_info.value.line == 1
    assert exc_info.value.column >= 1


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_text_parses_or_raises(seed):
    rng = random.Random(seed)
    pieces = ["Linear(", "4", ",", "2", ")", ">>", "Tanh()", "\n", "#", "n", "[0]", "(", "-", "'", *string.punctuation]
    text = "".join(rng.choices(pieces, k=rng.randint(0, 12)))
    try:
        result = str_to_net(text, n=3)
    except NetParsingError as error:
        result = error
    if isinstance(result, NetParsingError):
        assert 1 <= result.line <= text.count("\n") + 1
    else:
        assert isinstance(result, nn.Module)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Transformer(8, 8, 20000, 1)", "expected at most 250 layers in layers of several, got 20,000"),
        ("GRU(8, 8, 30000)", "at most 250 layers in layers of several, got 30,000"),
        ("StructuredControlNet(4, 2, 30000, 4)", "at most 250 layers in layers of several, got 30,000"),
        ("Linear(4, 9) >> Linear(10**5, 10**5)", "at most 1,073,741,824 parameters, got 10,000,100,045"),
    ],
)
def test_short_texts_of_large_networks_are_refused_before_they_are_made(text: str, message: str) -> None:
    with pytest.raises(NetParsingError, match=message):
        str_to_net(text)


def test_the_check_of_the_size_changes_nothing() -> None:
    """It draws no random numbers, uses no constant twice, and ignores devices of the text."""
    texts = ["Linear(4, 2)", "Linear(4, 2, device='cpu')", "Linear(4, 2, True, 'cpu')", "Linear(4, 2, True, device=d)"]
    weights = []
    for text in texts:
        torch.manual_seed(0)
        weights.append(next(str_to_net(text, d="cpu").parameters()))
    assert all(torch.equal(weight, weights[0]) for weight in weights)
    assert len(str_to_net("ModuleList(x)", x=iter([torch.nn.Linear(2, 2)]))) == 1
    for text in (
        "Linear(10**5, 10**5, device='cpu')",
        "Linear(10**5, 10**5, True, 'cpu')",
        "GRU(10**5, 10**5, device='cpu')",
    ):
        with pytest.raises(NetParsingError, match="at most 1,073,741,824 parameters"):
            str_to_net(text)
    assert str_to_net("RNNBase('LSTM', 4, 2000, 1)").hidden_size == 2000
    with pytest.raises(NetParsingError, match="at most 250 layers"):
        str_to_net("RNNBase('LSTM', 4, 8, 251)")
    layer = "TransformerEncoderLayer(2, 1, 2)"
    with pytest.raises(NetParsingError, match="at most 20,000 copies of modules, got 36,720"):
        str_to_net(f"TransformerEncoder(TransformerEncoder({layer}, 60), 60)")
