"""Seeds depend only on the root seed, the environment and the episode."""

import re
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vecrl import classic, convert, seeding
from vecrl.envs import PendulumEnv, SerialEnv, make_env
from vecrl.seeding import (
    ListedSeeds,
    OwnSeeds,
    SeedSet,
    SharedSeeds,
    random_seeds,
    seed_for,
    seed_rule,
    seeds_for,
    split_seeds,
)
from vecrl.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, make_vector_env
from vecrl.venv import DummyVectorEnv

WORDS = st.integers(0, 2**64 - 1)


@given(WORDS, WORDS, WORDS)
def test_single_seeds_equal_their_batch_element(root, env_id, episode):
    batch = seeds_for(root, np.array([0, env_id], np.uint64), np.array([episode, episode], np.uint64))
    assert seed_for(root, env_id, episode) == batch[1]
    assert 0 <= seed_for(root, env_id, episode) < 2**32


def test_seeds_never_change_from_version_to_version():
    assert [seed_for(0, 0), seed_for(123, 45, 6), seed_for(2**64 - 1, 2**64 - 1, 2**64 - 1)] == [
        595752380,
        245209322,
        396296688,
    ]


def test_random_seeds_differ_and_use_all_their_bits():
    for bits in (31, 63, 64):
        seeds = random_seeds(500, bits)
        assert len(set(seeds.tolist())) == 500
        assert np.bitwise_or.reduce(seeds) == 2**bits - 1


def test_entropy_is_drawn_in_one_place():
    source = Path(seeding.__file__).parent
    draws = re.compile(r"SeedSequence\(\)|randbits|default_rng\(\)|urandom")
    assert [path.name for path in source.rglob("*.py") if draws.search(path.read_text())] == ["seeding.py"]


def test_neighbouring_seeds_are_uncorrelated():
    grid = seeds_for(7, np.arange(300)[:, None], np.arange(300))
    assert grid.shape == (300, 300)
    assert len(np.unique(grid)) > 300 * 300 - 10  # about one pair of 32-bit hashes is expected to be equal
    bits = np.unpackbits(grid.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 0.002
    flips = np.unpackbits((grid[1:] ^ grid[:-1]).view(np.uint8)).mean()
    assert abs(flips - 0.5) < 0.002


def test_streams_differ_from_episodes_and_each_other():
    assert len({seeding.stream_for(1, name) for name in ("actions", "test", "noise")} | {1}) == 4


@pytest.mark.parametrize("wrong", [-1, 1.5, 2**64])
def test_invalid_roots_raise(wrong):
    with pytest.raises(ValueError, match=r"root|seed of 0 or more"):
        seed_for(wrong, 0)


def test_own_seeds_differ_and_shared_ones_do_not():
    ids = np.arange(4)
    assert len(set(OwnSeeds(3)(ids, 0).tolist())) == 4
    shared = SharedSeeds(3)
    assert len(set(shared(ids, 0).tolist())) == 1
    assert shared([0], [0])[0] != shared([0], [1])[0]


def test_a_list_gives_each_environment_its_own_first_seed():
    rule = seed_rule([5, 6, 5])
    assert rule([0, 1, 2], 0).tolist() == [5, 6, 5]
    later = rule([0, 1, 2], 1).tolist()
    assert later[0] == later[2] != later[1]
    with pytest.raises(ValueError, match="up to 3, got 3 seeds"):
        rule([3], 0)


def test_seed_rule_accepts_any_seed():
    assert seed_rule(3) == OwnSeeds(3)
    assert seed_rule(np.int64(3)) == OwnSeeds(3)
    assert seed_rule((1, 2)) == ListedSeeds((1, 2))
    assert seed_rule(SharedSeeds(1)) == SharedSeeds(1)
    assert seed_rule(None) != seed_rule(None)


def test_seed_sets_are_cycled_and_disjoint():
    train, test = split_seeds(1, 30, 20)
    assert len(set(train.seeds) | set(test.seeds)) == 50
    assert sorted(test(np.arange(20), 0).tolist()) == sorted(test.seeds)
    assert [int(test(0, e)) for e in range(21)] == [*test.seeds, test.seeds[0]]
    assert split_seeds(1, 30, 20) == [train, test]
    assert split_seeds(2, 30)[0] != train
    assert isinstance(train, SeedSet)
    with pytest.raises(ValueError, match="1 or more"):
        split_seeds(1, 3, 0)


CARTPOLES = [partial(gymnasium.make, "CartPole-v1")] * 2


def simulator_pool():
    return convert.to_venv(make_vector_env("native::CartPole-v1", num_envs=2))


@pytest.mark.parametrize(
    ("make", "seed"),
    [
        (partial(VectorEnv, CARTPOLES), lambda env: env.reset(seed=-1)),
        (partial(VectorEnv, CARTPOLES), lambda env: env.reset(seed=[3, -1])),
        (partial(AsyncVectorEnv, CARTPOLES, backend="serial"), lambda env: env.reset(seed=-1)),
        (partial(SyncVectorEnv, CARTPOLES), lambda env: env.reset(seed=-1)),
        (partial(SyncVectorEnv, CARTPOLES), lambda env: env.seed([None, -1])),
        (partial(make_vector_env, "CartPole-v1"), lambda env: env.reset(seed=-1)),
        (partial(make_vector_env, "native::CartPole-v1"), lambda env: env.reset(seed=-1)),
        (partial(make_vector_env, "native::CartPole-v1", num_envs=2), lambda env: env.reset(seed=-1)),
        (partial(DummyVectorEnv, CARTPOLES), lambda env: env.reset(seed=-1)),
        (partial(DummyVectorEnv, CARTPOLES), lambda env: env.reset([1], seed=[-1])),
        (partial(DummyVectorEnv, CARTPOLES), lambda env: env.seed(-1)),
        (simulator_pool, lambda env: env.reset(seed=-1)),
        (partial(make_env, "CartPole-v1"), lambda env: env.set_seed(-1)),
        (partial(make_env, "CartPole-v1"), lambda env: env.reset(seed=-1)),
        (partial(make_env, "CartPole-v1", 2), lambda env: env.set_seed(-1)),
        (partial(make_env, "CartPole-v1", 2), lambda env: env.reset(seed=-1)),
        (partial(make_env, "native::CartPole-v1", 2), lambda env: env.set_seed(-1)),
        (partial(SerialEnv, 2, partial(make_env, "CartPole-v1")), lambda env: env.set_seed(-1)),
        (partial(SerialEnv, 2, partial(make_env, "CartPole-v1")), lambda env: env.reset(seed=-1)),
        (PendulumEnv, lambda env: env.set_seed(-1)),
        (partial(classic.GymEnv, "CartPole-v1"), lambda env: env.seed(-1)),
        (partial(classic.GymEnv, "native::CartPole-v1"), lambda env: env.seed(-1)),
        (partial(OwnSeeds, -1), lambda rule: rule(0, 0)),
        (lambda: seed_rule, lambda rule: rule(-1)),
    ],
)
def test_negative_seeds_raise_the_same_error_everywhere(make, seed):
    env = make()
    with pytest.raises(ValueError, match=r"^Expected a seed of 0 or more, got -1\.$"):
        seed(env)
    if hasattr(env, "close"):
        env.close()


def test_invalid_seeds_raise():
    for kind in (ListedSeeds, SeedSet):
        with pytest.raises(ValueError, match=r"^Expected a seed of 0 or more, got -1\.$"):
            kind((3, -1))
    for wrong in ((3, 2**64), (0.5,)):
        for kind in (ListedSeeds, SeedSet):
            with pytest.raises(ValueError, match=r"at least 0 and less than 2\*\*64"):
                kind(wrong)
    with pytest.raises(ValueError, match="at least one seed, got none"):
        SeedSet(())
