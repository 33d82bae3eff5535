"""Several environments as one batched environment: `SerialEnv` in this thread, `ParallelEnv` in worker processes.

Both are an `EnvBase` on a pool of the engine, with one environment per row. This module must not create environments:
workers create them and report their metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...engine.backends.registry import BackendName, backend_entry
from ...engine.backends.worker_options import RayOptions, Wait, parse_start_method
from ...engine.pool import Pool
from ...engine.pool_options import OnFailure, PoolOptions
from ...engine.simulator import ResetKeywords
from ...engine.transition import Transition
from ...errors import PendingError, SpaceError, WorkerError
from ...seeding import random_seed
from ...specs import StackedComposite
from ...validation import parse_optional_count
from ..base import EnvBase
from ..entries.keys import INPUTS, OUTPUTS, Key
from ..entries.records import Entries, RecordSteps
from ..entries.row_masks import RowMasks, merge_into, reduce_to_rows, stack_lazily
from ..rollouts.array_rollout import known_actions, rollout_arrays, to_tensordict
from ..rollouts.trajectory_buffers import ArrayBuffer, Leaves
from ..seed_chain import next_seed, validate_seed
from .autograd_graphs import Graphs
from .codecs import GymCodec, TensorDictCodec
from .entry_layout import is_tensordict_layout, stack_full_specs
from .env_factories import Kwargs
from .env_simulator import EnvSimulator, resolve_spaces, same_metadata
from .metadata import EnvMetaData
from .partial_batch import fake_rows, sample_actions, scatter_rows, selected_rows, zero_specs
from .pool_owner import PoolOwner
from .stacked_rows import StackedRows
from .tensordict_rows import RowData

EnvFn = Callable[..., EnvBase]
Codec = TensorDictCodec | GymCodec


class BatchedEnv(PoolOwner):
    """n environments as one environment of batch size `(n, *b)`, where b is the batch size of each of them.

    The constructor creates the environments in workers. After `close`, `start` or `reset` creates new ones. Results
    stay valid as long as the caller keeps them. Attributes that are not found here are looked up in all environments:
    the result is a list of values or, for a method, a function that calls the method in each environment and returns a
    list.

    Gradients flow through environments that are stepped in this thread (backend "serial"), also from one step to the
    next unless the caller detaches the inputs of the step. Other backends return detached results.

    Environments may have different classes, shapes and keys. Specs that differ are stacked lazily, and so are
    TensorDicts then. Entries of fixed shape are in memory shared by caller and workers. Other entries (objects, sizes
    of -1, entries that only some environments have) are pickled, which is slow for large ones.

    Args:
        num_workers: n, the number of environments (TorchRL's name for it; not to be given twice, as the first argument
            and by name). `envs_per_worker` determines how many workers there are.
        create_env_fn: a function that creates an environment, or n functions. They are pickled by value.
        create_env_kwargs: keyword arguments of the function, or n mappings of them.
        device: the device of inputs and outputs; by default the one of the environments.
        num_threads: the number of torch threads in this process, set at start; None does not change it.
        num_sub_threads: the number of threads of numerical libraries in each worker process.
        serial_for_single: whether to use the backend "serial" if n is 1.
        mp_start_method: "forkserver" (the default), which forks a clean process, or "spawn". "fork" gives a warning and
            means "forkserver": it would copy this process with the locks of all its threads.
        non_blocking: kept as an attribute without effect. Copies between devices are always synchronous, because values
            would be wrong before a copy is complete.
        envs_per_worker: the number of environments per worker; by default there are as many workers as cores.
        backend: "serial", "threads", "processes", "ray" or another registered backend; by default that of the class.
        step_timeout, on_failure, restarts_per_hour, ray_options, wait: see `vecrl.engine.PoolOptions`. A failed
            environment that is restarted or excluded is done and truncated, with reward 0 and its last known
            observation.
        pin_memory, share_individual_td, shared_memory, memmap, use_buffers, consolidate, daemon: accepted and ignored.
            The specs determine how data are passed, and workers end with their owner.
        policy_proof: accepted and ignored. Entries of a policy stay in the caller's TensorDict.
        allow_step_when_done: accepted and ignored. Environments may be stepped when they are done, as single ones may.

    Raises:
        WorkerError: an environment could not be created; all workers have ended.
        SpaceError: the arguments are invalid, or the environments do not fit together.
    """

    excluded_from_state = ("_codec", "_env_flags", "meta_data", "create_env_fn", "create_env_kwargs", "num_workers")
    _has_custom_rand_action: Any = False

    def __init__(
        self,
        num_workers: int,
        create_env_fn: EnvFn | Sequence[EnvFn],
        *,
        create_env_kwargs: Kwargs | Sequence[Kwargs] | None = None,
        pin_memory: bool = False,
        share_individual_td: bool | None = None,
        shared_memory: bool = True,
        memmap: bool = False,
        policy_proof: Callable[..., Any] | None = None,
        device: torch.device | str | int | None = None,
        allow_step_when_done: bool = False,
        num_threads: int | None = None,
        num_sub_threads: int = 1,
        serial_for_single: bool = False,
        non_blocking: bool = False,
        mp_start_method: str | None = None,
        use_buffers: bool | None = None,
        consolidate: bool = True,
        daemon: bool = False,
        envs_per_worker: int | None = None,
        backend: BackendName | None = None,
        step_timeout: float | None = None,
        on_failure: OnFailure = "raise",
        restarts_per_hour: int = 100,
        ray_options: RayOptions | None = None,
        wait: Wait = "auto",
    ):
        super().__init__(device=device, allow_done_after_reset=True)  # the environments check it
        self.num_workers = num_workers
        self.create_env_fn = create_env_fn
        self.create_env_kwargs = create_env_kwargs
        self.non_blocking = non_blocking
        self._requested_device = self._device
        self._num_threads, self._envs_per_worker = parse_optional_count("num_threads", num_threads), envs_per_worker
        backend = self._backend if backend is None else backend
        self._pool_options = PoolOptions(
            backend="serial" if serial_for_single and num_workers == 1 else backend,
            infos=False,
            step_timeout=step_timeout,
            on_failure=on_failure,
            restarts_per_hour=restarts_per_hour,
            start_method=parse_start_method(mp_start_method, "mp_start_method", (None,)),
            threads_per_worker=num_sub_threads,
            resolve_spaces=resolve_spaces,
            ray_options=ray_options,
            wait=wait,
        )
        self._pool = None
        self._seeds: dict[int, int | None] = {}
        self._seed_before_use = ()
        self.start()

    # -- the environments

    def _set_metadata(self, metas: list[EnvMetaData], pool: Pool, graphs: Graphs | None) -> None:
        first_meta = metas[0]
        sizes = {tuple(meta.batch_size) for meta in metas}
        if len(sizes) > 1:
            raise SpaceError(f"Expected environments of one batch size, got {sorted(sizes)}. Batch equal ones.")
        self.meta_data = (
            first_meta if all(meta is first_meta or same_metadata(meta, first_meta) for meta in metas) else metas
        )
        self._device = self._requested_device or (
            first_meta.device if len({meta.device for meta in metas}) == 1 else None
        )
        self._supports_set_state = any(meta.supports_set_state for meta in metas)
        self._has_custom_rand_action = any(meta.has_custom_rand_action for meta in metas)
        self.batch_size = torch.Size([len(metas), *first_meta.batch_size])
        for name in (*INPUTS, *OUTPUTS):
            self._set_full(name, stack_full_specs(metas, name))
        self._env_flags = self._flag_shapes  # those that the environments return
        outputs, inputs = pool.obs_layout.space, pool.action_layout.space
        if is_tensordict_layout(outputs):
            self._codec: Codec = TensorDictCodec(metas, outputs, inputs, self._reward_keys_not_in_root, graphs)
        else:
            self._codec = GymCodec(first_meta, pool.worker_info.metadata["keys"], outputs)

    # -- resets

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """Resets the environments as `EnvBase.reset` does, and returns the root TensorDict. Creates closed ones first.

        Args:
            tensordict: None to reset all. The environments get its masks "_reset" and the entries of their state
                specs; without masks, also those of their observation specs, for example a position to start from.
            kwargs: keyword arguments for the reset of each environment.
        """
        if not self.is_closed:
            self.start()
        return super().reset(tensordict, **kwargs)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self._seed_before_use = None
        masks = None if tensordict is None else RowMasks.from_tensordict(tensordict, "_reset", self.done_prefixes)
        ids, all_rows = selected_rows(masks, self.done_prefixes, self.num_workers)
        codec = self._codec
        if isinstance(codec, GymCodec):
            transition = self._reset_gym(ids, kwargs)
        else:
            data = {} if tensordict is None else self._reset_data(tensordict, self._reset_inputs(masks, all_rows), ids)
            options = {"kwargs": kwargs, "data": data, "masked": bool(masks)} if kwargs or data or masks else None
            transition = self._call_pool("reset", None, options, ids)
        reset_td = self._to_own_device(codec.root_tensordict(transition))
        return reset_td if ids is None else scatter_rows(reset_td, ids, self.num_workers, self._noop_row)

    def _reset_gym(self, ids: np.ndarray | None, kwargs: Mapping[str, Any]) -> Transition:
        rows = range(self.num_workers) if ids is None else ids.tolist()
        seeds: Any = [self._seeds.pop(i, None) for i in rows] if self._seeds else None
        if "seed" in kwargs:  # the same seed for each environment, as other keywords
            seeds, kwargs = [kwargs["seed"]] * len(rows), {key: kwargs[key] for key in kwargs if key != "seed"}
        return self._call_pool("reset", seeds, ResetKeywords(kwargs), ids)

    def _reset_inputs(self, masks: RowMasks | None, all_rows: bool) -> list[Key]:
        """Returns the keys of the entries that the environments get at a reset.

        With masks, entries other than states usually are those of the episodes that end: they are not passed.
        """
        if not masks:
            return [*self.state_keys, *self.observation_keys]
        return self.state_keys if all_rows else [*self.state_keys, *self.reset_keys]

    def _reset_data(self, tensordict: TensorDictBase, keys: list[Key], ids: np.ndarray | None) -> RowData:
        """Returns the entries `keys` of the TensorDict by environment, nothing if it has none of them."""
        if not any(tensordict.get(key, None) is not None for key in keys):
            return {}
        data = tensordict.select(*keys, strict=False)
        data = data if backend_entry(self._pool_options.backend).runs_inline else data.detach()
        parts = data.to("cpu").unbind(0)  # workers get data on the CPU
        return {row: parts[row] for row in (range(len(parts)) if ids is None else ids.tolist())}

    def _noop_row(self, row: int, row_td: TensorDictBase | None = None) -> TensorDictBase:
        return zero_specs([self._full(name)[row] for name in OUTPUTS], row_td)

    def _noop_step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not self._codec.is_lazy:
            return super()._noop_step(tensordict)
        return stack_lazily([self._noop_row(row, row_td) for row, row_td in enumerate(tensordict.unbind(0))])

    def fake_tensordict(self) -> TensorDictBase:
        """Returns a TensorDict with the entries of a step, filled with zeros."""
        if not any(isinstance(self._full(name), StackedComposite) for name in (*INPUTS, *OUTPUTS)):
            return super().fake_tensordict()
        return fake_rows(self._full, self.num_workers)

    def select_and_clone(self, name: Key, tensor: Tensor, selected_keys: Sequence[Key] | None = None) -> Tensor | None:
        """Returns a copy of `tensor` if `name` is one of `selected_keys`, by default of the outputs; else None."""
        keys = [key for kind in OUTPUTS for key in self._leaf_keys(kind)] if selected_keys is None else selected_keys
        return tensor.clone() if name in keys else None

    # -- steps

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._step_and_complete(tensordict)

    def _step_and_complete(self, tensordict: TensorDictBase) -> TensorDictBase:
        transition = self._call_pool("step", self._codec.inputs(tensordict))
        return self._to_own_device(self._codec.next_tensordict(transition), is_step=True)

    def _step_and_reset_done(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase | None]:
        codec = self._codec
        reset_done = not self._seeds  # pending seeds are used at the next reset by the caller
        transition = self._call_pool("step", codec.inputs(tensordict), reset_done=reset_done)
        next_td = self._to_own_device(codec.next_tensordict(transition), is_step=True)
        return next_td, self._to_own_device(codec.root_tensordict(transition)) if len(transition.final_rows) else None

    def _record_steps(self) -> RecordSteps | None:
        is_plain = self._codec.has_entries and self.ndim == 1 and self._flag_shapes == self._env_flags
        if not is_plain:
            return None
        has_rows = self._pool is not None and _stacked_rows(self._pool) is not None
        return RecordSteps(self._step_stacked if has_rows else self._step_record, self._reset_record)

    def _step_stacked(self, root: Entries, reset_done: bool) -> tuple[Entries, Entries | None]:
        """Steps all environments as `_step_record`, without encoding what stays in this thread."""
        pool = self._require_pool()
        with pool._closer.lock:
            rows = _stacked_rows(pool)  # those of this pool: a policy may have closed and opened the environment
            inputs = None if rows is None else rows.prepare(root)
            if rows is None or inputs is None:
                return self._step_record(root, reset_done)
            reset_done = reset_done and not self._seeds
            transition = self._call_pool("_step_simulator", inputs, reset_done, rows.has_results)
            return self._entries(transition) if rows.results is None else rows.results

    def _step_record(self, root: Entries, reset_done: bool) -> tuple[Entries, Entries | None]:
        reset_done = reset_done and not self._seeds  # which are for the next resets by the caller
        return self._entries(self._call_pool("step", self._codec.inputs(cast(Any, root)), reset_done=reset_done))

    def _entries(self, transition: Transition) -> tuple[Entries, Entries | None]:
        """Returns the entries of the result of a step, and those of the next root, None if no row was reset."""
        codec: Any = self._codec
        first = codec.root_entries(transition) if len(transition.final_rows) else None
        return codec.next_entries(transition), first

    def _reset_record(self, mask: Tensor, root: Entries) -> Entries:
        codec: Any = self._codec
        ids = mask.reshape(-1).nonzero()[:, 0]
        if isinstance(codec, GymCodec):
            transition = self._reset_gym(ids.numpy(), {})
        else:
            data = self._reset_data(TensorDict(root, self._batch_size), self.state_keys, ids.numpy())
            transition = self._call_pool("reset", None, {"kwargs": {}, "data": data, "masked": True}, ids.numpy())
        entries = codec.root_entries(transition)
        for key, rows in entries.items():
            entries[key] = rows.new_zeros(self.num_workers, *rows.shape[1:]).index_copy_(0, ids, rows)
        return entries

    def _merge_reset_rows(self, root: TensorDictBase, reset_td: TensorDictBase) -> TensorDictBase:
        return merge_into(root, reset_td)  # other rows of reset_td equal those of root

    def _call_pool(self, method: str, *args: Any, **options: Any) -> Transition:
        """Calls a method of the pool. If environments fail, the transition of the error is decoded to a TensorDict."""
        try:
            return getattr(self._require_pool(), method)(*args, **options)
        except WorkerError as error:
            if isinstance(error.transition, Transition):
                codec = self._codec
                decode = codec.root_tensordict if method == "reset" else codec.next_tensordict
                error.transition = decode(error.transition)
            raise

    def _step_masked(self, tensordict: TensorDictBase, mask: Tensor) -> TensorDictBase:
        ids = reduce_to_rows(mask, (self.num_workers,)).nonzero()[:, 0].numpy(force=True)
        row_mask = reduce_to_rows(mask, self.batch_size) if self.ndim > 1 else None
        self._require_pool().send(ids, self._codec.inputs(tensordict, ids, row_mask))
        transition = self._call_pool("recv")
        rows_td = self._to_own_device(self._codec.next_tensordict(transition), is_step=True)
        return scatter_rows(rows_td, ids, self.num_workers, self._noop_row)

    def _to_own_device(self, data: TensorDictBase, is_step: bool = False) -> TensorDictBase:
        if is_step and self.run_type_checks:
            self._check_types(data)
        if self._flag_shapes != self._env_flags:  # after add_truncated_keys, there are more
            data = self._complete_flags(data)
        return data if self._device is None else data.to(self._device)

    # -- random actions and whole rollouts

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Samples actions as `EnvBase.rand_action` does. Environments that override it sample their own rows."""
        return (
            sample_actions(self._require_pool(), tensordict, self)
            if self._has_custom_rand_action
            else super().rand_action(tensordict)
        )

    def _rollout_at_once(self, steps: int, actions: Tensor | None, break_when_any_done: bool) -> TensorDictBase | None:
        codec = self._codec
        if isinstance(codec, TensorDictCodec) or (self._has_custom_rand_action and actions is None):
            return None
        actions = known_actions(self, steps, actions)
        gym_actions = list(codec.actions(actions))
        self._seed_before_use = None
        arrays = _PoolArrays(codec, partial(self._reset_gym, None, {}), partial(self._call_pool, "step"))
        rows = (self.num_workers,)
        trajectory = rollout_arrays(arrays, gym_actions, rows, self.reward_spec.dtype, break_when_any_done)
        return to_tensordict(self, self._require_pool().worker_info.metadata["keys"], trajectory, actions)

    # -- seeds, attributes, states

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seeds all environments, as their own `set_seed`, and returns the seed after the last one.

        Args:
            seed: the seed of the first environment; None for a random one, which the next reset uses. Each other one
                gets the seed that the previous one returned.
            static_seed: whether all environments get the same seed.
        """
        self.start()
        if pending := self._require_pool().pending.tolist():
            raise PendingError(f"Expected no pending environments, got {pending}. Receive their results first.")
        return super().set_seed(seed, static_seed)

    def _reset_seeded(self) -> None:
        if isinstance(self._codec, GymCodec):
            self._reset_gym(None, {})
        else:
            self._require_pool().invoke("call", "_reset_after_seed", [((), {})] * self.num_workers)

    def _apply_seed(self, seed: int | None, static_seed: bool) -> int | None:
        if validate_seed(seed) is None:
            self._apply_seed(random_seed(31), static_seed)
            return None
        self.start()
        if self._seed_before_use is not None:
            self._seed_before_use = seed, static_seed
        for row in range(self.num_workers):
            if isinstance(self._codec, GymCodec):
                self._seeds[row] = seed
                seed = seed if static_seed or seed is None else next_seed(seed)
            else:
                self._require_pool().record_seeds([seed], [row])
                [seed] = self._require_pool().invoke("call", "_seed_next_reset", [((seed, static_seed), {})], [row])
        return seed

    def __repr__(self) -> str:
        state = "closed" if self._pool is None else f"workers={self._pool.num_workers}"
        kind = f"{type(self).__name__}(num_workers={self.num_workers}, backend={self._pool_options.backend!r}, {state}"
        return f"{kind}, batch_size={tuple(self.batch_size)}, device={self.device})"


class _PoolArrays:
    """Gymnasium environments in a pool at array level, see `ArrayEnv`."""

    def __init__(self, codec: GymCodec, reset: Callable[[], Transition], step: Callable[..., Transition]):
        self._split, self._reset, self._step = codec.layout.split, reset, step

    def reset_arrays(self) -> Leaves:
        return self._split(self._reset().obs)

    def step_arrays(self, action: Any, t: int, out: ArrayBuffer, reset_done: bool) -> bool:
        transition = self._step(action, reset_done=reset_done)
        obs, rows = self._split(transition.obs), transition.final_rows
        for column, leaf in zip(out.next_obs, obs, strict=True):
            column[t] = leaf
        out.reward[t] = transition.reward
        if not len(transition.done_rows):
            return False
        out.add_flags(t, transition.terminated, transition.truncated)
        if len(rows):
            out.add_first_obs(t + 1, rows, [leaf[rows] for leaf in obs])
            for column, final in zip(out.next_obs, self._split(transition.final_obs), strict=True):
                column[t, rows] = final
        return True


def _stacked_rows(pool: Pool) -> StackedRows | None:
    """Returns the rows that step all environments of a pool in this thread; None if there are none."""
    simulator = pool._only_simulator
    return simulator.stacked_rows if isinstance(simulator, EnvSimulator) else None


class SerialEnv(BatchedEnv):
    """A `BatchedEnv` with environments that are stepped one after another in this thread.

    >>> from vecrl.envs import GymEnv
    >>> env = SerialEnv(2, lambda: GymEnv("Pendulum-v1", g=9.81))
    >>> env.rollout(3)["next", "reward"].shape
    torch.Size([2, 3, 1])
    >>> env.close()
    """

    _backend = "serial"


class ParallelEnv(BatchedEnv):
    """A `BatchedEnv` with environments in worker processes.

    >>> from vecrl.envs import GymEnv
    >>> with ParallelEnv(4, lambda: GymEnv("Pendulum-v1", g=9.81)) as env:
    ...     env.batch_size, env.rollout(3).shape
    (torch.Size([4]), torch.Size([4, 3]))
    """

    _backend = "processes"
