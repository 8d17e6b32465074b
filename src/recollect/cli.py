"""The command line: parses, calls, prints. Heavy imports stand in the commands that need them."""

import errno
import inspect
import logging
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from recollect.errors import RecollectError, Stopped, one_line

if TYPE_CHECKING:
    from recollect.commands.opening import Target

_OWN_CODE = "module:package.module:callable"
Command = Callable[..., None]
_asked = {"json": False}  # of the command that runs
_LONGEST = 2000  # characters of an error
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def _show_version(asked: bool) -> None:
    if asked:
        import recollect

        typer.echo(recollect.__version__)
        raise typer.Exit


def _file(*suffixes: str) -> Callable[[Path | None], Path | None]:
    """Return a callback that refuses a file which cannot be written or has none of these suffixes."""

    def check(path: Path | None) -> Path | None:
        if path is not None:
            from recollect.commands.printing import require_writable

            require_writable(path)
            if suffixes and path.suffix.lower() not in suffixes:
                examples = " or ".join(str(path.with_suffix(suffix)) for suffix in suffixes)
                raise typer.BadParameter(f"{path}: name a {' or '.join(suffixes)} file, such as {examples}")
        return path

    return check


_writable, _png, _table = _file(), _file(".png"), _file(".npz", ".csv")


def _option(metavar: str, text: str, *names: str, default: Any = None, **more: Any) -> Any:  # noqa: ANN401
    return typer.Option(default, *names, metavar=metavar, help=text, **more)


_shared = partial(_option, default=...)


def _flag(name: str, text: str, default: Any = ..., **more: Any) -> Any:  # noqa: ANN401
    """Return an option that takes no value; its help shows none."""
    return _option("", text, name, default=default, **more)


def _argument(metavar: str, text: str, default: Any = ...) -> Any:  # noqa: ANN401
    return typer.Argument(default, metavar=metavar, help=text)


class _PlainHelp:
    """Shows `MODEL` for `{MODEL}`, arguments without their Python types, and `--help` itself without one."""

    def get_help_option(self, ctx: Any) -> Any:  # noqa: ANN401
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.metavar = ""
        return option

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [piece.replace("{", "").replace("}", "") for piece in pieces]

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if isinstance(param, TyperArgument):
                param.display_type_rich = lambda **_: None  # type: ignore[method-assign]
        return params


class _Command(_PlainHelp, TyperCommand):
    """Leaves out MODEL where --server is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        words = args[: args.index("--")] if "--" in args else args
        asked = any(word == "--server" or word.startswith("--server=") for word in words)
        return super().parse_args(ctx, ["-", *args] if asked else args)


class _Group(_PlainHelp, TyperGroup): ...


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Learn image categories from many pictures, then add new ones from one to five, without forgetting.",
)
plot_app = typer.Typer(cls=_Group, help="Draw what a model has learned.")
store_app = typer.Typer(cls=_Group, help="Look after stores of taught categories.")
app.add_typer(plot_app, name="plot")
app.add_typer(store_app, name="store")

# Options that several commands share; each command sets the default.
Json = Annotated[bool, _flag("--json", "Print the result as JSON on standard output.")]
Quiet = Annotated[bool, _flag("--quiet", "Show no progress.")]
Version = Annotated[bool, _flag("--version", "Show the version.", callback=_show_version, is_eager=True)]
Model = Annotated[
    Path, _argument("MODEL", "A model file, a run folder, or imagenet or glyphs, which come with recollect.")
]
Data = Annotated[str, _argument("DATA", "The data the model was trained on.")]
Pictures = Annotated[list[Path], _argument("PICTURE", "Pictures, or folders of them.")]
Base = Annotated[str, _argument("NAME", "A base category.")]
Taught = Annotated[str, _argument("NAME", "A taught category.")]
Store = Annotated[
    str | None,
    _shared(
        "PATH|URL",
        "Where taught categories are kept: a file (MODEL's taught.sqlite) or postgresql://….",
        "--store",
    ),
]
Server = Annotated[
    str | None,
    _shared(
        "URL",
        "Ask the service at this address instead of a model, and leave out MODEL. The environment variable "
        "RECOLLECT_TOKEN has its token.",
    ),
]
Extractor = Annotated[
    str | None, _shared("MODULE", f"{_OWN_CODE}, for a model whose extractor is your own code.")
]
Device = Annotated[str, _shared("NAME", "auto, cpu, cuda or mps.")]
Threads = Annotated[int | None, _shared("N", "Threads on the CPU.", min=1, max=1024)]
CacheGb = Annotated[
    float | None,
    _shared(
        "GB", "Keep up to this many GB of decoded pictures (16). Larger sets are decoded on the fly.", min=0
    ),
]
Recursive = Annotated[bool, _flag("--recursive", "Also read the sub-folders of folders.")]
SkipBad = Annotated[bool, _flag("--skip-bad", "Leave out pictures that cannot be used, and name them.")]
Seed = Annotated[int, _shared("N", "Seed of all random numbers.", min=0, max=2**31 - 1)]
Part = Annotated[
    Literal["val", "test"], typer.Option(help="Which of the reserved categories act as novel ones.")
]
Queries = Annotated[int | None, _shared("N", "Queries of each novel category (15; omniglot: 10).", min=1)]
Settings = Annotated[
    list[str] | None,
    _shared("KEY=VALUE", "Any setting, such as stage1.passes=10; wins over options.", "--set"),
]
Minutes = Annotated[float | None, _shared("N", "Finish the training within N minutes.")]


def main() -> None:
    """Run the command line; a mistake of the caller's is one line and exit code 2."""
    # Before torch starts its threads: when another program holds a core, threads that wait by
    # spinning make every step up to ten times slower; after a short spin they sleep.
    os.environ.setdefault("GOMP_SPINCOUNT", "200000")
    _give_streams()
    warnings.filterwarnings("ignore", module="PIL")
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    try:
        code = app(args=sys.argv[1:] or ["--help"], standalone_mode=False)
    except Stopped as reason:
        _end(str(reason), 130)
    except RecollectError as error:
        _end(str(error), 2)
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        code = 0  # whoever read our output has seen enough
    except OSError as error:
        # Writing files has errors of its own; what is left is standard output.
        if error.errno not in _FULL or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where Python's own flush at the end goes
        _end(f"cannot write to standard output: {error.strerror}", 2)
    except Exception as error:
        # typer's own errors for a wrong call; which module they come from depends on its version.
        if not hasattr(error, "format_message"):
            raise
        message = one_line(" ".join(error.format_message().split()))  # which is wrapped to several lines
        message = message.replace("Value error, ", "").replace("Input should be", "it must be")
        command = [] if "No such command" in message else sys.argv[1:2]
        _end(f"{message} (see {' '.join(['recollect', *command, '--help'])})", 2)
    sys.exit(code if isinstance(code, int) else 0)


def _end(message: str, code: int) -> NoReturn:
    if len(message) > _LONGEST:  # a name may have any length
        message = f"{message[: _LONGEST // 2]} … {message[-_LONGEST // 2 :]}"
    sys.stderr.write(f"recollect: {message}\n")
    sys.exit(code)


def _give_streams() -> None:
    """Let what is written to standard output or error go nowhere if the caller closed it."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def _command(group: typer.Typer = app, name: str | None = None) -> Callable[[Command], Command]:
    """Return a decorator for commands, each of which also takes --json, --quiet and --version."""

    def register(function: Command) -> Command:
        @wraps(function)
        def command(json_: bool, quiet: bool, version: bool, **given: Any) -> None:  # noqa: ANN401, ARG001
            from recollect.system import progress

            progress.be_quiet(quiet)
            _asked["json"] = json_
            function(**given)

        own = inspect.signature(function)
        shared = [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
            for option, kind in {"json_": Json, "quiet": Quiet, "version": Version}.items()
        ]
        command.__signature__ = own.replace(parameters=[*own.parameters.values(), *shared])  # type: ignore[attr-defined]
        group.command(name, cls=_Command)(command)
        return function

    return register


def _print(result: dict[str, Any], show: Callable[[dict[str, Any]], Any]) -> None:
    from recollect.commands.printing import print_result

    print_result(result, _asked["json"], show)


@app.callback()
def recollect(_version: Version = False) -> None:
    """Learn image categories from many pictures, then add new ones from one to five, without forgetting."""


def _target(
    model: Path,
    store: str | None,
    extractor: str | None,
    device: str = "auto",
    threads: int | None = None,
    server: str | None = None,
) -> "Target":
    from recollect.commands.opening import Target

    return Target(model, store, extractor, device, threads, server)


@_command()
def demo(
    out: Path = _option("DIR", "Folder for the model, the pictures and the report.", default=Path("demo")),
    seed: Seed = 0,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Train on built-in characters, add new ones from one picture each, and show the results."""
    from recollect.commands import demo

    _print(demo.run_demo(out, seed=seed, device=device, threads=threads), demo.demo_text)


@_command()
def train(
    data: str | None = _argument(
        "DATA",
        "A folder of categories, glyphs, or cifar-fs:PATH, mini-imagenet:PATH, omniglot:PATH, imagenet:PATH.",
        None,
    ),
    preset: str | None = _option("NAME", "A recipe, such as paper or cifar-fs-c64f; options override it."),
    extractor: str | None = _option(
        "NAME",
        "c32f, c64f, c128f, resnet, resnet10; pretrained on ImageNet: efficientnet-lite0, -lite1, "
        f"-lite2; an ONNX file: onnx:PATH; or your own: {_OWN_CODE}.",
    ),
    finetune: bool | None = _flag("--finetune", "Train a pretrained extractor too, not only the rest.", None),
    classifier: Literal["cosine", "dot"] | None = typer.Option(None, help="How scores are computed."),
    generator: Literal["attention", "average", "mean", "ridge"] | None = typer.Option(
        None, help="How the vectors of novel categories are made."
    ),
    last_relu: bool | None = _flag("--last-relu", "Keep the extractor's last ReLU.", None),
    shots: str | None = _option("N", "'mixed', or a single number of shots to train for."),
    out: Path = _option("DIR", "The run's folder.", default=Path("runs/model")),
    minutes: Minutes = None,
    resume: bool = _flag("--resume", "Resume the run in --out.", False),
    seed: int | None = _option("N", "Seed of all random numbers."),
    split: str | None = _option(
        "FILE|SEED",
        "Keep categories from training, for evaluate: a JSON file such as "
        '{"val": ["okapi"], "test": ["tapir"]}, or a number that draws 16 % and 20 % of them '
        "(folders and ImageNet only).",
    ),
    size: int | None = _option("PX", "Height and width of the pictures, in pixels."),
    device: Device = "auto",
    threads: Threads = None,
    settings: Settings = None,
    skip_bad: SkipBad = False,
    cache_gb: CacheGb = None,
) -> None:
    """Train a recogniser on the categories of DATA."""
    from recollect.commands import train

    options = {
        "data": data, "extractor": extractor, "finetune": finetune, "classifier": classifier,
        "generator": generator, "last_relu": last_relu, "shots": shots, "minutes": minutes,
        "seed": seed, "split": split, "size": size, "device": device, "threads": threads,
        "skip_bad": skip_bad or None, "cache_gb": cache_gb, "preset": preset,
    }  # fmt: skip
    _print(train.train(out, options, settings or [], resume=resume), train.train_text)


@_command()
def evaluate(
    model: Model,
    data: Data,
    categories: Part = "test",
    shots: str | None = _option("N,…", "Numbers of shots, with commas (1,5)."),
    ways: int = _option("N", "Novel categories in a task.", min=1, default=5),
    queries: Queries = None,
    tasks: int = _option("N", "How many tasks.", min=1, default=600),
    seed: Seed = 0,
    cache_gb: CacheGb = None,
    out: Path | None = _option("FILE", "Also write the JSON to this file.", callback=_writable),
    plot: Path | None = _option("PNG", "Draw base against novel accuracy to this PNG file.", callback=_png),
    extractor: Extractor = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Measure a model on few-shot tasks: novel, base and joint accuracy, with confidence intervals."""
    from recollect.commands import evaluate

    options = {
        "part": categories, "ways": ways, "queries": queries, "tasks": tasks, "seed": seed,
        "cache_gb": cache_gb, "extractor": extractor, "device": device,
    }  # fmt: skip
    report, kept = evaluate.evaluate(
        model, data, shots=shots, threads=threads, curve=plot is not None, **options
    )
    _print(report, evaluate.evaluation_table)
    if out is not None:
        evaluate.write_report(out, report)
    if plot is not None:
        evaluate.draw_curve(plot, report, kept)


@_command(plot_app)
def tsne(
    model: Model,
    data: Data,
    out: Path = _option("PNG", "The PNG file to draw.", "--out", "-o", callback=_png, default=...),
    categories: Part = "test",
    seed: Seed = 0,
    cache_gb: CacheGb = None,
    extractor: Extractor = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Draw features of categories unseen in training on a plane, one colour each (t-SNE)."""
    from recollect.evaluation.tsne import tsne_report, tsne_text
    from recollect.system import machine

    machine.prepare(threads)
    report = tsne_report(
        model, data, out, part=categories, seed=seed, cache_gb=cache_gb, extractor=extractor, device=device
    )
    _print(report, tsne_text)


@_command(plot_app)
def methods(
    results: list[Path] = _argument(
        "RESULT", "Result files of reproduce table2, or folders that it wrote.", default=...
    ),
    out: Path = _option("PNG", "The PNG file to draw.", "--out", "-o", callback=_png, default=...),
) -> None:
    """Draw the accuracy of methods against their minutes of training, all on one picture."""
    from recollect.reproduce.times import plot_methods, times_text

    _print(plot_methods(results, out), times_text)


@_command()
def check(
    model: Model,
    folder: Path = _argument("FOLDER", "Pictures, one sub-folder per category; a folder or an archive."),
    out: Path | None = _option(
        "PNG", "Draw which categories are confused to this file.", "--out", "-o", callback=_png
    ),
    against: str | None = _option(
        "PATH", "Compare with another store; memory: is the model before anything was taught."
    ),
    skip_bad: SkipBad = False,
    store: Store = None,
    extractor: Extractor = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Measure a model on your own labelled pictures: the accuracy of each category."""
    from recollect.commands import check

    target = _target(model, store, extractor, device, threads)
    report, confusion = check.check(target, folder, against=against, skip_bad=skip_bad)
    _print(report, check.check_table)
    if out is not None:
        check.draw_confusion(out, confusion)


@_command()
def info(model: Model) -> None:
    """Show what a model file is and where it comes from."""
    from recollect.commands import info

    _print(info.model_info(model), info.info_table)


@_command()
def new(
    out: Path = _argument("OUT", "The folder or .safetensors file to write."),
    extractor: str = _option(
        "NAME",
        "efficientnet-lite0, -lite1 or -lite2, pretrained on ImageNet; an ONNX file: onnx:PATH; or your own: "
        f"{_OWN_CODE}.",
        default=...,
    ),
    size: int | None = _option("PX", "Height and width of the pictures, in pixels.", min=1, max=1024),
) -> None:
    """Make a recogniser that knows no category yet; teach it everything."""
    from recollect.commands import new

    _print(new.new_recogniser(extractor, out, size), new.new_text)


@_command()
def export(
    model: Model,
    onnx: Path | None = _option("DIR", "The folder of ONNX files to write; it must not exist."),
    web: Path | None = _option("DIR", "The folder for a static web server to write; it must not exist."),
    int8: bool = _flag("--int8", "Quantise the extractor to 8 bits, and measure what that costs.", False),
    pictures: Path | None = _option(
        "FOLDER",
        "Pictures like yours, to check the files on and to calibrate --int8 (built-in ones).",
    ),
    ort: Path | None = _option(
        "DIR", "The npm package onnxruntime-web, unpacked, for --web (npm fetches it)."
    ),
    store: Store = None,
    extractor: Extractor = None,
    threads: Threads = None,
) -> None:
    """Write a model, with what it was taught, for programs without torch or for web browsers."""
    from recollect.commands import export

    target = _target(model, store, extractor, "cpu", threads)
    if web is not None and not (onnx or int8 or pictures):
        _print(export.export_web(target, web, ort), export.web_text)
        return
    if onnx is None or web or ort:
        raise RecollectError("give --onnx DIR (with --int8, --pictures) or --web DIR (with --ort)")
    _print(export.export_onnx(target, onnx, pictures, int8=int8), export.export_text)


@_command()
def refit(
    model: Model,
    out: Path = _option("OUT", "The folder or .safetensors file to write.", "--out", "-o", default=...),
    seed: Seed = 0,
    store: Store = None,
    extractor: Extractor = None,
    threads: Threads = None,
) -> None:
    """Promote taught categories with enough examples to base categories, in a new model."""
    from recollect.commands import refit

    result = refit.refit(_target(model, store, extractor, "cpu", threads), out, seed=seed)
    _print(result, refit.refit_text)


@_command()
def teach(
    model: Model,
    name: str | None = _argument("NAME", "What the pictures show.", None),
    pictures: list[Path] | None = _argument("PICTURE", "Pictures, or folders of them.", None),
    folder: Path | None = _option(
        "FOLDER", "Teach each sub-folder (of a folder or archive) as a category.", "--from"
    ),
    thumbnails: bool = _flag("--thumbnails", "Keep a small copy of each picture.", False),
    skip_bad: SkipBad = False,
    keep_duplicates: bool = _flag(
        "--keep-duplicates", "Count pictures again that the category was taught before.", False
    ),
    store: Store = None,
    server: Server = None,
    extractor: Extractor = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Add a category from one or a few pictures, or add pictures to one that is known."""
    if (name is None) == (folder is None) or (folder is None and not pictures):
        raise RecollectError("give NAME and at least one PICTURE, or --from FOLDER alone")
    from recollect.commands import teach

    target = _target(model, store, extractor, device, threads, server)
    options = {"thumbnails": thumbnails, "skip_bad": skip_bad, "keep_duplicates": keep_duplicates}
    _print(teach.teach(target, name, pictures or [], folder, **options), teach.teach_text)


@_command()
def forget(
    model: Model, name: Taught, store: Store = None, server: Server = None, extractor: Extractor = None
) -> None:
    """Remove a taught category, or the pictures that were added to a base category."""
    from recollect.commands import categories as command

    _print(command.forget(_target(model, store, extractor, server=server), name), command.forget_text)


@_command()
def rename(
    model: Model,
    old: str = _argument("OLD", "A category."),
    new: str = _argument("NEW", "Its new name."),
    store: Store = None,
    server: Server = None,
    extractor: Extractor = None,
) -> None:
    """Rename a category. The model itself keeps the names of its base categories."""
    from recollect.commands import categories as command

    _print(command.rename(_target(model, store, extractor, server=server), old, new), command.rename_text)


@_command()
def hide(
    model: Model, name: Base, store: Store = None, server: Server = None, extractor: Extractor = None
) -> None:
    """Never give a base category as an answer; unhide undoes it."""
    from recollect.commands import categories as command

    _print(command.hide(_target(model, store, extractor, server=server), name), command.hide_text)


@_command()
def unhide(
    model: Model, name: Base, store: Store = None, server: Server = None, extractor: Extractor = None
) -> None:
    """Let a hidden base category be an answer again."""
    from recollect.commands import categories as command

    _print(
        command.hide(_target(model, store, extractor, server=server), name, hidden=False), command.hide_text
    )


@_command()
def categories(
    model: Model,
    everything: bool = _flag("--all", "Show every base category.", False),
    store: Store = None,
    server: Server = None,
    extractor: Extractor = None,
) -> None:
    """List what a model knows: taught categories, then base ones."""
    from recollect.commands import categories as command

    report = command.categories(_target(model, store, extractor, server=server))
    _print(report, partial(command.categories_table, everything=everything))


@_command()
def explain(
    model: Model,
    name: Taught,
    top: int = _option("N", "How many categories to show.", min=1, default=5),
    store: Store = None,
    server: Server = None,
    extractor: Extractor = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Show which categories a taught one competes with, or is built from."""
    from recollect.commands import explain

    report = explain.explain(_target(model, store, extractor, device, threads, server), name, top)
    _print(report, explain.explain_table)


@_command()
def predict(
    model: Model,
    pictures: Pictures,
    top: int = _option("N", "How many answers for each picture.", min=1, default=5),
    among: Literal["all", "base", "novel"] = typer.Option("all", help="Which categories to choose from."),
    sheet: Path | None = _option(
        "PNG", "Draw the pictures with their answers to this PNG file.", callback=_png
    ),
    csv: Path | None = _option(
        "FILE", "Write the answers to this CSV file, one row per picture.", callback=_writable
    ),
    recursive: Recursive = False,
    skip_bad: SkipBad = False,
    no_unknown: bool = _flag("--no-unknown", "Always name a known category.", False),
    store: Store = None,
    server: Server = None,
    extractor: Extractor = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Name what pictures show."""
    from recollect.commands import predict

    target = _target(model, store, extractor, device, threads, server)
    report, shown = predict.predict(
        target, pictures, top, among, unknown=not no_unknown, recursive=recursive, skip_bad=skip_bad
    )
    _print(report, predict.predict_table)
    if csv is not None:
        predict.write_csv(csv, report)
    if sheet is not None:
        from recollect.commands.sheet import write_sheet

        write_sheet(sheet, report, shown)


@_command()
def features(
    model: Model,
    pictures: Pictures,
    out: Path = _option(
        "FILE", "The .npz or .csv file to write.", "--out", "-o", callback=_table, default=...
    ),
    recursive: Recursive = False,
    skip_bad: SkipBad = False,
    server: Server = None,
    extractor: Extractor = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Write the features of pictures to a file, for your own use."""
    from recollect.commands import features

    target = _target(model, None if server else "memory:", extractor, device, threads, server)
    result = features.features(target, pictures, out, recursive=recursive, skip_bad=skip_bad)
    _print(result, features.features_text)


def _hidden_token(token: str | None) -> str | None:
    """Take the token from the environment; one on the command line moves there, out of the sight of `ps`."""
    from recollect.commands.serve import hide_token
    from recollect.serve.settings import TOKEN_VARIABLE

    if token is not None:
        hide_token(sys.orig_argv, os.environ)
    return os.environ.pop(TOKEN_VARIABLE, None)


@_command()
def serve(
    model: Path | None = _argument(
        "MODEL", "A model file, a run folder, glyphs, or imagenet, which is the default.", None
    ),
    host: str = _option("ADDRESS", "The address to listen on; 0.0.0.0 is every one.", default="127.0.0.1"),
    port: int = _option("N", "The port to listen on.", min=0, max=65535, default=8000),
    workers: int = _option("N", "Worker processes; each loads the model.", min=1, max=64, default=1),
    token: str | None = _option(
        "TOKEN",
        "What clients must know to change anything. Better set the environment variable RECOLLECT_TOKEN: "
        "this option stays in your shell's history.",
        callback=_hidden_token,
    ),
    hosts: list[str] | None = _option(
        "NAME", "A name under which clients know this machine.", "--allow-host"
    ),
    tls_cert: Path | None = _option("FILE", "Certificate for HTTPS, in PEM."),
    tls_key: Path | None = _option("FILE", "Private key of the certificate, in PEM."),
    max_body: int = _option("MIB", "Largest request.", min=1, default=32),
    max_memory: int = _option("MIB", "Memory for the bodies of all requests together.", min=1, default=256),
    max_megapixels: int = _option("N", "Largest picture.", min=1, default=50),
    max_pictures: int = _option("N", "Most pictures in a request.", min=1, default=128),
    max_categories: int = _option("N", "Most taught categories.", min=0, default=10_000),
    max_examples: int = _option("N", "Most examples of a category.", min=1, default=1000),
    max_connections: int = _option("N", "Most connections to a worker.", min=1, default=1000),
    queue: int = _option(
        "N", "How many pictures may wait in a worker; more are refused with 503.", min=1, default=256
    ),
    batch: int = _option("N", "Most pictures in a pass of the extractor.", min=1, default=16),
    patience: float = _option(
        "SECONDS",
        "How long a client may take to send a request or to take an answer.",
        min=0.1,
        max=3600,
        default=20.0,
    ),
    open_page: bool = _flag("--open", "Open the page in a browser.", default=False),
    store: Store = None,
    extractor: Extractor = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Teach and recognise over HTTP, from programs and on a page in the browser."""
    from recollect.commands.serve import serve
    from recollect.serve.settings import Limits, Settings

    limits = Limits(
        body_mb=max_body, memory_mb=max_memory, megapixels=max_megapixels, pictures=max_pictures,
        categories=max_categories, examples=max_examples, connections=max_connections, queue=queue,
        batch=batch, patience=patience,
    )  # fmt: skip
    settings = Settings(
        model=model or Path("imagenet"), store=store, extractor=extractor, device=device, threads=threads,
        host=host, port=port, workers=workers, token=token, hosts=tuple(hosts or ()), tls_cert=tls_cert,
        tls_key=tls_key, open_page=open_page, limits=limits,
    )  # fmt: skip
    serve(settings, any_model=model is None)


@_command(store_app, "copy")
def store_copy(
    source: str = _argument("FROM", "A store such as zoo.taught.sqlite, or a model, for its own store."),
    to: str = _argument("TO", "The file to write; it must not exist."),
) -> None:
    """Copy a store, even while it is in use, and check the copy."""
    from recollect.commands import store

    _print(store.copy(source, to), store.copy_text)


@_command(store_app)
def backup(
    model: Model,
    to: Path = _argument("FILE", "The .safetensors file to write.", ...),
    store: Store = None,
    extractor: Extractor = None,
) -> None:
    """Write what a model was taught to one file, for restore, a service or an exported page."""
    from recollect.commands import store as command

    _print(command.backup(_target(model, store, extractor), to), command.backup_text)


@_command(store_app)
def restore(
    model: Model,
    source: Path = _argument("FILE", "A file that backup, a service or an exported page wrote.", ...),
    store: Store = None,
    extractor: Extractor = None,
) -> None:
    """Take over what a backup holds and a model was not taught; nothing is removed."""
    from recollect.commands import store as command

    _print(command.restore(_target(model, store, extractor), source), command.restore_text)


@_command()
def reproduce(
    what: Literal["table1", "table2", "table3", "figure-tsne"] = _argument(
        "TABLE", "What to reproduce: table1, table2, table3 or figure-tsne."
    ),
    data: str = _argument(
        "DATA", "glyphs, or cifar-fs:PATH, mini-imagenet:PATH, omniglot:PATH, imagenet:PATH."
    ),
    minutes: Minutes = None,
    seeds: int = _option("N", "Trainings of every row.", min=1, default=1),
    extractors: str | None = _option(
        "NAMES", "Rows of table2: some of c32f, c64f, c128f, resnet (all but resnet)."
    ),
    methods: str | None = _option(
        "NAMES",
        "Rows of table2 of other methods, with c32f: some of matching, prototypical, maml, fomaml, "
        "anil, maml-started, meta-lstm, temporal (none). Rows of table3, such as attention,logistic (all).",
    ),
    out: Path = _option(
        "DIR",
        "Folder for runs, results and page; what is finished there is kept.",
        default=Path("reproduced"),
    ),
    preset: str | None = _option("NAME", "The recipe; rows of table2 take that of their extractor."),
    note: str | None = _option("TEXT", "A remark for the page, such as what else the machine did meanwhile."),
    tasks: int | None = _option("N", "How many tasks (table1: 2000, table2: 600).", min=2),
    queries: Queries = None,
    split: Path | None = _option(
        "FILE", "table3: a JSON file with base_val, base_test, novel_val, novel_test, or the published one."
    ),
    draws: int | None = _option("N", "table3: how many draws of examples (100).", min=2),
    shots: str | None = _option("LIST", "table3: numbers of examples (1,2,5,10,20)."),
    settings: Settings = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Reproduce a table or figure of the paper: train, measure, write a page. Resumes where it stopped."""
    from recollect.commands.reproduce import reproduce as run

    wishes = {"minutes": minutes, "seeds": seeds, "preset": preset, "tasks": tasks, "queries": queries}
    names = {"extractors": extractors, "methods": methods}
    own = {"split": split, "draws": draws, "shots": shots}
    made = run(what, data, out, settings or [], device, threads, note=note, **wishes, **names, **own)
    _print(made, lambda result: str(result["made"]))


if __name__ == "__main__":
    main()
