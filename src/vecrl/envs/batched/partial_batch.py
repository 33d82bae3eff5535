"""Operations on some rows of a batch: the rows that masks select, and batches of all rows from results of some.

This module knows masks, specs and TensorDicts. Of pools it uses only `invoke`, for random actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase

from ...engine.pool import Pool
from ...specs import Composite
from ..entries.keys import INPUTS, OUTPUTS, join_key
from ..entries.row_masks import RowMasks, is_leaf, merge_into, reduce_to_rows, stack_lazily
from ..entries.step_mdp import leaves_of
from ..env_specs import EnvSpecs

NoopRow = Callable[[int], TensorDictBase]
"""A function from the index of a row that was not stepped or reset to its TensorDict."""


def selected_rows(
    masks: RowMasks | None, prefixes: Sequence[tuple[str, ...]], count: int
) -> tuple[np.ndarray | None, bool]:
    """Returns the indices of rows that masks select, and whether each of these rows is selected as a whole.

    Args:
        masks: the masks; None for no masks, which selects all rows.
        prefixes: the prefixes of the groups of done flags.
        count: the number of rows.

    Returns:
        `[m]` int64, or None for all rows; and whether no row is selected in part.
    """
    prefix_masks = [masks.for_key(join_key(prefix, "done")) if masks else None for prefix in prefixes]
    row_masks = [mask for mask in prefix_masks if mask is not None]
    if not row_masks:
        return None, True
    any_selected = torch.stack([reduce_to_rows(mask, (count,)) for mask in row_masks]).any(0)
    all_selected = torch.stack([reduce_to_rows(mask, (count,), require_all=True) for mask in row_masks]).all(0)
    if len(row_masks) < len(prefix_masks):  # a group without a mask is selected as a whole
        return None, bool(all_selected.all())
    row_ids = None if bool(any_selected.all()) else any_selected.nonzero()[:, 0].cpu().numpy()
    return row_ids, bool((all_selected | ~any_selected).all())


def scatter_rows(rows_td: TensorDictBase, ids: np.ndarray, count: int, noop_row: NoopRow) -> TensorDictBase:
    """Returns a TensorDict of all `count` rows with `rows_td` at `ids`. Other rows have any values that fit the specs.

    The caller replaces the other rows. Their previous values cannot be used here, because transforms may have changed
    their shapes.
    """
    if isinstance(rows_td, LazyStackedTensorDict):
        rows_by_id = dict(zip(ids.tolist(), rows_td.unbind(0), strict=True))
        return stack_lazily([rows_by_id[row] if row in rows_by_id else noop_row(row) for row in range(count)])
    # other rows repeat the first one, which does not change the result of any() or all() over rows
    source_index = torch.zeros(count, dtype=torch.int64)
    source_index[torch.from_numpy(ids)] = torch.arange(len(ids))
    return rows_td[source_index]


def sample_actions(pool: Pool, tensordict: TensorDictBase | None, env: EnvSpecs) -> TensorDictBase:
    """Returns `tensordict` with random actions, which the environments of a pool sample for their rows.

    Args:
        pool: the pool of the environments of `env`.
        tensordict: the TensorDict of all rows; None for an empty one.
        env: the batched environment; entries in its specs are passed to the environments.
    """
    data = TensorDict({}, env.batch_size, device=env.device) if tensordict is None else tensordict
    input_keys = leaves_of(env.full_observation_spec, env.full_state_spec, env.full_done_spec)
    row_tds = data.select(*input_keys, strict=False).to("cpu").unbind(0)
    seeds = torch.randint(2**62, (len(row_tds),)).tolist()  # actions depend neither on the backend nor on the worker
    row_actions: Any = pool.invoke(
        "call", "_seeded_rand_action", [(pair, {}) for pair in zip(row_tds, seeds, strict=True)]
    )
    actions = LazyStackedTensorDict.maybe_dense_stack(row_actions, 0)
    return merge_into(data, actions if env.device is None else actions.to(env.device))


def fake_rows(spec_of: Callable[[str], Composite], count: int) -> TensorDictBase:
    """Returns the `fake_tensordict` of a batch of different environments; `spec_of` returns their specs by name."""
    row_tds: list[TensorDictBase] = []
    for row in range(count):
        roots = [spec_of(name)[row] for name in (*INPUTS, "observation", "done")]
        row_tds.append(zero_specs(roots).set("next", zero_specs([spec_of(name)[row] for name in OUTPUTS])))
    return stack_lazily(row_tds)


def zero_specs(specs: Sequence[Composite], row_td: TensorDictBase | None = None) -> TensorDictBase:
    """Returns the TensorDict of a row that was not stepped or reset: its previous entries, and zeros for missing ones.

    Args:
        specs: the specs of its entries.
        row_td: its previous TensorDict, if any.
    """
    row, *other_zeros = (spec.zero() for spec in specs)
    for part in other_zeros:
        row.update(part)
    if row_td is None:
        return row
    return row.update(row_td.select(*row.keys(True, True, is_leaf=is_leaf), strict=False))
