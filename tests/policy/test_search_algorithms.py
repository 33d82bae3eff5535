"""The other algorithms of search: they improve, equal the formulas of their papers, and can be saved."""

import io
import math
from functools import partial

import numpy as np
import pytest
import torch
from tests.fixtures.searches import run, sphere

from vecrl.errors import PendingError
from vecrl.policy import ALGORITHMS, CEM, CMAES, PGPE, SNES, PopulationSearch
from vecrl.policy.search import by_rank

EVERY = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


@EVERY
def test_searches_find_the_summit(algorithm):
    search = run(algorithm(torch.zeros(10), 40, stdev=1.0, seed=1), 150)
    assert (search.center - 2).norm() < 0.5 < torch.full((10,), 2.0).norm()
    assert (search.stdev > 0).all()
    assert search.generation == 150


@EVERY
def test_members_stay_the_same_until_tell_and_are_copies(algorithm):
    search = algorithm(torch.zeros(3), 6, stdev=1.0, seed=1)
    first = search.ask()
    kept = first.clone()
    first += 1
    assert torch.equal(search.ask(), kept)
    assert kept.shape == (6, 3)
    assert kept.dtype == torch.float32


@EVERY
def test_seeds_repeat_a_search(algorithm):
    first, second, other = (run(algorithm(torch.zeros(3), 6, seed=s), 4).center for s in (7, 7, 8))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@EVERY
def test_restored_searches_continue_equally(algorithm):
    complete = run(algorithm(torch.zeros(3), 6, seed=9), 30)
    file = io.BytesIO()
    torch.save(run(algorithm(torch.zeros(3), 6, seed=9), 17).state_dict(), file)
    file.seek(0)
    resumed = algorithm(torch.zeros(3), 6, seed=10)
    resumed.ask()
    resumed.load_state_dict(torch.load(file, weights_only=True))
    run(resumed, 13)
    for name, value in complete.state_dict().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, resumed.state_dict()[name]), name


@EVERY
def test_states_that_do_not_fit_raise_and_change_nothing(algorithm):
    search = run(algorithm(torch.zeros(3), 6, seed=9), 3)
    before = search.state_dict()
    with pytest.raises(ValueError, match="3 parameters and 6 members"):
        search.load_state_dict(algorithm(torch.zeros(3), 8).state_dict())
    with pytest.raises(ValueError, match=r"Expected stdev of shape \(3,\), got shape \(2,\)"):
        search.load_state_dict({**before, "stdev": torch.zeros(2)})
    for name, value in before.items():
        assert value is before[name]
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, search.state_dict()[name]), name
    search.ask()
    with pytest.raises(PendingError):
        search.state_dict()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_states_of_another_algorithm_raise(name):
    for other, algorithm in ALGORITHMS.items():
        if other != name:
            search = ALGORITHMS[name](torch.zeros(3), 6)
            with pytest.raises(ValueError, match=f"Expected a state of {type(search).__name__}, got one of"):
                search.load_state_dict(algorithm(torch.zeros(3), 6).state_dict())


def test_states_without_a_name_are_of_the_default():
    state = PopulationSearch(torch.zeros(3), 6, seed=1).state_dict()
    del state["algorithm"]
    PopulationSearch(torch.zeros(3), 6).load_state_dict(state)
    with pytest.raises(ValueError, match="got one of 'PopulationSearch'"):
        SNES(torch.zeros(3), 6).load_state_dict(state)


@EVERY
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_fitness_that_is_not_finite_harms_nothing(algorithm, value):
    search = algorithm(torch.zeros(3), 8, stdev=1.0, seed=1)
    for count in (1, 4, 8):
        fitness = sphere(search.ask())
        fitness[:count] = value
        search.tell(fitness)
    run(search, 60)
    assert search.center.isfinite().all()
    assert (search.stdev > 0).all()
    assert search.stdev.isfinite().all()


@pytest.mark.parametrize("algorithm", [PGPE, SNES])
def test_equal_fitness_does_not_move_the_center(algorithm):
    search = run(algorithm(torch.ones(4), 10, stdev=0.2, seed=4), 3, lambda p: torch.full((10,), -200.0))
    torch.testing.assert_close(search.center, torch.ones(4), atol=1e-6, rtol=0)


@EVERY
def test_popsizes_and_deviations_out_of_range_raise(algorithm):
    with pytest.raises(ValueError, match="popsize of 2 or more"):
        algorithm(torch.zeros(3), 0)
    with pytest.raises(ValueError, match="stdev above 0"):
        algorithm(torch.zeros(3), 6, stdev=0.0)


def test_only_searches_of_pairs_need_even_populations():
    for name, algorithm in ALGORITHMS.items():
        if name.startswith("pgpe"):
            with pytest.raises(ValueError, match="even popsize"):
                algorithm(torch.zeros(3), 7)
        else:
            run(algorithm(torch.zeros(3), 7), 2)


def test_weights_by_rank_share_ties():
    weights = by_rank(torch.tensor([1.0, 5.0, 1.0, torch.nan, 5.0]), torch.tensor([0.5, 0.3, 0.2, 0.1, 0.0]))
    torch.testing.assert_close(weights, torch.tensor([0.15, 0.4, 0.15, 0.0, 0.4], dtype=torch.float64))


def test_snes_equals_the_formulas_of_its_paper():
    search, length, popsize = SNES(torch.arange(4.0), 10, stdev=0.5, seed=3), 4, 10
    population = search.ask().double().numpy()
    fitness = sphere(torch.from_numpy(population)).numpy()
    z = (population - np.arange(4.0)) / 0.5
    utilities = np.maximum(0, np.log(popsize / 2 + 1) - np.log(np.arange(1, popsize + 1)))
    weights = np.empty(popsize)
    weights[np.argsort(-fitness)] = utilities / utilities.sum() - 1 / popsize
    rate = (3 + np.log(length)) / (5 * np.sqrt(length))
    center = np.arange(4.0) + 0.5 * weights @ z
    stdev = 0.5 * np.exp(rate / 2 * weights @ (z**2 - 1))
    search.tell(torch.from_numpy(fitness))
    np.testing.assert_allclose(search.center, center, rtol=1e-5)
    np.testing.assert_allclose(search.stdev, stdev, rtol=1e-5)


def test_cem_equals_the_formulas_of_its_paper():
    search = CEM(torch.arange(4.0), 30, stdev=0.5, seed=3)
    for generation in range(52):
        population = search.ask().double()
        fitness = sphere(population)
        elites = population[fitness.argsort(descending=True)[:3]].numpy()
        search.tell(fitness)
        extra = 0.25 * max(0.05 - generation / 1000, 0)
        np.testing.assert_allclose(search.center, elites.mean(0), rtol=1e-4)
        np.testing.assert_allclose(search.stdev, np.sqrt(elites.var(0) + extra), rtol=1e-3, atol=1e-6)


def test_pgpe_equals_the_formulas_of_its_paper():
    search = PGPE(torch.arange(4.0), 6, stdev=0.5, seed=3)
    population = search.ask().double().numpy()
    fitness = sphere(torch.from_numpy(population)).numpy()
    noise = population[:3] - np.arange(4.0)
    plus, minus, best, baseline = fitness[:3], fitness[3:], fitness.max(), fitness.mean()
    center = np.arange(4.0) + 0.2 * ((plus - minus) / (2 * best - plus - minus)) @ noise
    change = 0.1 * (((plus + minus) / 2 - baseline) / (best - baseline)) @ ((noise**2 - 0.25) / 0.5)
    search.tell(torch.from_numpy(fitness))
    np.testing.assert_allclose(search.center, center, rtol=1e-5)
    np.testing.assert_allclose(search.stdev, 0.5 + np.clip(change, -0.1, 0.1), rtol=1e-5)


def rotated_ellipsoid(rotation, population):
    return -((population.double() @ rotation).square() * torch.logspace(0, 6, 10)).sum(1)


def test_cma_es_learns_how_parameters_depend_on_each_other():
    """A rotated ellipsoid of condition 10**6 takes about 6,000 evaluations in 10 dimensions (Hansen, 2006)."""
    rotation, _ = torch.linalg.qr(torch.randn(10, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    fitness = partial(rotated_ellipsoid, rotation)
    start = torch.full((10,), 1.0, dtype=torch.float64)
    search = run(CMAES(start, 10, stdev=1.0, seed=1), 900, fitness)
    assert fitness(search.center[None]) > -1e-8
    assert fitness(run(SNES(start, 10, stdev=1.0, seed=1), 900, fitness).center[None]) < -1e-3


def test_cma_es_refuses_what_does_not_fit_into_memory():
    with pytest.raises(ValueError, match=r"at most 2,000 parameters for CMA-ES, .* got 2,001. Use another"):
        CMAES(torch.zeros(2001), 10)
