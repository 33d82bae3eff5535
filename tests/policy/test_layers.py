"""Layers and whole networks, one network at a time."""

import copy
import math

import pytest
import torch
from torch import nn

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
    count_parameters,
)


@pytest.mark.parametrize(
    ("layer", "x", "y"),
    [
        (Clip(-1, 2), [-3.0, 0.5, 3.0], [-1.0, 0.5, 2.0]),
        (Bin(-2, 2), [-0.1, 0.1, 9.0], [-2.0, 2.0, 2.0]),
        (Bin(0, 1), [-3.0, 0.2, 0.7], [0.0, 0.0, 1.0]),
        (Slice(1, 3), [0.0, 1.0, 2.0, 3.0], [1.0, 2.0]),
        (Round(1), [0.26, -1.71], [0.3, -1.7]),
        (Round(), [1.6, -0.4], [2.0, 0.0]),
        (Apply("+", 3), [1.0], [4.0]),
        (Apply("-", 3), [1.0], [-2.0]),
        (Apply("*", 3), [2.0], [6.0]),
        (Apply("/", 2), [3.0], [1.5]),
        (Apply("**", 2), [3.0], [9.0]),
    ],
    ids=repr,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layers_without_parameters(layer, x, y, dtype):
    """Covers Clip, Bin, Slice, Round and Apply."""
    x, y = torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=dtype)
    torch.testing.assert_close(layer(x), y)
    torch.testing.assert_close(layer(x.expand(3, 2, -1)), y.expand(3, 2, -1))


def test_apply_names_its_operators():
    with pytest.raises(ValueError, match=r"'\+', '-'.*got '@'"):
        Apply("@", 1)


@pytest.mark.parametrize(
    ("own", "torchs"),
    [
        (RNN(3, 5), nn.RNNCell(3, 5)),
        (RNN(3, 5, "relu"), nn.RNNCell(3, 5, nonlinearity="relu")),
        (LSTM(3, 5), nn.LSTMCell(3, 5)),
    ],
    ids=["rnn", "rnn-relu", "lstm"],
)
def test_recurrent_layers_equal_torchs_cells(own, torchs):
    """RNN(input_size, hidden_size, nonlinearity) and LSTM take (x, h=None) and return (y, h)."""
    torchs.load_state_dict(own.state_dict())
    h = state = None
    for _ in range(4):
        x = torch.randn(7, 3)
        y, h = own(x, h)
        state = torchs(x, state)
        torch.testing.assert_close(h, state)
        torch.testing.assert_close(y, state[0] if isinstance(state, tuple) else state)


def test_recurrent_layers_accept_dtype_and_device_and_reject_unknown_names():
    assert RNN(2, 3, dtype=torch.float64)(torch.zeros(2, dtype=torch.float64))[0].dtype == torch.float64
    assert LSTM(2, 3, device="meta").weight_ih.device.type == "meta"
    with pytest.raises(ValueError, match="'tahn'"):
        RNN(2, 3, "tahn")


def test_multi_layered_is_a_sequence_that_threads_states():
    """MultiLayered can be indexed, has a length, and passes hidden states through recurrent layers."""
    net = MultiLayered(nn.Linear(3, 4), LSTM(4, 5), nn.Tanh(), RNN(5, 6))
    assert (len(net), net[1].hidden_size, [type(layer) for layer in net][2]) == (4, 5, nn.Tanh)
    assert len(net[-2:]) == 2
    x, h = torch.randn(3), None
    states = {1: None, 3: None}
    for _ in range(3):
        y, h = net(x, h)
        a, states[1] = net[1](net[0](x), states[1])
        b, states[3] = net[3](net[2](a), states[3])
        torch.testing.assert_close((y, h), (b, states))
    assert isinstance(MultiLayered(nn.Linear(3, 2), nn.Tanh())(x), torch.Tensor)


def test_feed_forward_net_equals_its_layers():
    """Covers FeedForwardNet(input_size, [(size, nonlinearity), (size, nonlinearity, bias)])."""
    net = FeedForwardNet(3, [(5, "tanh"), (4, torch.relu), [2, None, False]])
    assert count_parameters(net) == 3 * 5 + 5 + 5 * 4 + 4 + 4 * 2
    x = torch.randn(6, 3)
    first, second, third = net.linears
    torch.testing.assert_close(net(x), third(second(first(x).tanh()).relu()))
    with pytest.raises(ValueError, match="Expected a layer"):
        FeedForwardNet(3, [(5,)])
    with pytest.raises(ValueError, match="'nope'"):
        FeedForwardNet(3, [(5, "nope")])


@pytest.mark.parametrize("bias", [True, False])
def test_structured_control_net(bias):
    """In a StructuredControlNet, the bias is that of the linear part."""
    net = StructuredControlNet(in_features=3, out_features=2, num_layers=2, hidden_size=5, bias=bias)
    assert count_parameters(net) == (6 + 2 * bias) + (15 + 5) + (25 + 5) + (10 + 2)
    x = torch.randn(4, 3)
    torch.testing.assert_close(net(x), net.linear(x) + net.nonlinear(x))


@pytest.mark.parametrize("bias", [True, False])
def test_locomotor_net(bias):
    """A LocomotorNet keeps its time in the state, so an episode starts at t = 0."""
    net = LocomotorNet(in_features=3, out_features=2, bias=bias, num_sinusoids=4)
    assert count_parameters(net) == 6 + 2 * bias + 3 * 4 * 2
    coefficients = torch.stack([net.amplitudes, net.frequencies, net.phases]).permute(2, 0, 1).tolist()
    h = None
    for t in range(3):
        x = torch.randn(3)
        y, h = net(x, h)
        waves = [sum(a * math.sin(f * t + p) for a, f, p in zip(*c, strict=True)) for c in coefficients]
        torch.testing.assert_close(y, net.linear(x) + torch.tensor(waves))
        assert h.item() == t + 1
    y, h = net(torch.randn(7, 3))
    assert (y.shape, h.shape) == ((7, 2), (7,))


def test_layers_can_be_copied_and_have_a_repr():
    net = MultiLayered(Clip(0, 1), Bin(0, 1), Slice(0, 1), Round(1), Apply("*", 2), RNN(1, 2), LSTM(2, 3))
    text = repr(copy.deepcopy(net))
    for part in ("lb=0.0, ub=1.0", "from_index=0, to_index=1", "ndigits=1", "operator='*', argument=2.0", "1, 2"):
        assert part in text
