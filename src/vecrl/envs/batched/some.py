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
from ..owner import INPUTS, OUTPUTS, SpecOwner, joined
from ..partial import Masks, is_leaf, overlaid
from ..successor import leaves_of

Still = Callable[[int], TensorDictBase]
"""What stands in a row that is left alone, of its number."""


def whom(masks: Masks | None, prefixes: Sequence[tuple[str, ...]], count: int) -> tuple[np.ndarray | None, bool]:
    """The rows of `count` that masks mean (None: all), and whether they mean all of each.

    Args:
        masks: where there are any.
        prefixes: the places of done flags.
        count: of all rows.
    """
    found = [masks.of(joined(prefix, "done")) if masks else None for prefix in prefixes]
    flat = [mask.reshape(count, -1) for mask in found if mask is not None]
    if not flat:
        return None, True
    meant = torch.stack([mask.any(1) for mask in flat]).any(0)
    fully = torch.stack([mask.all(1) for mask in flat]).all(0)
    if len(flat) < len(found):  # there is a place without a mask: all of it is meant
        return None, bool(fully.all())
    rows = None if bool(meant.all()) else meant.nonzero()[:, 0].cpu().numpy()
    return rows, bool((fully | ~meant).all())


def spread(some: Any, ids: np.ndarray, count: int, still: Still) -> TensorDictBase:
    """Rows of some as rows of all `count`, of which the others hold anything that their specs allow.

    What the caller had there is not for here: seen through transforms, it has other shapes. Who masks merges it.
    """
    if isinstance(some, LazyStackedTensorDict):
        given = dict(zip(ids.tolist(), some.unbind(0), strict=True))
        rows: list[Any] = [given[row] if row in given else still(row) for row in range(count)]
        return LazyStackedTensorDict.lazy_stack(rows, 0)
    place = torch.zeros(count, dtype=torch.int64)  # others repeat the first of some, which changes no any() nor all()
    place[torch.from_numpy(ids)] = torch.arange(len(ids))
    return some[place]


def drawn(pool: Pool, tensordict: TensorDictBase | None, env: SpecOwner) -> TensorDictBase:
    """Random actions that the environments of a pool draw for their rows of `tensordict`, written into it.

    Args:
        pool: of `env`'s environments.
        tensordict: what they are drawn for; None for nothing known.
        env: all of them, with the keys of what they may go by.
    """
    data = TensorDict({}, env.batch_size, device=env.device) if tensordict is None else tensordict
    known = leaves_of(env.full_observation_spec, env.full_state_spec, env.full_done_spec)
    rows = data.select(*known, strict=False).to("cpu").unbind(0)
    seeds = torch.randint(2**62, (len(rows),)).tolist()  # so that they do not depend on who draws, and where
    found: Any = pool.invoke("call", "_drawn", [(pair, {}) for pair in zip(rows, seeds, strict=True)])
    actions = LazyStackedTensorDict.maybe_dense_stack(found, 0)
    return overlaid(data, actions if env.device is None else actions.to(env.device))


def fake_rows(full: Callable[[str], Composite], count: int) -> TensorDictBase:
    """`fake_tensordict` of a batch of unlike environments, whose specs of a name `full` gives."""
    rows: list[Any] = []
    for row in range(count):
        roots = [full(name)[row] for name in (*INPUTS, "observation", "done")]
        rows.append(standing_still(roots).set("next", standing_still([full(name)[row] for name in OUTPUTS])))
    return LazyStackedTensorDict.lazy_stack(rows, 0)


def standing_still(specs: Sequence[Composite], before: TensorDictBase | None = None) -> TensorDictBase:
    """A row that is left alone: as it was before, and zeros where it held nothing.

    Args:
        specs: of what is in it.
        before: what it was, where it was something.
    """
    row, *rest = (spec.zero() for spec in specs)
    for part in rest:
        row.update(part)
    if before is None:
        return row
    return row.update(before.select(*row.keys(True, True, is_leaf=is_leaf), strict=False))
