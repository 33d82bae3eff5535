"""Transforms of the inputs, outputs and specs of environments, one module per topic.

Each module lists its public names in `__all__`; they are public here too.
"""

# ruff: noqa: F403 (the `__all__` of each module lists the names)

from ..aliases import lazy_names
from . import (
    actions,
    auto_reset,
    base,
    compose,
    counters,
    data_loading,
    dtype_device,
    elementwise,
    episodes,
    frames,
    function_transform,
    images,
    keys,
    pretrained,
    primer,
    rewards,
    shapes,
    steps,
    stored_data,
    structure,
    texts,
    timing,
    transformed_env,
    vecnorm,
)
from .actions import *
from .auto_reset import *
from .base import *
from .compose import *
from .counters import *
from .data_loading import *
from .dtype_device import *
from .elementwise import *
from .episodes import *
from .frames import *
from .function_transform import *
from .images import *
from .keys import *
from .pretrained import *
from .primer import *
from .rewards import *
from .shapes import *
from .steps import *
from .stored_data import *
from .structure import *
from .texts import *
from .timing import *
from .transformed_env import *
from .vecnorm import *

__all__: list[str] = []
__all__ += actions.__all__
__all__ += auto_reset.__all__
__all__ += base.__all__
__all__ += compose.__all__
__all__ += counters.__all__
__all__ += data_loading.__all__
__all__ += dtype_device.__all__
__all__ += elementwise.__all__
__all__ += episodes.__all__
__all__ += frames.__all__
__all__ += function_transform.__all__
__all__ += images.__all__
__all__ += keys.__all__
__all__ += pretrained.__all__
__all__ += primer.__all__
__all__ += rewards.__all__
__all__ += shapes.__all__
__all__ += steps.__all__
__all__ += stored_data.__all__
__all__ += structure.__all__
__all__ += texts.__all__
__all__ += timing.__all__
__all__ += transformed_env.__all__
__all__ += vecnorm.__all__

__getattr__ = lazy_names(__name__)
