"""`Policy`: one network with one parameter vector, or a whole population of them that acts in one call.

It keeps the flat parameters, the batched kernels made of them, and the hidden states between calls. It knows nothing of
environments or searches: whoever steps environments says when to forget (`reset`) and whom to leave out (`select`).
"""

from __future__ import annotations

import copy as copying
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vecrl.policy.batched_kernels import BatchedForward, batched_forward
from vecrl.policy.functional import ParameterLayout, call_with, fill_parameters
from vecrl.policy.network_language import str_to_net


class Policy:
    """A network whose parameters are given as flat vectors.

    With a batch of vectors every row of an observation goes through its own network: known layers by batched
    kernels (see `vecrl.policy.batched_kernels`), others by `torch.func.vmap`. A network with a hidden state (one that
    takes
    `(x, h)` and returns `(y, h)`) has it kept here, in `h`, from call to call.

    Args:
        net: a string in the network language (see `str_to_net`), a module, or a callable that makes one.
        kwargs: constants of the string, or keyword arguments of the callable.

    Raises:
        ValueError: a ready module came with `kwargs`.
        TypeError: `net`, or what the callable returned, is something else.

    >>> policy = Policy("Linear(obs, 8) >> Tanh() >> Linear(8, act)", obs=4, act=2)
    >>> policy.set_parameters(torch.randn(10, policy.parameter_length))
    >>> policy(torch.randn(10, 4)).shape
    torch.Size([10, 2])
    """

    def __init__(self, net: str | nn.Module | Callable[..., nn.Module], **kwargs: Any):
        self._module = _build(net, kwargs)
        self._layout = ParameterLayout(self._module)
        self._parameters: Tensor | None = None
        self._members: int | None = None  # n with a batch of parameters
        self._step: BatchedForward | None = None
        self._hidden: Any = None
        self._compile: dict[str, Any] | None = None
        self._compiled = self._run = _run

    # ------------------------------------------------------------------ what it is

    @property
    def wrapped_module(self) -> nn.Module:
        """The module itself; its own parameter values play no part."""
        return self._module

    @property
    def parameter_length(self) -> int:
        """L, the length of a parameter vector."""
        return self._layout.length

    @property
    def parameters(self) -> Tensor:
        """The parameters in use, `[L]` or `[n, L]`. Later calls of `set_parameters` do not change this tensor.

        Raises:
            ValueError: there are none yet.
        """
        if self._parameters is None:
            raise ValueError("this policy has no parameters yet: call set_parameters first")
        return self._parameters

    @property
    def h(self) -> Any:
        """The hidden state: None after a reset and for networks without one; a tensor, tuple or dict of them."""
        return self._hidden

    def __repr__(self) -> str:
        shape = None if self._parameters is None else tuple(self._parameters.shape)
        return f"Policy({self._module}, parameters={shape})"

    # ------------------------------------------------------------------ parameters

    def set_parameters(self, parameters: Tensor, indices: Any = None, *, reset: bool = True) -> None:
        """Use these parameters from now on. They are copied; gradients flow back to the caller's tensor.

        Args:
            parameters: `[L]`, `[n, L]`, or with `indices` one row for each of them (or `[L]` for all of them).
            indices: rows of the batch in use to replace: an int, ints, a slice or a bool mask `[n]`.
            reset: forget the hidden states of what changed.

        Raises:
            ValueError: a wrong shape, `indices` without a batch in use, or `reset=False` with another batch size
                than the hidden state has.
        """
        parameters = torch.as_tensor(parameters)
        if parameters.ndim not in (1, 2) or parameters.shape[-1] != self.parameter_length:
            expected = f"({self.parameter_length},) or (n, {self.parameter_length})"
            raise ValueError(f"expected parameters of shape {expected}, got {tuple(parameters.shape)}")
        if indices is None:
            if not reset:
                self._check_state(parameters)
            self._set_vector(parameters.clone())
            if reset:
                self.reset()
            return
        batch = self._require_batch("indices")
        rows = _as_rows(indices, len(batch), batch.device)
        if parameters.ndim == 2 and len(parameters) != len(rows):
            raise ValueError(f"indices name {len(rows)} rows, but {len(parameters)} parameter vectors came")
        values = parameters.to(batch).expand(len(rows), self.parameter_length)
        self._set_vector(batch.index_copy(0, rows, values))
        if reset:
            self.reset(rows)

    def _set_vector(self, parameters: Tensor) -> None:
        """Take a tensor of our own and make of it what calls need."""
        module = self._module
        if any(buffer.device != parameters.device for buffer in module.buffers()):
            module = copying.deepcopy(module).to(parameters.device)
        values = self._layout.split(parameters)
        self._step = _SingleForward(module, values) if parameters.ndim == 1 else batched_forward(module, values)
        self._parameters = parameters
        self._members = None if parameters.ndim == 1 else len(parameters)
        self._choose_run()

    def _require_batch(self, subject: str) -> Tensor:
        if self._parameters is None or self._parameters.ndim != 2:
            raise ValueError(
                f"{subject} need a batch of parameters: call set_parameters with an (n, length) tensor first"
            )
        return self._parameters

    def _check_state(self, parameters: Tensor) -> None:
        state = _first_tensor(self._hidden)
        if state is not None and parameters.ndim == 2 and (state.ndim == 0 or len(state) != len(parameters)):
            raise ValueError(
                f"reset=False keeps a hidden state of shape {tuple(state.shape)}, which does not fit "
                f"{len(parameters)} parameter vectors: leave reset=True"
            )

    def select(self, indices: Any) -> Policy:
        """A policy of only these members, with their parameters and hidden states, so that the others cost nothing.

        Copies those rows once (a slice is not copied), about the price of two steps; use it when a fair share of the
        members is done. Neither policy sees later changes of the other.

        Args:
            indices: an int, ints, a slice or a bool mask `[n]`.

        >>> policy = Policy(nn.Linear(3, 2))
        >>> policy.set_parameters(torch.randn(10, policy.parameter_length))
        >>> policy.select([0, 7]).parameters.shape
        torch.Size([2, 8])
        """
        batch = self._require_batch("selections")
        rows = indices if isinstance(indices, slice) else _as_rows(indices, len(batch), batch.device)
        selected = Policy.__new__(Policy)
        selected.__dict__.update(self.__dict__)
        selected._set_vector(batch[rows])
        selected._hidden = _map_state(self._hidden, lambda state: state[rows].clone())
        return selected

    def to_torch_module(self, vector: Tensor) -> nn.Module:
        """A copy of the module that has the parameters `vector` `[L]`, on their device and of their dtype.

        Raises:
            ValueError: `vector` does not have the shape `[L]`.
        """
        module = copying.deepcopy(self._module).to(vector.device)
        for parameter in module.parameters():
            parameter.data = parameter.data.to(vector.dtype)
        fill_parameters(module, vector)
        return module

    # ------------------------------------------------------------------ acting

    def __call__(self, x: Tensor) -> Tensor:
        """The action for `x`.

        Args:
            x: `[n, features]` with a batch of n parameter vectors, row i for member i; with one vector `[features]`,
                or `[m, features]` for m observations.

        Raises:
            ValueError: there are no parameters yet, or `x` has another number of dimensions or rows.
        """
        step = self._step
        if step is None:
            raise ValueError("this policy has no parameters yet: call set_parameters first")
        shape = x.shape
        if self._members is None:
            if len(shape) > 2:
                raise ValueError(f"expected observations of at most two dimensions, got shape {tuple(shape)}")
            result = step(x) if self._hidden is None else step(x, self._hidden)
        else:
            if len(shape) != 2 or shape[0] != self._members:
                raise ValueError(f"expected observations of shape ({self._members}, features), got {tuple(shape)}")
            result = self._run(step, x, self._hidden)
        if isinstance(result, tuple):
            result, self._hidden = result
        return result

    def reset(self, indices: Any = None, *, copy: bool = True) -> None:
        """Forget the hidden states: all of them, or those of some rows, which become zero.

        Args:
            indices: None, an int, ints, a slice or a bool mask `[n]` (on the state's device it is never waited for).
            copy: make new states rather than write into those at hand, which an earlier action may share memory with.

        Raises:
            ValueError: `indices` do not fit the states.
        """
        if indices is None:
            self._hidden = None
            return
        first = _first_tensor(self._hidden)
        if first is None:
            return
        if self._parameters is not None and self._parameters.ndim == 1 and first.ndim < 2:
            raise ValueError("one vector acting on one observation has one hidden state: call reset() without indices")
        mask = _as_mask(indices, len(first), first.device)

        def zero(state: Tensor) -> Tensor:
            broadcast_mask = mask.view(-1, *[1] * (state.ndim - 1))
            return state.masked_fill(broadcast_mask, 0) if copy else state.masked_fill_(broadcast_mask, 0)

        self._hidden = _map_state(self._hidden, zero)

    def compile(self, *, min_members: int = 64, **options: Any) -> Policy:
        """Run batches of parameters through `torch.compile`, with its `options`; returns itself.

        Smaller batches than `min_members` stay as they are: there the compiled code's own checks cost more than it
        saves. The first calls of each network and batch size take seconds.
        """
        self._compile = {"min_members": min_members, **options}
        self._compiled = torch.compile(_run, **options)
        self._choose_run()
        return self

    def _choose_run(self) -> None:
        """Compiled or not, by the members at hand."""
        use_compiled = self._compile is not None and (self._members or 0) >= self._compile["min_members"]
        self._run = self._compiled if use_compiled else _run

    # ------------------------------------------------------------------ travelling

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_step", "_run", "_compiled")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _step=None, _run=_run, _compiled=_run)
        if self._compile is not None:
            self.compile(**self._compile)
        if self._parameters is not None:
            self._set_vector(self._parameters)


class _SingleForward:
    """One member's answer, by the module itself."""

    def __init__(self, module: nn.Module, values: dict[str, Tensor]):
        self.module, self.values, self.buffers = module, values, dict(module.named_buffers())

    def __call__(self, x: Tensor, h: Any = None) -> Any:
        return call_with(self.module, self.values, self.buffers, x, h)


def _run(step: BatchedForward, x: Tensor, h: Any) -> Any:
    """All members' answers; a function of its arguments alone, so that it can be compiled once for all parameters."""
    x = x.unsqueeze(1)
    result = step(x) if h is None else step(x, h)
    if isinstance(result, tuple):
        y, state = result
        return y.squeeze(1), state
    return result.squeeze(1)


def _build(net: Any, kwargs: dict[str, Any]) -> nn.Module:
    if isinstance(net, str):
        return str_to_net(net, **kwargs)
    if isinstance(net, nn.Module):
        if kwargs:
            raise ValueError(f"a ready module takes no further arguments, got {', '.join(kwargs)}")
        return net
    if not callable(net):
        raise TypeError(f"net should be a string, a module or a callable that makes one, not {type(net).__name__}")
    module = net(**kwargs)
    if not isinstance(module, nn.Module):
        raise TypeError(f"the callable should have made a torch.nn.Module, not {type(module).__name__}")
    return module


def _as_rows(indices: Any, n: int, device: torch.device) -> Tensor:
    """Row numbers `[k]` in `[0, n)`, int64, of an int, ints, a slice or a bool mask `[n]`."""
    if isinstance(indices, slice):
        return torch.arange(n, device=device)[indices]
    rows = torch.as_tensor(indices)
    if rows.dtype == torch.bool:
        if rows.shape != (n,):
            raise ValueError(f"expected a mask of shape ({n},), got {tuple(rows.shape)}")
        return rows.to(device).nonzero().squeeze(1)
    if rows.is_floating_point() and rows.numel():
        raise ValueError(f"indices should be ints or bools, not {rows.dtype}")
    rows = rows.reshape(-1).to(torch.int64)
    if rows.device.type == "cpu" and ((rows < -n) | (rows >= n)).any():
        raise ValueError(f"indices {rows.tolist()} do not all lie within the {n} rows")
    return (rows % n if n else rows).to(device)


def _as_mask(indices: Any, n: int, device: torch.device) -> Tensor:
    """The same as a bool mask `[n]`; a mask that is a tensor on `device` is not waited for."""
    if isinstance(indices, Tensor) and indices.dtype == torch.bool and indices.shape == (n,):
        return indices.to(device)
    mask = torch.zeros(n, dtype=torch.bool, device=device)
    return mask.index_fill_(0, _as_rows(indices, n, device), True)


def _map_state(state: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """`function` on every tensor of a state: None, a tensor, or dicts, tuples and lists of states."""
    if isinstance(state, Tensor):
        return function(state)
    if isinstance(state, dict):
        return {key: _map_state(value, function) for key, value in state.items()}
    if isinstance(state, tuple | list):
        return type(state)(_map_state(value, function) for value in state)
    return state


def _first_tensor(state: Any) -> Tensor | None:
    """Any tensor of a state, to learn its leading size from."""
    tensors: list[Tensor] = []
    _map_state(state, lambda leaf: tensors.append(leaf) or leaf)
    return tensors[0] if tensors else None
