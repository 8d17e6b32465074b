"""The command line: parses, calls, prints. Heavy imports stand in the commands that need them."""

import errno
import logging
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from recollect.errors import RecollectError, Stopped, one_line

_OWN_CODE = "module:package.module:callable"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
_FLAG = ""  # the metavar of an option that takes no value


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
        if path is not None and path.suffix.lower() not in suffixes:
            examples = " or ".join(str(path.with_suffix(suffix)) for suffix in suffixes)
            raise typer.BadParameter(f"{path}: name a {' or '.join(suffixes)} file, such as {examples}")
        return _writable(path)

    return check


_png = _with_suffix(".png")


class _PlainHelp:
    """Shows `--help` itself without a type."""

    def get_help_option(self, ctx: Any) -> Any:  # noqa: ANN401
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.metavar = _FLAG
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
Json = Annotated[
    bool, typer.Option("--json", metavar=_FLAG, help="Print the result as JSON on standard output.")
]
Quiet = Annotated[bool, typer.Option("--quiet", metavar=_FLAG, callback=_be_quiet, help="Show no progress.")]
Version = Annotated[
    bool,
    typer.Option("--version", metavar=_FLAG, callback=_show_version, is_eager=True, help="Show the version."),
]
Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="A model file, a run folder, or imagenet, which comes with recollect."
    ),
]
Data = Annotated[str, typer.Argument(metavar="DATA", help="The data the model was trained on.")]
Pictures = Annotated[list[Path], typer.Argument(metavar="PICTURE", help="Pictures, or folders of them.")]
Store = Annotated[
    str | None,
    typer.Option("--store", metavar="PATH", help="Where taught categories are kept (MODEL's taught.sqlite)."),
]
Extractor = Annotated[
    str | None,
    typer.Option(
        "--extractor", metavar="MODULE", help=f"{_OWN_CODE}, for a model whose extractor is your own code."
    ),
]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda or mps.")]
Threads = Annotated[int | None, typer.Option("--threads", metavar="N", min=1, help="Threads on the CPU.")]
CacheGb = Annotated[
    float | None,
    typer.Option(
        metavar="GB",
        min=0,
        help="Keep up to this many GB of decoded pictures (16). Larger sets are decoded on the fly.",
    ),
]
Recursive = Annotated[
    bool, typer.Option("--recursive", metavar=_FLAG, help="Also read the sub-folders of folders.")
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", metavar=_FLAG, help="Report pictures that cannot be read, and go on.")
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, max=2**31 - 1, help="Seed of all random numbers.")]
Part = Annotated[
    Literal["val", "test"], typer.Option(help="Which of the reserved categories act as novel ones.")
]
Queries = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Queries of each novel category (15; omniglot: 10).")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any setting, such as stage1.passes=10; wins over options."
    ),
]
ModelOut = Annotated[Path, typer.Option("--out", "-o", help="The folder or .safetensors file to write.")]


def main() -> None:
    """Run the command line; a mistake of the caller's is one line and exit code 2."""
    # Before torch starts its threads: when another program holds a core, threads that wait by
    # spinning make every step up to ten times slower; after a short spin they sleep.
    os.environ.setdefault("GOMP_SPINCOUNT", "200000")
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
        message = message.replace("Value error, ", "")
        _end(f"{message} (see recollect {' '.join([*sys.argv[1:2], '--help'])})", 2)
    sys.exit(code if isinstance(code, int) else 0)


def _end(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"recollect: {message}\n")
    sys.exit(code)


def _drop_output() -> None:
    """Let Python's own flush at the end go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _print(result: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], Any]) -> None:
    from recollect.commands.printing import print_result

    print_result(result, as_json, show)


@app.callback()
def recollect(_version: Version = False) -> None:
    """Learn image categories from many pictures, then add new ones from one to five, without forgetting."""


@app.command(cls=_Command)
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the model, the pictures and the report.")] = Path(
        "demo"
    ),
    seed: Seed = 0,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Train on built-in characters, add new ones from one picture each, and show the results."""
    from recollect.commands.demo import demo_text, run_demo

    _print(run_demo(out, seed), json_, demo_text)


@app.command(cls=_Command)
def train(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="A folder of categories, glyphs, or cifar-fs:PATH, mini-imagenet:PATH, omniglot:PATH, "
            "imagenet:PATH.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A recipe, such as paper or cifar-fs-c64f; options win over it."),
    ] = None,
    extractor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="c32f, c64f, c128f, resnet, resnet10; pretrained on ImageNet: efficientnet-lite0, -lite1, "
            f"-lite2; or your own: {_OWN_CODE}.",
        ),
    ] = None,
    finetune: Annotated[
        bool | None,
        typer.Option(
            "--finetune", metavar=_FLAG, help="Train a pretrained extractor too, not only the rest."
        ),
    ] = None,
    classifier: Annotated[
        Literal["cosine", "dot"] | None, typer.Option(help="How scores are computed.")
    ] = None,
    generator: Annotated[
        Literal["attention", "average", "mean"] | None,
        typer.Option(help="How the vectors of novel categories are made."),
    ] = None,
    last_relu: Annotated[
        bool | None, typer.Option("--last-relu", metavar=_FLAG, help="Keep the extractor's last ReLU.")
    ] = None,
    shots: Annotated[
        str | None, typer.Option(metavar="N", help="'mixed', or the one number of shots to train for.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The run's folder.")] = Path("runs/model"),
    minutes: Annotated[
        float | None, typer.Option(metavar="N", help="Fit the number of steps into so many minutes.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", metavar=_FLAG, help="Resume the run in --out.")] = False,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of all random numbers.")] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|SEED",
            help="Keep categories of a folder or of ImageNet from training, for evaluate: a JSON file "
            'such as {"val": ["okapi"], "test": ["tapir"]}, or a number that draws 16 % and 20 % of them.',
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option(metavar="PX", help="Height and width of the pictures, in pixels.")
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="auto, cpu, cuda or mps.")] = None,
    threads: Annotated[int | None, typer.Option(metavar="N", help="Threads on the CPU.")] = None,
    settings: Settings = None,
    skip_bad: Annotated[
        bool | None,
        typer.Option("--skip-bad", metavar=_FLAG, help="Report pictures that cannot be read, and go on."),
    ] = None,
    cache_gb: CacheGb = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Train a recogniser on the categories of DATA."""
    from recollect.commands.train import train as run
    from recollect.commands.train import train_text

    options = {
        "data": data, "extractor": extractor, "finetune": finetune, "classifier": classifier,
        "generator": generator, "last_relu": last_relu, "shots": shots, "minutes": minutes,
        "seed": seed, "split": split, "size": size, "device": device, "threads": threads,
        "skip_bad": skip_bad, "cache_gb": cache_gb, "preset": preset,
    }  # fmt: skip
    _print(run(out, options, settings or [], resume=resume), json_, train_text)


@app.command(cls=_Command)
def evaluate(
    model: Model,
    data: Data,
    categories: Part = "test",
    shots: Annotated[str, typer.Option(metavar="N,…", help="Numbers of shots, with commas.")] = "1,5",
    ways: Annotated[int, typer.Option(metavar="N", min=1, help="Novel categories in a task.")] = 5,
    queries: Queries = None,
    tasks: Annotated[int, typer.Option(metavar="N", min=1, help="How many tasks.")] = 600,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the tasks.")] = 0,
    cache_gb: CacheGb = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=_writable, help="Also write the JSON to this file."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="PNG", callback=_png, help="Draw base against novel accuracy to this PNG file."),
    ] = None,
    extractor: Extractor = None,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Measure a model on few-shot tasks: novel, base and joint accuracy, with confidence intervals."""
    from recollect.commands.evaluate import draw_curve, write_report
    from recollect.commands.evaluate import evaluate as run
    from recollect.evaluation.report import evaluation_table

    report, kept = run(
        model,
        data,
        part=categories,
        shots=shots,
        ways=ways,
        queries=queries,
        tasks=tasks,
        seed=seed,
        cache_gb=cache_gb,
        extractor=extractor,
        device=device,
        threads=threads,
        curve=plot is not None,
    )
    _print(report, json_, evaluation_table)
    if out is not None:
        write_report(out, report)
    if plot is not None:
        draw_curve(plot, report, kept)


@plot_app.command(cls=_Command)
def tsne(
    model: Model,
    data: Data,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="PNG", callback=_png, help="The PNG file to draw.")
    ],
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
        Path,
        typer.Argument(
            metavar="FOLDER", help="Pictures, one sub-folder per category; a folder or an archive."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="PNG",
            callback=_png,
            help="Draw which categories are confused to this file.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Compare with another store; memory: is the model before anything was taught.",
        ),
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
    from recollect.commands.check import check as run
    from recollect.commands.check import check_table, draw_confusion
    from recollect.commands.opening import Target

    target = Target(model, store, extractor, device, threads)
    report, confusion = run(target, folder, against=against, skip_bad=skip_bad)
    _print(report, json_, check_table)
    if out is not None:
        draw_confusion(out, confusion)


@app.command(cls=_Command)
def info(model: Model, json_: Json = False, _quiet: Quiet = False, _version: Version = False) -> None:
    """Show what a model file is and where it comes from."""
    from recollect.commands.info import info_table, model_info

    _print(model_info(model), json_, info_table)


@app.command(cls=_Command)
def new(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder or .safetensors file to write.")],
    extractor: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"efficientnet-lite0, -lite1 or -lite2, pretrained on ImageNet; or your own: {_OWN_CODE}.",
        ),
    ],
    size: Annotated[
        int | None,
        typer.Option(metavar="PX", min=1, max=4096, help="Height and width of the pictures, in pixels."),
    ] = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Make a recogniser that knows no category yet; teach it everything."""
    from recollect.commands.new import new_recogniser, new_text

    _print(new_recogniser(extractor, out, size), json_, new_text)


@app.command(cls=_Command)
def refit(
    model: Model,
    out: ModelOut,
    seed: Seed = 0,
    store: Store = None,
    extractor: Extractor = None,
    threads: Threads = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Promote taught categories with enough examples to base categories, in a new model."""
    from recollect.commands.opening import Target
    from recollect.commands.refit import refit as run
    from recollect.commands.refit import refit_text

    target = Target(model, store, extractor, "cpu", threads)
    _print(run(target, out, seed=seed), json_, refit_text)


@app.command(cls=_Command)
def teach(
    model: Model,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="What the pictures show.")] = None,
    pictures: Annotated[
        list[Path] | None, typer.Argument(metavar="PICTURE", help="Pictures, or folders of them.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FOLDER", help="Teach each sub-folder (of a folder or archive) as a category."
        ),
    ] = None,
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails", metavar=_FLAG, help="Keep a small copy of each picture.")
    ] = False,
    store: Store = None,
    extractor: Extractor = None,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Add a category from one or a few pictures, or add pictures to one taught before."""
    if (name is None) == (folder is None) or (folder is None and not pictures):
        raise RecollectError("give NAME and at least one PICTURE, or --from FOLDER alone")
    from recollect.commands.opening import Target
    from recollect.commands.teach import teach as run
    from recollect.commands.teach import teach_text

    target = Target(model, store, extractor, device, threads)
    result = run(target, name, pictures or [], folder, thumbnails=thumbnails)
    _print(result, json_, partial(teach_text, own_store=store is None))


@app.command(cls=_Command)
def forget(
    model: Model,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A taught category.")],
    store: Store = None,
    extractor: Extractor = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Remove a taught category."""
    from recollect.commands.categories import forget as run
    from recollect.commands.categories import forget_text
    from recollect.commands.opening import Target

    _print(run(Target(model, store, extractor), name), json_, forget_text)


@app.command(cls=_Command)
def rename(
    model: Model,
    old: Annotated[str, typer.Argument(metavar="OLD", help="A category.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")],
    store: Store = None,
    extractor: Extractor = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Rename a category."""
    from recollect.commands.categories import rename as run
    from recollect.commands.categories import rename_text
    from recollect.commands.opening import Target

    _print(run(Target(model, store, extractor), old, new), json_, rename_text)


@app.command(cls=_Command)
def categories(
    model: Model,
    everything: Annotated[
        bool, typer.Option("--all", metavar=_FLAG, help="Show every base category.")
    ] = False,
    store: Store = None,
    extractor: Extractor = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """List what a model knows: taught categories, then base ones."""
    from recollect.commands.categories import categories as run
    from recollect.commands.categories import categories_table
    from recollect.commands.opening import Target

    _print(run(Target(model, store, extractor)), json_, partial(categories_table, everything=everything))


@app.command(cls=_Command)
def explain(
    model: Model,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A taught category.")],
    top: Annotated[int, typer.Option(metavar="N", min=1, help="How many categories to show.")] = 5,
    store: Store = None,
    extractor: Extractor = None,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Show which base categories a taught one is built from."""
    from recollect.commands.explain import explain as run
    from recollect.commands.explain import explain_table
    from recollect.commands.opening import Target

    _print(run(Target(model, store, extractor, device, threads), name, top), json_, explain_table)


@app.command(cls=_Command)
def predict(
    model: Model,
    pictures: Pictures,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="How many answers for each picture.")] = 5,
    among: Annotated[
        Literal["all", "base", "novel"], typer.Option(help="Which categories to choose from.")
    ] = "all",
    sheet: Annotated[
        Path | None,
        typer.Option(
            metavar="PNG", callback=_png, help="Draw the pictures with their answers to this PNG file."
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", callback=_writable, help="Write the answers to this CSV file, a row a picture."
        ),
    ] = None,
    recursive: Recursive = False,
    skip_bad: SkipBad = False,
    no_unknown: Annotated[
        bool, typer.Option("--no-unknown", metavar=_FLAG, help="Always name a known category.")
    ] = False,
    store: Store = None,
    extractor: Extractor = None,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Name what pictures show."""
    from recollect.commands.opening import Target
    from recollect.commands.predict import predict as run
    from recollect.commands.predict import predict_table, write_csv

    target = Target(model, store, extractor, device, threads)
    report, shown = run(
        target, pictures, top, among, unknown=not no_unknown, recursive=recursive, skip_bad=skip_bad
    )
    _print(report, json_, predict_table)
    if csv is not None:
        write_csv(csv, report)
    if sheet is not None:
        from recollect.commands.sheet import write_sheet

        write_sheet(sheet, report, shown)


@app.command(cls=_Command)
def features(
    model: Model,
    pictures: Pictures,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            callback=_with_suffix(".npz", ".csv"),
            help="The .npz or .csv file to write.",
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
    from recollect.commands.features import features as run
    from recollect.commands.features import features_text
    from recollect.commands.opening import Target

    target = Target(model, "memory:", extractor, device, threads)
    _print(run(target, pictures, out, recursive=recursive, skip_bad=skip_bad), json_, features_text)


@store_app.command("copy", cls=_Command)
def store_copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A store, such as runs/zoo/taught.sqlite.")],
    to: Annotated[str, typer.Argument(metavar="TO", help="The file to write; it must not exist.")],
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Copy a store, also while it is in use. Copying the file alone may leave the latest changes behind."""
    from recollect.commands.store import copy, copy_text

    _print(copy(source, to), json_, copy_text)


@app.command(cls=_Command)
def reproduce(
    what: Annotated[
        Literal["table1", "table2", "figure-tsne"],
        typer.Argument(metavar="TABLE", help="What to reproduce: table1, table2 or figure-tsne."),
    ],
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="glyphs, or cifar-fs:PATH, mini-imagenet:PATH, omniglot:PATH."),
    ],
    minutes: Annotated[
        float | None, typer.Option(metavar="N", help="Fit all trainings into so many minutes.")
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="Trainings of every row.")] = 1,
    out: Annotated[
        Path, typer.Option(help="Folder for runs, results and page; what is finished there is kept.")
    ] = Path("reproduced"),
    preset: Annotated[str | None, typer.Option(metavar="NAME", help="The recipe of all trainings.")] = None,
    tasks: Annotated[
        int | None, typer.Option(metavar="N", min=2, help="How many tasks (table1: 2000, table2: 600).")
    ] = None,
    queries: Queries = None,
    settings: Settings = None,
    json_: Json = False,
    _quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Reproduce a table or figure of the paper: train, measure, write a page. Resumes where it stopped."""
    from recollect.commands.reproduce import reproduce as run

    made = run(
        what,
        data,
        out,
        settings or [],
        minutes=minutes,
        seeds=seeds,
        preset=preset,
        tasks=tasks,
        queries=queries,
    )
    _print(made, json_, lambda result: str(result["made"]))


if __name__ == "__main__":
    main()
