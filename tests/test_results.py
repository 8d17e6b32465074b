"""Every figure on photographs in the documentation was written by a benchmark."""

import json
from math import log2
from pathlib import Path

import pytest

from recollect.commands.train import train_text
from recollect.methods.lowshot import SYSTEMS
from recollect.reproduce.lowshot.plan import read_plan
from recollect.reproduce.lowshot.results import LowShotResults
from recollect.reproduce.results import Place
from recollect.reproduce.rows import PAPER_IMAGES, TABLE_2

RESULTS = Path(__file__).parents[1] / "docs" / "results"
PAGE = "".join((RESULTS / name).read_text(encoding="utf-8") for name in ("README.md", "photographs.md"))
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


def test_longer_trainings_are_told_as_measured():
    for name, trial in read("longer.json").items():
        one, five = trial["results"][:2]
        novel, ausuc = (f"{cell(one[figure])} / {cell(five[figure])}" for figure in ("novel", "ausuc"))
        cells = f"{trial['learned']:.1f} | {novel} | {cell(one['base'])} | {ausuc}"
        assert f"| `{name}` | {cells} |" in RECIPE


def test_distillation_is_compared_by_ausuc_as_measured():
    told = " ".join(RECIPE.split())
    for name in ("c32f", "c64f"):
        alone, still, taught = (
            " / ".join(f"{one['ausuc']['mean']:.1f}" for one in read(f"recipe/{name}-{run}.json")["results"])
            for run in ("alone", "still", "taught")
        )
        assert f"{alone} and {still}" in told
        assert f"{taught} with the teacher" in told


def test_shifts_on_mini_imagenet_are_told_as_measured():
    rows = read("shifts.json")["results"]
    for one, five in zip(rows[::2], rows[1::2], strict=True):
        name = f"shifted by {one['shifted']} pixels" if one["shifted"] else "not shifted"
        assert f"| {name} {recipe_row((one, five))}" in RECIPE
        if "gained" in one:
            novel, both, ausuc = (
                f"{signed(one['gained'][figure])} / {signed(five['gained'][figure])}"
                for figure in ("novel", "both", "ausuc")
            )
            gained = f"| {novel} | {signed(one['gained']['base'])} | {both} | {ausuc} |"
            assert f"| gained by {one['shifted']} pixels {gained}" in RECIPE


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


def test_the_time_of_the_low_shot_benchmark_is_as_measured():
    average, attention = (read("lowshot.json")["draws"][name] for name in ("average", "attention"))
    words = " ".join(PAGE.split())
    assert (
        f"{average['seconds']:.0f} s with averages and {attention['seconds']:.0f} s with attention" in words
    )
    assert f"takes {average['ratio']:.1f} and {attention['ratio']:.1f} times" in words


def test_stage_2_with_base_vectors_fixed_is_told_as_measured():
    found = read("stage2.json")
    rows = {
        "plain means": ("both", "both_calibrated"),
        "W_base learned": ("both", "both_calibrated"),
        "W_base fixed": ("both", "both_calibrated"),
        "W_base fixed, 1 to 20 shots": ("both", "both_calibrated"),
        "W_base learned, for these shots": ("both", "both_calibrated"),
    }
    for name, figures in rows.items():
        for shots in (1, 5, 20):
            one = next(row for row in found["results"] if row["shots"] == shots)[name]
            cells = [cell(one[figure]) for figure in ("novel", "base", *figures)]
            assert f"| {name} | {shots} | {' | '.join(cells)} |" in RECIPE
    for row in found["results"]:
        cells = []
        for one in ("W_base fixed", "W_base fixed, 1 to 20 shots"):
            gaps = row["differences"][f"{one} − W_base learned, for these shots"]
            cells += [f"{gaps[name]['mean']:+.2f} ± {gaps[name]['ci95']:.2f}" for name in ("novel", "both")]
        assert f"| {row['shots']} | {' | '.join(cells)} |" in RECIPE
    by_shots = {row["shots"]: row["differences"] for row in found["results"]}
    gains = [by_shots[shots]["W_base fixed − W_base learned"]["novel"] for shots in (1, 5)]
    one, five = (f"{gain['mean']:.1f} ± {gain['ci95']:.1f}" for gain in gains)
    told = " ".join(RECIPE.split())
    assert f"by {one} points at one shot and {five} at five" in told
    gains = [row["W_base fixed − W_base learned"]["both"]["mean"] for row in by_shots.values()]
    assert f"Calibrated Both is {min(gains):.1f} to {max(gains):.1f} points higher" in told
    both = [by_shots[shots]["W_base fixed − W_base learned"]["both, both calibrated"] for shots in (1, 5, 20)]
    one, five, twenty = (f"{gain['mean']:.1f}" for gain in both)
    assert f"it is {one} points higher at one shot, {five} at 5 and {twenty} at 20" in told
    ten, twenty = (by_shots[shots] for shots in (10, 20))
    lost = [-row["W_base fixed − W_base learned, for these shots"]["both"]["mean"] for row in (ten, twenty)]
    assert f"still better, by {lost[0]:.1f} and {lost[1]:.1f} points of Both" in told
    wider = {
        shots: row["W_base fixed, 1 to 20 shots − W_base fixed"]["both, both calibrated"]
        for shots, row in by_shots.items()
    }
    first, last = (f"{wider[shots]['mean']:.1f} ± {wider[shots]['ci95']:.1f}" for shots in (10, 20))
    assert f"gains {first} points at 10 shots and {last} at 20, and changes nothing below" in told
    assert all(abs(wider[shots]["mean"]) < wider[shots]["ci95"] for shots in (1, 2, 3, 5))
    for shots in (1, 2, 3, 5):
        gap = by_shots[shots]["W_base fixed − W_base learned, for these shots"]["both"]
        assert gap["mean"] + gap["ci95"] > 0, "up to five shots nothing is left of the gap"


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
    from benchmarks.scale import page, spaced

    from recollect.recognition.many import MOST_EXACT

    report = read("scale.json")
    assert (RESULTS / "scale.md").read_text(encoding="utf-8") == page(report)
    assert [row["categories"] for row in report["rows"]] == [10**k for k in range(3, 3 + len(report["rows"]))]
    assert all(row["taught_are_found"] and row["sqlite"]["taught_are_found"] for row in report["rows"])
    assert report["exact_up_to"] == MOST_EXACT
    assert 0.5 < MOST_EXACT / report["crossed"] < 2
    assert f"Up to {spaced(MOST_EXACT)} taught" in (RESULTS.parent / "scale.md").read_text(encoding="utf-8")
    assert all(row.get("recall", 1) >= 0.99 and row["recall_random"] >= 0.99 for row in report["rows"])


def test_servers_that_die_lose_nothing_as_the_page_of_scale_says():
    found, page = read("postgres.json"), (RESULTS.parent / "scale.md").read_text(encoding="utf-8")
    words = " ".join(page.split())
    assert (found["servers"], found["teaches"], found["server_kills"], found["postgres_kills"]) == (
        4,
        1000,
        10,
        2,
    )
    assert f"{found['confirmed']} of 1000 categories were confirmed, {found['lost']} of them lost" in words
    assert f"{found['made_again']} calls failed and were made again" in words
    assert found["lost"] == 0


def test_two_processes_learn_what_one_does_as_the_page_of_scale_says():
    found, page = read("together.json"), (RESULTS.parent / "scale.md").read_text(encoding="utf-8")
    one, two, _ = found["trainings"]
    for training in found["trainings"]:
        for row in training["results"]:
            cells = [
                f"{row[name]['mean']:.2f} ± {row[name]['ci95']:.2f}" for name in ("novel", "base", "both")
            ]
            cells = [str(training["processes"]), str(training["seed"]), str(row["shots"]), *cells]
            assert f"| {' | '.join(cells)} |" in page
    pairs = [*zip(one["results"], two["results"], strict=True)]
    assert all(abs(a["novel"]["mean"] - b["novel"]["mean"]) < a["novel"]["ci95"] for a, b in pairs)
    worst = max(abs(a[name]["mean"] - b[name]["mean"]) for a, b in pairs for name in ("base", "both"))
    assert f"Base and Both differ by up to {worst:.2f}" in page
    gap = max(abs(a - b) / a for a, b in zip(one["losses"], two["losses"], strict=True))
    assert f"at most {100 * gap:.1f} %" in page
    assert f"took {two['core_seconds']} core-seconds, the one {one['core_seconds']}" in " ".join(page.split())
    assert f"{found['steps']} steps" in page
    assert f"{found['tasks']} tasks" in page


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


def test_exported_files_were_compared_with_torch():
    found = read("onnx-same.json")
    assert f"on {found['pictures']} of the photographs" in PAGE
    assert f"{100 * found['top5']:.1f} % have the same five best answers" in PAGE
    assert f"scores differ by at most {found['scores']:.6f}" in PAGE
    assert f"cosine of at least {min(found['cosine'], found['whole_cosine']):.6f}" in " ".join(PAGE.split())
    assert found["pictures"] >= 500
    assert found["scores"] <= 1e-4


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


TABLE_3 = RESULTS / "table3-cifar-100"


def test_the_claims_on_the_low_shot_benchmark_are_those_of_the_reproduction():
    table = (TABLE_3 / "table3.md").read_text(encoding="utf-8")
    claims = table[table.index("| Claim | top-5 | top-1 |") :].partition("\n\n")[0]
    assert claims.count("\n") > 7
    assert claims in PAGE
    assert "Unfinished" not in table


def test_the_rows_of_the_low_shot_benchmark_were_written_by_a_command():
    plan = read_plan(TABLE_3)
    assert (plan.keys, plan.draws, plan.shots) == (tuple(SYSTEMS), 100, (1, 2, 5, 10, 20))
    results = LowShotResults(TABLE_3, plan.keys, plan.shots, plan.seeds)
    for key in plan.keys:
        cells = []
        for figure in ("novel top-5", "all top-5", "all top-1"):
            found = [results.measured(Place(key, shots, figure)) for shots in (1, 5, 20)]
            cells.append(" / ".join(f"{one.mean:.1f} ± {one.ci95:.1f}" for one in found))
        assert f"| {SYSTEMS[key].title} | {' | '.join(cells)} |" in PAGE


def test_the_settings_of_the_low_shot_benchmark_are_the_best_that_were_tried():
    recipe = read_plan(TABLE_3).recipe
    chosen = {
        "logistic": {"logistic_rate": recipe.logistic_rate, "logistic_decay": recipe.logistic_decay},
        "generators": {"peak": recipe.schedule.peak, "dropout": recipe.dropout},
        "networks": {"network_rate": recipe.network_rate},
    }
    for group, tried in read("table3-cifar-100/settings.json").items():
        assert max(tried, key=lambda line: line["mean"])["setting"] == chosen[group]


def test_what_table_1_says_on_mini_imagenet_is_on_its_page():
    told = " ".join(
        PAGE.partition("## The paper's Table 1 on mini-ImageNet")[2].partition("\n## ")[0].split()
    )
    table = (RESULTS / "table1-mini-imagenet" / "table1.md").read_text(encoding="utf-8")
    found = {}
    for row in table.splitlines():
        if " − " in row:
            comparison, difference, verdict = (cell.strip() for cell in row.strip("|").split("|"))
            found[comparison] = (
                float(difference.split()[0]) if verdict != "not measured" else None,
                difference,
            )

    def over(kind, figure, shots):
        return found[f"relu-{kind} − cosine-{kind}, {figure}, {shots}-shot"][0]

    both = [over(kind, "Both", shots) for kind in ("average", "attention") for shots in (1, 5)]
    assert f"lower by {min(both):.2f} to {max(both):.2f} points with generators" in told
    assert f"by {over('mean', 'Both', 1):.2f} / {over('mean', 'Both', 5):.2f} with plain means" in told
    assert f"Base is lower by {over('mean', 'Base', 1):.2f} with plain means" in told
    assert over("attention", "Base", 5) < 0
    one, five = (found[f"cosine-attention − cosine-mean, Base, {shots}-shot"][1] for shots in (1, 5))
    novel = [found[f"cosine-attention − relu-attention, Novel, {shots}-shot"][0] for shots in (1, 5)]
    assert f"Novel is lower by {-novel[0]:.2f} / {-novel[1]:.2f} points without the ReLU" in told
    lifts = [found[f"cosine-attention − cosine-{kind}, Novel, 1-shot"][0] for kind in ("mean", "average")]
    assert f"by {lifts[0]:.2f} and {lifts[1]:.2f} points" in told
    assert f"({found['cosine-attention − cosine-average, Novel, more at 1-shot than at 5-shot'][1]})" in told
    for method, words in (("matching", "Matching Networks"), ("prototypical", "Prototypical Networks")):
        over = [found[f"cosine-mean − {method}, Novel, {shots}-shot"][0] for shots in (1, 5)]
        assert f"above {words}, by {over[0]:.2f} / {over[1]:.2f}" in told
    assert f"Base falls by {one.lstrip('-')} at one shot" in told
    assert f"rises by {five.lstrip('+')} at five" in told


def test_what_table_1_says_on_cifar_fs_is_on_its_page():
    told = " ".join(PAGE.partition("## The paper's Table 1 on CIFAR-FS")[2].partition("\n## ")[0].split())
    lines = (RESULTS / "table1-cifar-fs-c64f" / "table1.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    found = {row[0]: float(row[1].split()[0]) for row in rows if " − " in row[0]}

    def spans(first, second):
        pairs = [f"{first}-{kind} − {second}-{kind}, Base" for kind in ("mean", "average", "attention")]
        return sorted(abs(value) for name, value in found.items() if name.startswith(tuple(pairs)))

    above, higher = spans("cosine", "dot"), spans("relu", "cosine")
    assert f"is {above[0]:.2f} to {above[-1]:.2f} points above the dot product" in told
    assert f"Base is {higher[0]:.2f} to {higher[-1]:.2f} points higher" in told
    cost = sorted(
        -value for name, value in found.items() if " − cosine-mean, Base" in name and "relu" not in name
    )
    assert f"Generators cost {cost[0]:.2f} to {cost[-1]:.2f} points" in " ".join(told.split())
    assert min(above + higher + cost) > 0
    all_rows = next(row for row in rows if row[0] == "all rows")[1:]
    for figure, one, five in zip(("Novel", "Base", "Both"), all_rows[:3], all_rows[3:], strict=True):
        assert f"{one} / {five} {'points ' * (figure == 'Novel')}of {figure}" in told


ON_MINI_IMAGENET = {
    "c32f": "table2-mini-imagenet",
    "c64f": "table2-mini-imagenet",
    "c128f": "table2-mini-imagenet-distilled",
    "resnet": "table2-mini-imagenet",
}


@pytest.mark.parametrize("row", TABLE_2.rows[:4], ids=lambda row: row.key)
def test_mini_imagenet_is_as_measured_beside_the_papers_figures(row):
    found = read(f"{ON_MINI_IMAGENET[row.key]}/results/{row.key}.json")
    one, five = found["report"]["results"]
    novel, *both = (
        f"{cell(one[name])} / {cell(five[name])}" for name in ("novel", "both", "both_calibrated")
    )
    ours = f"| {novel} | {cell(one['base'])} | {' | '.join(both)} | {found['images_seen'] / 1e6:.1f} |"
    first, last = row.paper[1], row.paper[5]
    novel, both = (f"{first[place]} / {last[place]}" for place in (0, 2))
    for text in (README, PAGE) if row.key != "resnet" else (PAGE,):  # which was hardly trained
        assert f"| {row.key}, ours {ours}" in text
        assert f"| {row.key}, paper | {novel} | {first[1]} | {both} | – | 15.4 |" in text


def test_a_shorter_training_on_mini_imagenet_is_told_as_measured():
    one, five = read("table2-mini-imagenet/short.json")["report"]["results"]
    base, first, last = (f"{value['mean']:.1f}" for value in (one["base"], one["novel"], five["novel"]))
    long = read("table2-mini-imagenet/results/c32f.json")
    gained = long["report"]["results"][0]["base"]["mean"] - float(base)
    times = long["images_seen"] / read("table2-mini-imagenet/short.json")["images_seen"]
    doubling = gained / log2(times)
    more = doubling * log2(PAPER_IMAGES / long["images_seen"])
    told = " ".join(PAGE.split())
    assert f"It had Base {base} and Novel {first} / {last}." in told
    assert f"{times:.1f} times the images among them, gave {gained:.1f} points of Base" in told
    assert f"if all of it came from the images, {doubling:.1f} points for each doubling" in told
    assert f"{PAPER_IMAGES / 1e6:.1f} million images would be worth another {more:.1f} points" in told


def test_bfloat16_is_as_measured():
    rows = read("bfloat16.json")["speeds"]
    for row in rows:
        speeds = f"{row['bfloat16']:.0f} | {row['float32']:.0f} | {row['ratio']:.1f}"
        assert f"| {row['extractor']}, {row['size']}×{row['size']} | {speeds} |" in PAGE
    assert {round(row["ratio"]) for row in rows} == {2}, "about twice as fast"


def test_what_fewer_pictures_cost_is_told_as_measured():
    fewer, all_of_them = (row["base"]["mean"] for row in read("fewer.json")["results"] if row["shots"] == 1)
    told = f"with 417 pictures of each category Base is {fewer:.1f}, with 500 it is {all_of_them:.1f}."
    assert told in " ".join(PAGE.split())


@pytest.mark.parametrize("row", TABLE_2.rows[:3], ids=lambda row: row.key)
def test_what_mini_imagenet_lacks_to_published_figures_is_told_as_measured(row):
    results = read(f"{ON_MINI_IMAGENET[row.key]}/results/{row.key}.json")["report"]["results"]
    for name, known in (("paper", row.paper), ("re-run", row.rerun)):
        cells = []
        for figure, place in (("novel", 0), ("base", 1), ("both", 2), ("both_calibrated", 2)):
            over = (one[figure]["mean"] - float(known[one["shots"]][place]) for one in results)
            cells.append(" / ".join(f"{value:+.1f}" for value in over))
        assert f"| {row.key} − {name} | {' | '.join(cells)} |" in PAGE


@pytest.mark.parametrize("name", [row.key for row in TABLE_2.rows[:3]])
def test_what_stage_1_got_right_on_mini_imagenet_is_told_as_logged(name):
    lines = (RESULTS / ON_MINI_IMAGENET[name] / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    first = [words for words in map(json.loads, lines) if words["stage"] == 1]
    learned = [words["accuracy"] for words in first if "accuracy" in words][-1]
    last = [words["base"] for words in first if "base" in words][-1]
    told = " ".join(PAGE.split())
    assert f"{learned:.0f} and {last:.0f} % for {name}" in told
    selected = [words["base"] for words in map(json.loads, lines) if words.get("selected")][-1]
    assert f"{selected:.1f} ({name})" in told


def methods_on_cifar_fs():
    """Return the row of every method: its figures by shots, and what its trainings took."""
    rows = {}
    for path in sorted(RESULTS.glob("methods-cifar-fs/**/results/*.json")):
        words = read(path)
        row = rows.setdefault(words["row"], {"novel": {}, "images": {}, "minutes": {}})
        for result in words["report"]["results"]:
            shots = result["shots"]
            row["novel"][shots] = cell(result["novel"])
            row["images"][shots] = f"{words['images_seen'] / 1e6:.2f}"
            row["minutes"][shots] = f"{words['training_seconds'] / 60:.0f}"
    return rows


def test_the_methods_on_cifar_fs_are_those_of_the_reproduction():
    rows = methods_on_cifar_fs()
    assert {"c32f", "maml-started"} <= rows.keys()
    titles = {row.key: row.title.removesuffix(", c32f") for row in TABLE_2.rows} | {"c32f": "ours"}
    for key, row in rows.items():
        cells = [" / ".join(dict.fromkeys(row[name].values())) for name in ("novel", "images", "minutes")]
        (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {titles[key]} | {cells[0]} |")]
        assert line.endswith(f"| {cells[1]} | {cells[2]} |")


def test_the_speed_of_the_blocks_in_c_is_as_measured():
    for row in read("blocks.json")["rows"]:
        cells = [f"{ours} | {other} | {ours / other:.1f}" for ours, other in (row["learn"], row["extract"])]
        name = f"| {row['extractor']}, {row['size']}×{row['size']} | {row['threads']} |"
        assert f"{name} {' | '.join(cells)} |" in PAGE


def test_the_recipe_on_cifar_fs_is_as_measured():
    one, five = read("table2-cifar-fs/results/c64f.json")["report"]["results"]
    novel, both = (f"{cell(one[name])} / {cell(five[name])}" for name in ("novel", "both_calibrated"))
    assert f"| `cifar-fs-c64f` | {novel} | {cell(one['base'])} | {both} |" in PAGE
    for row in read("table2-cifar-fs/shots.json")["results"]:
        cells = [cell(row[name]) for name in ("novel", "both", "both_calibrated")]
        assert f"| {row['shots']} | {' | '.join(cells)} |" in PAGE


def test_the_methods_on_mini_imagenet_are_those_of_the_reproduction():
    titles = {row.key: row.title.removesuffix(", c32f") for row in TABLE_2.rows}
    for key in ("maml", "meta-lstm", "temporal"):
        one, five = (read(f"table2-mini-imagenet/results/{key}-{shots}-shot.json") for shots in (1, 5))
        novel = " / ".join(cell(found["report"]["results"][0]["novel"]) for found in (one, five))
        tasks = f"{one['episodes_seen']} / {five['episodes_seen']}"
        (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {titles[key]} | {novel} |")]
        assert f"| {tasks} |" in line
