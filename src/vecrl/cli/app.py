"""The commands and their options. What they do is in modules of their own, imported when they run."""

# typer evaluates annotations, so what they name is imported here and nothing heavy is.
from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Optional

import typer

from vecrl.cli.console import Settings, handle_errors, parse_pairs

app = typer.Typer(
    name="vecrl",
    help="Any simulator behind batches of tensors: look at environments, check, time and solve them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Backend(StrEnum):
    """Where Python environments are stepped."""

    serial = "serial"
    threads = "threads"
    processes = "processes"
    ray = "ray"


Env = Annotated[str, typer.Argument(help="An environment: CartPole-v1, native::CartPole-v1, brax::ant, …")]
EnvArgs = Annotated[list[str], typer.Option("--env-arg", metavar="KEY=VALUE", help="For the environment's maker.")]
BackendOption = Annotated[
    Backend, typer.Option(help="Where Python environments are stepped; for ray, RAY_ADDRESS names a cluster.")
]
Workers = Annotated[Optional[int], typer.Option(min=1, help="How many workers; by default one a core.")]  # noqa: UP045
Device = Annotated[Optional[str], typer.Option(help="Where a batched simulator lives: cpu, cuda.")]  # noqa: UP045
Seed = Annotated[Optional[int], typer.Option(min=0, help="By default a new one each time; it is printed.")]  # noqa: UP045
Threads = Annotated[int, typer.Option(min=1, help="Threads that torch may use in this process.")]


@app.callback()
def options(traceback: Annotated[bool, typer.Option("--traceback", help="Show errors in full.")] = False) -> None:
    Settings.traceback = traceback


@app.command()
@handle_errors
def envs(
    prefix: Annotated[Optional[str], typer.Option(help="List the names of this one: gym, native, brax, …")] = None,  # noqa: UP045
) -> None:
    """What can be made here, by prefix, and what is missing with the extra to install."""
    from vecrl.cli.list_envs import show_envs

    show_envs(prefix)


@app.command()
@handle_errors
def check(
    env: Env,
    env_arg: EnvArgs = [],  # noqa: B006
    seed: Annotated[int, typer.Option(min=0, help="Of all episodes.")] = 0,
    render: Annotated[bool, typer.Option("--render", help="Try rendering too.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that each check may take.")] = 120.0,
) -> None:
    """Whether an environment does what it says: spaces, dtypes, seeds, auto-reset. Ends with code 1 if not."""
    from vecrl.cli.check_command import check_env

    if not check_env(env, parse_pairs(env_arg), seed=seed, render=render, timeout=timeout):
        raise typer.Exit(1)


@app.command()
@handle_errors
def rollout(
    env: Env,
    policy: Annotated[Optional[Path], typer.Option(help="A best.pt of `evolve`; random without.")] = None,  # noqa: UP045
    episodes: Annotated[int, typer.Option(min=1, help="How many.")] = 10,
    envs: Annotated[int, typer.Option(min=1, help="How many environments at once.")] = 8,
    max_steps: Annotated[Optional[int], typer.Option(min=1, help="Cut longer episodes.")] = None,  # noqa: UP045
    backend: BackendOption = Backend.serial,
    workers: Workers = None,
    device: Device = None,
    seed: Seed = None,
    env_arg: EnvArgs = [],  # noqa: B006
    video: Annotated[Optional[Path], typer.Option(help="Film one episode: an mp4, mkv or mov to write.")] = None,  # noqa: UP045
    plot: Annotated[Optional[Path], typer.Option(help="Plot the returns: a png to write.")] = None,  # noqa: UP045
    threads: Threads = 1,
) -> None:
    """Play episodes: returns, lengths, steps a second."""
    from vecrl.cli.rollout import RolloutCommand

    arguments = {"backend": backend.value, "num_workers": workers, "device": device, "env_kwargs": parse_pairs(env_arg)}
    RolloutCommand(env, policy, episodes, envs, max_steps, seed, threads, arguments).show(video, plot)


@app.command()
@handle_errors
def evolve(
    context: typer.Context,
    env: Annotated[Optional[str], typer.Argument(help="An environment, as for `rollout`.")] = None,  # noqa: UP045
    network: Annotated[str, typer.Option(help="In the network language.")] = (
        "Linear(obs_length, 16) >> Tanh() >> Linear(16, act_length)"
    ),
    generations: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    popsize: Annotated[int, typer.Option(min=2, help="Members a generation, an even number.")] = 64,
    subbatch_size: Annotated[int, typer.Option(min=1, help="Members that act together, in a worker.")] = 128,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes a member and generation.")] = 1,
    max_steps: Annotated[Optional[int], typer.Option(min=1, help="Steps a member and generation.")] = None,  # noqa: UP045
    stdev: Annotated[float, typer.Option(help="Of the noise on parameters, at first.")] = 0.3,
    max_speed: Annotated[Optional[float], typer.Option(help="Of the search's centre a generation.")] = None,  # noqa: UP045
    obs_norm: Annotated[bool, typer.Option(help="Normalise observations by running statistics.")] = True,
    action_noise: Annotated[float, typer.Option(min=0.0, help="Standard deviation of noise on outputs.")] = 0.0,
    decrease_rewards_by: Annotated[float, typer.Option(help="Taken off every reward, for the search.")] = 0.0,
    alive_bonus: Annotated[
        Optional[tuple[float, float, float]],  # noqa: UP045
        typer.Option(metavar="T0 T1 BONUS", help="Added for each step alive, for the search."),
    ] = None,
    backend: BackendOption = Backend.serial,
    workers: Workers = None,
    device: Device = None,
    compile: Annotated[bool, typer.Option(help="Compile native tasks with the policy: for long searches.")] = False,  # noqa: A002
    seed: Seed = None,
    stop_at: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="Stop when the best policy's mean return in a test reaches this."),
    ] = None,
    test_every: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Generations between two tests; by default 10 or more: a tenth of the steps."),
    ] = None,
    test_episodes: Annotated[int, typer.Option(min=1, help="Episodes of a test, and fresh ones at the end.")] = 100,
    video: Annotated[bool, typer.Option(help="Film the best policy at the end.")] = True,
    env_arg: EnvArgs = [],  # noqa: B006
    out: Annotated[Path, typer.Option(help="Where run folders are made.")] = Path("runs"),
    resume: Annotated[Optional[Path], typer.Option(help="Go on with the run in this folder.")] = None,  # noqa: UP045
    threads: Threads = 1,
) -> None:
    """Search for a policy with a population, and keep the curve, the best policy and a video of it."""
    from vecrl.cli.evolve import Evolution, Options

    arguments = {name: value for name, value in locals().items() if name in Options.names()}
    arguments |= {"backend": backend.value, "env_args": parse_pairs(env_arg)}
    if resume is not None:
        source = context.get_parameter_source
        explicit_names = {name for name in context.params if getattr(source(name), "name", "") == "COMMANDLINE"} - {
            "resume"
        }
        run = Evolution.resume(resume, {name: arguments.get(name) for name in explicit_names})
    elif env is not None:
        run = Evolution.start(Options(**arguments), out)
    else:
        raise typer.BadParameter("Give an environment, or --resume and a run folder.")
    raise typer.Exit(run.show())


@app.command()
@handle_errors
def bench(
    env: Env,
    backends: Annotated[list[Backend], typer.Option("--backend", help="Try only this; may be given again.")] = [  # noqa: B006
        Backend.serial,
        Backend.processes,
    ],
    workers: Annotated[list[int], typer.Option(min=1, help="Try so many workers; may be given again.")] = [],  # noqa: B006
    envs: Annotated[list[int], typer.Option(min=1, help="Try so many environments a worker; may be given again.")] = [],  # noqa: B006
    seconds: Annotated[float, typer.Option(min=0.05, help="How long to time each.")] = 1.0,
    device: Device = None,
    env_arg: EnvArgs = [],  # noqa: B006
    threads: Threads = 1,
) -> None:
    """Steps a second of backends × workers × environments a worker, and the call to copy."""
    from vecrl.cli.bench import Bench

    names = [backend.value for backend in backends]
    Bench(env, parse_pairs(env_arg), names, workers, envs, seconds, device, threads).show()
