"""The command line: parses, calls, prints. Heavy imports stand in the commands that need them."""

import errno
import logging
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from recollect.errors import RecollectError, Stopped, one_line

if TYPE_CHECKING:
    from recollect.commands.opening import Target

_OWN_CODE = "module:package.module:callable"
_LONGEST = 2000  # characters of an error
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def _show_version(asked: bool) -> None:
    if asked:
        import recollect

        typer.echo(recollect.__version__)
        raise typer.Exit


def _be_quiet(asked: bool) -> None:
    from recollect.system import progress

    progress.be_quiet(asked)


def _writable(path: Path | None) -> Path | None:
    """Refuse a file that cannot be written before the work for it begins."""
    if path is not None:
        from recollect.commands.printing import require_writable

        require_writable(path)
    return path


def _with_suffix(*suffixes: str) -> Callable[[Path | None], Path | None]:
    """Return a check that a path ends in one of these and can be written."""

    def check(path: Path | None) -> Path | None:
        _writable(path)
        if path is not None and path.suffix.lower() not in suffixes:
            examples = " or ".join(str(path.with_suffix(suffix)) for suffix in suffixes)
            raise typer.BadParameter(f"{path}: name a {' or '.join(suffixes)} file, such as {examples}")
        return path

    return check


_png = _with_suffix(".png")


def _flag(name: str, text: str, **more: Any) -> Any:  # noqa: ANN401
    """Return an option that takes no value; its help shows none."""
    return typer.Option(name, metavar="", help=text, **more)


def _option(metavar: str, text: str, *names: str, **more: Any) -> Any:  # noqa: ANN401
    return typer.Option(*names, metavar=metavar, help=text, **more)


def _argument(metavar: str, text: str) -> Any:  # noqa: ANN401
    return typer.Argument(metavar=metavar, help=text)


class _PlainHelp:
    """Shows `--help` itself without a type."""

    def get_help_option(self, ctx: Any) -> Any:  # noqa: ANN401
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.metavar = ""
        return option


class _Command(_PlainHelp, TyperCommand): ...


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

# What several commands take.
Json = Annotated[bool, _flag("--json", "Print the result as JSON on standard output.")]
Quiet = Annotated[bool, _flag("--quiet", "Show no progress.", callback=_be_quiet)]
Version = Annotated[bool, _flag("--version", "Show the version.", callback=_show_version, is_eager=True)]
Model = Annotated[
    Path, _argument("MODEL", "A model file, a run folder, or imagenet, which comes with recollect.")
]
Data = Annotated[str, _argument("DATA", "The data the model was trained on.")]
Pictures = Annotated[list[Path], _argument("PICTURE", "Pictures, or folders of them.")]
Base = Annotated[str, _argument("NAME", "A base category.")]
Taught = Annotated[str, _argument("NAME", "A taught category.")]
Store = Annotated[
    str | None, _option("PATH", "Where taught categories are kept (MODEL's taught.sqlite).", "--store")
]
Extractor = Annotated[
    str | None, _option("MODULE", f"{_OWN_CODE}, for a model whose extractor is your own code.")
]
Device = Annotated[str, _option("NAME", "auto, cpu, cuda or mps.")]
Threads = Annotated[int | None, _option("N", "Threads on the CPU.", min=1, max=1024)]
CacheGb = Annotated[
    float | None,
    _option(
        "GB", "Keep up to this many GB of decoded pictures (16). Larger sets are decoded on the fly.", min=0
    ),
]
Recursive = Annotated[bool, _flag("--recursive", "Also read the sub-folders of folders.")]
SkipBad = Annotated[bool, _flag("--skip-bad", "Report pictures that cannot be read, and go on.")]
Seed = Annotated[int, _option("N", "Seed of all random numbers.", min=0, max=2**31 - 1)]
Part = Annotated[
    Literal["val", "test"], typer.Option(help="Which of the reserved categories act as novel ones.")
]
Queries = Annotated[int | None, _option("N", "Queries of each novel category (15; omniglot: 10).", min=1)]
Settings = Annotated[
    list[str] | None,
    _option("KEY=VALUE", "Any setting, such as stage1.passes=10; wins over options.", "--set"),
]
Minutes = Annotated[float | None, _option("N", "Finish the training within N minutes.")]


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
        _drop_output()
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


def _drop_output() -> None:
    """Let Python's own flush at the end go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _print(result: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], Any]) -> None:
    from recollect.commands.printing import print_result

    print_result(result, as_json, show)


@app.callback()
def recollect(_version: Version = False) -> None:
    """Learn image categories from many pictures, then add new ones from one to five, without forgetting."""


def _target(
    model: Path, store: str | None, extractor: str | None, device: str = "auto", threads: int | None = None
) -> "Target":
    from recollect.commands.opening import Target

    return Target(model, store, extractor, device, threads)


@app.command(cls=_Command)
def demo(
    out: Annotated[Path, _option("DIR", "Folder for the model, the pictures and the report.")] = Path("demo"),
    seed: Seed = 0,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Train on built-in characters, add new ones from one picture each, and show the results."""
    from recollect.commands import demo

    _print(demo.run_demo(out, seed=seed, device=device, threads=threads), json_, demo.demo_text)


@app.command(cls=_Command)
def train(
    data: Annotated[
        str | None,
        _argument(
            "DATA",
            "A folder of categories, glyphs, or cifar-fs:PATH, mini-imagenet:PATH, omniglot:PATH, "
            "imagenet:PATH.",
        ),
    ] = None,
    preset: Annotated[
        str | None, _option("NAME", "A recipe, such as paper or cifar-fs-c64f; options override it.")
    ] = None,
    extractor: Annotated[
        str | None,
        _option(
            "NAME",
            "c32f, c64f, c128f, resnet, resnet10; pretrained on ImageNet: efficientnet-lite0, -lite1, "
            f"-lite2; or your own: {_OWN_CODE}.",
        ),
    ] = None,
    finetune: Annotated[
        bool | None, _flag("--finetune", "Train a pretrained extractor too, not only the rest.")
    ] = None,
    classifier: Annotated[
        Literal["cosine", "dot"] | None, typer.Option(help="How scores are computed.")
    ] = None,
    generator: Annotated[
        Literal["attention", "average", "mean", "ridge"] | None,
        typer.Option(help="How the vectors of novel categories are made."),
    ] = None,
    last_relu: Annotated[bool | None, _flag("--last-relu", "Keep the extractor's last ReLU.")] = None,
    shots: Annotated[str | None, _option("N", "'mixed', or a single number of shots to train for.")] = None,
    out: Annotated[Path, _option("DIR", "The run's folder.")] = Path("runs/model"),
    minutes: Minutes = None,
    resume: Annotated[bool, _flag("--resume", "Resume the run in --out.")] = False,
    seed: Annotated[int | None, _option("N", "Seed of all random numbers.")] = None,
    split: Annotated[
        str | None,
        _option(
            "FILE|SEED",
            "Keep categories of a folder or of ImageNet from training, for evaluate: a JSON file "
            'such as {"val": ["okapi"], "test": ["tapir"]}, or a number that draws 16 % and 20 % of them.',
        ),
    ] = None,
    size: Annotated[int | None, _option("PX", "Height and width of the pictures, in pixels.")] = None,
    device: Device = "auto",
    threads: Threads = None,
    settings: Settings = None,
    skip_bad: SkipBad = False,
    cache_gb: CacheGb = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Train a recogniser on the categories of DATA."""
    from recollect.commands import train

    options = {
        "data": data, "extractor": extractor, "finetune": finetune, "classifier": classifier,
        "generator": generator, "last_relu": last_relu, "shots": shots, "minutes": minutes,
        "seed": seed, "split": split, "size": size, "device": device, "threads": threads,
        "skip_bad": skip_bad or None, "cache_gb": cache_gb, "preset": preset,
    }  # fmt: skip
    _print(train.train(out, options, settings or [], resume=resume), json_, train.train_text)


@app.command(cls=_Command)
def evaluate(
    model: Model,
    data: Data,
    categories: Part = "test",
    shots: Annotated[str | None, _option("N,…", "Numbers of shots, with commas (1,5).")] = None,
    ways: Annotated[int, _option("N", "Novel categories in a task.", min=1)] = 5,
    queries: Queries = None,
    tasks: Annotated[int, _option("N", "How many tasks.", min=1)] = 600,
    seed: Seed = 0,
    cache_gb: CacheGb = None,
    out: Annotated[
        Path | None, _option("FILE", "Also write the JSON to this file.", callback=_writable)
    ] = None,
    plot: Annotated[
        Path | None, _option("PNG", "Draw base against novel accuracy to this PNG file.", callback=_png)
    ] = None,
    extractor: Extractor = None,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Measure a model on few-shot tasks: novel, base and joint accuracy, with confidence intervals."""
    from recollect.commands import evaluate
    from recollect.evaluation.report import evaluation_table

    options = {
        "part": categories, "ways": ways, "queries": queries, "tasks": tasks, "seed": seed,
        "cache_gb": cache_gb, "extractor": extractor, "device": device,
    }  # fmt: skip
    report, kept = evaluate.evaluate(
        model, data, shots=shots, threads=threads, curve=plot is not None, **options
    )
    _print(report, json_, evaluation_table)
    if out is not None:
        evaluate.write_report(out, report)
    if plot is not None:
        evaluate.draw_curve(plot, report, kept)


@plot_app.command(cls=_Command)
def tsne(
    model: Model,
    data: Data,
    out: Annotated[Path, _option("PNG", "The PNG file to draw.", "--out", "-o", callback=_png)],
    categories: Part = "test",
    seed: Seed = 0,
    cache_gb: CacheGb = None,
    extractor: Extractor = None,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Draw features of categories unseen in training on a plane, one colour each (t-SNE)."""
    from recollect.evaluation.report import tsne_text
    from recollect.evaluation.tsne import tsne_report
    from recollect.system import machine

    machine.prepare(threads)
    report = tsne_report(
        model, data, out, part=categories, seed=seed, cache_gb=cache_gb, extractor=extractor, device=device
    )
    _print(report, json_, tsne_text)


@app.command(cls=_Command)
def check(
    model: Model,
    folder: Annotated[
        Path, _argument("FOLDER", "Pictures, one sub-folder per category; a folder or an archive.")
    ],
    out: Annotated[
        Path | None,
        _option("PNG", "Draw which categories are confused to this file.", "--out", "-o", callback=_png),
    ] = None,
    against: Annotated[
        str | None,
        _option("PATH", "Compare with another store; memory: is the model before anything was taught."),
    ] = None,
    skip_bad: SkipBad = False,
    store: Store = None,
    extractor: Extractor = None,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Measure a model on your own labelled pictures: the accuracy of each category."""
    from recollect.commands import check

    target = _target(model, store, extractor, device, threads)
    report, confusion = check.check(target, folder, against=against, skip_bad=skip_bad)
    _print(report, json_, check.check_table)
    if out is not None:
        check.draw_confusion(out, confusion)


@app.command(cls=_Command)
def info(model: Model, json_: Json = False, _quiet: Quiet = False, _version: Version = False) -> None:
    """Show what a model file is and where it comes from."""
    from recollect.commands import info

    _print(info.model_info(model), json_, info.info_table)


@app.command(cls=_Command)
def new(
    out: Annotated[Path, _argument("OUT", "The folder or .safetensors file to write.")],
    extractor: Annotated[
        str,
        _option(
            "NAME", f"efficientnet-lite0, -lite1 or -lite2, pretrained on ImageNet; or your own: {_OWN_CODE}."
        ),
    ],
    size: Annotated[
        int | None, _option("PX", "Height and width of the pictures, in pixels.", min=1, max=1024)
    ] = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Make a recogniser that knows no category yet; teach it everything."""
    from recollect.commands import new

    _print(new.new_recogniser(extractor, out, size), json_, new.new_text)


@app.command(cls=_Command)
def refit(
    model: Model,
    out: Annotated[Path, _option("OUT", "The folder or .safetensors file to write.", "--out", "-o")],
    seed: Seed = 0,
    store: Store = None,
    extractor: Extractor = None,
    threads: Threads = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Promote taught categories with enough examples to base categories, in a new model."""
    from recollect.commands import refit

    result = refit.refit(_target(model, store, extractor, "cpu", threads), out, seed=seed)
    _print(result, json_, refit.refit_text)


@app.command(cls=_Command)
def teach(
    model: Model,
    name: Annotated[str | None, _argument("NAME", "What the pictures show.")] = None,
    pictures: Annotated[list[Path] | None, _argument("PICTURE", "Pictures, or folders of them.")] = None,
    folder: Annotated[
        Path | None,
        _option("FOLDER", "Teach each sub-folder (of a folder or archive) as a category.", "--from"),
    ] = None,
    thumbnails: Annotated[bool, _flag("--thumbnails", "Keep a small copy of each picture.")] = False,
    store: Store = None,
    extractor: Extractor = None,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Add a category from one or a few pictures, or add pictures to one that is known."""
    if (name is None) == (folder is None) or (folder is None and not pictures):
        raise RecollectError("give NAME and at least one PICTURE, or --from FOLDER alone")
    from recollect.commands import teach

    target = _target(model, store, extractor, device, threads)
    result = teach.teach(target, name, pictures or [], folder, thumbnails=thumbnails)
    _print(result, json_, partial(teach.teach_text, own_store=store is None))


@app.command(cls=_Command)
def forget(
    model: Model,
    name: Taught,
    store: Store = None,
    extractor: Extractor = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Remove a taught category, or the pictures that were added to a base category."""
    from recollect.commands import categories as command

    _print(command.forget(_target(model, store, extractor), name), json_, command.forget_text)


@app.command(cls=_Command)
def rename(
    model: Model,
    old: Annotated[str, _argument("OLD", "A category.")],
    new: Annotated[str, _argument("NEW", "Its new name.")],
    store: Store = None,
    extractor: Extractor = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Rename a category. The model itself keeps the names of its base categories."""
    from recollect.commands import categories as command

    _print(command.rename(_target(model, store, extractor), old, new), json_, command.rename_text)


@app.command(cls=_Command)
def hide(
    model: Model,
    name: Base,
    store: Store = None,
    extractor: Extractor = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Never give a base category as an answer; unhide undoes it."""
    from recollect.commands import categories as command

    _print(command.hide(_target(model, store, extractor), name), json_, command.hide_text)


@app.command(cls=_Command)
def unhide(
    model: Model,
    name: Base,
    store: Store = None,
    extractor: Extractor = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Let a hidden base category be an answer again."""
    from recollect.commands import categories as command

    _print(command.hide(_target(model, store, extractor), name, hidden=False), json_, command.hide_text)


@app.command(cls=_Command)
def categories(
    model: Model,
    everything: Annotated[bool, _flag("--all", "Show every base category.")] = False,
    store: Store = None,
    extractor: Extractor = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """List what a model knows: taught categories, then base ones."""
    from recollect.commands import categories as command

    report = command.categories(_target(model, store, extractor))
    _print(report, json_, partial(command.categories_table, everything=everything))


@app.command(cls=_Command)
def explain(
    model: Model,
    name: Taught,
    top: Annotated[int, _option("N", "How many categories to show.", min=1)] = 5,
    store: Store = None,
    extractor: Extractor = None,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Show which base categories a taught one is built from."""
    from recollect.commands import explain

    report = explain.explain(_target(model, store, extractor, device, threads), name, top)
    _print(report, json_, explain.explain_table)


@app.command(cls=_Command)
def predict(
    model: Model,
    pictures: Pictures,
    top: Annotated[int, _option("N", "How many answers for each picture.", min=1)] = 5,
    among: Annotated[
        Literal["all", "base", "novel"], typer.Option(help="Which categories to choose from.")
    ] = "all",
    sheet: Annotated[
        Path | None, _option("PNG", "Draw the pictures with their answers to this PNG file.", callback=_png)
    ] = None,
    csv: Annotated[
        Path | None,
        _option("FILE", "Write the answers to this CSV file, one row per picture.", callback=_writable),
    ] = None,
    recursive: Recursive = False,
    skip_bad: SkipBad = False,
    no_unknown: Annotated[bool, _flag("--no-unknown", "Always name a known category.")] = False,
    store: Store = None,
    extractor: Extractor = None,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Name what pictures show."""
    from recollect.commands import predict

    target = _target(model, store, extractor, device, threads)
    report, shown = predict.predict(
        target, pictures, top, among, unknown=not no_unknown, recursive=recursive, skip_bad=skip_bad
    )
    _print(report, json_, predict.predict_table)
    if csv is not None:
        predict.write_csv(csv, report)
    if sheet is not None:
        from recollect.commands.sheet import write_sheet

        write_sheet(sheet, report, shown)


@app.command(cls=_Command)
def features(
    model: Model,
    pictures: Pictures,
    out: Annotated[
        Path,
        _option(
            "FILE", "The .npz or .csv file to write.", "--out", "-o", callback=_with_suffix(".npz", ".csv")
        ),
    ],
    recursive: Recursive = False,
    skip_bad: SkipBad = False,
    extractor: Extractor = None,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Write the features of pictures to a file, for your own use."""
    from recollect.commands import features

    target = _target(model, "memory:", extractor, device, threads)
    result = features.features(target, pictures, out, recursive=recursive, skip_bad=skip_bad)
    _print(result, json_, features.features_text)


@store_app.command("copy", cls=_Command)
def store_copy(
    source: Annotated[
        str, _argument("FROM", "A store such as zoo.taught.sqlite, or a model, for its own store.")
    ],
    to: Annotated[str, _argument("TO", "The file to write; it must not exist.")],
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Copy a store, also while it is in use. Copying the file alone may leave the latest changes behind."""
    from recollect.commands import store

    _print(store.copy(source, to), json_, store.copy_text)


@app.command(cls=_Command)
def reproduce(
    what: Annotated[
        Literal["table1", "table2", "figure-tsne"],
        _argument("TABLE", "What to reproduce: table1, table2 or figure-tsne."),
    ],
    data: Annotated[str, _argument("DATA", "glyphs, or cifar-fs:PATH, mini-imagenet:PATH, omniglot:PATH.")],
    minutes: Minutes = None,
    seeds: Annotated[int, _option("N", "Trainings of every row.", min=1)] = 1,
    out: Annotated[
        Path, _option("DIR", "Folder for runs, results and page; what is finished there is kept.")
    ] = Path("reproduced"),
    preset: Annotated[str | None, _option("NAME", "The recipe of all trainings.")] = None,
    tasks: Annotated[int | None, _option("N", "How many tasks (table1: 2000, table2: 600).", min=2)] = None,
    queries: Queries = None,
    settings: Settings = None,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Reproduce a table or figure of the paper: train, measure, write a page. Resumes where it stopped."""
    from recollect.commands.reproduce import reproduce as run

    wishes = {"minutes": minutes, "seeds": seeds, "preset": preset, "tasks": tasks, "queries": queries}
    made = run(what, data, out, settings or [], device, threads, **wishes)
    _print(made, json_, lambda result: str(result["made"]))


if __name__ == "__main__":
    main()
