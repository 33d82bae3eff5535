"""The commands and their options. Knows none of their work: other modules do it, which are imported when they run."""

# typer evaluates annotations, so the types in them are imported here. Nothing slow is.
from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ..imports import install_hint, require_extra
from .console import (
    MAX_COUNT,
    MAX_THREADS,
    Settings,
    handle_errors,
    import_modules,
    messages_on_stderr,
    parse_pairs,
)

app = typer.Typer(
    name="vecrl",
    help="Any simulator behind batches of tensors: list, check, run, time and solve environments.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _backend_names() -> list[str]:
    from ..engine.backends.registry import backend_names

    return backend_names()


def _parse_backend(name: str) -> str:
    from ..engine.backends.registry import backend_entry

    try:
        return backend_entry(name).name
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _parse_logger(name: str) -> str:
    if name not in LOGGERS:
        raise typer.BadParameter(f"Expected one of {', '.join(LOGGERS)}, got {name!r}.")
    if name != "csv" and find_spec(name) is None:
        raise typer.BadParameter(install_hint("loggers", f"--logger {name}"))
    return name


SEARCHES = ("cem", "pgpe-clipup", "pgpe", "snes", "cma-es")  # the keys of ALGORITHMS; to import it takes seconds
LOGGERS = ("csv", "tensorboard", "wandb", "mlflow")
LoggerOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        parser=_parse_logger,
        autocompletion=lambda: list(LOGGERS),
        metavar="NAME",
        help=f"Also write settings, results and videos to a logger: {', '.join(LOGGERS)}.",
    ),
]
Env = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(help="An environment: CartPole-v1, native::CartPole-v1, brax::ant, …", show_default=False),
]
EnvArgs = Annotated[list[str], typer.Option("--env-arg", metavar="KEY=VALUE", help="Keyword argument; repeatable.")]
PythonOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        metavar="PATH", help="Another Python interpreter, on which the environment is made: for old libraries."
    ),
]
ImportOption = Annotated[
    list[str],
    typer.Option("--import", metavar="MODULE", help="Module or Python file that registers environments; repeatable."),
]
BackendOption = Annotated[
    str,
    typer.Option(
        parser=_parse_backend,
        autocompletion=_backend_names,
        metavar="NAME",
        help="What steps Python environments: serial, threads, processes, ray or another registered backend; for ray, "
        "RAY_ADDRESS is the address of a cluster.",
    ),
]
Workers = Annotated[Optional[int], typer.Option(min=1, max=MAX_COUNT, help="Number of workers. Default: one per core.")]  # noqa: UP045
Device = Annotated[Optional[str], typer.Option(help="Device of a batched simulator: cpu, cuda.")]  # noqa: UP045
Seed = Annotated[Optional[int], typer.Option(min=0, help="Seed. Default: a random one, which is printed.")]  # noqa: UP045
JsonOption = Annotated[bool, typer.Option("--json", help="Print the results as JSON, messages to the standard error.")]
Threads = Annotated[int, typer.Option(min=1, max=MAX_THREADS, help="Number of torch threads in this process.")]


def _env_kwargs(env_arg: list[str], python: str | None) -> dict[str, Any]:
    return parse_pairs(env_arg) if python is None else {**parse_pairs(env_arg), "python": python}


def _given(context: typer.Context) -> set[str]:
    """Returns the names of the options that the user has given, rather than left at their defaults."""
    return _of_source(context, "COMMANDLINE")


def _from_file(context: typer.Context) -> set[str]:
    """Returns the names of the options that are from the file of --config."""
    return _of_source(context, "DEFAULT_MAP")


def _of_source(context: typer.Context, source: str) -> set[str]:
    get_source = context.get_parameter_source
    return {name for name in context.params if getattr(get_source(name), "name", "") == source}


def _show_version(asked: bool) -> None:
    if asked:
        from .. import __version__

        typer.echo(f"vecrl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    traceback: Annotated[bool, typer.Option("--traceback", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    Settings.traceback = traceback


@app.command()
@handle_errors
def envs(
    prefix: Annotated[Optional[str], typer.Option(help="List all names of this prefix: gym, native, brax, …")] = None,  # noqa: UP045
    installed: Annotated[bool, typer.Option("--installed", help="List only what is installed.")] = False,
    json: JsonOption = False,
    imports: ImportOption = [],  # noqa: B006
) -> None:
    """Lists the available environments by prefix, and for missing ones the command that installs them."""
    from .list_envs import show_envs

    import_modules(imports)
    show_envs(prefix, installed, json)


@app.command()
@handle_errors
def check(
    env: Env = None,
    env_arg: EnvArgs = [],  # noqa: B006
    python: PythonOption = None,
    imports: ImportOption = [],  # noqa: B006
    seed: Annotated[int, typer.Option(min=0, help="Seed of all episodes.")] = 0,
    render: Annotated[bool, typer.Option("--render", help="Also check rendering.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Timeout of each check in seconds.")] = 120.0,
    json: JsonOption = False,
) -> None:
    """Checks an environment's spaces, dtypes, seeds and auto-reset. Exits with code 1 if a check fails."""
    require_extra("torch", "vecrl check")
    from .env_checks import check_env
    from .list_envs import require_env

    modules = import_modules(imports)
    env_kwargs = _env_kwargs(env_arg, python)
    name = require_env(env, "check")
    with messages_on_stderr(json):
        passed = check_env(name, env_kwargs, seed=seed, render=render, timeout=timeout, preload=modules, as_json=json)
    if not passed:
        raise typer.Exit(1)


@app.command()
@handle_errors
def rollout(
    context: typer.Context,
    env: Env = None,
    policy: Annotated[Optional[Path], typer.Option(help="A best.pt of `evolve`. Default: random actions.")] = None,  # noqa: UP045
    episodes: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Number of episodes.")] = 10,
    envs: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Number of environments in the batch.")] = 8,
    max_steps: Annotated[Optional[int], typer.Option(min=1, max=MAX_COUNT, help="Truncate longer episodes.")] = None,  # noqa: UP045
    backend: BackendOption = "serial",
    workers: Workers = None,
    device: Device = None,
    seed: Seed = None,
    env_arg: EnvArgs = [],  # noqa: B006
    python: PythonOption = None,
    imports: ImportOption = [],  # noqa: B006
    video: Annotated[Optional[Path], typer.Option(help="Record in this mp4, mkv, mov or gif file.")] = None,  # noqa: UP045
    video_envs: Annotated[int, typer.Option(min=1, max=64, help="Episodes in the video, side by side.")] = 1,
    video_steps: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, max=MAX_COUNT, help="Steps in the video or window. Default: whole episodes."),
    ] = None,
    human: Annotated[bool, typer.Option("--human", help="Also show the first episode in a window.")] = False,
    plot: Annotated[Optional[Path], typer.Option(help="Plot the returns in this png file.")] = None,  # noqa: UP045
    logger: LoggerOption = None,
    out: Annotated[Path, typer.Option(help="Parent of the folder for --logger.")] = Path("runs"),
    threads: Threads = 1,
    json: JsonOption = False,
) -> None:
    """Runs episodes and prints returns, lengths and steps per second."""
    require_extra("torch", "vecrl rollout")
    from .list_envs import refuse_unused, require_env
    from .rollout import RolloutCommand

    import_modules(imports)
    env_kwargs = _env_kwargs(env_arg, python)
    name = require_env(env, "rollout")
    refuse_unused(name, given := _given(context))
    needs = {"video_envs": ("video",), "video_steps": ("video", "human"), "out": ("logger",)}
    for option, others in needs.items():
        if option in given and given.isdisjoint(others):
            flags = " or ".join(f"--{other}" for other in others)
            flag = option.replace("_", "-")
            raise ValueError(f"Expected {flags} with --{flag}, got --{flag} alone. Add what it is for, or omit it.")
    arguments = {"backend": backend, "num_workers": workers, "device": device, "env_kwargs": env_kwargs}
    command = RolloutCommand(name, policy, episodes, envs, max_steps, seed, threads, arguments)
    film = {"video": video, "video_envs": video_envs, "video_steps": video_steps, "human": human}
    with messages_on_stderr(json), command.open_log(logger, out) as log:
        command.show(log, plot=plot, as_json=json, **film)


def _use_config(context: typer.Context, path: Path | None) -> Path | None:
    """Makes the options in a file the defaults of the command."""
    if path is not None:
        from .config_file import defaults_of

        parameters = [parameter for parameter in context.command.params if parameter.name not in NOT_IN_CONFIG]
        options = {str(parameter.name): parameter.nargs for parameter in parameters}
        try:
            context.default_map = {**(context.default_map or {}), **defaults_of(path, options)}
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return path


NOT_IN_CONFIG = {"config", "env_arg", "python", "imports", "resume", "help"}


@app.command()
@handle_errors
def evolve(
    context: typer.Context,
    env: Annotated[Optional[str], typer.Argument(help="An environment, as for `rollout`.")] = None,  # noqa: UP045
    network: Annotated[str, typer.Option(help="The policy, in the network language.")] = (
        "Linear(obs_length, 16) >> Tanh() >> Linear(16, act_length)"
    ),
    generations: Annotated[int, typer.Option(min=1, help="Maximum number of generations.")] = 100,
    popsize: Annotated[
        int, typer.Option(min=2, help="Members per generation; an even number for pgpe and pgpe-clipup.")
    ] = 64,
    subbatch_size: Annotated[int, typer.Option(min=1, help="Members that a worker evaluates together.")] = 128,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes per member and generation.")] = 1,
    max_steps: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Steps per member and generation. Default: until episodes end."),
    ] = None,
    algorithm: Annotated[
        str, typer.Option(autocompletion=lambda: list(SEARCHES), help=f"The search: {', '.join(SEARCHES)}.")
    ] = SEARCHES[0],
    stdev: Annotated[float, typer.Option(help="Initial standard deviation of the parameters.")] = 0.3,
    max_speed: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="Maximum step of the center per generation, for pgpe-clipup."),
    ] = None,
    obs_norm: Annotated[bool, typer.Option(help="Normalize observations by running statistics.")] = True,
    action_noise: Annotated[float, typer.Option(min=0.0, help="Standard deviation of noise on outputs.")] = 0.0,
    decrease_rewards_by: Annotated[float, typer.Option(help="Subtracted from each reward in the search.")] = 0.0,
    alive_bonus: Annotated[
        Optional[tuple[float, float, float]],  # noqa: UP045
        typer.Option(metavar="T0 T1 BONUS", help="Bonus for each step of an episode in the search."),
    ] = None,
    backend: BackendOption = "serial",
    workers: Workers = None,
    device: Device = None,
    compile: Annotated[bool, typer.Option(help="Compile native tasks with the policy, for long searches.")] = False,  # noqa: A002
    seed: Seed = None,
    stop_at: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="Stop when the test mean return of the best policy reaches this value."),
    ] = None,
    test_every: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Generations between tests. Default: 10 or more, for at most a tenth of the steps."),
    ] = None,
    test_episodes: Annotated[int, typer.Option(min=1, help="Episodes of each test and of the final report.")] = 100,
    video: Annotated[bool, typer.Option(help="Record a video of the best policy at the end.")] = True,
    env_arg: EnvArgs = [],  # noqa: B006
    python: PythonOption = None,
    imports: ImportOption = [],  # noqa: B006
    logger: LoggerOption = None,
    out: Annotated[Path, typer.Option(help="Parent of the run folders.")] = Path("runs"),
    resume: Annotated[Optional[Path], typer.Option(help="Resume the run in this folder.")] = None,  # noqa: UP045
    config: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(callback=_use_config, is_eager=True, help="YAML file with options, such as a run's config.yaml."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Number of runs, with consecutive seeds.")] = 1,
    threads: Threads = 1,
) -> None:
    """Searches for a policy with a population; saves the learning curve, the best policy and a video of it."""
    require_extra("torch", "vecrl evolve")
    from .evolve import Evolution, Options
    from .list_envs import refuse_unused
    from .run_folder import check_config_file
    from .seeds import evolve_seeds

    arguments = {name: value for name, value in locals().items() if name in Options.names()}
    import_modules(imports)
    arguments |= {"env_args": _env_kwargs(env_arg, python)}
    if config is not None:
        from_file = _from_file(context)
        arguments_of_env = parse_pairs(env_arg) if "env_arg" in from_file else {}
        check_config_file(config, env if "env" in from_file else None, arguments_of_env)
    if resume is not None:
        given = (_given(context) | _from_file(context)) - {"resume", "imports", "python", "env_arg", "config"}
        changes = {name: arguments.get(name) for name in given}
        run = Evolution.resume(resume, {**changes, "env_args": arguments["env_args"]})
    elif env is not None:
        refuse_unused(env, _given(context))
        if seeds > 1:
            raise typer.Exit(evolve_seeds(Options(**arguments), seeds, out))
        run = Evolution.start(Options(**arguments), out)
    else:
        raise typer.BadParameter("Expected an environment or --resume, got neither. Give one of them.")
    raise typer.Exit(run.show())


@app.command()
@handle_errors
def bench(
    context: typer.Context,
    env: Env = None,
    backends: Annotated[
        list[str],
        typer.Option(
            "--backend",
            parser=_parse_backend,
            autocompletion=_backend_names,
            metavar="NAME",
            help="Backend to try; repeatable.",
        ),
    ] = ["serial", "processes"],  # noqa: B006
    workers: Annotated[
        list[int], typer.Option(min=1, max=MAX_COUNT, help="Number of workers to try; repeatable.")
    ] = [],  # noqa: B006
    envs: Annotated[
        list[int], typer.Option(min=1, max=MAX_COUNT, help="Environments per worker to try; repeatable.")
    ] = [],  # noqa: B006
    seconds: Annotated[float, typer.Option(min=0.05, max=3600.0, help="Duration of each measurement.")] = 1.0,
    device: Device = None,
    env_arg: EnvArgs = [],  # noqa: B006
    python: PythonOption = None,
    imports: ImportOption = [],  # noqa: B006
    threads: Threads = 1,
    json: JsonOption = False,
) -> None:
    """Times backends × workers × environments per worker in steps per second; prints the fastest call to copy."""
    require_extra("torch", "vecrl bench")
    from ..validation import check_seconds
    from .bench import Bench
    from .list_envs import refuse_unused, require_env

    check_seconds("--seconds", seconds)
    import_modules(imports)
    env_kwargs = _env_kwargs(env_arg, python)
    name = require_env(env, "bench")
    refuse_unused(name, _given(context))
    with messages_on_stderr(json):
        Bench(name, env_kwargs, backends, workers, envs, seconds, device, threads).show(as_json=json)


RunArgument = Annotated[Path, typer.Argument(help="The folder of a run, or its best.pt.", show_default=False)]


@app.command()
@handle_errors
def runs(
    folder: Annotated[Path, typer.Argument(help="The folder with the runs.")] = Path("runs"),
    plot: Annotated[Optional[Path], typer.Option(help="The png file. Default: runs.png in the folder.")] = None,  # noqa: UP045
    json: JsonOption = False,
) -> None:
    """Lists past runs of evolve in a table, and draws their test curves in one picture."""
    require_extra("torch", "vecrl runs")
    from .media import PLOT_SUFFIXES, prepare_output_path
    from .runs import show_runs

    if plot is not None:
        prepare_output_path(plot, PLOT_SUFFIXES)
    with messages_on_stderr(json):
        show_runs(folder, plot, json)


@app.command()
@handle_errors
def play(
    context: typer.Context,
    run: RunArgument,
    episodes: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Number of episodes.")] = 1,
    seed: Seed = None,
    video: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Record in this mp4, mkv, mov or gif file. Default: a window."),
    ] = None,
    video_envs: Annotated[int, typer.Option(min=1, max=64, help="Episodes in the video, side by side.")] = 1,
    video_steps: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, max=MAX_COUNT, help="Steps in the video or window. Default: whole episodes."),
    ] = None,
    env: Annotated[Optional[str], typer.Option(help="The environment, if the run may name code.")] = None,  # noqa: UP045
    env_arg: EnvArgs = [],  # noqa: B006
    python: PythonOption = None,
    imports: ImportOption = [],  # noqa: B006
) -> None:
    """Plays the best policy of a run, in a window or a video."""
    require_extra("torch", "vecrl play")
    from ..policy.saved_policy import SavedPolicy
    from .rollout import RolloutCommand
    from .runs import env_of

    import_modules(imports)
    if "video_envs" in _given(context) and video is None:
        raise ValueError("Expected --video with --video-envs, got --video-envs alone. Add it, or omit both.")
    policy = SavedPolicy.load(run)
    name, env_kwargs, max_steps = env_of(run, policy, env, _env_kwargs(env_arg, python))
    command = RolloutCommand(name, policy, episodes, 8, max_steps, seed, 1, {"env_kwargs": env_kwargs})
    film = {"video": video, "video_envs": video_envs, "video_steps": video_steps, "human": video is None}
    with command.open_log(None, Path()) as log:
        command.show(log, **film)


@app.command()
@handle_errors
def export(
    run: RunArgument,
    file: Annotated[Path, typer.Argument(help="The file to write: .pt2 for torch.export, or .onnx.")],
) -> None:
    """Exports the best policy of a run, with the normalization of its observations, as one program."""
    require_extra("torch", "vecrl export")
    from ..policy.export import EXPORT_SUFFIXES, export_policy
    from ..policy.saved_policy import SavedPolicy
    from .console import console, status
    from .media import prepare_output_path

    prepare_output_path(file, EXPORT_SUFFIXES)
    policy = SavedPolicy.load(run)
    with status("exporting"):
        export_policy(policy, file)
    console.print(f"exported: {file}", soft_wrap=True, markup=False)
