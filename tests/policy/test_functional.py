"""Modules as functions of flat vectors."""

import pytest
import torch
from torch import nn

from vecrl.policy import (
    RNN,
    MultiLayered,
    count_parameters,
    fill_parameters,
    make_functional_module,
    parameter_vector,
)


class Tied(nn.Module):
    """Has two layers that share one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).tanh())


def mlp():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


@pytest.mark.parametrize("make", [mlp, Tied, nn.Tanh])
def test_vector_fill_and_count_agree(make):
    """Covers `parameter_vector(net)`, `fill_parameters(net, vector)` and `count_parameters(net)`."""
    net, other = make(), make()
    vector = parameter_vector(net)
    assert vector.shape == (count_parameters(net),) == (sum(p.numel() for p in set(net.parameters())),)
    fill_parameters(other, vector)
    assert torch.equal(parameter_vector(other), vector)
    x = torch.randn(4, 3)
    torch.testing.assert_close(other(x), net(x))


def test_fill_parameters_casts_dtypes_and_rejects_wrong_lengths():
    net = nn.Linear(2, 1)
    fill_parameters(net, torch.tensor([1, 2, 3]))
    assert parameter_vector(net).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match=r"\(3,\), got \(4,\)"):
        fill_parameters(net, torch.zeros(4))
    assert parameter_vector(net).tolist() == [1.0, 2.0, 3.0]
    assert net.weight.requires_grad


def test_parameter_vector_is_differentiable_and_a_copy():
    net = nn.Linear(2, 1)
    parameter_vector(net).sum().backward()
    assert net.weight.grad.tolist() == [[1.0, 1.0]]
    vector = parameter_vector(net).detach()
    before = vector.clone()
    with torch.no_grad():
        net.weight.zero_()
    assert torch.equal(vector, before)
    assert parameter_vector(net, device="cpu").shape == (3,)


@pytest.mark.parametrize("make", [mlp, Tied])
def test_functional_module_equals_the_module(make):
    """Covers `f(flat_parameters, x, h=None)` and `parameter_length`."""
    net, other = make(), make()
    f = make_functional_module(net)
    assert f.parameter_length == count_parameters(net)
    x = torch.randn(4, 3)
    torch.testing.assert_close(f(parameter_vector(other), x), other(x))
    with pytest.raises(ValueError, match="flat parameters of shape"):
        f(torch.zeros(f.parameter_length + 1), x)


def test_functional_module_copies_the_net():
    net = nn.BatchNorm1d(3).eval()
    f = make_functional_module(net)
    x = torch.randn(4, 3)
    vector = parameter_vector(net).detach()
    expected = net(x)
    net.running_mean.add_(5.0)
    torch.testing.assert_close(f(vector, x), expected)


def test_functional_module_threads_hidden_states():
    """Covers the `h` of `f(flat_parameters, x, h=None)`."""
    net = MultiLayered(nn.Linear(3, 4), RNN(4, 5), nn.Linear(5, 2))
    f, vector, x = make_functional_module(net), parameter_vector(net), torch.randn(3)
    y, h = f(vector, x)
    expected, state = net(*[x])
    torch.testing.assert_close((y, h), (expected, state))
    torch.testing.assert_close(f(vector, x, h), net(x, state))


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # a warning of torch's own forward mode
def test_functional_module_is_differentiable_and_works_under_torch_func():
    """Covers torch.func's transforms vmap, grad and jvp."""
    net = mlp()
    f = make_functional_module(net, disable_autograd_tracking=True)
    x = torch.randn(3)
    vectors = torch.randn(6, f.parameter_length)
    each = torch.stack([f(v, x) for v in vectors])
    torch.testing.assert_close(torch.func.vmap(f, in_dims=(0, None))(vectors, x), each)

    def loss(vector):
        return f(vector, x).square().sum()

    leaf = vectors[0].clone().requires_grad_()
    loss(leaf).backward()
    gradient = torch.func.grad(loss)(vectors[0])
    torch.testing.assert_close(gradient, leaf.grad)
    direction = torch.randn_like(vectors[0])
    value, slope = torch.func.jvp(loss, (vectors[0],), (direction,))
    torch.testing.assert_close((value, slope), (loss(vectors[0]), gradient @ direction))
    per_member = torch.func.vmap(torch.func.grad(loss))(vectors)
    torch.testing.assert_close(per_member[0], gradient)


def test_functional_module_maps_over_hidden_states():
    """Covers torch.func's transforms over the hidden state."""
    f = make_functional_module(MultiLayered(nn.Linear(3, 4), RNN(4, 5), nn.Linear(5, 2)))
    vectors, x = torch.randn(6, f.parameter_length), torch.randn(6, 3)
    _, h = torch.func.vmap(f)(vectors, x)
    y, _ = torch.func.vmap(f)(vectors, x, h)
    each = [f(v, row, f(v, row)[1])[0] for v, row in zip(vectors, x, strict=True)]
    torch.testing.assert_close(y, torch.stack(each))


def test_functional_module_is_differentiable_in_its_input():
    """Covers gradients with respect to `x`."""
    net, x = mlp(), torch.randn(3, requires_grad=True)
    f = make_functional_module(net)
    (actual,) = torch.autograd.grad(f(parameter_vector(net).detach(), x).sum(), x)
    (reference,) = torch.autograd.grad(net(x).sum(), x)
    torch.testing.assert_close(actual, reference)


def test_buffers_move_with_the_module():
    """Covers `buffers` and moves between devices and dtypes."""
    f = make_functional_module(nn.BatchNorm1d(3))
    assert [tuple(b.shape) for b in f.buffers] == [(3,), (3,), ()]
    assert f.to("cpu") is f
    changed = f.to("meta")
    assert {b.device.type for b in changed.buffers} == {"meta"}
    assert {b.device.type for b in f.buffers} == {"cpu"}


def test_disable_autograd_tracking_cuts_the_buffers_off():
    net = nn.Identity()
    net.register_buffer("scale", torch.ones(1, requires_grad=True))
    assert [b.requires_grad for b in make_functional_module(net, disable_autograd_tracking=True).buffers] == [False]
    assert [b.requires_grad for b in make_functional_module(net).buffers] == [True]
