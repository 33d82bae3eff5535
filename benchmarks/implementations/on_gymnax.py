"""gymnax: CartPole in JAX, jitted over the batch. It runs on one core, since two are slower."""

from __future__ import annotations

from functools import partial

import gymnax
import jax
import jax.numpy as jnp

from benchmarks.actions import discrete, play
from benchmarks.implementation import Measurement, RunFactory
from benchmarks.population import parameters, split
from benchmarks.stopwatch import watch


def batch_cartpole(num_envs: int) -> RunFactory:
    """One step at a time, with auto-reset; waits for each result."""
    env, params = gymnax.make("CartPole-v1")

    @partial(jax.jit, donate_argnums=(0, 1))
    def advance(key, state, actions):
        key, sub = jax.random.split(key)
        keys = jax.random.split(sub, num_envs)
        obs, state, reward, *done, _ = jax.vmap(env.step, (0, 0, 0, None))(keys, state, actions, params)
        return key, state, (obs, reward, *done)

    key = jax.random.key(0)
    _, state = jax.vmap(env.reset, (0, None))(jax.random.split(key, num_envs), params)

    def step(actions) -> None:
        nonlocal key, state
        key, state, out = advance(key, state, actions)
        jax.block_until_ready(out)

    yield play(step, [jnp.asarray(batch) for batch in discrete(num_envs)])


def rollout_cartpole(num_envs: int, steps: int) -> RunFactory:
    """`steps` steps of all rows under one policy, in one `scan`; a unit is the whole rollout."""
    env, params = gymnax.make("CartPole-v1")
    weights = jnp.asarray(parameters(256)[-1])

    @jax.jit
    def rollout(key, obs, state):
        def one(carry, key):
            obs, state = carry
            actions = jax.vmap(_act, (None, 0))(weights, obs)
            keys = jax.random.split(key, num_envs)
            after, state, reward, *done, _ = jax.vmap(env.step, (0, 0, 0, None))(keys, state, actions, params)
            return (after, state), (obs, actions, reward, *done)

        key, sub = jax.random.split(key)
        (obs, state), record = jax.lax.scan(one, (obs, state), jax.random.split(sub, steps))
        return key, obs, state, record

    key = jax.random.key(0)
    obs, state = jax.vmap(env.reset, (0, None))(jax.random.split(key, num_envs), params)

    def once() -> None:
        nonlocal key, obs, state
        key, obs, state, record = rollout(key, obs, state)
        jax.block_until_ready(record)

    yield lambda units: Measurement(watch(once, units), units)


def population_cartpole(members: int) -> RunFactory:
    """Runs one episode per member in one `while_loop`; counts environment steps."""
    env, params = gymnax.make("CartPole-v1")
    weights = jnp.asarray(parameters(members))

    @jax.jit
    def evaluate(key, weights):
        def going(carry):
            return carry[-1].any()

        def one(carry):
            key, obs, state, lengths, alive = carry
            key, sub = jax.random.split(key)
            keys = jax.random.split(sub, members)
            actions = jax.vmap(_act)(weights, obs)
            obs, state, _, *ended, _ = jax.vmap(env.step_env, (0, 0, 0, None))(keys, state, actions, params)
            lengths = lengths + alive
            alive &= ~jnp.any(jnp.stack(ended), 0) & (lengths < params.max_steps_in_episode)
            return key, obs, state, lengths, alive

        key, sub = jax.random.split(key)
        obs, state = jax.vmap(env.reset, (0, None))(jax.random.split(sub, members), params)
        start = key, obs, state, jnp.zeros(members, jnp.int32), jnp.ones(members, bool)
        key, _, _, lengths, _ = jax.lax.while_loop(going, one, start)
        return key, lengths.sum()

    key = jax.random.key(0)

    def run(units: int) -> Measurement:
        steps = 0

        def once() -> None:
            nonlocal key, steps
            key, total = evaluate(key, weights)
            steps += int(total)

        return Measurement(watch(once, units), steps)

    yield run


def _act(flat, obs):
    w1, b1, w2, b2 = split(flat)
    return jnp.argmax(w2 @ jnp.tanh(w1 @ obs + b1) + b2, -1)
