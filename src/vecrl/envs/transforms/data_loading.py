"""`DataLoadingPrimer`: starts episodes from the rows of a data loader, such as the prompts of a language model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, islice, pairwise
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...specs import Composite
from ...validation import check_choice, parse_device, parse_optional_count
from ..spec_inference import make_composite_from_td
from .primer import TensorDictPrimer

__all__ = ["DataLoadingPrimer", "as_nested_tensor", "as_padded_tensor"]


def as_nested_tensor(rows: Sequence[TensorDictBase]) -> TensorDictBase:
    """Returns TensorDicts as one, with tensors of unlike lengths as nested tensors (of torch's jagged layout)."""
    return LazyStackedTensorDict.lazy_stack(list(rows)).densify(layout=torch.jagged)


def as_padded_tensor(rows: Sequence[TensorDictBase]) -> TensorDictBase:
    """Returns TensorDicts as one, with zeros before shorter tensors.

    >>> as_padded_tensor([TensorDict({"x": torch.ones(size)}) for size in (1, 2)])["x"]
    tensor([[0., 1.],
            [1., 1.]])
    """
    keys = [key for key, value in rows[0].items(True, True) if isinstance(value, Tensor) and value.ndim]
    padded = {key: pad_sequence([row.get(key) for row in rows], True, padding_side="left") for key in keys}
    stacked = LazyStackedTensorDict.maybe_dense_stack([row.exclude(*keys) for row in rows])
    for key, value in padded.items():
        stacked.set(key, value)
    return stacked


def _stack_equal_shapes(rows: Sequence[TensorDictBase]) -> TensorDictBase:
    try:
        stacked: Any = torch.stack(list(rows))
        return stacked
    except RuntimeError as error:
        raise ValueError(
            f"Expected rows with equal shapes for a batch, got others: {error} Give "
            'stack_method="as_padded_tensor", or let the data loader pad them.'
        ) from error


_STACK_METHODS: dict[Any, Any] = {
    None: _stack_equal_shapes,
    "as_nested_tensor": as_nested_tensor,
    "as_padded_tensor": as_padded_tensor,
}


def _leaves(item: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    for key, value in item.items():
        if isinstance(value, Mapping):
            yield from (((key, below), leaf) for below, leaf in _leaves(value))
        else:
            yield key, value


def _row_of(item: Mapping[str, Any], number: int) -> dict[str, Any]:
    return {key: _row_of(v, number) if isinstance(v, Mapping) else v[number] for key, v in item.items()}


class RowQueue:
    """The rows of a data loader, one after another. Transforms and their clones share it; other copies start again.

    Args:
        loader: gives batches of rows, or single rows if its `batch_size` is 0. None to call `factory`.
        factory: makes the loader, also in other processes; None if there is only the loader.
        repeats: how often each row is given.
        device: the device of the rows, or None for their own.
    """

    state_is_plain_data = True

    def __init__(self, loader: Any, factory: Callable[[], Any] | None, repeats: int, device: torch.device | None):
        self.loader = loader if factory is None else factory()
        self._factory, self._repeats, self._device = factory, repeats, device
        self.restart()

    def restart(self) -> None:
        """Makes the next row the first one of the loader."""
        self._rows: deque[TensorDictBase] = deque()
        self._batches: Iterator[Any] | None = None
        self._num_read = 0  # batches since the loader was iterated

    def get_state(self) -> dict[str, Any]:
        """Returns the rows that were read and not given, and how many batches were read."""
        rows = [row.to_dict() for row in self._rows]
        return {"rows": rows, "num_read": None if self._batches is None else self._num_read}

    def set_state(self, state: Mapping[str, Any], *, allow: object = ()) -> None:
        """Restores a position. The loader is iterated again up to there, so it must give the same rows again."""
        self.restart()
        self._rows.extend(TensorDict(row) for row in state["rows"])
        if state["num_read"] is not None:
            self._batches = iter(self.loader)
            self._num_read = state["num_read"]
            for _ in islice(self._batches, self._num_read):
                pass

    def take(self, count: int) -> list[TensorDictBase]:
        """Returns the next `count` rows, and removes them."""
        self._fill(count)
        return [self._rows.popleft() for _ in range(count)]

    def first(self) -> TensorDictBase:
        """Returns the next row, and keeps it."""
        self._fill(1)
        return self._rows[0]

    def _fill(self, count: int) -> None:
        """Reads batches until there are `count` rows."""
        while len(self._rows) < count:
            is_new = self._batches is None
            if self._batches is None:
                self._batches = iter(self.loader)
                self._num_read = 0
            num_before = len(self._rows)
            for batch in self._batches:
                self._num_read += 1
                self._rows.extend(row for row in self._split(batch) for _ in range(self._repeats))
                if len(self._rows) >= count:
                    return
            if is_new and len(self._rows) == num_before:
                raise RuntimeError(
                    f"Expected {count} rows from the data loader, got {len(self._rows)}, and none when it was iterated "
                    "again. Give a loader with rows that can be iterated several times, such as a list or torch's "
                    "DataLoader."
                )
            self._batches = None

    def _split(self, batch: Any) -> list[TensorDictBase]:
        """Returns the rows of what the loader gave."""
        if not isinstance(batch, Mapping | TensorDictBase):
            raise TypeError(
                f"Expected the data loader to give mappings or TensorDicts, got {batch!r:.80}. Convert its data, for "
                "example by collate_fn of torch's DataLoader."
            )
        if getattr(self.loader, "batch_size", None) == 0:
            rows: list[Any] = [TensorDict(dict(batch)) if isinstance(batch, Mapping) else batch]
        elif isinstance(batch, TensorDictBase):
            rows = list(batch.unbind(0))
        else:
            sizes = {key: len(value) for key, value in _leaves(batch)}
            if any(one != other for one, other in pairwise(sizes.values())):
                raise ValueError(f"Expected entries of the data loader with one row each, got {sizes} rows.")
            rows = [TensorDict(_row_of(batch, number)) for number in range(next(iter(sizes.values()), 0))]
        return rows if self._device is None else [row.to(self._device) for row in rows]

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "_rows": deque(), "_batches": None}
        return state if self._factory is None else {**state, "loader": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self._factory is not None:
            self.loader = self._factory()


class DataLoadingPrimer(TensorDictPrimer):
    """Sets entries at every reset to the next rows of a data loader, before the environment is reset.

    Rows are taken in turn, as many as are reset, whatever the size of the loader's batches. If there are no more, the
    loader is iterated again. On stored data, `forward` sets the entries of each row. The position in the loader is part
    of the state of the environment; a loader that shuffles continues with other rows.

    Args:
        dataloader: an iterable of mappings or TensorDicts, such as torch's DataLoader. Each is a batch of rows: the
            first dimension of its tensors and its lists are the rows. With a `batch_size` of 0 each is one row.
        dataloader_factory: returns the loader; given instead of it. It is called again in another process.
        primers: the specs of the entries. By default they follow from the first row, with dynamic sizes (-1).
        stack_method: makes one TensorDict of the list of rows of a reset: a function, "as_padded_tensor" (zeros before
            shorter rows) or "as_nested_tensor". By default rows must have equal shapes.
        batch_size: the batch size outside an environment, where it follows from the loader's by default. In an
            environment it is that of the environment.
        repeats: how often each row is given in succession; once by default.
        device: the device of the entries; that of the rows by default.
        group_repeats: whether the batch size outside an environment is multiplied by `repeats`, so that all repeats of
            a row are in one batch.

    Raises:
        ValueError: not exactly one of `dataloader` and `dataloader_factory` is given; `repeats` is not a positive
            integer; `stack_method` is no function and has no valid value; rows of one reset have unlike shapes and
            there is no `stack_method`.
        TypeError: the loader gives anything else than mappings and TensorDicts.
        RuntimeError: the loader has no rows, or none when it is iterated again (it is an iterator, not a list).

    >>> from vecrl.envs import GymEnv
    >>> prompts = [{"goal": torch.tensor([1.0, 2.0])}, {"goal": torch.tensor([3.0, 4.0])}]
    >>> env = GymEnv("CartPole-v1").append_transform(DataLoadingPrimer(prompts))
    >>> [float(env.reset()["goal"]) for _ in range(5)]
    [1.0, 2.0, 3.0, 4.0, 1.0]
    """

    def __init__(
        self,
        dataloader: Iterable[Any] | None = None,
        *,
        dataloader_factory: Callable[[], Iterable[Any]] | None = None,
        primers: Composite | None = None,
        stack_method: Callable[[Any], Any] | str | None = None,
        batch_size: int | Sequence[int] | None = None,
        repeats: int | None = None,
        device: Any = None,
        group_repeats: bool = False,
    ):
        if (dataloader is None) == (dataloader_factory is None):
            raise ValueError("Expected either dataloader or dataloader_factory, got both or none. Give one of them.")
        self.repeats = parse_optional_count("repeats", repeats) or 1
        if not callable(stack_method):
            check_choice("stack_method", stack_method, _STACK_METHODS, " Or give a function.")
        queue = RowQueue(dataloader, dataloader_factory, self.repeats, None if device is None else parse_device(device))
        loader_size = getattr(queue.loader, "batch_size", None)
        size = loader_size if batch_size is None else batch_size
        shape = torch.Size(([size] if size else []) if size is None or isinstance(size, int) else size)
        if group_repeats and shape:
            shape = torch.Size([shape[0] * self.repeats, *shape[1:]])
        super().__init__(Composite() if primers is None else primers, call_before_env_reset=True)
        self._queue = queue
        self.batch_size = shape
        self.stack_method: Any = _STACK_METHODS.get(stack_method, stack_method)
        if primers is None:
            row = queue.first()
            self._raw_primers = make_composite_from_td(row, unsqueeze_null_shapes=False, dynamic_shape=True)
        elif shape and primers.shape == shape:
            self._raw_primers = primers[(0,) * len(shape)]

    @cached_property
    def primers(self) -> Composite:
        """The specs, with the batch size of the environment, or outside of one with `batch_size`."""
        parent = self.parent
        specs = self._raw_primers.expand(*(self.batch_size if parent is None else parent.batch_size))
        return specs if parent is None or parent.device is None else specs.to(parent.device)

    @property
    def dataloader(self) -> Any:
        """The loader that gives the rows."""
        return self._queue.loader

    def reset_dataloader(self) -> None:
        """Makes the next row the first one of the loader."""
        self._queue.restart()

    def _stack(self, rows: list[TensorDictBase], batch: torch.Size) -> TensorDictBase:
        if not batch:
            return rows[0].copy()
        stacked = self.stack_method(rows)
        return stacked if len(batch) == 1 else stacked.reshape(batch)

    def _make_values(self, batch: torch.Size, mask: Tensor | None = None) -> TensorDictBase:
        is_taken = [True] * batch.numel() if mask is None else mask.reshape(batch.numel(), -1).any(-1).tolist()
        if not any(is_taken):
            return self.primers.zero(() if self.primers.shape == batch else batch)
        rows = self._queue.take(sum(is_taken))
        position = [max(number - 1, 0) for number in accumulate(is_taken)]  # a row that is not reset gets any other
        return self._stack([rows[number] for number in position], batch)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(primers={self.primers}, dataloader={self.dataloader})"
