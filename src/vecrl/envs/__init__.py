"""Dialect 3: environments over TensorDicts."""

from .base import EnvBase
from .utils import RandomPolicy, check_env_specs, step_mdp, terminated_or_truncated

__all__ = ["EnvBase", "RandomPolicy", "check_env_specs", "step_mdp", "terminated_or_truncated"]
