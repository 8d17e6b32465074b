"""Deliberate faults, each of which the tests named beside it must catch: `make mutants`.

Each is applied alone to a copy of the tree, and the tests are run on the copy. mutmut and cosmic-ray make
their own faults, thousands of them, each with a start of torch and a training or two: days of work here. This
list holds the faults that would do harm without a sound, and runs in minutes.

`python tests/mutants.py [WORD…]` tries those whose file or name has one of the words.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
TOO_LONG = 300  # seconds; a fault that makes tests hang is caught, too


class Mutant(NamedTuple):
    """A fault: in `file` below src/recollect, the text `old`, found once, becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    tests: str  # what is given to pytest, below tests/


LEARNING = "training/test_learning.py"
EPISODES = "training/test_episodes.py"
RUNS = "training/test_training_runs.py"
CALIBRATION = "training/test_calibration.py"
MAML = "methods/test_maml.py"
LSTM = "methods/test_meta_lstm.py"
TEMPORAL = "methods/test_temporal.py"
BLOCKS = "model/test_blocks.py"
MUTANTS = [
    # blocks in C
    Mutant(
        "batch norm's gradient without its mean",
        "model/extractors/blocks.py",
        "constant = -by_gradient * sums[0] / ctx.number - by_y * mean",
        "constant = -by_y * mean",
        BLOCKS,
    ),
    Mutant(
        "a biased running variance",
        "model/extractors/blocks.py",
        "unbiased = variance * number / (number - 1)",
        "unbiased = variance",
        BLOCKS,
    ),
    Mutant(
        "the gradient passes a closed ReLU",
        "model/extractors/blocks.c",
        "gradient = pick(value <= 0.0f, (vec){0}, gradient);",
        "",
        BLOCKS,
    ),
    Mutant(
        "odd rows get no gradient of batch norm",
        "model/extractors/blocks.c",
        "for (size c = 2 * along; c < s.width; c++)",
        "for (size c = 2 * along; c < s.width - 1; c++)",
        BLOCKS,
    ),
    Mutant(
        "the last pictures of a part are left out",
        "model/extractors/blocks.c",
        "#define FIRST(part) (count * (part) / parts)",
        "#define FIRST(part) (count / parts * (part))",
        BLOCKS,
    ),
    Mutant(
        "windows that overlap replace each other",
        "model/extractors/blocks.c",
        "AT(corner + i * row + j * channels + k) += out[i];",
        "AT(corner + i * row + j * channels + k) = out[i];",
        BLOCKS,
    ),
    Mutant(
        "gradients of pictures are silently left out",
        "model/extractors/blocks.py",
        ", not x.requires_grad]",
        "]",
        BLOCKS,
    ),
    Mutant(
        "threads share their memory",
        "model/extractors/blocks.c",
        "float *y = scratch + part * scratch_floats(height, width, in, out), *own",
        "float *y = scratch, *own",
        BLOCKS,
    ),
    Mutant(
        "threads add to the same gradient",
        "model/extractors/blocks.c",
        "*changes = du + part * filters;",
        "*changes = du;",
        BLOCKS,
    ),
    Mutant(
        "torch extracts",
        "model/extractors/conv4.py",
        "if computed and blocks.usable",
        "if not computed and blocks.usable",
        BLOCKS,
    ),
    Mutant(
        "NaN is lost in pooling",
        "model/extractors/blocks.c",
        "~(scaled <= best) & (best == best)",
        "scaled > best",
        BLOCKS,
    ),
    Mutant(
        "libraries of others are loaded",
        "system/compiled.py",
        " or found.st_mode & 0o022:",
        ":",
        "system/test_compiled.py",
    ),
    Mutant(
        "an old library for a new source",
        "system/compiled.py",
        "*map(os.fsencode, command), source.read_bytes()])",
        "*map(os.fsencode, command)])",
        "system/test_compiled.py",
    ),
    # PostgreSQL
    Mutant(
        "nobody is told of a change, nor looks",
        "store/postgres.py",
        '                self._heard(self._about("change")[0])\n',
        '                self._about("change")\n',
        "store/test_postgres.py -k look_is_enough",
    ),
    Mutant(
        "no notification",
        "store/postgres.py",
        " RETURNING pg_notify(?, ?)",
        " WHERE ? <> ?",
        "store/test_postgres.py -k notification_is_enough",
    ),
    Mutant(
        "no answers if the server goes after a notification",
        "recognition/knowledge.py",
        "            if not self._is_complete:\n                raise",
        "            raise",
        "store/test_postgres.py -k between_a_notification",
    ),
    Mutant(
        "a server that is away is asked at each answer",
        "recognition/knowledge.py",
        "(self._is_complete and self.store.away)",
        "False",
        "store/test_postgres.py -k less_often",
    ),
    Mutant(
        "what another did before one's own change is skipped",
        "store/postgres.py",
        "return self._own if seen == self._own - 1 else seen",
        "return self._own",
        "store/test_postgres.py -k not_read_again",
    ),
    Mutant(
        "a lost transaction goes on over a new connection",
        "store/postgres.py",
        "execute = connection.execute if self._inside else self._execute_first",
        "execute = self._execute_first",
        "store/test_postgres.py -k middle_of_a_change",
    ),
    Mutant(
        "passwords in messages",
        "store/__init__.py",
        "{user.partition(':')[0]}",
        "{user}",
        "store/test_postgres.py -k password",
    ),
    Mutant(
        "removals are not told",
        "store/postgres.py",
        "INSERT INTO removed SELECT OLD.id, change FROM about;",
        "",
        "store/test_postgres.py -k only_what_changed",
    ),
    # Very many categories
    Mutant(
        "the index keeps what moved where it was",
        "recognition/many.py",
        "            self._index.put(row, self._lifted(np.array([row]))[0])\n        self._index.drop_last()",
        "            pass\n        self._index.drop_last()",
        "recognition/test_many.py -k in_step",
    ),
    Mutant(
        "the index does not know how many examples there are",
        "recognition/knowledge.py",
        "return lifts.astype(np.float32)",
        "return 0 * lifts.astype(np.float32)",
        "recognition/test_many.py -k number_of_examples",
    ),
    Mutant(
        "the sample counts once",
        "recognition/many.py",
        "rest = stand_for * np.exp",
        "rest = np.exp",
        "recognition/test_many.py -k answers_of_a_look",
    ),
    Mutant(
        "a server that recovers is not awaited",
        "store/postgres.py",
        "self._connect(patience=_WAIT_SECONDS)",
        "self._connect()",
        "store/test_postgres.py -k recovers",
    ),
    # Several processes
    Mutant(
        "processes that do not connect wait for ever",
        "system/workers.py",
        "    hung.start()\n",
        "",
        "training/test_together.py -k do_not_connect",
    ),
    Mutant(
        "batch norms of each process alone",
        "system/workers.py",
        "        one.__class__ = _CommonBatchNorm\n",
        "        pass\n",
        "training/test_together.py -k two_processes",
    ),
    Mutant(
        "every process has the whole batch",
        "system/workers.py",
        "    return slice(first, last)\n",
        "    return slice(0, total)\n",
        "training/test_together.py -k two_processes",
    ),
    # Stage 1
    Mutant(
        "no augmentation",
        "training/stage1.py",
        "pixels = self.augmentation(torch.from_numpy(taken), draw, self.part, batch)",
        "pixels = torch.from_numpy(taken)",
        f"{LEARNING} -k stage_1_learns_from",
    ),
    Mutant(
        "no flips",
        "training/stage1.py",
        "return Augmentation(pad, split.flips and recipe.flip, recipe.crops, recipe.jitter)",
        "return Augmentation(pad, False, recipe.crops, recipe.jitter)",
        f"{LEARNING} -k stage_1_learns_from",
    ),
    Mutant(
        "large categories count more",
        "training/stage1.py",
        "parts += [rows] * whole + [rng.permutation(rows)[:rest]]",
        "parts += [rows]",
        f"{LEARNING} training/test_stages.py -k pass",
    ),
    Mutant(
        "the classifier does not learn",
        "training/stage1.py",
        "return [*self.model.extractor.parameters(), *self.model.classifier.parameters()]",
        "return [*self.model.extractor.parameters()]",
        f"{LEARNING} -k changes_every_weight",
    ),
    Mutant(
        "batch norm in evaluation mode",
        "training/stage1.py",
        "        self.model.train()\n",
        "        self.model.eval()\n",
        f"{LEARNING} -k changes_every_weight",
    ),
    Mutant(
        "stage 1 selected by Both",
        "training/stage1.py",
        '"ausuc" if config.select == "both" else config.select',
        "config.select",
        f"{LEARNING} -k judged_on_validation",
    ),
    Mutant(
        "the seed does not reach the batches",
        "training/stage1.py",
        "np.random.default_rng([self.seed, 1, number])",
        "np.random.default_rng([1, number])",
        f"{LEARNING} -k seed_and_step_alone",
    ),
    # The loop
    Mutant(
        "no Nesterov momentum",
        "training/optimizer.py",
        "nesterov=True",
        "nesterov=False",
        f"{LEARNING} -k step",
    ),
    Mutant(
        "stage 1 without Muon",
        "training/loop.py",
        "muon = recipe.muon if isinstance(recipe, StageOne) else 0.0",
        "muon = 0.0",
        f"{LEARNING} -k recipe",
    ),
    Mutant(
        "no weight decay",
        "training/loop.py",
        "weight_decay=recipe.weight_decay",
        "weight_decay=0.0",
        f"{LEARNING} -k step",
    ),
    Mutant(
        "no momentum of the recipe's",
        "training/loop.py",
        "momentum=recipe.momentum",
        "momentum=0.9",
        f"{LEARNING} -k step",
    ),
    Mutant(
        "a constant rate",
        "training/loop.py",
        'group["lr"] = rate',
        'group["lr"] = 0.1',
        f"{LEARNING} -k step",
    ),
    Mutant(
        "rates half a step early",
        "training/loop.py",
        "(step + 0.5) / stage.steps",
        "step / stage.steps",
        f"{LEARNING} -k step",
    ),
    Mutant(
        "gradients add up",
        "training/loop.py",
        "    optimizer.zero_grad()\n",
        "",
        f"{LEARNING} -k step",
    ),
    Mutant(
        "steps draw from whatever was drawn before",
        "training/loop.py",
        "    torch.manual_seed(step_seed(stage.seed, stage.number, step))\n",
        "",
        f"{LEARNING} -k seed_and_step_alone",
    ),
    Mutant(
        "every step draws the same",
        "training/loop.py",
        "step_seed(stage.seed, stage.number, step)",
        "step_seed(stage.seed, stage.number, 0)",
        f"{LEARNING} -k seed_and_step_alone",
    ),
    Mutant(
        "the last weights instead of the best",
        "training/loop.py",
        "    model.load_state_dict(state.best)\n    return state.seconds",
        "    return state.seconds",
        f"{LEARNING} -k judged_best",
    ),
    Mutant(
        "the worst weights",
        "training/loop.py",
        "selected = figures[stage.select] >= state.best_value",
        "selected = figures[stage.select] <= abs(state.best_value)",
        f"{LEARNING} -k judged_best",
    ),
    Mutant(
        "the best weights go on learning",
        "training/loop.py",
        "state.best = copy.deepcopy(stage.model.state_dict())",
        "state.best = stage.model.state_dict()",
        f"{LEARNING} -k judged_best",
    ),
    Mutant(
        "a resumed run starts without momentum",
        "training/loop.py",
        "        restore_momentum(model, optimizer, state.momentum)\n",
        "",
        f"{RUNS} -k asked_to_stop",
    ),
    Mutant(
        "a checkpoint forgets the best model",
        "training/checkpoints.py",
        '_GROUPS = ("weights", "momentum", "best", "pending")',
        '_GROUPS = ("weights", "momentum", "pending")',
        f"{LEARNING} -k goes_on",
    ),
    Mutant(
        "a resumed run forgets the losses since its last line of metrics",
        "training/loop.py",
        "_Journal(stage, folder, state.pending)",
        "_Journal(stage, folder, {})",
        "training/test_run_files.py -k has_the_metrics",
    ),
    Mutant(
        "a diverged model is saved when a run is stopped",
        "training/loop.py",
        "                _require_finite(stage, state.step, loss)\n                state.weights",
        "                state.weights",
        "training/test_run_files.py -k diverged",
    ),
    Mutant(
        "a stopped run keeps the last weights",
        "training/loop.py",
        "model.load_state_dict(state.best or state.weights)",
        "model.load_state_dict(state.weights)",
        f"{LEARNING} -k stopped",
    ),
    Mutant(
        "no warm-up",
        "training/schedules.py",
        "return self.peak * share / self.warm_up",
        "return self.peak",
        "../src/recollect/training/schedules.py",
    ),
    # Selection
    Mutant(
        "models selected by test categories",
        "training/selection.py",
        'split.evaluated("val")',
        'split.evaluated("test")',
        f"{LEARNING} -k 'never_looks or judged_on'",
    ),
    Mutant(
        "models selected by pictures that were learned from",
        "training/selection.py",
        'split.evaluated("val")',
        "(split.val, split.base_train)",
        f"{LEARNING} -k judged_on",
    ),
    Mutant(
        "models selected by one number of shots",
        "training/selection.py",
        "for shape in self.shapes\n        ]",
        "for shape in self.shapes[:1]\n        ]",
        f"{LEARNING} -k judged_on",
    ),
    Mutant(
        "judging in training mode",
        "features.py",
        "    model.eval()\n    device",
        "    device",
        f"{LEARNING} -k 'judging_changes or judged_on'",
    ),
    # Stage 2
    Mutant(
        "no bias by shots where W_base stays",
        "training/train.py",
        "by_shots=config.balanced_by_bias",
        "by_shots=False",
        f"{LEARNING} -k a_bias_by_shots",
    ),
    Mutant(
        "Both without the bias in the provenance",
        "training/train.py",
        'facts["validation"] |= {"both_calibrated": found["both"]}',
        "pass",
        f"{LEARNING} -k a_bias_by_shots",
    ),
    Mutant(
        "the bias has the wrong sign in evaluations",
        "evaluation/metrics.py",
        "novel_gap=given.novel_gap - bias",
        "novel_gap=given.novel_gap + bias",
        "evaluation/test_evaluate.py -k bias_that_predictions",
    ),
    Mutant(
        "table 2 compares scores as they are",
        "reproduce/page.py",
        "        figure = CALIBRATED\n",
        "        pass\n",
        "reproduce/test_table2.py -k as_predicted",
    ),
    Mutant(
        "learn_base ignored",
        "training/stage2.py",
        "self.model.classifier.parameters() if self.learn_base else ()",
        "self.model.classifier.parameters()",
        f"{LEARNING} -k go_on_learning",
    ),
    Mutant(
        "learn_base never",
        "training/stage2.py",
        "self.model.classifier.parameters() if self.learn_base else ()",
        "()",
        f"{LEARNING} -k go_on_learning",
    ),
    Mutant(
        "no dropout",
        "training/stage2.py",
        "drop_out(features, self.dropout)",
        "features",
        f"{LEARNING} -k drops",
    ),
    Mutant(
        "dropout that shrinks features",
        "training/episodes.py",
        "(kept * (256 / (256 - least)))",
        "kept",
        f"{EPISODES} -k dropout_takes",
    ),
    Mutant(
        "one view of every picture",
        "training/stage2.py",
        "rows = (views * self.pictures + pictures_of(tasks))",
        "rows = pictures_of(tasks)",
        f"{EPISODES} -k loss_is",
    ),
    Mutant(
        "views without augmentation",
        "features.py",
        "augmented = augmentation(torch.from_numpy(pixels), generator)",
        "augmented = torch.from_numpy(pixels)",
        f"{LEARNING} -k views",
    ),
    Mutant(
        "every view alike",
        "features.py",
        "np.random.SeedSequence([seed, view, int(rows[0])])",
        "np.random.SeedSequence([seed, int(rows[0])])",
        f"{LEARNING} -k views",
    ),
    Mutant(
        "all examples are there",
        "training/episodes.py",
        "(torch.arange(most) < shots[:, None])",
        "(torch.arange(most) <= shots[:, None])",
        f"{EPISODES} -k 'absent or loss_is'",
    ),
    Mutant(
        "fake-novel categories in plain sight",
        "training/episodes.py",
        "hidden=tasks.hidden(len(head.classifier.weight)).to(device)",
        "hidden=None",
        f"{EPISODES} -k 'no_trace or loss_is'",
    ),
    Mutant(
        "novel queries asked for base categories",
        "training/episodes.py",
        "tasks.novel_targets + base.shape[2]",
        "tasks.novel_targets",
        f"{EPISODES} -k loss_is",
    ),
    Mutant(
        "fixed shots are mixed",
        "training/stage2.py",
        'mixed=config.shots == "mixed"',
        "mixed=True",
        f"{EPISODES} -k fixed",
    ),
    Mutant(
        "an untrained generator replaces plain means",
        "training/train.py",
        "            if stage.judged:",
        "            if True:",
        f"{RUNS} -k before_its_generator",
    ),
    # Frozen extractors
    Mutant(
        "features not centred",
        "training/frozen.py",
        "view.copy_(view.float() - centre)",
        "view.copy_(view.float())",
        "training/test_frozen.py -k start",
    ),
    Mutant(
        "base vectors start from noise",
        "training/frozen.py",
        "model.classifier.weight.copy_(unit(means))",
        "unit(means)",
        "training/test_frozen.py -k start",
    ),
    Mutant(
        "τ starts at 10",
        "training/frozen.py",
        "model.classifier.scale.copy_(best_scale(cosines, targets))",
        "best_scale(cosines, targets)",
        "training/test_frozen.py -k start",
    ),
    # Calibration
    Mutant(
        "temperature of scores without their bias",
        "training/calibration.py",
        "fit_temperature(joint_queries(adjusted), pictures)",
        "fit_temperature(joint_queries(judged), pictures)",
        f"{LEARNING} -k temperature",
    ),
    Mutant(
        "unknown pictures are of a taught category",
        "training/calibration.py",
        "scores.novel_novel.masked_fill(own, -torch.inf).amax(2)",
        "scores.novel_novel.amax(2)",
        f"{CALIBRATION} -k own_category",
    ),
    Mutant(
        "a finished run is not calibrated",
        "training/train.py",
        "save_trained(folder.model, model, config, calibration, finished=True, **facts)\n    remove_file(",
        "save_trained(folder.model, model, config, finished=True, **facts)\n    remove_file(",
        f"{RUNS} -k calibrated_and",
    ),
    Mutant(
        "hidden categories stay in the regression",
        "model/generator.py",
        "return solved + shares @ seen",
        "return solved",
        "evaluation/test_evaluate.py -k left_out",
    ),
    Mutant(
        "validation pictures are not learned in the end",
        "training/train.py",
        "    solve_on_all_pictures(model, learned, held_out[1])\n",
        "",
        "training/test_frozen.py -k solves",
    ),
    Mutant(
        "what is forgotten stays in the moments",
        "recognition/ridge.py",
        "            self._changes.append((-1, old))",
        "            pass",
        "recognition/test_solved_vectors.py -k same_set",
    ),
    # The model
    Mutant(
        "cosine with long vectors",
        "model/classifier.py",
        "return dot_scores(unit(z), unit(w), scale)",
        "return dot_scores(unit(z), w, scale)",
        "model/test_classifier.py -k formula",
    ),
    Mutant(
        "scores without τ",
        "model/classifier.py",
        "return scale * (z @ w.mT)",
        "return z @ w.mT",
        "model/test_classifier.py -k formula",
    ),
    Mutant(
        "attention sees hidden categories",
        "model/generator.py",
        "logits = logits.masked_fill(hidden[:, None, None, :], -torch.inf)",
        "pass",
        f"model/test_generator.py {EPISODES} -k 'distribution or no_trace'",
    ),
    Mutant(
        "keys of any length",
        "model/generator.py",
        "(unit(queries) @ unit(keys).mT)",
        "(unit(queries) @ keys.mT)",
        "model/test_generator.py -k formula",
    ),
    Mutant(
        "attention without φ_att",
        "model/generator.py",
        "average + phi_att * (weights @ vectors)",
        "average + weights @ vectors",
        "model/test_generator.py -k formula",
    ),
    Mutant(
        "a sum instead of a mean of present examples",
        "model/generator.py",
        "weights = present / present.sum(dim=-1, keepdim=True)",
        "weights = present",
        "model/test_generator.py -k 'absent or formula'",
    ),
    Mutant(
        "hidden categories stay in the softmax",
        "model/model.py",
        "base = base.masked_fill(hidden.unsqueeze(1), -torch.inf)",
        "pass",
        "model/test_model.py -k formulas",
    ),
    Mutant(
        "pixels not divided by their deviation",
        "model/model.py",
        "extractor((one - mean) / std)",
        "extractor(one - mean)",
        "model/test_model.py -k plain_computation",
    ),
    Mutant(
        "the centre stays in the features",
        "model/model.py",
        "else sum(features) / len(features)) - self.centre",
        "else sum(features) / len(features))",
        "training/test_frozen.py -k centred",
    ),
    Mutant(
        "a frozen extractor's statistics move",
        "model/extractors/base.py",
        "self.eval().requires_grad_(requires_grad=False)",
        "self.requires_grad_(requires_grad=False)",
        "model/test_extractors.py -k freezing",
    ),
    # The recogniser
    Mutant(
        "scores without the lock",
        "recognition/predictor.py",
        "        with self._known.lock:\n            self._known.refresh()\n            novel =",
        "        if True:\n            self._known.refresh()\n            novel =",
        "recognition/test_threads.py",
    ),
    Mutant(
        "predictions without the bias",
        "recognition/predictor.py",
        "_joint(found, calibration.biases, among)",
        "_joint(found, lambda *_: np.zeros(1), among)",
        "recognition/test_scoring.py",
    ),
    Mutant(
        "taught scores are judged as unknown with the bias of answers",
        "recognition/predictor.py",
        "_joint(found, calibration.unknown_offsets, among)",
        "_joint(found, calibration.biases, among)",
        "recognition/test_scoring.py",
    ),
    Mutant(
        "the bias does not follow the tightness of examples",
        "model/spec.py",
        "return 0.0 if tightness is None else tightness - self.tightness",
        "return 0.0",
        "recognition/test_scoring.py",
    ),
    Mutant(
        "what others change is not seen",
        "recognition/knowledge.py",
        "        if state == self._seen or ",
        "        if self.taught or ",
        "recognition/test_recognizer_memory.py -k each_others",
    ),
    Mutant(
        "a forgotten category stays in the scores",
        "recognition/knowledge.py",
        "            row = self.vectors.drop(id_)\n",
        "            row = None\n",
        "recognition/test_recognizer.py -k restores",
    ),
    Mutant(
        "taught vectors of any length",
        "recognition/knowledge.py",
        "self._view(self._backend.compose(mean(np.stack([own for _, own in some])), count))",
        "self._backend.compose(mean(np.stack([own for _, own in some])), count)",
        "recognition/test_recognizer.py -k joint_scores",
    ),
    Mutant(
        "the order of examples matters",
        "recognition/vectors.py",
        "np.sort(terms, axis=-2).mean(axis=-2, dtype=np.float64)",
        "terms.mean(axis=-2)",
        "recognition/test_recognizer.py recognition/test_vectors.py",
    ),
    Mutant(
        "unknown takes nothing from the others",
        "recognition/predictor.py",
        "share * (1 - strange)",
        "share",
        "recognition/test_scoring.py",
    ),
    Mutant(
        "a threshold that does not rise",
        "recognition/scoring.py",
        "unknown.rise * np.log1p(taught)",
        "unknown.rise",
        "recognition/test_scoring.py",
    ),
    Mutant(
        "products in the order of rows",
        "recognition/vectors.py",
        "return found if in_place else found[:, rows]",
        "return found",
        "recognition/test_vectors.py",
    ),
    Mutant(
        "ids of a bundle in any order",
        "recognition/bundle.py",
        "return ids == sorted(set(ids)) and ids[-1] <= last",
        "return ids[-1] <= last",
        "recognition/test_bundle.py -k do_not_fit",
    ),
    Mutant(
        "the threshold of unknown comes from tasks with hidden categories",
        "training/calibration.py",
        "fewest = min(lesson.taught",
        "fewest = max(lesson.taught",
        "training/test_calibration.py -k hidden_categories",
    ),
    Mutant(
        "every taught picture is known",
        "training/calibration.py",
        "np.quantile(needed, 1 - FALSE_ALARMS",
        "np.quantile(needed, 1.0",
        "training/test_calibration.py -k false_alarm",
    ),
    Mutant(
        "the offset of taught scores forgets the number of examples",
        "training/calibration.py",
        "[log(self.taught), log(self.shots), self.excess]",
        "[log(self.taught), 0.0, self.excess]",
        "training/test_calibration.py -k false_alarm",
    ),
    Mutant(
        "attention that does not fade with the number of examples",
        "model/generator.py",
        "shots**-self.fading * attended",
        "attended",
        "model recognition -k shot",
    ),
    # Stores
    Mutant(
        "a store that was deleted goes unnoticed",
        "store/sqlite.py",
        "        if not same:\n",
        "        if False:\n",
        "store/test_sqlite.py -k deleted",
    ),
    Mutant(
        "not on disk when the call returns",
        "store/sqlite.py",
        "PRAGMA synchronous = EXTRA",
        "PRAGMA synchronous = OFF",
        "store/test_sqlite.py",
    ),
    Mutant(
        "a connection crosses a fork",
        "store/sqlite.py",
        "self._shared and self._process != os.getpid():  # a connection",
        "False:  # a connection",
        "store/test_sqlite.py -k fork",
    ),
    Mutant(
        "a fork closes its parent's connection",
        "store/sqlite.py",
        "            if self._shared and self._process != os.getpid():\n                _abandoned",
        "            if False:\n                _abandoned",
        "store/test_sqlite.py -k fork",
    ),
    Mutant(
        "categories that are gone go unnoticed",
        "store/sqlite.py",
        "if kept and kept != _seal(connection, sums):",
        "if False:",
        "store/test_sqlite.py -k gone",
    ),
    Mutant(
        "sums are trusted after another process wrote",
        "store/sqlite.py",
        "if state != self._summed or is_due:",
        "if self._summed is None or is_due:",
        "store/test_sqlite.py -k sums",
    ),
    Mutant(
        "sums are trusted for good",
        "store/sqlite.py",
        "if state != self._summed or is_due:",
        "if state != self._summed:",
        "store/test_sqlite.py -k announced",
    ),
    Mutant(
        "sums are prepared in part",
        "store/sqlite.py",
        'connection.execute("PRAGMA temp_store = MEMORY")\n    connection.execute("BEGIN")',
        'connection.execute("PRAGMA temp_store = MEMORY")',
        "store/test_sqlite.py -k interruption",
    ),
    Mutant(
        "sums of a change that was undone",
        "store/sqlite.py",
        "                self._summed = None\n",
        "",
        "store/test_sqlite.py -k sums",
    ),
    Mutant(
        "a fork does not wait for other threads",
        "system/forks.py",
        "while _depths.keys() - _forking:",
        "while False:",
        "system/test_forks.py",
    ),
    Mutant(
        "checksums are not compared",
        "store/sql.py",
        "        if checksum(*values) != expected:",
        "if False:",
        "store/test_sqlite.py",
    ),
    Mutant(
        "checksums of terms are not compared",
        "store/sql.py",
        "                if checksum(id_, category, term) != expected:",
        "                if False:",
        "store/test_sqlite.py -k before_it_scores",
    ),
    Mutant(
        "what was forgotten comes back",
        "store/sql.py",
        'bool(self._rows("SELECT 1 FROM known WHERE digest = ?", content.digest()))',
        "False",
        "store/test_stores.py recognition/test_hardening.py -k 'comes or come_back or forgets or fill'",
    ),
    Mutant(
        "a base category cannot be taught under its shown name",
        "store/sql.py",
        "self._check_shown(name, but=name)",
        "self._check_shown(name)",
        "store/test_stores.py recognition/test_correcting.py",
    ),
    # The service
    Mutant(
        "no token is needed",
        "serve/api.py",
        "    if token is not None and (",
        "    if token is None and (",
        "serve/test_safety.py -k token",
    ),
    Mutant(
        "any host name is answered",
        "serve/gate.py",
        "        if not self._is_ours(host):",
        "        if not host:",
        "serve/test_safety.py -k names_that_are_ours",
    ),
    Mutant(
        "pages of other sites may post",
        "serve/gate.py",
        'origin not in {f"http://{host}", f"https://{host}"}',
        "not origin",
        "serve/test_safety.py -k other_sites",
    ),
    Mutant(
        "slow clients are never cut off",
        "serve/protocol.py",
        "        elif took >= self.limits.patience:",
        "        elif took >= 100 * self.limits.patience:",
        "serve/test_safety.py -k now_and_then",
    ),
    Mutant(
        "a fast start pays for a stall",
        "serve/protocol.py",
        "        self._marked = self.loop.time(), self._bytes",
        "        self._marked = self.loop.time(), 0",
        "serve/test_safety.py -k now_and_then",
    ),
    Mutant(
        "bodies are held without bound",
        "serve/gate.py",
        "        if self._held > self._limits.memory_mb << 20:",
        "        if self._held < 0:",
        "serve/test_safety.py -k at_once_are_refused",
    ),
    Mutant(
        "the queue has no end",
        "serve/engine.py",
        "        if self._waiting + pictures > self.limits.queue:",
        "        if pictures > self.limits.queue:",
        "serve/test_engine.py -k full_queue",
    ),
    Mutant(
        "one example more than allowed",
        "serve/engine.py",
        "known.get(name, 0) + count > self.limits.examples",
        "known.get(name, 0) > self.limits.examples",
        "serve/test_engine.py -k limits_allow",
    ),
    Mutant(
        "answers of one question go to another",
        "serve/engine.py",
        "features[places], question.top",
        "features[: len(places)], question.top",
        "serve/test_engine.py",
    ),
    Mutant(
        "a failing store tells its path",
        "serve/problems.py",
        "    if isinstance(error, StoreFailure):  #",
        "    if isinstance(error, ArgumentError):  #",
        "serve/test_engine.py -k store_that_fails",
    ),
    Mutant(
        "forms choose their encoding",
        "serve/uploads.py",
        """Headers({"content-type": f'multipart/form-data; boundary="{boundary}"'})""",
        "request.headers",
        "serve/test_safety.py -k utf_8",
    ),
    Mutant(
        "a damaged backup is taken",
        "recognition/bundle.py",
        "    if not whole:",
        "    if words is None:",
        "serve/test_fuzz.py -k damaged_backups",
    ),
    Mutant(
        "the client counts pictures twice",
        "client.py",
        '"keep_duplicates": _word(skipped is None)',
        '"keep_duplicates": _word(skipped is not None)',
        "serve/test_client.py -k taught_before",
    ),
    # The low-shot benchmark
    Mutant(
        "positions read in a sorted list of names",
        "data/lowshot.py",
        "return tuple(self.label_names[place] for place in places)",
        "return tuple(sorted(self.label_names)[place] for place in places)",
        "data/test_lowshot_groups.py",
    ),
    Mutant(
        "categories in two groups",
        "data/lowshot.py",
        "            if name in seen:\n",
        "            if False:\n",
        "data/test_lowshot_groups.py",
    ),
    Mutant(
        "test pictures among the examples",
        "data/lowshot.py",
        "return Half(columns, base, _where(novel, ~asked), _where(novel, asked))",
        "return Half(columns, base, novel, _where(novel, asked))",
        "data/test_lowshot_groups.py",
    ),
    Mutant(
        "ties count as right",
        "evaluation/lowshot.py",
        "return (scores < thresholds.unsqueeze(2))",
        "return (scores <= thresholds.unsqueeze(2))",
        "evaluation/test_lowshot_figures.py",
    ),
    Mutant(
        "the prior the wrong way round for base queries",
        "evaluation/lowshot.py",
        "shift = _log_odds(prior[k]) * (1 if compared.novel else -1)",
        "shift = _log_odds(prior[k])",
        "evaluation/test_lowshot_figures.py",
    ),
    Mutant(
        "probabilities not taken inside each kind",
        "evaluation/lowshot.py",
        "weighed = compared.target + compared.evidence",
        "weighed = compared.target",
        "evaluation/test_lowshot_figures.py",
    ),
    Mutant(
        "an example drawn twice",
        "evaluation/lowshot.py",
        "rng.choice(own, most, replace=False)",
        "rng.choice(own, most, replace=True)",
        "evaluation/test_lowshot_figures.py",
    ),
    Mutant(
        "SGM without the features",
        "training/losses.py",
        "(error.square().sum(dim=1) * z.square().sum(dim=1)).mean()",
        "error.square().sum(dim=1).mean()",
        "training/test_losses.py",
    ),
    Mutant(
        "Batch SGM of single examples",
        "training/losses.py",
        "(error.T @ z / len(z)).square().sum()",
        "(error.T @ z).square().sum() / len(z)",
        "training/test_losses.py",
    ),
    Mutant(
        "analogies that point the other way",
        "methods/lowshot/analogies.py",
        "some.unsqueeze(1) - some.unsqueeze(2)",
        "some.unsqueeze(2) - some.unsqueeze(1)",
        "methods/test_lowshot_systems.py -k analogies",
    ),
    Mutant(
        "no squared error of completed analogies",
        "methods/lowshot/analogies.py",
        "+ ERROR_WEIGHT * F.mse_loss(completed, wanted)",
        "+ 0 * F.mse_loss(completed, wanted)",
        "methods/test_lowshot_systems.py -k analogies",
    ),
    Mutant(
        "changes of the category that is completed",
        "methods/lowshot/analogies.py",
        "self.centres, self.places = centres, analogies[:, 2:]",
        "self.centres, self.places = centres, analogies[:, :2]",
        "methods/test_lowshot_systems.py -k second_halves",
    ),
    Mutant(
        "every part of the draws hallucinates the same",
        "methods/lowshot/analogies.py",
        "classify(fill_up(some, changes, complete, recipe.fill, draw), columns)",
        "classify(fill_up(some, changes, complete, recipe.fill, draw.manual_seed(0)), columns)",
        "methods/test_lowshot_systems.py -k however_many",
    ),
    Mutant(
        "logistic regression without its bias",
        "methods/lowshot/logistic.py",
        "slope[..., -1] += error.sum(1)",
        "pass",
        "methods/test_lowshot_systems.py -k logistic",
    ),
    Mutant(
        "logistic regression without weight decay",
        "methods/lowshot/logistic.py",
        "        slope += recipe.logistic_decay * weights\n",
        "",
        "methods/test_lowshot_systems.py -k logistic",
    ),
    Mutant(
        "queries among the examples of base categories",
        "methods/lowshot/system.py",
        "present = ~torch.isin(rows, tasks.base_queries[0])",
        "present = torch.ones_like(rows, dtype=torch.bool)",
        "methods/test_lowshot_systems.py -k networks_see",
    ),
    Mutant(
        "features trusted to the last byte of an interrupted file",
        "features.py",
        "    os.truncate(growing, chunks * _CHUNK * row)\n",
        "",
        "test_features.py -k interrupted_file",
    ),
    Mutant(
        "jitter of the whole batch",
        "data/augment.py",
        "torch.rand(3, count, generator=generator)",
        "torch.rand(3, 1, generator=generator).expand(3, count)",
        "data/test_augment.py -k jitter",
    ),
    Mutant(
        "a stage 1 of another recipe taken over",
        "reproduce/lowshot/run.py",
        "begun = run.require_same(resolve(config, pictures))",
        "begun = run.config()",
        "reproduce/test_table3.py -k another_recipe",
    ),
    # The page
    Mutant(
        "a policy that allows scripts from everywhere",
        "serve/files.py",
        "script-src 'self'",
        "script-src *",
        "serve/test_page_files.py -k policy",
    ),
    Mutant(
        "a file of the page is kept without asking again",
        "serve/files.py",
        '"no-cache"',
        '"max-age=86400"',
        "serve/test_page_files.py -k known_again",
    ),
    Mutant(
        "an undo brings back other categories too",
        "recognition/recognizer.py",
        "if taught.id == own]",
        "if taught.id]",
        "serve/test_calls.py -k that_one_alone",
    ),
    Mutant(
        "the page is opened at an address that leads nowhere",
        "serve/run.py",
        "_WILDCARDS.get(settings.host, settings.host)",
        "settings.host",
        "serve/test_running.py -k opens_the_page",
    ),
    Mutant(
        "names in the list of categories are markup",
        "serve/page/categories.js",
        'this.part("name").textContent = name;',
        'this.part("name").insertAdjacentHTML("beforeend", name);',
        "page/test_page.py -k never_markup",
    ),
    Mutant(
        "forgetting keeps nothing for an undo",
        "serve/page/categories.js",
        "await attempt(() => backend.upload(kept));",
        "kept;",
        "page/test_page.py -k comes_back",
    ),
    Mutant(
        "a drawing is sent where it was drawn, not centred",
        "serve/page/drawing.js",
        "ink.translate(-(left + right) / 2, -(top + bottom) / 2);",
        "",
        "page/test_page.py -k fourth_time",
    ),
    Mutant(
        "a full queue is not waited for",
        "serve/page/attempt.js",
        'if (failure.kind !== "busy" || tries === TRIES) throw failure;',
        "throw failure;",
        "page/test_states.py -k full_queue",
    ),
    Mutant(
        "a wrong token is kept",
        "serve/page/service.js",
        'if (error.kind === "token") return false;',
        'if (error.kind === "token") return true;',
        "page/test_states.py -k wrong_token",
    ),
    Mutant(
        "a picture that is no picture stays among those to teach",
        "serve/page/app.js",
        'if (failure.kind === "refused") tray.remove(item);',
        'if (failure.kind === "offline") tray.remove(item);',
        "page/test_page.py -k no_picture",
    ),
    Mutant(
        "an error stays beside a success",
        "serve/page/notices.js",
        'if (kind === "done") settle();',
        "",
        "page/test_states.py -k error_goes",
    ),
    Mutant(
        "answers go on while somebody is about to correct one",
        "serve/page/app.js",
        "  held = true;",
        "",
        "page/test_page.py -k before_the_camera_is_corrected",
    ),
    Mutant(
        "an answer that nobody could read is taught",
        "serve/page/answers.js",
        "> READABLE;",
        "> -1;",
        "page/test_page.py -k under_the_finger",
    ),
    # Methods that learn to learn
    Mutant(
        "MAML of first order alone",
        "methods/maml.py",
        "create_graph=through",
        "create_graph=False",
        f"{MAML} -k loop_over_tasks",
    ),
    Mutant(
        "MAML climbs",
        "methods/maml.py",
        "weights[name] - rates[name]",
        "weights[name] + rates[name]",
        f"{MAML} -k loop_over_tasks",
    ),
    Mutant(
        "ANIL adapts everything",
        "methods/maml.py",
        '"head." if self.head_alone else ""',
        '""',
        f"{MAML} -k loop_over_tasks",
    ),
    Mutant(
        "batch norm forgets its bias in a loop over tasks",
        "methods/task_network.py",
        "norm.weight, norm.bias, training=True",
        "norm.weight, None, training=True",
        f"{MAML} -k loop_over_tasks",
    ),
    Mutant(
        "MAML from a classifier starts at random",
        "methods/episodic.py",
        "stage.model.extractor.load_state_dict(classifier.extractor.state_dict())",
        "pass",
        "methods/test_methods.py -k stage_1_of_ours",
    ),
    Mutant(
        "convolutions not mirrored",
        "methods/task_network.py",
        "weight.flip(3, 4).transpose(1, 2)",
        "weight.transpose(1, 2)",
        f"{MAML} -k any_order",
    ),
    Mutant(
        "variance about zero",
        "methods/task_network.py",
        "second - mean.unsqueeze(2) * mean.unsqueeze(1)",
        "second",
        f"{MAML} -k loop_over_tasks",
    ),
    Mutant(
        "no clipping",
        "training/optimizer.py",
        "nn.utils.clip_grad_value_(parameters, self.value)",
        "pass",
        f"{MAML} -k published_recipe",
    ),
    Mutant(
        "Meta-LSTM climbs",
        "methods/meta_lstm.py",
        "- take.sigmoid() * slopes",
        "+ take.sigmoid() * slopes",
        f"{LSTM} -k by_hand",
    ),
    Mutant(
        "gates forget themselves",
        "methods/meta_lstm.py",
        "self.input(torch.cat([known, take[..., None]], -1))",
        "self.input(torch.cat([known, forget[..., None]], -1))",
        f"{LSTM} -k by_hand",
    ),
    Mutant(
        "queries normalised together",
        "methods/meta_lstm.py",
        "own = None if model.training else running",
        "own = None",
        f"{LSTM} -k one_by_one",
    ),
    Mutant(
        "a later example is seen",
        "methods/temporal.py",
        "is_causal=True",
        "is_causal=False",
        f"{TEMPORAL} -k 'earlier'",
    ),
    Mutant(
        "a query sees a wrong example",
        "methods/temporal.py",
        "shifted[:, count : count + 1]",
        "shifted[:, count - 1 : count]",
        f"{TEMPORAL} -k one_sequence",
    ),
    Mutant(
        "examples lose their labels",
        "methods/temporal.py",
        "(examples, labels[order], queries)",
        "(examples, labels, queries)",
        f"{TEMPORAL} -k any_order",
    ),
    Mutant(
        "more ways than outputs",
        "methods/adapting.py",
        "if spec is not None and shape.ways > spec.ways:",
        "if spec is None:",
        "methods/test_methods.py -k 'more_ways and temporal'",
    ),
    Mutant(
        "base queries among those of a task",
        "methods/method.py",
        "        if joint:\n",
        "        if True:\n",
        "methods/test_methods.py -k 'column and maml'",
    ),
    Mutant(
        "Adam forgets its steps",
        "training/checkpoints.py",
        'place = values.clone() if part == "step"',
        'place = torch.zeros(()) if part == "step"',
        "methods/test_methods.py -k 'broke_off and temporal'",
    ),
    Mutant(
        "older runs are refused",
        "training/runfolder.py",
        "for name in NEWER_SECTIONS if",
        "for name in () if",
        "training/test_run_files.py -k older",
    ),
    Mutant(
        "base scores of methods without any",
        "reproduce/page.py",
        'own = "no base scores" if unable else',
        'own = "" if unable else',
        "reproduce/test_methods_of_table2.py -k cannot",
    ),
    # ONNX
    Mutant(
        "an exported folder takes exchanged files",
        "backends/exported.py",
        "if hashlib.sha256(content).hexdigest() != export.files[name]:",
        "if not content:",
        "backends/test_onnx.py -k exchanged",
    ),
    Mutant(
        "views are shifted twice",
        "features.py",
        "with torch.no_grad(), model.unshifted(), progress",
        "with torch.no_grad(), progress",
        "training/test_learning.py -k neither_views",
    ),
    Mutant(
        "black does not come in where a picture is shifted",
        "model/model.py",
        "around = F.pad(pictures, (by, by, by, by))",
        'around = F.pad(pictures, (by, by, by, by), mode="replicate")',
        "model/test_model.py -k five_places",
    ),
    Mutant(
        "a picture is shifted to three sides",
        "model/model.py",
        "(by, 2 * by), (2 * by, by)",
        "(by, 2 * by), (by, 2 * by)",
        "model/test_model.py -k five_places",
    ),
    Mutant(
        "mirror images and shifted pictures are left out of the graph",
        "export/graphs.py",
        "torch.cat(appearances(prepared.to(self.mean.dtype), self.spec))",
        "torch.cat([prepared.to(self.mean.dtype)] * self.spec.looks)",
        "backends/test_onnx.py -k scores_and_answers",
    ),
    Mutant(
        "the graph crops at the edge",
        "export/notation.py",
        "float half = {{0.5}}",
        "float half = {{0.0}}",
        "export/test_exported_folder.py -k prepares",
    ),
    Mutant(
        "a picture of the right size is resized again",
        "export/notation.py",
        "wanted = Where (fits, short, short_side)",
        "wanted = Where (fits, short_side, short_side)",
        "export/test_exported_folder.py -k prepares",
    ),
    Mutant(
        "an export that differs from torch is written",
        "export/checking.py",
        "if strict and not difference <= CLOSE:",
        "if False:",
        "export/test_exported_folder.py -k not_written",
    ),
    Mutant(
        "auto loads torch",
        "backends/choice.py",
        'if sys.modules.get("torch") is None or',
        "if False or",
        "backends/test_onnx.py -k import_no_torch",
    ),
    Mutant(
        "which backend is faster is not remembered",
        "backends/choice.py",
        "        remember(folder, found, place)\n    return found",
        "    return found",
        "backends/test_onnx.py -k remembers",
    ),
    Mutant(
        "a fork uses the threads of its parent",
        "system/sessions.py",
        "        if os.getpid() != self._process:\n            with self._lock:",
        "        if False:\n            with self._lock:",
        "backends/test_onnx.py -k fork",
    ),
    Mutant(
        "ridge forgets λ in onnxruntime's backend",
        "backends/onnx.py",
        "diagonal = matrix.diagonal() + RIDGE",
        "diagonal = matrix.diagonal() + 0",
        "backends/test_onnx.py -k same_vectors",
    ),
    Mutant(
        "any npm package will do",
        "export/runtime.py",
        "if hashlib.sha512(archive.read_bytes()).digest() != base64.b64decode(_SHA512):",
        "if False:",
        "export/test_runtime.py -k digest",
    ),
    Mutant(
        "an ONNX file's maps are summed",
        "model/extractors/onnx.py",
        "features = features.mean(axis=",
        "features = features.sum(axis=",
        "model/test_onnx_extractor.py -k means",
    ),
]


def broken(mutant: Mutant) -> str | None:
    """Say why a fault cannot be tried, if it cannot."""
    found = (ROOT / "src/recollect" / mutant.file).read_text(encoding="utf-8").count(mutant.old)
    if found != 1:
        return f"its text stands {found} times in {mutant.file} and must stand there once: {mutant.old!r}"
    missing = [word for word in mutant.tests.split(" -k ")[0].split() if not (ROOT / "tests" / word).exists()]
    return f"there is no tests/{missing[0]}" if missing else None


def copy_tree(folder: Path) -> None:
    """Copy what the tests need."""
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def run_tests(folder: Path, words: str) -> tuple[int, str]:
    """Run pytest in a copy of the tree: exit code and output."""
    files, _, chosen = words.partition(" -k ")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header"]
    command += ["-m", ""]  # slow ones, too
    command += ["-k", chosen.strip("'")] if chosen else []
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder / 'tests'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command += [f"tests/{file}" for file in files.split()] + [f"--basetemp={folder / 'temporary'}"]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TOO_LONG,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, "too long"
    return done.returncode, done.stdout + done.stderr


def tried(mutant: Mutant) -> str:
    """Apply a fault to a copy and run its tests: "caught", "SURVIVED", or what went wrong."""
    reason = broken(mutant)
    if reason:
        return f"ERROR: {reason}"
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        folder = Path(place)
        copy_tree(folder)
        file = folder / "src/recollect" / mutant.file
        file.write_text(file.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
        code, said = run_tests(folder, mutant.tests)
    if code in {0, 1}:
        return "caught" if code else "SURVIVED"
    return f"ERROR: pytest ended with {code}: {' '.join(said.split())[-300:]}"


def sound() -> str | None:
    """Run every named test on the tree as it is; say what fails."""
    named = [mutant.tests.partition(" -k ") for mutant in MUTANTS]
    files = sorted({file for words, _, _ in named for file in words.split()})
    whole = {Path(file).name for words, _, chosen in named if not chosen for file in words.split()}
    chosen = " or ".join(sorted({*whole, *(f"({words.strip(chr(39))})" for _, _, words in named if words)}))
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        copy_tree(Path(place))
        code, said = run_tests(Path(place), f"{' '.join(files)} -k {chosen}")
    return None if code == 0 else said[-2000:]


def main() -> int:
    """Try all, print each and the score; 1 if any survived."""
    words, began = sys.argv[1:], time.monotonic()
    chosen = [one for one in MUTANTS if not words or any(word in f"{one.file} {one.name}" for word in words)]
    wrong = None if words else sound()
    if wrong:
        sys.stdout.write(f"{wrong}\nthe tests fail without any fault: mend them first\n")
        return 1
    caught = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, verdict in zip(chosen, pool.map(tried, chosen), strict=True):
            caught += verdict == "caught"
            sys.stdout.write(f"{verdict:9} {mutant.file}: {mutant.name}\n")
            sys.stdout.flush()
    minutes = (time.monotonic() - began) / 60
    sys.stdout.write(f"{caught} of {len(chosen)} mutants caught, {minutes:.1f} minutes\n")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
