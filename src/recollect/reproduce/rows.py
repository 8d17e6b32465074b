"""The rows of the paper's tables 1 and 2: what each trains, and the numbers that the paper has for it."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from recollect.data.splits import Part
from recollect.methods.logistic import EACH

SHOTS = (1, 5)
TASK_SEED = 1  # models are selected by tasks of seed 0
Settings = dict[str, str]  # as for --set
Published = tuple[str, str, str]  # Novel, Base, Both in percent
PAPER_IMAGES = 60 * 1000 * 256  # that the paper's stage 1 sees


@dataclass(frozen=True)
class Row:
    """One system of a table."""

    key: str
    title: str
    settings: Settings
    stage1: str | None = None  # the row whose stage 1 it takes over
    each_shots: bool = False  # trained for every number of shots apart
    paper: dict[int, Published] = field(default_factory=dict)  # by number of shots
    rerun: dict[int, Published] = field(default_factory=dict)  # of the authors, with their published code
    cifar_fs: dict[int, str] = field(default_factory=dict)  # Novel on CIFAR-FS, by Bertinetto et al.
    note: str = ""  # what a reader must know of this row

    @property
    def method(self) -> str | None:
        """Return the method of a row that is not of the paper's model."""
        return self.settings.get("method")


class Training(NamedTuple):
    """One training of a row: its number of shots, where each has its own, and its seed."""

    row: Row
    shots: int | None
    seed: int

    @property
    def name(self) -> str:
        """Return the name of the run folder and of the result file."""
        return name_of(self.row.key, self.shots, self.seed)

    @property
    def stage1(self) -> str | None:
        """Return the name of the run whose stage 1 is taken over."""
        return None if self.row.stage1 is None else name_of(self.row.stage1, None, self.seed)

    @property
    def evaluated(self) -> tuple[int, ...]:
        """Return the numbers of shots that it is evaluated at."""
        return SHOTS if self.shots is None else (self.shots,)

    @property
    def kind(self) -> str:
        """Return what takes the time: trainings of a kind take about the same."""
        if self.row.stage1 is None:
            return "extractor"
        return "generator" if self.row.each_shots else "features"

    @property
    def cost(self) -> str:
        """Return the same word for trainings that take about as long."""
        extractor = self.row.settings.get("extractor", "")
        own = f" {self.row.method} {self.shots}" if self.row.method and extractor else ""
        return f"{self.kind} {extractor}{own}"


def name_of(key: str, shots: int | None, seed: int) -> str:
    """Return the name of a run folder or of a result file."""
    return key + ("" if shots is None else f"-{shots}-shot") + ("" if seed == 0 else f"-seed-{seed}")


@dataclass(frozen=True)
class Table:
    """Rows that are measured on the same tasks."""

    name: str
    title: str
    part: Part  # whose categories are the novel ones
    tasks: int
    rows: tuple[Row, ...]
    settings: Settings  # of every training
    notes: str = ""  # what a reader must know of the rows
    left_out: frozenset[str] = frozenset()  # rows that are there only where they are asked for

    @property
    def decided(self) -> set[str]:
        """Return the settings that the rows decide, which nobody else may."""
        own = {key for row in self.rows for key in row.settings}
        return {"data", "seed", "shots", "minutes", "method", "stage1_from", *self.settings, *own}

    @property
    def usual(self) -> tuple[str, ...]:
        """Return the keys of the rows that are there without asking."""
        return tuple(row.key for row in self.rows if row.key not in self.left_out)

    @property
    def extractors(self) -> tuple[str, ...]:
        """Return the keys of the rows that have an extractor of their own and the paper's method."""
        return tuple(row.key for row in self.rows if "extractor" in row.settings and not row.method)

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the keys of the rows of other methods, where they have an extractor of their own."""
        return tuple(row.key for row in self.rows if "extractor" in row.settings and row.method)

    def only(self, keys: Collection[str]) -> "Table":
        """Return the table with some of its rows."""
        return replace(self, rows=tuple(row for row in self.rows if row.key in keys))

    def trainings(self, seeds: int) -> Iterator[Training]:
        """Yield every training: each stage 1 and what stands on it together, the largest such group first."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.stage1 or row.key, []).append(row)
        for seed in range(seeds):
            for group in sorted(groups.values(), key=len, reverse=True):
                for row in group:
                    for shots in SHOTS if row.each_shots else (None,):
                        yield Training(row, shots, seed)


def _published(five: str, one: str) -> dict[int, Published]:
    def parts(text: str) -> Published:
        novel, base, both = text.split(" / ")
        return novel, base, both

    return {5: parts(five), 1: parts(one)}


def _generators(
    key: str, title: str, settings: Settings, *paper: dict[int, Published], relu: str = ""
) -> tuple[Row, ...]:
    """Return a classifier's rows: plain means, then both generators on the same stage 1."""
    first = Row(f"{key}-mean", f"{title}, mean{relu}", {**settings, "generator": "mean"}, paper=paper[0])
    others = [
        Row(
            f"{key}-{kind}", f"{title}, {kind}{relu}", {**settings, "generator": kind}, first.key, True, known
        )
        for kind, known in zip(("average", "attention"), paper[1:], strict=True)
    ]
    return first, *others


_COSINE = {"classifier": "cosine", "last_relu": "false"}
TABLE_1 = Table(
    "table1",
    "Table 1",
    "val",
    2000,
    (
        Row(
            "matching",
            "Matching Networks",
            {"method": "matching"},
            each_shots=True,
            paper=_published("68.87 / – / –", "55.53 / – / –"),
        ),
        Row(
            "prototypical",
            "Prototypical Networks",
            {"method": "prototypical", "episodic.ways": "20", "episodic.episodes": "2"},
            each_shots=True,
            paper=_published("72.67 / 62.10 / 32.70", "54.44 / 52.35 / 26.68"),
        ),
        *_generators(
            "cosine",
            "cosine",
            _COSINE,
            _published("72.83 / 70.68 / 51.89", "54.55 / 70.68 / 39.17"),
            _published("74.66 / 70.92 / 60.26", "55.33 / 70.45 / 48.56"),
            _published("74.92 / 70.88 / 60.50", "58.55 / 70.73 / 50.50"),
        ),
        *_generators(
            "dot",
            "dot product",
            {"classifier": "dot", "last_relu": "true"},
            _published("64.58 / 63.59 / 31.80", "46.09 / 63.59 / 24.76"),
            _published("60.30 / 62.15 / 46.41", "44.31 / 61.99 / 39.05"),
            _published("67.81 / 62.11 / 48.70", "53.88 / 62.28 / 42.41"),
        ),
        *_generators(
            "relu",
            "cosine + ReLU",
            {"classifier": "cosine", "last_relu": "true"},
            _published("71.04 / 72.51 / 58.16", "52.91 / 72.51 / 43.17"),
            _published("71.30 / 72.47 / 59.33", "53.19 / 71.70 / 49.53"),
            _published("73.03 / 72.26 / 61.05", "56.09 / 72.34 / 51.25"),
        ),
        *(
            Row(key, title, {**_COSINE, "method": key}, "cosine-mean")
            for key, title in (
                ("nearest-mean", "nearest class mean"),
                ("imprinting", "weight imprinting"),
                ("logistic-novel", "logistic regression, novel"),
                ("logistic", "logistic regression, base + novel"),
            )
        ),
    ),
    {"select": "novel", "stage2.learn_base": "true"},  # as in the paper, whatever the preset
    "Generators, Matching and Prototypical Networks were trained separately for 1 and for 5 shots, as in the "
    "paper. Models were selected by Novel on other tasks of validation categories. "
    "Prototypical Networks learn from episodes of 20 ways, which suits them better than the paper's 5 (Snell "
    "et al.). Weight imprinting without fine-tuning is the same computation as cosine with plain means. "
    "Logistic regression has C = 1; over base and novel categories together it sees "
    f"{EACH} training pictures of each base category, and all categories weigh the same.",
)


_OURS = (
    "Cosine classifier and attention generator. One model answers for every number of shots; the paper "
    "trains one for each."
)


def _extractor(name: str, paper: dict[int, Published], rerun: dict[int, Published]) -> Row:
    settings = {**_COSINE, "extractor": name, "generator": "attention", "shots": "mixed"}
    return Row(name, name, settings, paper=paper, rerun=rerun, note=_OURS)


def _method(
    key: str,
    title: str,
    paper: dict[int, Published],
    note: str = "",
    cifar_fs: dict[int, str] | None = None,
) -> Row:
    settings = {"method": key, "extractor": "c32f"}
    elsewhere = cifar_fs or {}
    return Row(key, f"{title}, c32f", settings, each_shots=True, paper=paper, cifar_fs=elsewhere, note=note)


_TOGETHER = (
    "MAML and its variants normalise the queries of a task by the statistics of all of them together, as the "
    "published code does: a query's answer depends on the others."
)
_OTHERS = (
    _method("matching", "Matching Networks", _published("55.30 / – / –", "43.60 / – / –")),
    _method(
        "prototypical",
        "Prototypical Networks",
        _published("68.20 / – / –", "49.42 / – / –"),
        cifar_fs={1: "55.5", 5: "72.0"},
    ),
    _method(
        "maml",
        "MAML",
        _published("63.10 / – / –", "48.70 / – / –"),
        _TOGETHER,
        cifar_fs={1: "58.9", 5: "71.5"},
    ),
    _method("fomaml", "First-order MAML", {}, _TOGETHER),
    _method("anil", "ANIL", {}, _TOGETHER),
    _method("maml-started", "MAML from a trained classifier", {}, _TOGETHER),
    _method("meta-lstm", "Meta-LSTM", _published("60.20 / – / –", "43.40 / – / –")),
    _method(
        "temporal",
        "Temporal convolutions",
        _published("68.88 / – / –", "55.71 / – / –"),
        "The paper's figures of temporal convolutions (Mishra et al.) are with ResNet.",
    ),
)
TABLE_2 = Table(
    "table2",
    "Table 2",
    "test",
    600,
    (
        _extractor(
            "c32f",
            _published("70.27 / 61.08 / 52.45", "54.33 / 61.09 / 43.05"),
            _published("70.12 / 60.83 / 53.22", "54.49 / 61.59 / 44.79"),
        ),
        _extractor(
            "c64f",
            _published("72.81 / 68.13 / 57.72", "56.20 / 68.08 / 48.09"),
            _published("72.49 / 67.64 / 57.21", "55.86 / 68.43 / 47.75"),
        ),
        _extractor(
            "c128f",
            _published("73.00 / 70.90 / 59.35", "55.95 / 70.72 / 49.08"),
            _published("72.82 / 71.00 / 59.05", "56.62 / 70.80 / 49.44"),
        ),
        _extractor(
            "resnet",
            _published("70.13 / 80.16 / 56.04", "55.45 / 80.24 / 51.23"),
            _published("70.64 / 79.56 / 59.48", "56.21 / 79.79 / 52.81"),
        ),
        *_OTHERS,
    ),
    {},
    left_out=frozenset({"resnet", *(row.key for row in _OTHERS)}),
)
TABLES = {table.name: table for table in (TABLE_1, TABLE_2)}
