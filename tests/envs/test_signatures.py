"""Names, arguments and defaults of TorchRL's environments, as users write them."""

import ast
import importlib
import inspect
from typing import Any

import pytest

PLACES = [importlib.import_module(f"vecrl.{name}") for name in ("envs", "specs", "envs.utils", "envs.libs.gym")]

SIGNATURES = {
    "ActionMask": "action_key='action', mask_key='action_mask'",
    "AutoResetTransform": "*, replace=None, fill_float='nan', fill_int=-1, fill_bool=False",
    "BinarizeReward": "in_keys=None, out_keys=None",
    "Binary": "n=None, shape=None, device=None, dtype=torch.int8",
    "Bounded": "low=None, high=None, shape=None, device=None, dtype=None, **kwargs",
    "CatFrames": (
        "N, dim, in_keys=None, out_keys=None, padding='same', padding_value=0, as_inverse=False, "
        "reset_key=None, done_key=None"
    ),
    "CatTensors": (
        "in_keys=None, out_key='observation_vector', dim=-1, *, del_keys=True, unsqueeze_if_oor=False, sort=True"
    ),
    "Categorical": "n, shape=None, device=None, dtype=torch.int64, mask=None",
    "CenterCrop": "w, h=None, in_keys=None, out_keys=None",
    "Choice": "choices",
    "ClipTransform": "in_keys=None, out_keys=None, in_keys_inv=None, out_keys_inv=None, *, low=None, high=None",
    "Compose": "*trsfs, **kwargs",
    "Composite": "*, shape=None, device=None, data_cls=None, step_mdp_static=False, names=None, **kwargs",
    "Crop": "w, h=None, top=0, left=0, in_keys=None, out_keys=None",
    "DTypeCastTransform": "dtype_in, dtype_out, in_keys=None, out_keys=None, in_keys_inv=None, out_keys_inv=None",
    "DeviceCastTransform": (
        "device, orig_device=None, *, in_keys=None, out_keys=None, in_keys_inv=None, out_keys_inv=None"
    ),
    "DoubleToFloat": "in_keys=None, out_keys=None, in_keys_inv=None, out_keys_inv=None",
    "EnvBase": (
        "*, device=None, batch_size=None, run_type_checks=False, allow_done_after_reset=False, "
        "spec_locked=True, auto_reset=False"
    ),
    "EnvCreator": "create_env_fn, create_env_kwargs=None, share_memory=True, **kwargs",
    "EnvMetaData": (
        "*, tensordict, specs, batch_size, env_str, device, batch_locked, device_map, supports_set_state=False"
    ),
    "ExcludeTransform": "*excluded_keys, inverse=False",
    "FiniteTensorDictCheck": "",
    "FlattenObservation": "first_dim, last_dim, in_keys=None, out_keys=None, allow_positive_dim=False",
    "FrameSkipTransform": "frame_skip=1",
    "GrayScale": "in_keys=None, out_keys=None",
    "GymEnv": "env_name, **kwargs",
    "GymLikeEnv": "*, device=None, batch_size=None, allow_done_after_reset=False, spec_locked=True, **kwargs",
    "GymWrapper": "env=None, categorical_action_encoding=False, **kwargs",
    "InitTracker": "init_key='is_init'",
    "MOGymEnv": "env_name, **kwargs",
    "MOGymWrapper": "env=None, categorical_action_encoding=False, **kwargs",
    "MultiCategorical": "nvec, shape=None, device=None, dtype=torch.int64, mask=None, remove_singleton=True",
    "MultiOneHot": "nvec, shape=None, device=None, dtype=torch.bool, use_register=False, mask=None",
    "NonTensor": (
        "shape=torch.Size([1]), device=None, dtype=None, example_data=None, batched=None, feature_dims=None, **kwargs"
    ),
    "NoopResetEnv": "noops=30, random=True",
    "ObservationNorm": (
        "loc=None, scale=None, in_keys=None, out_keys=None, in_keys_inv=None, out_keys_inv=None, "
        "standard_normal=False, eps=None"
    ),
    "ObservationTransform": "in_keys=None, out_keys=None, in_keys_inv=None, out_keys_inv=None",
    "OneHot": "n, shape=None, device=None, dtype=torch.bool, use_register=False, mask=None",
    "ParallelEnv": (
        "num_workers, create_env_fn, *, create_env_kwargs=None, pin_memory=False, share_individual_td=None, "
        "shared_memory=True, memmap=False, policy_proof=None, device=None, allow_step_when_done=False, num_threads=None, num_sub_threads=1, serial_for_single=False, non_blocking=False, mp_start_method=None, use_buffers=None, consolidate=True, daemon=False"
    ),
    "PendulumEnv": "td_params=None, seed=None, device=None",
    "PermuteTransform": "dims, in_keys=None, out_keys=None, in_keys_inv=None, out_keys_inv=None",
    "PinMemoryTransform": "",
    "RandomPolicy": "action_spec=None, action_key='action'",
    "RenameTransform": "in_keys, out_keys, in_keys_inv=None, out_keys_inv=None, create_copy=False",
    "Resize": "w, h=None, interpolation='bilinear', in_keys=None, out_keys=None",
    "RewardClipping": "clamp_min=None, clamp_max=None, in_keys=None, out_keys=None",
    "RewardScaling": "loc, scale, in_keys=None, out_keys=None, standard_normal=False",
    "RewardSum": "in_keys=None, out_keys=None, reset_keys=None, *, reward_spec=False",
    "SelectTransform": "*selected_keys, keep_rewards=True, keep_dones=True",
    "SerialEnv": (
        "num_workers, create_env_fn, *, create_env_kwargs=None, pin_memory=False, share_individual_td=None, "
        "shared_memory=True, memmap=False, policy_proof=None, device=None, allow_step_when_done=False, num_threads=None, num_sub_threads=1, serial_for_single=False, non_blocking=False, mp_start_method=None, use_buffers=None, consolidate=True, daemon=False"
    ),
    "SignTransform": "in_keys=None, out_keys=None, in_keys_inv=None, out_keys_inv=None",
    "Stacked": "*specs, dim",
    "StackedComposite": "*specs, dim",
    "StepCounter": "max_steps=None, truncated_key='truncated', step_count_key='step_count', update_done=True",
    "TensorDictPrimer": (
        "primers=None, random=None, default_value=None, reset_key=None, expand_specs=None, "
        "single_default_value=False, call_before_env_reset=False, **kwargs"
    ),
    "TicTacToeEnv": "*, single_player=False, device=None",
    "Timer": "out_keys=None, time_key='time'",
    "ToTensorImage": "from_int=None, unsqueeze=False, dtype=None, *, in_keys=None, out_keys=None, shape_tolerant=False",
    "TrajCounter": "out_key='traj_count', *, repeats=None",
    "Transform": "in_keys=None, out_keys=None, in_keys_inv=None, out_keys_inv=None",
    "UnaryTransform": (
        "in_keys, out_keys, in_keys_inv=None, out_keys_inv=None, *, fn, inv_fn=None, use_raw_nontensor=False"
    ),
    "Unbounded": "shape=torch.Size([1]), device=None, dtype=None, **kwargs",
    "UnboundedContinuous": "shape=torch.Size([1]), device=None, dtype=None, **kwargs",
    "UnboundedDiscrete": "shape=torch.Size([1]), device=None, dtype=torch.int64, **kwargs",
    "UnsqueezeTransform": (
        "dim=None, *, allow_positive_dim=False, in_keys=None, out_keys=None, in_keys_inv=None, out_keys_inv=None"
    ),
    "VecGymEnvTransform": "final_name='final', missing_obs_value=nan, *, native_autoreset=False",
    "VecNorm": (
        "in_keys=None, out_keys=None, shared_td=None, lock=None, decay=0.9999, eps=0.0001, shapes=None, new_api=None"
    ),
    "check_env_specs": (
        "env, return_contiguous=None, check_dtype=True, seed=None, tensordict=None, break_when_any_done=None"
    ),
    "check_marl_grouping": "group_map, agent_names",
    "exploration_type": "",
    "get_available_libraries": "",
    "gym_backend": "submodule=None",
    "make_composite_from_td": "data, *, unsqueeze_null_shapes=True, dynamic_shape=False",
    "register_gym_spec_conversion": "spec_type",
    "set_gym_backend": "backend",
    "step_mdp": (
        "tensordict, next_tensordict=None, keep_other=True, exclude_reward=True, exclude_done=False, "
        "exclude_action=True, reward_keys='reward', done_keys='done', action_keys='action'"
    ),
    "terminated_or_truncated": "data, full_done_spec=None, key='_reset', write_full_false=False",
}


def _found(name: str) -> Any:
    return next(getattr(place, name) for place in PLACES if hasattr(place, name))


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_and_defaults_match_the_source(name: str) -> None:
    """Every argument is accepted by name, positional ones in their order, with the same default."""
    expected = ast.parse(f"def f({SIGNATURES[name]}): pass").body[0]
    assert isinstance(expected, ast.FunctionDef)
    actual = inspect.signature(_found(name)).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in actual.values())
    by_position = [a.arg for a in expected.args.args]
    remaining = len(by_position) - len(expected.args.defaults)
    defaults = dict(zip(by_position[remaining:], expected.args.defaults, strict=True))
    defaults |= {
        a.arg: d for a, d in zip(expected.args.kwonlyargs, expected.args.kw_defaults, strict=True) if d is not None
    }
    for argument in [*by_position, *(a.arg for a in expected.args.kwonlyargs)]:
        assert argument in actual or takes_any, argument
        if argument in defaults and argument in actual:
            assert _same(actual[argument].default, defaults[argument]), f"{argument}: {actual[argument].default}"
    order = [p.name for p in actual.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    assert order[: len(by_position)] == by_position
    assert expected.args.vararg is None or any(p.kind is p.VAR_POSITIONAL for p in actual.values())


def _same(actual: Any, expected: ast.expr) -> bool:
    text = ast.unparse(expected)
    return text in (repr(actual), str(actual)) or (text == "nan" and actual != actual)
