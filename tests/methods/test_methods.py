"""Every method: the same tests for all, and each one's formula written out with loops."""

import json
from math import exp, log

import numpy as np
import pytest
import torch

from colours import SETTINGS, train_quickly, write_colours
from recollect.commands import train as train_command
from recollect.data.catalogue import load_data
from recollect.data.tasks import TaskShape, task_sampler
from recollect.errors import ConfigError, DataError, Diverged, ModelError
from recollect.evaluation.evaluate import evaluate, evaluation_report
from recollect.evaluation.metrics import METRICS
from recollect.features import FeatureSet, extract
from recollect.methods import METHODS, episodic, find_method, logistic
from recollect.model.spec import LearnerSpec
from recollect.modelfile import load_model, read_header, write_model
from recollect.recognition.recognizer import Recognizer
from recollect.training import budget, loop
from recollect.training.config import make_config
from recollect.training.runfolder import RunFolder

ADAPTING = ("maml", "fomaml", "anil", "maml-started", "meta-lstm")  # see pixels, not features
META = (*ADAPTING, "temporal")  # tested against slow references in files of their own
EPISODIC = ("matching", "prototypical", *META)
LEARN = ("recollect", *EPISODIC)  # the others stand on a stage 1
STEPS = 24
QUICKLY = {"meta.rate": "0.01", "meta.inner_steps": "2", "meta.test_steps": "2", "meta.inner_rate": "0.1"}
SLOW = ("fomaml", "anil", "meta-lstm")
FEW = {"stage1.steps": "6", "meta.inner_steps": "1", "meta.test_steps": "1"}
# Those that learn to learn train long, and have tests of their own.
EACH = [pytest.param(name, marks=[pytest.mark.slow] * (name in META)) for name in METHODS]


@pytest.fixture(scope="session")
def colours(tmp_path_factory):
    return write_colours(tmp_path_factory.mktemp("colours") / "pictures")


def configured(colours, name, **settings):
    own = {"method": name, "shots": "2" if name == "temporal" else "1", "stage1.steps": str(STEPS)}
    own |= {**QUICKLY, **(FEW if name in SLOW else {}), **settings}
    return make_config({}, {"data": str(colours)}, {**SETTINGS, **own})


@pytest.fixture(scope="session")
def trained(colours, tmp_path_factory):
    """Return a maker of run folders, each method's trained once."""
    folder = tmp_path_factory.mktemp("methods")

    def run(name):
        if not (folder / name).exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(loop, "LOG_EVERY", 4)
                patch.setenv("RECOLLECT_CACHE", str(folder / "cache"))
                train_quickly(patch)
                torch.set_num_threads(1)
                settings = {} if name in LEARN else {"stage1_from": str(run("recollect"))}
                find_method(name).train(configured(colours, name, **settings), folder / name)
        return folder / name

    return run


@pytest.fixture(scope="session")
def split(colours):
    return load_data(str(colours), size=16, split=SETTINGS["split"])


@pytest.fixture
def loaded(request, trained, split):
    """A trained model with validation features, and tasks over them."""

    def load(name):
        method = find_method(name)
        model = load_model(trained(name), learner=method.learner)
        novel, base = (method.see(model, images) for images in split.evaluated("val"))
        return model, novel, base

    return load


def drawn(novel, base, shots=2, tasks=6):
    return task_sampler(base, novel).draw(TaskShape(3, shots, 3), tasks, 0)


@pytest.mark.parametrize("name", EACH)
def test_scores_have_a_column_for_every_category_and_are_the_same_each_time(name, loaded, split):
    model, novel, base = loaded(name)
    tasks = drawn(novel, base)
    method = find_method(name)
    scores = method.scores(model, novel, base, split)(tasks)
    columns = len(split.categories) if method.joint else 1
    assert scores.novel_base.shape == scores.base_base.shape == (6, 9, columns)
    assert scores.novel_novel.shape == scores.base_novel.shape == (6, 9, 3)
    assert scores.novel_novel.isfinite().all()
    assert scores.base_base.isfinite().all() == method.joint
    again = method.scores(model, novel, base, split)(tasks)
    for one, other in zip(vars(scores).values(), vars(again).values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in META])
def test_novel_categories_that_lie_apart_are_told_apart(name, loaded, split):
    model, novel, base = loaded(name)
    apart = torch.nn.functional.one_hot(novel.labels, model.width).float() * 5 + 0.01 * torch.rand(
        novel.features.shape, generator=torch.Generator().manual_seed(0)
    )
    novel = FeatureSet(apart, novel.labels, novel.categories)
    tasks = drawn(novel, base)
    scores = find_method(name).scores(model, novel, base, split)(tasks)
    assert torch.equal(scores.novel_novel.argmax(2), tasks.novel_targets)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.joint])
def test_a_base_category_that_plays_novel_is_hidden_among_base_ones(name, loaded, split):
    model, _, base = loaded(name)
    tasks = task_sampler(base, None).draw(TaskShape(3, 1, 1), 5, 0)
    if name == "logistic":
        with pytest.raises(DataError, match="--split"):
            find_method(name).scores(model, None, base, split)
        return
    scores = find_method(name).scores(model, None, base, split)(tasks)
    hidden = tasks.hidden(len(split.categories)).unsqueeze(1)
    for some in (scores.novel_base, scores.base_base):
        assert torch.equal(some.isfinite(), (~hidden).expand_as(some))


@pytest.mark.parametrize("name", EACH)
def test_evaluate_accepts_the_run_and_gives_what_the_saved_model_gives(name, trained, split, colours, run):
    method, folder = find_method(name), trained(name)
    assert read_header(folder).method == name
    assert read_header(folder).provenance["finished"]
    words = ("--categories", "val", "--queries", "3", "--tasks", "9", "--ways", "3", "--shots", "1", "--json")
    code, out, err = run("evaluate", folder, colours, *words)
    assert code == 0, err
    found = json.loads(out)["results"]
    model = load_model(folder, learner=method.learner)
    shots = [result["shots"] for result in found]
    asked = {"part": "val", "shots": shots, "ways": 3, "queries": 3, "tasks": 9, "by": method}
    assert found == evaluate(model, split, **asked)
    for result in found:
        told = {figure for figure in METRICS if result[figure] is not None}
        assert told == (set(METRICS) if method.joint else {"novel"})
    code, out, err = run("evaluate", folder, colours, *words[:-1])
    assert code == 0, err
    assert ("–" in out) == (not method.joint)


@pytest.mark.parametrize("name", [name for name in LEARN if name not in SLOW])
def test_a_short_training_learns(name, trained):
    lines = [line for line in RunFolder(trained(name)).metrics() if "loss" in line and line["stage"] == 1]
    assert lines[-1]["loss"] < 0.8 * lines[0]["loss"]


@pytest.mark.parametrize(
    "name",
    [
        name if name in {"matching", "meta-lstm"} else pytest.param(name, marks=pytest.mark.slow)
        for name in EPISODIC
    ],
)
def test_an_episodic_run_that_broke_off_ends_as_one_that_did_not(
    name, trained, colours, tmp_path, monkeypatch
):
    train_quickly(monkeypatch)
    save, saved = loop.save_checkpoint, []

    def breaking(path, state):
        save(path, state)
        saved.append(path)
        if len(saved) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", breaking)
        with pytest.raises(KeyboardInterrupt):
            find_method(name).train(configured(colours, name), tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()
    find_method(name).train(RunFolder(tmp_path / "run").config(), tmp_path / "run", resume=True)
    one, other = (
        load_model(folder, learner=find_method(name).learner).state_dict()
        for folder in (trained(name), tmp_path / "run")
    )
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_method_from_a_trained_classifier_starts_from_stage_1_of_ours(
    trained, colours, tmp_path, monkeypatch
):
    train_quickly(monkeypatch)
    still = configured(colours, "maml-started", **{"meta.rate": "1e-12", "meta.classify": "0.25"})
    find_method("maml-started").train(still, tmp_path / "still")
    ours = configured(colours, "recollect", **{"stage1.steps": str(STEPS // 4), "generator": "mean"})
    find_method("recollect").train(ours, tmp_path / "ours")
    classifier = load_model(tmp_path / "ours" / "stage1.safetensors").extractor.state_dict()
    model = load_model(tmp_path / "still", learner=find_method("maml-started").learner)
    for name, weight in model.extractor.state_dict().items():
        torch.testing.assert_close(weight, classifier[name], rtol=0, atol=1e-6)
    steps = dict.fromkeys((1, 2), 0)
    for line in RunFolder(trained("maml-started")).metrics():
        steps[line["stage"]] = line["step"]
    assert steps == {1: STEPS // 2, 2: STEPS // 2 * 24 // (2 * 3 * (1 + 2))}
    facts = read_header(trained("maml-started")).provenance
    assert {"stage1_seconds", "stage2_seconds"} <= facts.keys()


def test_a_method_from_a_trained_classifier_that_broke_off_in_its_tasks_ends_as_one_that_did_not(
    trained, colours, tmp_path, monkeypatch
):
    train_quickly(monkeypatch)
    save = loop.save_checkpoint

    def breaking(path, state):
        save(path, state)
        if path.name.startswith("stage2") and state.step == 5:
            raise KeyboardInterrupt

    method, folder = find_method("maml-started"), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", breaking)
        with pytest.raises(KeyboardInterrupt):
            method.train(configured(colours, "maml-started"), folder)
    method.train(RunFolder(folder).config(), folder, resume=True)
    one, other = (
        load_model(run, learner=method.learner).state_dict() for run in (trained("maml-started"), folder)
    )
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", EPISODIC)
def test_episodes_show_as_many_pictures_as_stage_1(name, trained):
    seen = read_header(trained(name)).provenance["images_seen"]
    steps = int(FEW["stage1.steps"]) if name in SLOW else STEPS
    assert abs(seen - steps * 24) <= 2 * 3 * (2 + 2) / 2


def test_a_method_on_frozen_features_trains_the_stage_1_that_it_does_not_take_over(
    trained, colours, tmp_path, monkeypatch
):
    train_quickly(monkeypatch)
    find_method("nearest-mean").train(configured(colours, "nearest-mean"), tmp_path / "run")
    one, other = load_model(trained("nearest-mean")), load_model(tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert RunFolder(tmp_path / "run").metrics()
    assert not RunFolder(trained("nearest-mean")).metrics()


def unit(v):
    return v / np.sqrt(sum(x * x for x in v))


def squared(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def matching(model, _, support, query):
    scale = model.classifier.scale.item()
    leaning = [[exp(scale * unit(query) @ unit(example)) for example in way] for way in support]
    total = sum(map(sum, leaning))
    return [log(max(sum(way) / total, 1e-7)) for way in leaning]


def prototypical(model, known, support, query):
    means = [np.mean(known.features.numpy()[known.labels == label], axis=0) for label in range(8)]
    prototypes = [*means, *(np.mean(way, axis=0) for way in support)]
    return [-model.classifier.scale.item() * squared(query, mean) / model.width for mean in prototypes]


def nearest_mean(model, known, support, query):
    own = [known.features.numpy()[known.labels == label] for label in range(8)]
    means = [np.mean([unit(example) for example in way], axis=0) for way in [*own, *support]]
    return [-squared(unit(query), mean) for mean in means]


def imprinting(model, _, support, query):
    rows = [*model.classifier.weight.detach().numpy()]
    rows += [np.mean([unit(example) for example in way], axis=0) for way in support]
    return [model.classifier.scale.item() * unit(query) @ unit(row) for row in rows]


def logistic_novel(model, _, support, query):
    return fitted([unit(example) for way in support for example in way], 3, 2, unit(query))


def logistic_joint(model, known, support, query):
    sample = logistic.base_examples(known)
    features = [unit(example) for example in sample.features.numpy()]
    features += [unit(example) for way in support for example in way]
    labels = [*sample.labels.tolist(), *(8 + way for way in range(3) for _ in range(2))]
    return fitted(features, labels, None, unit(query))


def fitted(features, labels, shots, query):
    from sklearn.linear_model import LogisticRegression

    labels = np.repeat(np.arange(labels), shots) if shots else labels
    fit = LogisticRegression(class_weight="balanced", tol=1e-8, max_iter=10_000).fit(features, labels)
    scores = fit.decision_function([query])[0]
    return list(scores - scores.mean())


FORMULAS = {
    "matching": matching,
    "prototypical": prototypical,
    "nearest-mean": nearest_mean,
    "imprinting": imprinting,
    "logistic-novel": logistic_novel,
    "logistic": logistic_joint,
}


def test_every_method_but_the_papers_own_has_its_formula_here():
    assert set(METHODS) == {"recollect", *FORMULAS, *META}


@pytest.mark.parametrize("name", FORMULAS)
def test_scores_are_those_of_the_formula(name, loaded, split):
    model, novel, base = loaded(name)
    tasks = drawn(novel, base, tasks=2)
    scores = find_method(name).scores(model, novel, base, split)(tasks)
    known = extract(model, split.base_train)
    for task in range(2):
        support = novel.features[tasks.support[task]].numpy()
        for queries, features, of_base, of_novel in (
            (tasks.novel_queries, novel, scores.novel_base, scores.novel_novel),
            (tasks.base_queries, base, scores.base_base, scores.base_novel),
        )[: 2 if find_method(name).joint else 1]:
            for place in (0, 5):
                query = features.features[queries[task, place]].numpy()
                expected = FORMULAS[name](model, known, support, query)
                found = of_novel[task, place].tolist()
                if find_method(name).joint:
                    found = of_base[task, place].tolist() + found
                if name.startswith("logistic"):  # whatever is added to all scores changes no probability
                    found = [score - sum(found) / len(found) for score in found]
                assert found == pytest.approx(expected, rel=1e-3, abs=5e-3 if "logistic" in name else 1e-4)


def test_imprinting_is_the_papers_generator_of_plain_means(loaded, split):
    model, novel, base = loaded("imprinting")
    tasks = drawn(novel, base)
    ours, theirs = (
        find_method(name).scores(model, novel, base, split)(tasks) for name in ("recollect", "imprinting")
    )
    for one, other in zip(vars(ours).values(), vars(theirs).values(), strict=True):
        torch.testing.assert_close(one, other)


def test_joint_fits_of_many_tasks_do_not_depend_on_their_company(loaded, split, monkeypatch):
    model, novel, base = loaded("logistic")
    tasks = drawn(novel, base)
    together = find_method("logistic").scores(model, novel, base, split)(tasks)
    monkeypatch.setattr(logistic, "_AT_ONCE", 1)
    alone = find_method("logistic").scores(model, novel, base, split)(tasks)
    torch.testing.assert_close(together.novel_novel, alone.novel_novel, rtol=1e-2, atol=1e-2)


def test_an_unknown_method_is_refused_with_the_names_that_there_are(colours, tmp_path, refused):
    assert "matching, prototypical" in refused(
        "train", colours, "--set", "method=mystery", "--out", tmp_path / "run"
    )


@pytest.mark.parametrize("name", EPISODIC)
def test_an_episodic_method_asks_for_one_number_of_shots(name, colours, tmp_path):
    with pytest.raises(ConfigError, match="--shots 5"):
        find_method(name).train(configured(colours, name, shots="mixed"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_category_too_small_for_episodes_is_named_before_anything_is_written(colours, tmp_path):
    with pytest.raises(DataError, match=r"c10.* has 8 pictures and needs 11"):
        find_method("matching").train(configured(colours, "matching", shots="9"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_recogniser_refuses_a_model_of_another_method(trained):
    with pytest.raises(ModelError, match=r"nearest-mean.*recollect evaluate"):
        Recognizer.load(trained("nearest-mean"))


def test_a_model_is_not_evaluated_by_another_method(trained, colours):
    with pytest.raises(ModelError, match="of the method prototypical"):
        evaluation_report(trained("prototypical"), str(colours), tasks=2)


def test_no_curve_is_drawn_for_a_method_without_base_scores(trained, colours, tmp_path, refused):
    assert "Matching Networks" in refused(
        "evaluate", trained("matching"), colours, "--plot", tmp_path / "curve.png"
    )


@pytest.mark.parametrize("name", META)
def test_more_ways_than_a_learner_was_made_for_are_refused_in_a_line(name, trained, colours, refused):
    told = refused("evaluate", trained(name), colours, "--ways", "4", "--queries", "3", "--shots", "1")
    assert "at most 3 categories apart, and tasks have 4: use --ways 3 or fewer" in told


def test_more_shots_than_sequences_were_long_are_refused_in_a_line(trained, colours, refused):
    told = refused("evaluate", trained("temporal"), colours, "--ways", "3", "--queries", "3", "--shots", "3")
    assert "reads at most 2 examples of a category, and tasks have 3: use --shots 2 or fewer" in told


def test_the_methods_that_descend_take_any_number_of_shots(trained, split):
    model = load_model(trained("maml"), learner=find_method("maml").learner)
    asked = {"part": "val", "shots": [4], "ways": 2, "queries": 3, "tasks": 2}
    (found,) = evaluate(model, split, by=find_method("maml"), **asked)
    assert found["novel"]["mean"] > 50


@pytest.mark.parametrize("name", ["maml", "meta-lstm", "temporal"])
def test_a_learner_cannot_be_taught(name, trained, tmp_path, refused):
    told = refused("teach", trained(name), "okapi", tmp_path / "okapi.png")
    assert f"is a model of the method {name}, which is there for comparison" in told


def test_a_learner_is_only_there_to_be_evaluated(trained, colours, tmp_path, refused):
    told = refused("plot", "tsne", trained("maml"), colours, "--out", tmp_path / "features.png")
    assert "is a model of the method maml, which has no features of its own" in told


@pytest.mark.parametrize("name", ["maml", "temporal"])
def test_a_learner_that_diverges_says_which_rate_to_lower(name, colours, tmp_path, monkeypatch, refused):
    train_quickly(monkeypatch)
    asked = configured(colours, name, **{"meta.rate": "1e30", "meta.schedule": "constant"})
    with pytest.raises(Diverged, match=r"diverged by step \d+: lower .*--set meta.rate=2e\+29"):
        find_method(name).train(asked, tmp_path / "run")


def test_an_extractor_that_does_not_adapt_is_refused_before_anything_is_written(colours, tmp_path):
    with pytest.raises(ConfigError, match="MAML adapts c32f, c64f or c128f, and not 'resnet'"):
        find_method("maml").train(configured(colours, "maml", extractor="resnet"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_embedding_of_mishra_et_al_is_an_extractor_like_any_other(colours, tmp_path, monkeypatch):
    train_quickly(monkeypatch)
    settings = {"extractor": "resnet", "stage1.steps": "1", "stage1.evaluations": "1", "select_tasks": "1"}
    find_method("temporal").train(configured(colours, "temporal", **settings), tmp_path / "run")
    assert read_header(tmp_path / "run").spec.extractor == "resnet"


def test_a_learner_of_a_method_without_one_is_refused(trained, tmp_path):
    header = read_header(trained("matching"))
    spec = header.spec.model_copy(update={"learner": LearnerSpec(ways=3, shots=1)})
    write_model(tmp_path / "model", header.model_copy(update={"spec": spec}), {})
    with pytest.raises(ModelError, match="matching adds nothing to a model"):
        load_model(tmp_path / "model", learner=find_method("matching").learner)


def test_minutes_are_those_of_a_method_s_own_steps(colours, tmp_path, monkeypatch):
    config = find_method("maml").settled(configured(colours, "maml", minutes="0.01"))
    split = load_data(str(colours), size=16, split=SETTINGS["split"])
    monkeypatch.setattr(episodic, "seconds_each", lambda take, **more: 0.012)
    speed = find_method("maml").speed(resolve_free(config), None, split)
    # 2 episodes of 3 ways with 1 + 2 pictures, and 24 pictures in a step of stage 1.
    assert speed.stage1_step == pytest.approx(0.012 * 24 / 18)
    assert speed.picture > 0


def test_minutes_of_a_method_from_a_trained_classifier_count_both_of_its_parts(colours, monkeypatch):
    config = find_method("maml-started").settled(configured(colours, "maml-started", minutes="0.01"))
    config = config.model_copy(update={"meta": config.meta.model_copy(update={"classify": 0.75})})
    split = load_data(str(colours), size=16, split=SETTINGS["split"])
    monkeypatch.setattr(episodic, "seconds_each", lambda take, **more: 0.012)
    monkeypatch.setattr(budget, "seconds_each", lambda take, **more: 0.004)
    speed = find_method("maml-started").speed(resolve_free(config), None, split)
    assert speed.stage1_step == pytest.approx(0.75 * 0.004 + 0.25 * 0.012 * 24 / 18)


@pytest.mark.parametrize(
    ("method", "told"), [("matching", {"novel"}), ("recollect", {"novel", "base", "both"})]
)
def test_the_command_tells_what_was_measured_where_base_vectors_stay(colours, tmp_path, method, told):
    settings = SETTINGS | {"method": method, "shots": "1", "stage2.learn_base": "false"}
    words = [f"{name}={value}" for name, value in settings.items()]
    options = {"data": str(colours), **dict.fromkeys(("preset", "device", "extractor", "finetune"))}
    result = train_command.train(tmp_path / "run", options, words)
    assert result["validation"].keys() == told | ({"both_calibrated"} if method == "recollect" else set())
    both = result["validation"].get("both_calibrated")
    assert both is None or f"{both:.1f} % among all of them together" in train_command.train_text(result)


def resolve_free(config):
    return config.model_copy(update={"minutes": None, "device": "cpu"})
