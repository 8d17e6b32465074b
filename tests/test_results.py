"""Every figure on photographs in the documentation was written by a benchmark."""

import json
from pathlib import Path

import pytest

from recollect.commands.train import train_text

RESULTS = Path(__file__).parents[1] / "docs" / "results"
PAGE = (RESULTS / "README.md").read_text(encoding="utf-8")
README = (RESULTS.parents[1] / "README.md").read_text(encoding="utf-8")
FIGURES = ("novel", "base", "both", "novel_5", "both_5")


def read(name):
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def cell(value):
    return f"{value['mean']:.1f} ± {value['ci95']:.1f}"


def signed(value):
    return f"{value['mean']:+.1f} ± {value['ci95']:.1f}"


def line(name, found, figures):
    """Return a row of a table: 1 / 5 shots, or one figure where both are the same."""
    cells = [" / ".join(dict.fromkeys(cell(found[shots][figure]) for shots in (1, 5))) for figure in figures]
    return f"| {name} | {' | '.join(cells)} |"


def systems(file):
    """Return the summary over splits by system: its name in the tables, and its figures by shots."""
    found = {}
    for row in read(file)["summary"]:
        name = row["generator"] + (", with the bias" if row["bias"] else "")
        found.setdefault(name, {})[row["shots"]] = row
    return found


def test_the_splits_are_those_of_the_benchmark():
    assert len(read("photographs-splits.json")["splits"]) >= 10
    for name, found in systems("photographs-splits.json").items():
        assert line(name, found, FIGURES) in PAGE


def test_the_systems_in_the_readme_are_those_of_the_benchmark():
    found = systems("photographs-splits.json")
    for name in ("mean, with the bias", "average, with the bias", "attention, with the bias"):
        assert line(name.removesuffix(", with the bias"), found[name], FIGURES[:3]) in README
    assert line("logistic regression on everything", found["logistic regression"], FIGURES[:3]) in README


def ridge_systems():
    found = {}
    for row in read("photographs-ridge.json")["summary"]:
        name = row["generator"] + (", with the bias" if row["bias"] else "")
        found.setdefault(f"{name}, {row['learned']} photographs", {})[row["shots"]] = row
    return found


def test_ridge_is_compared_with_logistic_regression_as_measured():
    assert len(read("photographs-ridge.json")["splits"]) >= 10
    found = ridge_systems()
    for name, rows in found.items():
        assert line(name, rows, FIGURES) in PAGE
    assert line("ridge", found["ridge, with the bias, 8 photographs"], FIGURES[:3]) in README
    for learned in (8, 10):
        ridge, other = (
            found[f"{name}, {learned} photographs"]
            for name in ("ridge, with the bias", "logistic regression")
        )
        assert ridge[1]["both"]["mean"] >= other[1]["both"]["mean"] + 5
        assert ridge[5]["both"]["mean"] >= other[5]["both"]["mean"]


def test_training_on_a_frozen_extractor_is_no_worse_than_logistic_regression():
    found = read("photographs-frozen.json")
    assert len(found["draws"]) >= 10
    names = [name for name in found["summary"] if not name.startswith("ridge minus")]
    for name in names:
        assert f"| {name} | {cell(found['summary'][name])} |" in PAGE
    over = found["summary"]["ridge minus logistic regression"]
    assert f"`ridge` is {over['mean']:.1f} ± {over['ci95']:.1f} points above the best of them" in PAGE
    assert found["summary"]["ridge"]["mean"] == max(found["summary"][name]["mean"] for name in names)


def test_generators_keep_base_accuracy():
    for found in systems("photographs-splits.json").values():
        for shots in (1, 5):
            if found[shots]["generator"] != "logistic regression":  # plain means are stage 1 itself
                assert abs(found[shots]["base_minus_mean"]["mean"]) <= 0.5


@pytest.mark.parametrize(
    "name", ["average", "attention", "average, with the bias", "attention, with the bias"]
)
def test_what_generators_gain_over_plain_means_is_told_as_measured(name):
    found = systems("photographs-splits.json")[name]
    cells = [
        " / ".join(signed(found[shots][f"{figure}_minus_mean"]) for shots in (1, 5))
        for figure in ("novel", "both", "both_5")
    ]
    assert f"| {name} | {' | '.join(cells)} |" in PAGE


def test_what_centring_does_to_photographs_is_that_of_the_benchmark():
    found = systems("photographs-uncentred.json")
    for name in ("mean", "mean, with the bias", "attention, with the bias"):
        assert line(f"{name}, not centred", found[name], FIGURES) in PAGE


def test_the_ready_model_is_described_as_measured():
    found = read("photographs-imagenet.json")
    for name in ("mean", "ridge", "ridge with the bias"):
        rows = {shots: found[f"{name}, {shots} shots"] for shots in (1, 5)}
        assert line(name, rows, ("taught", "base", "calibration_error")) in PAGE
    told = " ".join(PAGE.split())
    assert f"the model gets {found['base_top1']:.1f} % of these 3000 pictures right" in told
    assert f"the network's own classifier gets {found['last_layer_top1']:.1f} % right" in told
    assert f"{found['unknown_before_teaching']:.1f} % of these photographs are called unknown" in told
    assert f"so are {found['known_called_unknown']:.1f} % of ImageNet's pictures" in told
    assert found["base_top1"] >= 78


@pytest.mark.parametrize("name", ["lookalikes.json", "lookalikes-attention.json"])
def test_lookalikes_are_described_as_measured(name):
    for row in read(name)["rows"]:
        mean = {figure: f"{value['mean']:.1f}" for figure, value in row.items() if isinstance(value, dict)}
        kept = [f"{mean[f'{part}_before']} → {mean[f'{part}_after']}" for part in ("near", "others")]
        cells = [str(row["taught"]), str(row["shots"]), mean["own"], mean["own_among_taught"], *kept]
        assert f"| {' | '.join(cells)} |" in PAGE


@pytest.mark.parametrize("name", ["efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2"])
def test_the_networks_are_compared_as_measured(name):
    found = read("photographs-networks.json")[name]
    tasks = [" / ".join(cell(found[f"{ways}-way, {shots} shots"]) for shots in (1, 5)) for ways in (5, 81)]
    times = f"{found['milliseconds']:.1f} | {found['milliseconds_not_folded']:.1f}"
    assert f"| {name} | {found['input']} | {times} | {' | '.join(tasks)} |" in PAGE


def test_the_path_is_timed():
    found = read("photographs-path.json")
    assert found["train, from the zip to a model"] <= 180
    for step, seconds in found.items():
        if step not in {"command", "threads"}:
            assert f"| {step} | {seconds:.1f} |" in PAGE


@pytest.mark.parametrize("name", ["frozen", "finetuned"])
def test_fine_tuning_is_compared_as_measured(name):
    report = read(f"photographs-finetune/{name}.json")
    assert (report["categories"], report["tasks"], report["queries"]) == ("test", 600, 2)
    found = {result["shots"]: result for result in report["results"]}
    provenance = read(f"photographs-finetune/{name}-info.json")["provenance"]
    minutes = (provenance["stage1_seconds"] + provenance["stage2_seconds"]) / 60
    assert f"{line(name, found, ('novel', 'base', 'both'))} {minutes:.1f} |" in PAGE


def test_the_guide_shows_what_its_commands_printed():
    guide = " ".join((RESULTS.parent / "guide.md").read_text(encoding="utf-8").split())
    assert train_text(read("guide/train.json")).splitlines()[1] in guide
    assert "{accuracy:.1f} % of {pictures} photographs".format(**read("guide/check.json")) in guide
    told = (
        "On {held_back} held-out examples of the promoted categories, among all: {before:.1f} % right "
        "before, {after:.1f} % after."
    )
    assert told.format(**read("guide/refit.json")) in guide


def test_centring_the_papers_extractors_is_told_as_measured():
    rows = read("centring.json")["results"]
    for name in dict.fromkeys(row["model"] for row in rows):
        for how, told in (
            ("as_they_are", "not centred"),
            ("centred", "centred"),
            ("difference", "difference"),
        ):
            found = {row["shots"]: row[how] for row in rows if row["model"] == name}
            assert line(f"{name}, {told}", found, ("novel", "base", "both")) in PAGE


RECIPE = (RESULTS / "recipe.md").read_text(encoding="utf-8")


def recipe_row(results):
    """Return the figures of a row: Novel / Base / Both."""
    one, five = results
    novel, both = (f"{cell(one[figure])} / {cell(five[figure])}" for figure in ("novel", "both"))
    return f"| {novel} | {cell(one['base'])} | {both} |"


@pytest.mark.parametrize("path", sorted((RESULTS / "recipe").glob("*.json")), ids=lambda path: path.stem)
def test_the_trials_of_the_recipe_are_those_of_their_files(path):
    found = json.loads(path.read_text(encoding="utf-8"))
    if path.stem.endswith("-teaching"):
        for one, five in zip(found["results"][::2], found["results"][1::2], strict=True):
            assert f"| {one['way']} {recipe_row((one, five))}" in RECIPE
        return
    rows = [row for row in RECIPE.splitlines() if row.startswith("|") and f"`{path.stem}`" in row]
    assert any(row.endswith(recipe_row(found["results"])) for row in rows)
    if "mirrored" in found and len(rows) > 1:
        assert any(row.endswith(recipe_row(found["mirrored"])) for row in rows)


def test_one_generator_is_compared_with_one_for_each_number_of_shots_as_measured():
    found = read("shots.json")
    own, ways = "for these shots", ("mixed", "shot-aware", "shot-aware, 1 to 20")
    for row in found["results"]:
        gaps = [row["differences"][f"{way} − {own}"]["both"] for way in ways]
        gaps += [row["differences"][f"{way} − {own}"]["novel"] for way in ways[:2]]
        cells = [f"{gap['mean']:+.2f} ± {gap['ci95']:.2f}" for gap in gaps]
        assert f"| {row['shots']} | {cell(row[own]['both'])} | {' | '.join(cells)} |" in PAGE
        assert row["shots"] < 5 or gaps[1]["mean"] > gaps[0]["mean"]
    assert f"{found['tasks']} tasks of validation categories" in PAGE
    assert "ρ came out as " + " and ".join(f"{one:.2f}" for one in found["fading"]) in PAGE


def test_the_service_is_as_fast_as_its_page_says():
    found = json.loads((RESULTS / "service.json").read_text(encoding="utf-8"))
    page = " ".join((RESULTS.parent / "service.md").read_text(encoding="utf-8").split())
    ready, small = found["imagenet"], found["small"]
    assert f"takes {ready['extractor_per_second']} pictures a second" in page
    for clients, one in ready["clients"].items():
        row = [clients, one["requests_per_second"], f"{one['ratio']:.2f}"]
        row += [f"{one['median_ms']:.0f} ms", f"{one['p99_ms']:.0f} ms"]
        assert f"| {' | '.join(map(str, row))} |" in page
    spent = {name: value / 1000 for name, value in ready["core_microseconds_at_64_clients"].items()}
    words = {
        "extractor": "the extractor",
        "decoding": "decoding",
        "scores_and_answers": "scores and answers",
        "client": "the client that asks",
        "everything_else": "all the rest",
    }
    parts = [f"{spent[name]:.1f} {text}" for name, text in words.items()]
    told = f"{spent['all']:.1f} ms of core time: {', '.join(parts[:-1])}, and {parts[-1]}"
    assert told in page
    beside = f"{small['request_us'] / 1000:.1f} ms, {small['beside_the_extractor_us'] / 1000:.1f} ms more"
    assert beside in page


def test_the_page_of_scale_shows_what_was_measured():
    from benchmarks.scale import page

    report = read("scale.json")
    assert (RESULTS / "scale.md").read_text(encoding="utf-8") == page(report)
    assert [row["categories"] for row in report["rows"]] == [10**k for k in range(3, 3 + len(report["rows"]))]
    assert all(row["taught_are_found"] for row in report["rows"])
    assert all(row.get("recall", 1) >= 0.99 and row["recall_random"] >= 0.99 for row in report["rows"])


def test_the_speed_of_the_page_is_as_measured():
    found, page = read("page.json"), (RESULTS.parent / "page.md").read_text(encoding="utf-8")
    teach, live = found["teach"], found["live"]
    words = " ".join(page.split())
    assert (
        f"{teach['median_ms']:.0f} ms with `glyphs` (median of {teach['repeats']}; "
        f"{teach['worst_ms']:.0f} ms at worst)" in words
    )
    assert f"{live['answers_per_second']:.1f} answers a second" in words
    assert teach["median_ms"] < 300
    assert teach["requests"] == 2
    assert live["answers_per_second"] >= 5


def test_what_8_bits_cost_was_measured():
    found = read("onnx.json")
    for name, measured in found["cifar-fs"].items():
        for shots, figures in measured["shots"].items():
            cells = " | ".join(cell(figures[figure]) for figure in ("novel", "base", "both"))
            assert f"| {name}, {shots} | {cells} |" in PAGE
        assert f"{measured['extractor_megabytes']:.2f} MB" in PAGE
    for name, right in found["groceries"].items():
        assert f"| {name} | {right['novel']:.1f} | {right['both']:.1f} |" in PAGE
    sizes = [found["groceries"][name]["extractor_megabytes"] for name in ("int8", "float32")]
    assert f"has {sizes[0]:.1f} MB instead of {sizes[1]:.1f} MB" in PAGE
