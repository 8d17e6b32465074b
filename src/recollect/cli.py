"""The command line: parses, calls, prints. Heavy imports stand in the commands that need them."""

import logging
import os
import shlex
import sys
import warnings
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from recollect.errors import RecollectError, Stopped, one_line


def _show_version(asked: bool) -> None:
    if asked:
        import recollect

        typer.echo(recollect.__version__)
        raise typer.Exit


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Learn image categories from many pictures, then add new ones from one to five, without forgetting.",
)

plot_app = typer.Typer(help="Draw what a model has learned.")
app.add_typer(plot_app, name="plot")


def _png(path: Path | None) -> Path | None:
    if path is not None and path.suffix.lower() != ".png":
        raise typer.BadParameter(f"{path}: a PNG file is drawn, such as {path.with_suffix('.png')}")
    return path


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
]
CacheGb = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Keep decoded pictures up to so many GB (16): larger sets are decoded on the fly, and refused "
        "where that cannot be, as in pickles.",
    ),
]
ModelPath = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A model file, a run folder, or imagenet, which comes ready.")
]
OwnExtractor = Annotated[
    str | None,
    typer.Option(
        "--extractor",
        metavar="MODULE",
        help="The module:package.module:callable of a model whose extractor is your own code.",
    ),
]
StoreUrl = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Where taught categories are kept (MODEL's taught.sqlite)."),
]


class Classifier(StrEnum):
    """Classifiers by name."""

    COSINE = "cosine"
    DOT = "dot"


class GeneratorName(StrEnum):
    """Generators by name."""

    ATTENTION = "attention"
    AVERAGE = "average"
    MEAN = "mean"


class Part(StrEnum):
    """Which reserved categories tasks are drawn from."""

    VAL = "val"
    TEST = "test"


class Among(StrEnum):
    """Which categories an answer is chosen from."""

    ALL = "all"
    BASE = "base"
    NOVEL = "novel"


class Reproduced(StrEnum):
    """What of the paper can be reproduced."""

    TABLE_1 = "table1"
    TABLE_2 = "table2"
    FIGURE = "figure-tsne"


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
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        # typer's own errors for a wrong call; which module they come from depends on its version.
        if not hasattr(error, "format_message"):
            raise
        message = one_line(" ".join(error.format_message().split()))  # which is wrapped to several lines
        _end(f"{message} (recollect {' '.join(sys.argv[1:2])} --help tells more)", 2)
    sys.exit(code if isinstance(code, int) else 0)


def _end(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"recollect: {message}\n")
    sys.exit(code)


def _set_quiet(quiet: bool) -> None:
    if quiet:
        from recollect.system import progress

        progress.be_quiet()


def _print(result: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], Any]) -> None:
    from recollect.commands.printing import print_result

    print_result(result, as_json, show)


@app.callback()
def recollect(_version: Version = False) -> None:
    """Learn image categories from many pictures, then add new ones from one to five, without forgetting."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the model, the pictures and the report.")] = Path(
        "demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    json_: Json = False,
    quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Train on built-in characters, add new ones from one picture each, and show what happened."""
    _set_quiet(quiet)
    from recollect.commands.demo import demo_text, run_demo

    _print(run_demo(out, seed), json_, demo_text)


@app.command()
def train(
    data: Annotated[
        str | None,
        typer.Argument(
            help="A folder of categories, glyphs, or cifar-fs:PATH, mini-imagenet:PATH, omniglot:PATH, "
            "imagenet:PATH."
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="A recipe, such as paper or cifar-fs-c64f; options win over it.")
    ] = None,
    extractor: Annotated[
        str | None,
        typer.Option(
            help="c32f, c64f, c128f, resnet, resnet10; with weights learned on ImageNet: efficientnet-lite0, "
            "-lite1, -lite2; or your own: module:package.module:callable."
        ),
    ] = None,
    finetune: Annotated[
        bool | None, typer.Option("--finetune", help="Train an extractor that brings weights along, too.")
    ] = None,
    classifier: Annotated[Classifier | None, typer.Option(help="How scores are computed.")] = None,
    generator: Annotated[
        GeneratorName | None, typer.Option(help="How novel categories' vectors are made.")
    ] = None,
    last_relu: Annotated[
        bool | None, typer.Option("--last-relu", help="Keep the extractor's last ReLU.")
    ] = None,
    shots: Annotated[
        str | None, typer.Option(help="'mixed', or the one number of shots to train for.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The run's folder.")] = Path("runs/model"),
    minutes: Annotated[
        float | None, typer.Option(help="Fit the number of steps into so many minutes.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of all random numbers.")] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|SEED",
            help="Keep categories of a folder or of ImageNet from training, for evaluate: a JSON file "
            'such as {"val": ["okapi"], "test": ["tapir"]}, or a number that draws 16 % and 20 % of them.',
        ),
    ] = None,
    size: Annotated[int | None, typer.Option(help="Height and width of the pictures, in pixels.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads on the CPU.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting, such as stage1.passes=10; wins over options."),
    ] = None,
    skip_bad: Annotated[
        bool | None, typer.Option("--skip-bad", help="Leave out pictures that do not decode, and say so.")
    ] = None,
    cache_gb: CacheGb = None,
    json_: Json = False,
    quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Train a recogniser on the categories of DATA."""
    _set_quiet(quiet)
    from recollect.data.splits import inline_split
    from recollect.methods import find_method
    from recollect.model.spec import is_own_code
    from recollect.training.config import default_preset, make_config, read_preset
    from recollect.training.runfolder import RunFolder

    options = {
        "data": data, "extractor": extractor, "finetune": finetune, "classifier": classifier,
        "generator": generator, "last_relu": last_relu, "shots": _shots(shots), "minutes": minutes,
        "seed": seed, "split": split, "size": size, "device": device, "threads": threads,
        "skip_bad": skip_bad, "cache_gb": cache_gb, "preset": preset,
    }  # fmt: skip
    changes = _settings(settings or [])
    if resume:
        start = RunFolder(out).config(extractor).model_dump()
        options["split"] = inline_split(split)  # as a run keeps it
        options["device"] = None if device == "auto" else device
    elif data is None:
        raise RecollectError("DATA is missing: a folder of categories, glyphs, or such as cifar-fs:PATH")
    else:
        named = {key: text for key, text in changes.items() if key in {"extractor", "finetune"}}
        asked = make_config({}, {"data": data, "extractor": extractor, "finetune": finetune}, named)
        name = preset or default_preset(data, asked.extractor, finetune=asked.finetune)
        start = read_preset(name) if name else {}
    config = make_config(start, options, changes)
    try:
        find_method(config.method).train(config, out, resume=resume)
    except Stopped as reason:
        words = ["recollect", "train", "--resume", "--out", str(out)]
        words += ["--extractor", config.extractor] if is_own_code(config.extractor) else []
        usable = f"; {out} holds a usable model" if RunFolder(out).model.exists() else ""
        raise Stopped(f"{reason}{usable}. Go on with: {shlex.join(words)}") from reason
    # A run that took stage 1 over and has no stage 2 judged nothing itself.
    validation = RunFolder(out).validation(1, 2)
    result = {"run": str(out), "model": str(out / "model.safetensors"), "validation": validation}
    _print(result, json_, _training_text)


@app.command()
def evaluate(
    model: ModelPath,
    data: Annotated[str, typer.Argument(help="The data the model was trained on.")],
    categories: Annotated[Part, typer.Option(help="Which reserved categories play novel.")] = Part.TEST,
    shots: Annotated[str, typer.Option(help="Numbers of shots, with commas.")] = "1,5",
    ways: Annotated[int, typer.Option(min=1, help="Novel categories in a task.")] = 5,
    queries: Annotated[
        int | None, typer.Option(min=1, help="Queries of each novel category (15; omniglot: 10).")
    ] = None,
    tasks: Annotated[int, typer.Option(min=1, help="How many tasks.")] = 600,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the tasks.")] = 0,
    cache_gb: CacheGb = None,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(callback=_png, help="Draw base against novel accuracy to this PNG file."),
    ] = None,
    extractor: OwnExtractor = None,
    json_: Json = False,
    quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Measure a model on few-shot tasks: novel, base and joint accuracy, each with its interval."""
    _set_quiet(quiet)
    from recollect.commands.printing import json_text
    from recollect.evaluation.evaluate import evaluation_report
    from recollect.evaluation.report import evaluation_table
    from recollect.methods import find_method
    from recollect.modelfile import read_header
    from recollect.system import machine
    from recollect.system.disk import write_text

    method = find_method(read_header(model).method)
    if plot is not None and not method.joint:
        raise RecollectError(f"--plot: {method.title} do not score base categories, so there is no curve")
    machine.prepare()
    kept: dict[int, Any] | None = None if plot is None else {}
    report = evaluation_report(
        model,
        data,
        part=categories.value,
        shots=_numbers(shots),
        ways=ways,
        queries=queries,
        tasks=tasks,
        seed=seed,
        cache_gb=cache_gb,
        extractor=extractor,
        keep=kept,
        by=method,
    )
    _print(report, json_, evaluation_table)
    if out is not None:
        write_text(out, json_text(report))
    if plot is not None and kept is not None:
        from recollect.evaluation.curves import joint_figure
        from recollect.evaluation.plots import save_figure

        save_figure(joint_figure(report, kept), plot)


@plot_app.command()
def tsne(
    model: ModelPath,
    data: Annotated[str, typer.Argument(help="The data the model was trained on.")],
    out: Annotated[Path, typer.Option("--out", "-o", callback=_png, help="The PNG file to draw.")],
    categories: Annotated[Part, typer.Option(help="Which reserved categories are shown.")] = Part.TEST,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Seed of the pictures drawn and of t-SNE.")
    ] = 0,
    cache_gb: CacheGb = None,
    extractor: OwnExtractor = None,
    json_: Json = False,
    quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Draw features of categories unseen in training on a plane, one colour each (t-SNE)."""
    _set_quiet(quiet)
    from recollect.evaluation.report import tsne_text
    from recollect.evaluation.tsne import tsne_report
    from recollect.system import machine

    machine.prepare()
    report = tsne_report(
        model, data, out, part=categories.value, seed=seed, cache_gb=cache_gb, extractor=extractor
    )
    _print(report, json_, tsne_text)


@app.command()
def check(
    model: ModelPath,
    folder: Annotated[Path, typer.Argument(help="A folder of pictures, one sub-folder for each category.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", callback=_png, help="Draw what is taken for what to this PNG file."),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out pictures that do not decode, and say so.")
    ] = False,
    store: StoreUrl = None,
    extractor: OwnExtractor = None,
    json_: Json = False,
    quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Measure a model on your own labelled pictures: the accuracy for each category."""
    _set_quiet(quiet)
    from recollect.commands.check import check_folder, check_table
    from recollect.system import machine

    machine.prepare()
    report, confusion = check_folder(model, folder, store, skip_bad=skip_bad, extractor=extractor)
    _print(report, json_, check_table)
    if out is not None:
        from recollect.evaluation.confusion import confusion_figure
        from recollect.evaluation.plots import save_figure

        save_figure(confusion_figure(confusion), out)


@app.command()
def info(
    model: ModelPath,
    json_: Json = False,
    quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Say what a model file is and where it comes from."""
    _set_quiet(quiet)
    from recollect.commands.info import info_table, model_info

    _print(model_info(model), json_, info_table)


@app.command()
def new(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder or .safetensors file to write.")],
    extractor: Annotated[
        str,
        typer.Option(
            help="efficientnet-lite0, -lite1 or -lite2, with weights learned on ImageNet; or your own: "
            "module:package.module:callable."
        ),
    ],
    size: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Height and width of the pictures, in pixels.")
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Make a recogniser that knows no category yet; teach it everything."""
    _set_quiet(quiet)
    from recollect.commands.new import new_recogniser, new_text

    _print(new_recogniser(extractor, out, size), json_, new_text)


@app.command()
def refit(
    model: ModelPath,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder or .safetensors file to write.")],
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of all random numbers.")] = 0,
    store: StoreUrl = None,
    extractor: OwnExtractor = None,
    json_: Json = False,
    quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Make base categories of taught ones with enough examples, in a new model; MODEL stays as it is."""
    _set_quiet(quiet)
    from recollect.commands.refit import refit as run_refit
    from recollect.commands.refit import refit_text
    from recollect.system import machine

    machine.prepare()
    _print(run_refit(model, out, store, seed=seed, extractor=extractor), json_, refit_text)


@app.command()
def teach(
    model: ModelPath,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="What the pictures show.")] = None,
    pictures: Annotated[
        list[Path] | None, typer.Argument(metavar="PICTURE", help="Pictures, or a folder of them.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--from", metavar="FOLDER", help="Teach each sub-folder as a category.")
    ] = None,
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails", help="Keep a small copy of each picture in the store.")
    ] = False,
    store: StoreUrl = None,
    extractor: OwnExtractor = None,
    json_: Json = False,
    quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Add a category from one or a few pictures, or more pictures to one taught before."""
    _set_quiet(quiet)
    if (name is None) == (folder is None) or (folder is None and not pictures):
        raise RecollectError("NAME and at least one PICTURE are expected, or --from FOLDER alone")
    from recollect.commands import teach as teaching

    chosen = teaching.lessons_in(folder) if folder else {str(name): teaching.pictures_of(pictures or [])}
    result = teaching.teach(model, chosen, store, thumbnails=thumbnails, extractor=extractor)
    _print(result, json_, teaching.teaching_text)


@app.command()
def forget(
    model: ModelPath,
    name: Annotated[str, typer.Argument(help="A taught category.")],
    store: StoreUrl = None,
    extractor: OwnExtractor = None,
    json_: Json = False,
    quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Remove a taught category."""
    _set_quiet(quiet)
    from recollect.commands import teach as teaching

    _print(teaching.forget(model, name, store, extractor), json_, teaching.forgetting_text)


@app.command()
def rename(
    model: ModelPath,
    old: Annotated[str, typer.Argument(help="A taught category.")],
    new: Annotated[str, typer.Argument(help="Its new name.")],
    store: StoreUrl = None,
    extractor: OwnExtractor = None,
    json_: Json = False,
    quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Give a taught category another name."""
    _set_quiet(quiet)
    from recollect.commands import teach as teaching

    _print(teaching.rename(model, old, new, store, extractor), json_, teaching.renaming_text)


@app.command()
def categories(
    model: ModelPath,
    everything: Annotated[bool, typer.Option("--all", help="Show every base category.")] = False,
    store: StoreUrl = None,
    extractor: OwnExtractor = None,
    json_: Json = False,
    quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """List what a model knows: taught categories, then base ones."""
    _set_quiet(quiet)
    from recollect.commands import teach as teaching

    with teaching.reading(model, store, extractor) as recognizer:
        report = teaching.categories_report(model, recognizer)
    _print(report, json_, partial(teaching.categories_table, everything=everything))


@app.command()
def predict(
    model: ModelPath,
    pictures: Annotated[list[Path], typer.Argument(metavar="PICTURE", help="Pictures, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="How many answers for each picture.")] = 5,
    among: Annotated[Among, typer.Option(help="Which categories to choose from.")] = Among.ALL,
    sheet: Annotated[
        Path | None, typer.Option(callback=_png, help="Draw the pictures with their answers to this PNG.")
    ] = None,
    no_unknown: Annotated[
        bool, typer.Option("--no-unknown", help="Take every picture to show a category that is known.")
    ] = False,
    store: StoreUrl = None,
    extractor: OwnExtractor = None,
    json_: Json = False,
    quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Say what pictures show."""
    _set_quiet(quiet)
    from recollect.commands import predict as predicting
    from recollect.commands import teach as teaching

    chosen = teaching.pictures_of(pictures)
    with teaching.reading(model, store, extractor) as recognizer:
        report = predicting.predict_report(
            recognizer, model, chosen, top, among.value, unknown=not no_unknown
        )
    _print(report, json_, predicting.predict_table)
    if sheet is not None:
        from recollect.commands.sheet import write_sheet

        write_sheet(sheet, report, chosen)


@app.command()
def reproduce(
    what: Annotated[Reproduced, typer.Argument(help="Which of the paper's tables and figures.")],
    data: Annotated[str, typer.Argument(help="glyphs, or cifar-fs:PATH, mini-imagenet:PATH, omniglot:PATH.")],
    minutes: Annotated[float | None, typer.Option(help="Fit all trainings into so many minutes.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of every row.")] = 1,
    out: Annotated[
        Path, typer.Option(help="Folder for runs, results and page; what is finished there is kept.")
    ] = Path("reproduced"),
    preset: Annotated[str | None, typer.Option(help="The recipe of all trainings.")] = None,
    tasks: Annotated[
        int | None, typer.Option(min=2, help="How many tasks (table1: 2000, table2: 600).")
    ] = None,
    queries: Annotated[
        int | None, typer.Option(min=1, help="Queries of each novel category (15; omniglot: 10).")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting of all trainings, such as stage1.steps=99.")
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
    _version: Version = False,
) -> None:
    """Train, measure and compare what the paper does, and write a page; goes on where it was stopped."""
    _set_quiet(quiet)
    from recollect.reproduce.run import reproduce as run_table
    from recollect.reproduce.run import reproduce_figure

    def say(line: str) -> None:
        if not quiet:
            typer.echo(line, err=True)

    wishes: dict[str, Any] = {
        "minutes": minutes, "seeds": seeds, "preset": preset, "tasks": tasks, "queries": queries,
        "settings": _settings(settings or []),
    }  # fmt: skip
    try:
        if what == Reproduced.FIGURE:
            made = reproduce_figure(data, out, say, **wishes)
        else:
            made = run_table(what.value, data, out, say, **wishes)
    except Stopped as reason:
        raise Stopped(f"{reason}; the same command goes on with it") from reason
    _print({"made": str(made), "folder": str(out)}, json_, lambda result: str(result["made"]))


def _training_text(result: dict[str, Any]) -> str:
    figures = ", ".join(f"{name.capitalize()} {value:.1f} %" for name, value in result["validation"].items())
    return f"{result['model']}\nOn validation tasks: {figures}" if figures else str(result["model"])


def _shots(text: str | None) -> str | int | None:
    return int(text) if text is not None and text.isdecimal() else text


def _settings(pairs: list[str]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise RecollectError(f"--set {pair}: key=value is expected, such as stage1.passes=10")
        settings[key.strip()] = value.strip()
    return settings


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise RecollectError(
            f"--shots {text}: numbers from 1 up with commas between are expected, such as 1,5"
        )
    return numbers


if __name__ == "__main__":
    main()
