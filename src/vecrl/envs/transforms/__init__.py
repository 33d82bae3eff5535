"""Transforms of the inputs, outputs and specs of environments, one module per topic.

Each module lists its public names in `__all__`; they are public here too.
"""

# ruff: noqa: F403 (the `__all__` of each module lists the names)

from ..aliases import lazy_names
from . import (
    action_mask,
    actions,
    auto_reset,
    base,
    batch_size,
    beliefs,
    compose,
    conditional,
    counters,
    data_loading,
    deltas,
    dtype_device,
    elementwise,
    episodes,
    finite_check,
    frame_skip,
    frames,
    function_transform,
    images,
    keys,
    kl_reward,
    module_transform,
    observation_transform,
    pretrained,
    primer,
    rewards,
    shapes,
    stored_data,
    structure,
    texts,
    timing,
    transformed_env,
    vecnorm,
    vecnorm_v2,
)
from .action_mask import *
from .actions import *
from .auto_reset import *
from .base import *
from .batch_size import *
from .beliefs import *
from .compose import *
from .conditional import *
from .counters import *
from .data_loading import *
from .deltas import *
from .dtype_device import *
from .elementwise import *
from .episodes import *
from .finite_check import *
from .frame_skip import *
from .frames import *
from .function_transform import *
from .images import *
from .keys import *
from .kl_reward import *
from .module_transform import *
from .observation_transform import *
from .pretrained import *
from .primer import *
from .rewards import *
from .shapes import *
from .stored_data import *
from .structure import *
from .texts import *
from .timing import *
from .transformed_env import *
from .vecnorm import *
from .vecnorm_v2 import *

__all__: list[str] = []
__all__ += action_mask.__all__
__all__ += actions.__all__
__all__ += auto_reset.__all__
__all__ += base.__all__
__all__ += batch_size.__all__
__all__ += beliefs.__all__
__all__ += compose.__all__
__all__ += conditional.__all__
__all__ += counters.__all__
__all__ += data_loading.__all__
__all__ += deltas.__all__
__all__ += dtype_device.__all__
__all__ += elementwise.__all__
__all__ += episodes.__all__
__all__ += finite_check.__all__
__all__ += frame_skip.__all__
__all__ += frames.__all__
__all__ += function_transform.__all__
__all__ += images.__all__
__all__ += keys.__all__
__all__ += module_transform.__all__
__all__ += observation_transform.__all__
__all__ += pretrained.__all__
__all__ += kl_reward.__all__
__all__ += primer.__all__
__all__ += rewards.__all__
__all__ += shapes.__all__
__all__ += structure.__all__
__all__ += stored_data.__all__
__all__ += texts.__all__
__all__ += timing.__all__
__all__ += transformed_env.__all__
__all__ += vecnorm.__all__
__all__ += vecnorm_v2.__all__

__getattr__ = lazy_names(__name__)
