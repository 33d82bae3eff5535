"""Some environments among all of a batch: whom masks mean, and how what some gave becomes a batch of all again.

Knows masks, specs and TensorDicts, not pools.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase

from ...engine.pool import Pool
from ...specs import Composite
from ..row_masks import RowMasks, is_leaf, merge_into
from ..spec_container import INPUTS, OUTPUTS, SpecContainer, join_key
from ..step_mdp import leaves_of

NoopRow = Callable[[int], TensorDictBase]
"""What stands in a row that is left alone, of its number."""


def selected_rows(
    masks: RowMasks | None, prefixes: Sequence[tuple[str, ...]], count: int
) -> tuple[np.ndarray | None, bool]:
    """The rows of `count` that masks mean (None: all), and whether they mean all of each.

    Args:
        masks: where there are any.
        prefixes: the places of done flags.
        count: of all rows.
    """
    prefix_masks = [masks.for_key(join_key(prefix, "done")) if masks else None for prefix in prefixes]
    row_masks = [mask.reshape(count, -1) for mask in prefix_masks if mask is not None]
    if not row_masks:
        return None, True
    any_selected = torch.stack([mask.any(1) for mask in row_masks]).any(0)
    all_selected = torch.stack([mask.all(1) for mask in row_masks]).all(0)
    if len(row_masks) < len(prefix_masks):  # there is a place without a mask: all of it is meant
        return None, bool(all_selected.all())
    row_ids = None if bool(any_selected.all()) else any_selected.nonzero()[:, 0].cpu().numpy()
    return row_ids, bool((all_selected | ~any_selected).all())


def scatter_rows(rows_td: Any, ids: np.ndarray, count: int, noop_row: NoopRow) -> TensorDictBase:
    """Rows of some as rows of all `count`, of which the others hold anything that their specs allow.

    What the caller had there is not for here: seen through transforms, it has other shapes. Who masks merges it.
    """
    if isinstance(rows_td, LazyStackedTensorDict):
        rows_by_id = dict(zip(ids.tolist(), rows_td.unbind(0), strict=True))
        stacked_rows: list[Any] = [rows_by_id[row] if row in rows_by_id else noop_row(row) for row in range(count)]
        return LazyStackedTensorDict.lazy_stack(stacked_rows, 0)
    # others repeat the first of some, which changes no any() nor all()
    source_index = torch.zeros(count, dtype=torch.int64)
    source_index[torch.from_numpy(ids)] = torch.arange(len(ids))
    return rows_td[source_index]


def draw_actions(pool: Pool, tensordict: TensorDictBase | None, env: SpecContainer) -> TensorDictBase:
    """Random actions that the environments of a pool draw for their rows of `tensordict`, written into it.

    Args:
        pool: of `env`'s environments.
        tensordict: what they are drawn for; None for nothing known.
        env: all of them, with the keys of what they may go by.
    """
    data = TensorDict({}, env.batch_size, device=env.device) if tensordict is None else tensordict
    input_keys = leaves_of(env.full_observation_spec, env.full_state_spec, env.full_done_spec)
    row_tds = data.select(*input_keys, strict=False).to("cpu").unbind(0)
    seeds = torch.randint(2**62, (len(row_tds),)).tolist()  # so that they do not depend on who draws, and where
    row_actions: Any = pool.invoke(
        "call", "_seeded_rand_action", [(pair, {}) for pair in zip(row_tds, seeds, strict=True)]
    )
    actions = LazyStackedTensorDict.maybe_dense_stack(row_actions, 0)
    return merge_into(data, actions if env.device is None else actions.to(env.device))


def fake_rows(spec_of: Callable[[str], Composite], count: int) -> TensorDictBase:
    """`fake_tensordict` of a batch of unlike environments, whose specs of a name `spec_of` gives."""
    row_tds: list[Any] = []
    for row in range(count):
        roots = [spec_of(name)[row] for name in (*INPUTS, "observation", "done")]
        row_tds.append(zero_specs(roots).set("next", zero_specs([spec_of(name)[row] for name in OUTPUTS])))
    return LazyStackedTensorDict.lazy_stack(row_tds, 0)


def zero_specs(specs: Sequence[Composite], row_td: TensorDictBase | None = None) -> TensorDictBase:
    """A row that is left alone: as it was before, and zeros where it held nothing.

    Args:
        specs: of what is in it.
        row_td: what it was, where it was something.
    """
    row, *other_zeros = (spec.zero() for spec in specs)
    for part in other_zeros:
        row.update(part)
    if row_td is None:
        return row
    return row.update(row_td.select(*row.keys(True, True, is_leaf=is_leaf), strict=False))
