"""Batched kernels: for every layer and size, member i gets the result of its own module."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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
    ObsNormLayer,
    Policy,
    Round,
    Slice,
    StructuredControlNet,
    batched_forward,
    register_batched,
)
from vecrl.policy import batched_kernels as kernels


class Doubled(nn.Linear):
    """A subclass with another forward pass than its base class."""

    def forward(self, x):
        return 2 * super().forward(x)


class Own(nn.Module):
    """A user's module with a hidden state that contains a layer of vecrl."""

    def __init__(self):
        super().__init__()
        self.enter, self.cell = nn.Linear(6, 4), RNN(4, 3)

    def forward(self, x, h=None):
        y, h = self.cell(self.enter(x).relu(), h)
        return y * 2, h


class Tied(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        self[2].weight = self[0].weight


def hooked():
    net = nn.Linear(6, 2)
    net.register_forward_hook(lambda module, inputs, y: y + 1)
    return net


def frozen_batch_norm():
    net = nn.BatchNorm1d(6).eval()
    net.running_mean.normal_()
    return nn.Sequential(nn.Unflatten(0, (1, 6)), net, nn.Flatten(0), nn.Linear(6, 2))


def in_one_vector(activation):
    return FeedForwardNet(6, [(5, "tanh"), (3, activation), (2, None, False)])


NETS = {
    "linear": lambda: nn.Linear(6, 2),
    "linear without bias": lambda: nn.Linear(6, 20, bias=False),
    "elementwise": lambda: nn.Sequential(*(cls() for cls in (nn.Tanh, nn.GELU, nn.Softplus, nn.SiLU, nn.Identity))),
    "threshold": lambda: nn.Threshold(0.1, 2.0),
    "own layers": lambda: MultiLayered(
        Slice(1, 5), Apply("*", 3), Round(1), Clip(-1, 2), nn.Linear(4, 3), Apply("**", 2), Bin(0.2, 1)
    ),
    "softmax of the last": lambda: nn.Sequential(nn.Linear(6, 3), nn.Softmax(-1)),
    "softmax of the first": lambda: nn.Sequential(nn.Linear(6, 3), nn.Softmax(0)),
    "layer norm": lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3), nn.LayerNorm(3, elementwise_affine=False)),
    "layer norm without bias": lambda: nn.LayerNorm(6, bias=False),
    "normalized": lambda: MultiLayered(ObsNormLayer(torch.randn(6), torch.rand(6) + 1, -1, 1), nn.Linear(6, 2)),
    "rnn": lambda: RNN(6, 5),
    "rnn, relu": lambda: MultiLayered(nn.Linear(6, 4), RNN(4, 5, "relu"), nn.Linear(5, 2)),
    "lstm": lambda: LSTM(6, 5),
    "two recurrent": lambda: MultiLayered(LSTM(6, 5), nn.Tanh(), RNN(5, 4)),
    "nested": lambda: MultiLayered(nn.Linear(6, 4), MultiLayered(RNN(4, 3), nn.Tanh()), nn.Linear(3, 2)),
    "feed forward": lambda: in_one_vector("relu"),
    "feed forward, callable": lambda: in_one_vector(lambda x: x.softmax(0)),
    "structured": lambda: StructuredControlNet(in_features=6, out_features=2, num_layers=1, hidden_size=4),
    "locomotor": lambda: LocomotorNet(in_features=6, out_features=2, num_sinusoids=3),
    "unknown layer": lambda: MultiLayered(nn.Linear(6, 4), nn.PReLU(), Doubled(4, 2)),
    "user's module": Own,
    "tied": Tied,
    "hooked": hooked,
    "buffers under vmap": frozen_batch_norm,
    "no parameters": lambda: MultiLayered(nn.Tanh(), nn.Flatten(0)),
    "no layers": MultiLayered,
}


def check(net, members, steps=3, dtype=torch.float32):
    """Compares a policy of `members` with `members` modules over some steps of their hidden states."""
    policy = Policy(net)
    flat = torch.randn(members, policy.parameter_length, dtype=dtype)
    policy.set_parameters(flat)
    modules = [policy.to_torch_module(vector) for vector in flat]
    states = [None] * members
    for _ in range(steps):
        x = torch.randn(members, 6, dtype=dtype)
        expected = []
        for i, module in enumerate(modules):
            y = module(x[i]) if states[i] is None else module(x[i], states[i])
            y, states[i] = y if isinstance(y, tuple) else (y, None)
            expected.append(y)
        torch.testing.assert_close(policy(x), torch.stack(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("members", [1, 5, 40])
def test_members_equal_their_own_modules(name, members):
    """Each row goes through its own network; recurrent modules keep their state."""
    torch.manual_seed(1)
    check(NETS[name](), members)


def test_members_equal_their_own_modules_in_double():
    check(NETS["two recurrent"](), 40, dtype=torch.float64)
    check(NETS["normalized"](), 3, dtype=torch.float64)


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, 2, 8, 16, 17, 64, 130]), min_size=1, max_size=4),
    members=st.sampled_from([1, 3, 32, 70]),
    bias=st.booleans(),
    recurrent=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_random_networks_equal_their_own_modules(sizes, members, bias, recurrent, seed):
    """Property test over layer sizes, so that every kernel has its turn.

    In double, so that what is left is the kernels' difference rather than that of two orders of a long sum.
    """
    torch.manual_seed(seed)
    layers = []
    for fan_in, fan_out in zip([6, *sizes], sizes, strict=False):
        layers += [nn.Linear(fan_in, fan_out, bias=bias), nn.Tanh()]
    if recurrent:
        layers.append(RNN(sizes[-1], 7))
    check(MultiLayered(*layers) if recurrent else nn.Sequential(*layers), members, 2, torch.float64)


@pytest.mark.parametrize(
    ("members", "inputs", "outputs", "kernel"),
    [
        (10, 4, 64, kernels.RowMatmul),
        (64, 4, 64, kernels.NarrowInputSum),
        (64, 64, 2, kernels.LongInputSum),
        (64, 4, 2, kernels.RowMatmul),
        (64, 32, 32, kernels.RowMatmul),
        (64, 128, 128, kernels.ColumnMatmul),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_every_kernel_is_used_and_has_gradients(members, inputs, outputs, kernel, bias):
    weight = torch.randn(members, outputs, inputs, dtype=torch.float64, requires_grad=True)
    shift = torch.randn(members, outputs, dtype=torch.float64, requires_grad=True) if bias else None
    x = torch.randn(members, 1, inputs, dtype=torch.float64, requires_grad=True)
    step = kernels.linear(weight, shift)
    assert type(step) is kernel
    expected = torch.einsum("noi,nbi->nbo", weight, x) + (0 if shift is None else shift.unsqueeze(1))
    torch.testing.assert_close(step(x), expected)
    leaves = [weight, x, *([shift] if bias else [])]
    up = torch.randn_like(expected)
    torch.testing.assert_close(torch.autograd.grad(step(x), leaves, up), torch.autograd.grad(expected, leaves, up))


def test_only_unknown_layers_use_vmap():
    policy = Policy(MultiLayered(nn.Linear(6, 4), nn.PReLU(), nn.Linear(4, 2)))
    policy.set_parameters(torch.randn(40, policy.parameter_length))
    assert [type(step) for step in policy._step.steps] == [kernels.RowMatmul, kernels.VmapForward, kernels.RowMatmul]


def test_custom_batched_forms_can_be_registered():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(6))

        def forward(self, x):
            return x * self.scale

    calls = []

    @register_batched(Scale)
    def _scale(module, parameters):
        def step(x):
            calls.append(tuple(x.shape))
            return x * parameters["scale"].unsqueeze(1)

        return step

    try:
        check(Scale(), 5, steps=1)
        assert calls == [(5, 1, 6)]
    finally:
        del kernels.BUILDERS[Scale]


def test_batched_forward_can_be_used_directly():
    step = batched_forward(nn.Linear(2, 1), {"weight": torch.ones(3, 1, 2), "bias": torch.arange(3.0).view(3, 1)})
    assert step(torch.ones(3, 1, 2)).tolist() == [[[2.0]], [[3.0]], [[4.0]]]


def test_dropout_differs_between_members():
    policy = Policy(nn.Dropout(0.5))
    policy.set_parameters(torch.zeros(64, 0))
    torch.manual_seed(0)
    y = policy(torch.ones(64, 6))
    assert set(y.flatten().tolist()) == {0.0, 2.0}
    assert not torch.equal(y[0], y[1])
