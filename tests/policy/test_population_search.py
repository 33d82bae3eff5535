"""The search improves, repeats itself from a seed or a saved state, and rejects invalid arguments."""

import io

import pytest
import torch
from tests.fixtures.searches import run, sphere

from vecrl.errors import PendingError, SpaceError
from vecrl.policy.population_search import PopulationSearch


def test_the_population_is_mirrored_around_the_center():
    search = PopulationSearch(torch.arange(5.0), 8, stdev=0.5, seed=1)
    population = search.ask()
    assert population.shape == (8, 5)
    torch.testing.assert_close(population[:4] + population[4:], 2 * torch.arange(5.0).expand(4, 5))
    assert torch.equal(population, search.ask())
    search.tell(torch.zeros(8))
    assert not torch.equal(population, search.ask())


@pytest.mark.parametrize("fitness", [sphere, lambda p: -((p - 2).abs().sum(1) ** 0.1), lambda p: 1e9 * sphere(p)])
def test_search_does_not_depend_on_the_fitness_scale(fitness):
    search = run(PopulationSearch(torch.zeros(20), 40, stdev=0.3, seed=2), 200, fitness)
    assert (search.center - 2).norm() < 0.5 < torch.full((20,), 2.0).norm()


def test_outliers_count_by_their_rank_and_nan_as_the_worst():
    calm, wild = (PopulationSearch(torch.zeros(4), 10, seed=3) for _ in range(2))
    fitness = torch.arange(10.0)
    calm.ask(), wild.ask()
    calm.tell(fitness)
    wild.tell(torch.tensor([torch.nan, 1, 2, 3, 4, 5, 6, 7, 8, torch.inf]))
    assert torch.equal(calm.center, wild.center)


def test_constant_fitness_does_not_move_the_center():
    search = run(PopulationSearch(torch.ones(4), 10, stdev=0.2, seed=4), 3, lambda p: torch.full((10,), -200.0))
    assert torch.equal(search.center, torch.ones(4))
    assert torch.equal(search.stdev, torch.full((4,), 0.2))


def test_speed_and_stdev_change_within_their_limits():
    search = PopulationSearch(torch.zeros(6), 20, stdev=1.0, max_speed=0.05, stdev_change=0.01, stdev_rate=5.0, seed=5)
    for _ in range(20):
        center, stdev = search.center, search.stdev
        run(search, 1, lambda p: -((p - 9) ** 2).sum(1))
        assert (search.center - center).norm() <= 0.05 * 1.001
        assert ((search.stdev / stdev - 1).abs() <= 0.0101).all()
        assert (search.stdev > 0).all()


def test_stdev_shrinks_on_a_summit():
    search = run(PopulationSearch(torch.full((5,), 2.0), 50, stdev=1.0, seed=6), 60)
    assert (search.stdev < 0.7).all()


def test_seeded_searches_repeat():
    first, second, other = (run(PopulationSearch(torch.zeros(3), 6, seed=s), 4).center for s in (7, 7, 8))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert not torch.equal(*(PopulationSearch(torch.zeros(3), 6).ask() for _ in range(2)))


def test_restored_searches_continue_equally():
    complete = run(PopulationSearch(torch.zeros(3), 6, seed=9), 7)
    file = io.BytesIO()
    torch.save(run(PopulationSearch(torch.zeros(3), 6, seed=9), 3).state_dict(), file)
    file.seek(0)
    resumed = PopulationSearch(torch.zeros(3), 6, seed=10)
    resumed.ask()
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.generation == 3
    run(resumed, 4)
    assert torch.equal(resumed.center, complete.center)
    assert torch.equal(resumed.stdev, complete.stdev)


def test_a_state_is_a_copy():
    search = run(PopulationSearch(torch.zeros(3), 6, seed=1), 1)
    state = search.state_dict()
    saved = state["velocity"].clone()
    run(search, 3)
    assert torch.equal(state["velocity"], saved)


def test_calls_out_of_order_raise():
    search = PopulationSearch(torch.zeros(3), 6)
    with pytest.raises(PendingError, match="ask first"):
        search.tell(torch.zeros(6))
    search.ask()
    with pytest.raises(PendingError, match="waits"):
        search.state_dict()
    with pytest.raises(SpaceError, match=r"6 values.*\(5,\)"):
        search.tell(torch.zeros(5))


def test_states_of_another_size_raise():
    state = PopulationSearch(torch.zeros(3), 6).state_dict()
    with pytest.raises(ValueError, match="4 parameters and 6 members"):
        PopulationSearch(torch.zeros(4), 6).load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((torch.zeros(3, 1), 6), "center"),
        ((torch.zeros(3, dtype=torch.int64), 6), "int64"),
        ((torch.zeros(3), 7), "even"),
        ((torch.zeros(3), 0), "even"),
    ],
)
def test_arguments_out_of_range_raise(arguments, text):
    with pytest.raises(ValueError, match=text):
        PopulationSearch(*arguments)
    with pytest.raises(ValueError, match="stdev"):
        PopulationSearch(torch.zeros(3), 6, stdev=0.0)
    for name in ("stdev", "max_speed", "step_size"):
        for value in (-1.0, 0.0, float("nan"), float("inf")):
            with pytest.raises(ValueError, match=f"Expected a {name} above 0"):
                PopulationSearch(torch.zeros(3), 6, **{name: value})
