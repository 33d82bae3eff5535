"""`Policy`: parameters, actions and hidden states. The caller's tensors are not changed."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from vecrl.policy import LSTM, RNN, MultiLayered, Policy, fill_parameters, parameter_vector

RECURRENT = "Linear(3, 4) >> RNN(4, 5) >> Linear(5, 2) >> LSTM(2, 2)"


def policy_of(net, n=None, **kwargs):
    torch.manual_seed(0)
    policy = Policy(net, **kwargs)
    shape = (policy.parameter_length,) if n is None else (n, policy.parameter_length)
    policy.set_parameters(torch.randn(shape))
    return policy


def leaves(state):
    if isinstance(state, torch.Tensor):
        return [state]
    return [leaf for part in (state.values() if isinstance(state, dict) else state) for leaf in leaves(part)]


# ------------------------------------------------------------------ what it is made of


@pytest.mark.parametrize(
    ("net", "kwargs"),
    [
        ("Linear(obs, 2)", {"obs": 3}),
        (nn.Linear(3, 2), {}),
        (nn.Linear, {"in_features": 3, "out_features": 2}),
        (lambda obs: nn.Linear(obs, 2), {"obs": 3}),
    ],
    ids=["string", "module", "class", "function"],
)
def test_nets_may_be_strings_modules_or_callables(net, kwargs):
    policy = Policy(net, **kwargs)
    assert isinstance(policy.wrapped_module, nn.Linear)
    assert policy.parameter_length == 8
    assert "Linear" in repr(policy)


def test_invalid_nets_raise():
    """A ready module with kwargs is a ValueError, any other type a TypeError."""
    with pytest.raises(ValueError, match="color"):
        Policy(nn.Linear(3, 2), color=1)
    with pytest.raises(TypeError, match="got int"):
        Policy(3)
    with pytest.raises(TypeError, match="got dict"):
        Policy(dict)


# ------------------------------------------------------------------ parameters


def test_use_before_set_parameters_raises():
    """Calling it before set_parameters and setting indices before any batch are ValueErrors."""
    policy = Policy(nn.Linear(3, 2))
    for use in (lambda: policy(torch.zeros(3)), lambda: policy.parameters):
        with pytest.raises(ValueError, match="call set_parameters first"):
            use()
    for use in (lambda: policy.set_parameters(torch.zeros(8), 0), lambda: policy.select([0])):
        with pytest.raises(ValueError, match="batch of parameters"):
            use()
    policy.set_parameters(torch.zeros(8))
    with pytest.raises(ValueError, match="batch of parameters"):
        policy.set_parameters(torch.zeros(8), 0)
    policy.reset([0])
    assert policy.h is None


@pytest.mark.parametrize("shape", [(7,), (2, 9), (2, 2, 8), ()])
def test_parameters_of_a_wrong_shape_raise(shape):
    """Parameters are one vector or a batch (n, length)."""
    with pytest.raises(ValueError, match=r"\(8,\) or \(n, 8\)"):
        Policy(nn.Linear(3, 2)).set_parameters(torch.zeros(shape))


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 6), data=st.data(), kind=st.sampled_from(["list", "array", "tensor", "slice", "int"]))
def test_indices_replace_rows(n, data, kind):
    """Indices (ints or a mask) replace rows of an earlier batch."""
    mask = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    rows = [i for i, hit in enumerate(mask) if hit]
    as_mask = kind != "int" and data.draw(st.booleans())
    chosen = mask if as_mask else rows
    if kind == "slice":
        chosen = slice(data.draw(st.integers(0, n)), data.draw(st.integers(0, n)))
        rows = list(range(n))[chosen]
    elif kind == "int":
        chosen = data.draw(st.integers(-n, n - 1))
        rows = [chosen % n]
    elif kind != "list":
        chosen = np.array(chosen, dtype=bool if as_mask else int)
        chosen = chosen if kind == "array" else torch.from_numpy(chosen)
    policy = policy_of(nn.Linear(3, 2), n)
    expected = policy.parameters.clone()
    new = torch.randn(len(rows), 8)
    expected[rows] = new
    policy.set_parameters(new, chosen)
    assert torch.equal(policy.parameters, expected)
    policy.set_parameters(new.new_zeros(8), chosen)
    expected[rows] = 0
    assert torch.equal(policy.parameters, expected)
    x = torch.randn(n, 3)
    torch.testing.assert_close(
        policy(x), torch.stack([policy.to_torch_module(v)(x[i]) for i, v in enumerate(expected)])
    )


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ([0, 3], "3 rows"),
        (-4, "3 rows"),
        ([True, False], "mask of shape"),
        (True, "mask of shape"),
        ([0.5], "ints or bools"),
        ([0, 1], "Expected 2 parameter vectors, one per index, got 3"),
    ],
)
def test_invalid_indices_raise(indices, words):
    policy = policy_of(nn.Linear(3, 2), 3)
    before = policy.parameters
    with pytest.raises(ValueError, match=words):
        policy.set_parameters(torch.zeros(3, 8), indices)
    assert policy.parameters is before


def test_the_callers_tensors_are_copied():
    policy = Policy(nn.Linear(3, 2))
    parameters = torch.randn(4, 8)
    saved = parameters.clone()
    policy.set_parameters(parameters)
    earlier = policy.parameters
    rows = torch.ones(2, 8)
    policy.set_parameters(rows, [0, 2])
    assert torch.equal(parameters, saved)
    assert torch.equal(earlier, saved)
    assert torch.equal(rows, torch.ones(2, 8))
    x = torch.randn(4, 3)
    before = policy(x)
    parameters.zero_()
    rows.zero_()
    assert torch.equal(policy(x), before)


def test_gradients_reach_the_callers_parameters():
    for shape in [(8,), (40, 8)]:
        parameters = torch.randn(shape, requires_grad=True)
        policy = Policy(nn.Linear(3, 2))
        policy.set_parameters(parameters)
        x = torch.ones(*shape[:-1], 3)
        for _ in range(2):
            policy(x).sum().backward()
        assert torch.equal(parameters.grad, torch.full(shape, 2.0))


def test_parameters_may_be_arrays():
    policy = Policy(nn.Linear(3, 2))
    policy.set_parameters(np.ones((2, 8), np.float32))
    assert policy(torch.ones(2, 3)).tolist() == [[4.0, 4.0], [4.0, 4.0]]


# ------------------------------------------------------------------ acting


def test_one_vector_acts_on_one_or_many_observations():
    for net in (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), RNN(3, 2)):
        policy = policy_of(net)
        module = policy.to_torch_module(policy.parameters)
        for x in (torch.randn(3), torch.randn(5, 3)):
            policy.reset()
            expected = module(x)
            torch.testing.assert_close(policy(x), expected[0] if isinstance(expected, tuple) else expected)


@pytest.mark.parametrize("n", [None, 4])
def test_more_than_two_dimensions_raise(n):
    """Raises ValueError."""
    with pytest.raises(ValueError, match=r"\(4, 3, 3\)"):
        policy_of(nn.Linear(3, 2), n)(torch.zeros(4, 3, 3))


@pytest.mark.parametrize("shape", [(3,), (1, 3), (5, 3)])
def test_a_batch_of_parameters_needs_as_many_rows(shape):
    with pytest.raises(ValueError, match=r"Expected observations of shape \(4, features\)"):
        policy_of(nn.Linear(3, 2), 4)(torch.zeros(shape))


def test_actions_follow_the_grad_mode():
    policy = policy_of(RECURRENT, 40)
    with torch.no_grad():
        assert not policy(torch.randn(40, 3)).requires_grad
    with torch.inference_mode():
        assert policy(torch.randn(40, 3)).is_inference()


@pytest.mark.parametrize("net", ["Linear(3, 8) >> Tanh() >> Linear(8, 2)", RECURRENT])
def test_callable_within_a_compiled_function(net):
    """Runs under torch.compile without graph breaks; new parameters need no new compilation."""
    torch.compiler.reset()
    policy, plain = policy_of(net, 40), policy_of(net, 40)

    def act(x):
        return 2 * policy(x)

    compiled = torch.compile(act, backend="eager", fullgraph=True)
    for step in range(4):
        if step == 2:
            policy.set_parameters(policy.parameters + 1, reset=False)
            plain.set_parameters(plain.parameters + 1, reset=False)
        x = torch.randn(40, 3)
        with torch.compiler.set_stance("default" if step < 2 else "fail_on_recompile"):
            torch.testing.assert_close(compiled(x), 2 * plain(x))


def test_compile_is_for_large_batches():
    torch.compiler.reset()
    net = "Linear(3, 8) >> Tanh() >> Linear(8, 2)"
    traced = []

    def backend(graph, inputs):
        traced.append(graph)
        return graph

    policy = Policy(net).compile(min_members=8, backend=backend)
    for n in (4, 8, 8):
        vectors = torch.randn(n, policy.parameter_length)
        plain = Policy(net)
        plain.set_parameters(vectors)
        policy.set_parameters(vectors)
        x = torch.randn(n, 3)
        torch.testing.assert_close(policy(x), plain(x))
        assert len(traced) == (n >= 8)


# ------------------------------------------------------------------ hidden states


def test_hidden_states_are_kept_and_cleared_on_reset():
    """Recurrent modules keep their state in `h`; reset clears all hidden states."""
    policy = policy_of(RECURRENT, 4)
    assert policy.h is None
    x = torch.randn(4, 3)
    first = policy(x)
    assert {i: [tuple(t.shape) for t in leaves(h)] for i, h in policy.h.items()} == {1: [(4, 5)], 3: [(4, 2), (4, 2)]}
    assert not torch.allclose(policy(x), first)
    policy.reset()
    assert policy.h is None
    torch.testing.assert_close(policy(x), first)


@pytest.mark.parametrize(
    "indices",
    [
        [1, 3],
        (-3, 3),
        np.array([1, 3]),
        torch.tensor([1, 3]),
        [False, True, False, True],
        np.array([0, 1, 0, 1], bool),
        torch.tensor([False, True, False, True]),
        slice(1, None, 2),
    ],
    ids=repr,
)
@pytest.mark.parametrize("copy", [True, False])
def test_reset_clears_the_selected_rows(indices, copy):
    """`reset(indices, copy=True)` zeroes those rows and does not change an action that shares memory."""
    policy = policy_of(RNN(3, 5), 4)
    action = policy(torch.randn(4, 3))
    saved = action.clone()
    policy.reset(indices, copy=copy)
    expected = saved.clone()
    expected[[1, 3]] = 0
    assert torch.equal(policy.h, expected)
    assert torch.equal(action, saved if copy else expected)


def test_reset_clears_the_state_of_every_layer():
    policy = policy_of(RECURRENT, 4)
    policy(torch.randn(4, 3))
    before = [leaf.clone() for leaf in leaves(policy.h)]
    policy.reset(2)
    for leaf, old in zip(leaves(policy.h), before, strict=True):
        old[2] = 0
        assert torch.equal(leaf, old)


def test_reset_with_invalid_indices_raises():
    policy = policy_of(RNN(3, 5), 4)
    policy.reset([0])
    policy(torch.randn(4, 3))
    with pytest.raises(ValueError, match="4 rows"):
        policy.reset(4)
    item = policy_of(RNN(3, 5))
    item(torch.randn(3))
    with pytest.raises(ValueError, match="without indices"):
        item.reset(0)


def test_set_parameters_resets_what_changed():
    """Resets the hidden states of changed rows unless reset=False."""
    policy = policy_of(RNN(3, 5), 4)
    x, new = torch.randn(4, 3), torch.randn(4, policy.parameter_length)
    policy(x)
    h = policy.h.clone()
    policy.set_parameters(new[:2], [0, 3], reset=False)
    assert torch.equal(policy.h, h)
    policy.set_parameters(new[:2], [0, 3])
    h[[0, 3]] = 0
    assert torch.equal(policy.h, h)
    policy.set_parameters(new, reset=False)
    assert torch.equal(policy.h, h)
    with pytest.raises(ValueError, match="Use reset=True"):
        policy.set_parameters(new[:3], reset=False)
    assert torch.equal(policy.parameters, new)
    policy.set_parameters(new)
    assert policy.h is None


# ------------------------------------------------------------------ select, deploy, travel


@pytest.mark.parametrize("chosen", [[0, 3], [True, False, False, True], slice(0, 4, 3), torch.tensor([0, 3])], ids=repr)
def test_select_keeps_the_states_of_members(chosen):
    policy = policy_of(RECURRENT, 4)
    policy(torch.randn(4, 3))
    few = policy.select(chosen)
    x = torch.randn(4, 3)
    action = few(x[[0, 3]])
    torch.testing.assert_close(action, policy(x)[[0, 3]])
    few.reset(0, copy=False)
    few.set_parameters(torch.zeros(few.parameter_length), 0)
    assert all(leaf[0].any() for leaf in leaves(policy.h))
    assert policy.parameters[0].any()
    assert policy.wrapped_module is few.wrapped_module


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_to_torch_module(dtype):
    """Returns a copy of the module with these parameters, on their device."""
    net = MultiLayered(nn.Linear(3, 2), nn.Tanh())
    policy = Policy(net)
    before = parameter_vector(net).detach().clone()
    vector = torch.randn(policy.parameter_length, dtype=dtype)
    module = policy.to_torch_module(vector)
    assert torch.equal(parameter_vector(module), vector)
    assert module is not net
    assert torch.equal(parameter_vector(net), before)
    assert module[0].weight.requires_grad
    assert policy.to_torch_module(vector.to("meta"))[0].weight.device.type == "meta"
    with pytest.raises(ValueError, match="parameter vector of shape"):
        policy.to_torch_module(vector[:-1])


def test_the_modules_parameters_are_not_used():
    net = nn.Linear(3, 2)
    policy = Policy(net)
    vectors = torch.randn(2, 8)
    policy.set_parameters(vectors)
    x = torch.randn(2, 3)
    before = policy(x)
    fill_parameters(net, torch.zeros(8))
    assert torch.equal(policy(x), before)


@pytest.mark.parametrize("travel", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))], ids=["copy", "pickle"])
@pytest.mark.parametrize("n", [None, 3])
def test_policies_pickle_with_parameters_and_states(travel, n):
    policy = policy_of(MultiLayered(nn.Linear(3, 4), nn.PReLU(), LSTM(4, 2)), n)
    shape = (3,) if n is None else (n, 3)
    policy(torch.randn(shape))
    other = travel(policy)
    x = torch.randn(shape)
    torch.testing.assert_close(other(x), policy(x))
    torch.testing.assert_close(other.h, policy.h)
    assert travel(Policy(nn.Tanh())).parameter_length == 0
