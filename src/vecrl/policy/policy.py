"""`Policy`: a network with one parameter vector, or with one per member of a population that acts in one call.

It keeps the flat parameters, the batched kernels built from them, and the hidden states between calls. The code that
steps environments resets hidden states (`reset`) and selects members (`select`).
"""

from __future__ import annotations

import copy as copying
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .batched_kernels import BatchedForward, batched_forward
from .functional import Hidden, Output, ParameterLayout, call_with, fill_parameters
from .network_language import str_to_net
from .saved_policy import SavedPolicy

Indices = int | slice | Sequence[int] | Sequence[bool] | np.ndarray | Tensor
"""Row numbers, or a bool mask, of members."""


class Policy:
    """A network with parameters given as flat vectors.

    With a batch of n parameter vectors, row i of the observations goes through the network with vector i. Known layers
    run as batched kernels (see `vecrl.policy.batched_kernels`), others with `torch.func.vmap`. If the network has a
    hidden state (it takes `(x, h)` and returns `(y, h)`), this object keeps it in `h` between calls.

    Args:
        net: a string in the network language (see `str_to_net`), a module, or a callable that makes one.
        kwargs: constants of the string, or keyword arguments of the callable.

    Raises:
        ValueError: `net` is a module and there are `kwargs`.
        TypeError: `net`, or the result of the callable, has another type.

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
        self._hidden: Hidden = None
        self._compile: dict[str, Any] | None = None
        self._compiled = self._run = _run

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Returns the best policy of a run of `vecrl evolve`, with its parameters, from its folder or its best.pt.

        It takes flat observations `[obs_length]` or `[n, obs_length]`, and normalizes them as the search did. No code
        in the file is run.

        Raises:
            ValueError: the file is damaged, or contains no policy.
            OSError: there is no file, or it cannot be opened.
        """
        saved = SavedPolicy.load(path)
        policy = cls(saved.module())
        policy.set_parameters(saved.parameters)
        return policy

    # ------------------------------------------------------------------ properties

    @property
    def wrapped_module(self) -> nn.Module:
        """The module; the values of its parameters are not used."""
        return self._module

    @property
    def parameter_length(self) -> int:
        """The length L of a parameter vector."""
        return self._layout.length

    @property
    def parameters(self) -> Tensor:
        """The parameters in use, `[L]` or `[n, L]`. Later calls of `set_parameters` do not change this tensor.

        Raises:
            ValueError: there are no parameters yet.
        """
        if self._parameters is None:
            raise ValueError("Expected a policy with parameters, got one without: call set_parameters first.")
        return self._parameters

    @property
    def h(self) -> Hidden:
        """The hidden state: a tensor, or a tuple or dict of tensors; None after a reset and for stateless networks."""
        return self._hidden

    def __repr__(self) -> str:
        shape = None if self._parameters is None else tuple(self._parameters.shape)
        return f"Policy({self._module}, parameters={shape})"

    # ------------------------------------------------------------------ parameters

    def set_parameters(self, parameters: Tensor, indices: Indices | None = None, *, reset: bool = True) -> None:
        """Sets the parameters. They are copied; gradients flow back to the given tensor.

        Args:
            parameters: `[L]`, `[n, L]`, or with `indices` one row per index (or `[L]` for all of them).
            indices: the rows of the current batch to replace: an int, ints, a slice or a bool mask `[n]`.
            reset: whether to reset the hidden states of the changed rows.

        Raises:
            ValueError: `parameters` have a wrong shape, `indices` are given without a batch in use, or `reset` is
                False and the hidden state has another batch size.
        """
        parameters = torch.as_tensor(parameters)
        if parameters.ndim not in (1, 2) or parameters.shape[-1] != self.parameter_length:
            expected = f"({self.parameter_length},) or (n, {self.parameter_length})"
            raise ValueError(f"Expected parameters of shape {expected}, got {tuple(parameters.shape)}.")
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
            raise ValueError(f"Expected {len(rows)} parameter vectors, one per index, got {len(parameters)}.")
        values = parameters.to(batch).expand(len(rows), self.parameter_length)
        self._set_vector(batch.index_copy(0, rows, values))
        if reset:
            self.reset(rows)

    def _set_vector(self, parameters: Tensor) -> None:
        """Stores a tensor that is not shared with the caller, and builds the forward function for it."""
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
                f"Expected a batch of parameters for {subject}, got none. "
                "Call set_parameters with an (n, length) tensor first."
            )
        return self._parameters

    def _check_state(self, parameters: Tensor) -> None:
        state = _first_tensor(self._hidden)
        if state is not None and parameters.ndim == 2 and (state.ndim == 0 or len(state) != len(parameters)):
            raise ValueError(
                f"Expected parameter vectors that fit the kept hidden state of shape {tuple(state.shape)}, "
                f"got {len(parameters)} with reset=False. Use reset=True."
            )

    def select(self, indices: Indices) -> Policy:
        """Returns a policy of only these members, with their parameters and hidden states.

        It copies those rows once (a slice is not copied), which costs about two steps; use it when a considerable share
        of the members is finished. Later changes of one policy do not affect the other.

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
        """Returns a copy of the module with the parameters `vector` `[L]`, on their device and of their dtype.

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
        """Returns the actions for the observations `x`.

        Args:
            x: with a batch of n parameter vectors `[n, features]`, row i for member i; with one vector `[features]`,
                or `[m, features]` for m observations.

        Raises:
            ValueError: there are no parameters yet, or `x` has another number of dimensions or rows.
        """
        step = self._step
        if step is None:
            raise ValueError("Expected a policy with parameters, got one without: call set_parameters first.")
        shape = x.shape
        if self._members is None:
            if len(shape) > 2:
                raise ValueError(f"Expected observations of at most two dimensions, got shape {tuple(shape)}.")
            result = step(x) if self._hidden is None else step(x, self._hidden)
        else:
            if len(shape) != 2 or shape[0] != self._members:
                raise ValueError(f"Expected observations of shape ({self._members}, features), got {tuple(shape)}.")
            result = self._run(step, x, self._hidden)
        if isinstance(result, tuple):
            result, self._hidden = result
        return result

    def reset(self, indices: Indices | None = None, *, copy: bool = True) -> None:
        """Resets the hidden states: all of them to None, or those of selected rows to zero.

        Args:
            indices: None, an int, ints, a slice or a bool mask `[n]` (a mask on the states' device needs no
                synchronization).
            copy: whether to make new states instead of writing in place; earlier actions may share memory with the
                current states.

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
            raise ValueError("Expected no indices for a policy with one hidden state. Call reset() without indices.")
        mask = _as_mask(indices, len(first), first.device)

        def zero(state: Tensor) -> Tensor:
            broadcast_mask = mask.view(-1, *[1] * (state.ndim - 1))
            return state.masked_fill(broadcast_mask, 0) if copy else state.masked_fill_(broadcast_mask, 0)

        self._hidden = _map_state(self._hidden, zero)

    def compile(self, *, min_members: int = 64, **options: Any) -> Policy:
        """Compiles the forward function for batches of parameters with `torch.compile`; returns this object.

        Batches smaller than `min_members` run uncompiled, because the checks of compiled code cost more than it saves
        there. The first calls with each network and batch size take seconds.

        Args:
            min_members: the smallest batch that runs compiled code.
            options: passed to `torch.compile`.
        """
        self._compile = {"min_members": min_members, **options}
        self._compiled = torch.compile(_run, **options)
        self._choose_run()
        return self

    def _choose_run(self) -> None:
        """Chooses the compiled or the uncompiled function by the number of members."""
        use_compiled = self._compile is not None and (self._members or 0) >= self._compile["min_members"]
        self._run = self._compiled if use_compiled else _run

    # ------------------------------------------------------------------ pickling

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_step", "_run", "_compiled")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _step=None, _run=_run, _compiled=_run)
        if self._compile is not None:
            self.compile(**self._compile)
        if self._parameters is not None:
            self._set_vector(self._parameters)


class _SingleForward:
    """The forward function of one member, which calls the module itself."""

    def __init__(self, module: nn.Module, values: dict[str, Tensor]):
        self.module, self.values, self.buffers = module, values, dict(module.named_buffers())

    def __call__(self, x: Tensor, h: Hidden = None) -> Output:
        return call_with(self.module, self.values, self.buffers, x, h)


def _run(step: BatchedForward, x: Tensor, h: Hidden) -> Output:
    """Returns the outputs of all members; uses only its arguments, so that one compilation serves all parameters."""
    x = x.unsqueeze(1)
    result = step(x) if h is None else step(x, h)
    if isinstance(result, tuple):
        y, state = result
        return y.squeeze(1), state
    return result.squeeze(1)


def _build(net: str | nn.Module | Callable[..., nn.Module], kwargs: dict[str, Any]) -> nn.Module:
    if isinstance(net, str):
        return str_to_net(net, **kwargs)
    if isinstance(net, nn.Module):
        if kwargs:
            raise ValueError(f"Expected no further arguments for a module, got {', '.join(kwargs)}.")
        return net
    if not callable(net):
        raise TypeError(
            f"Expected net to be a string, a module or a callable that makes one, got {type(net).__name__}."
        )
    module = net(**kwargs)
    if not isinstance(module, nn.Module):
        raise TypeError(f"Expected the callable to make a torch.nn.Module, got {type(module).__name__}.")
    return module


def _as_rows(indices: Indices, n: int, device: torch.device) -> Tensor:
    """Returns row numbers `[k]` in `[0, n)`, int64, of an int, ints, a slice or a bool mask `[n]`."""
    if isinstance(indices, slice):
        return torch.arange(n, device=device)[indices]
    rows = torch.as_tensor(indices)
    if rows.dtype == torch.bool:
        if rows.shape != (n,):
            raise ValueError(f"Expected a mask of shape ({n},), got {tuple(rows.shape)}.")
        return rows.to(device).nonzero().squeeze(1)
    if rows.is_floating_point() and rows.numel():
        raise ValueError(f"Expected indices that are ints or bools, got {rows.dtype}.")
    rows = rows.reshape(-1).to(torch.int64)
    if rows.device.type == "cpu" and ((rows < -n) | (rows >= n)).any():
        raise ValueError(f"Expected indices within the {n} rows, got {rows.tolist()}.")
    return (rows % n if n else rows).to(device)


def _as_mask(indices: Indices, n: int, device: torch.device) -> Tensor:
    """Returns indices as a bool mask `[n]`; does not synchronize if they are such a mask on `device`."""
    if isinstance(indices, Tensor) and indices.dtype == torch.bool and indices.shape == (n,):
        return indices.to(device)
    mask = torch.zeros(n, dtype=torch.bool, device=device)
    return mask.index_fill_(0, _as_rows(indices, n, device), True)


def _map_state(state: Hidden, function: Callable[[Tensor], Tensor]) -> Hidden:
    """Applies `function` to every tensor of a state: None, a tensor, or dicts, tuples and lists of states."""
    if isinstance(state, Tensor):
        return function(state)
    if isinstance(state, dict):
        return {key: _map_state(value, function) for key, value in state.items()}
    if isinstance(state, tuple | list):
        return type(state)(_map_state(value, function) for value in state)
    return state


def _first_tensor(state: Hidden) -> Tensor | None:
    """Returns the first tensor of a state, or None if it has none."""
    tensors: list[Tensor] = []
    _map_state(state, lambda leaf: tensors.append(leaf) or leaf)
    return tensors[0] if tensors else None
