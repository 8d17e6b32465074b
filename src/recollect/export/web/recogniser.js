// From features to answers: what recollect's recogniser does, in the browser.

const MOST_SHOTS = 5;

const dot = (one, other, start = 0) => {
  let sum = 0;
  for (let place = 0; place < one.length; place += 1) sum += one[place] * other[start + place];
  return sum;
};
export const norm = (vector) => Math.sqrt(dot(vector, vector));

function unit(vector) {
  const length = Math.max(norm(vector), 1e-12);
  return vector.map((value) => value / length);
}

/** The vectors of taught categories, and what answers depend on, for one content (see taught.js). */
export class Recogniser {
  /**
   * `model` is model.json; `base` has the vectors of base categories, one after the other; `inverse` is
   * (G + λI)⁻¹, one row after the other, where the generator is `ridge`.
   */
  constructor(model, base, inverse) {
    Object.assign(this, { model, base, inverse });
    this.seen = new WeakMap(); // term of an example → what it is seen as through `inverse`
  }

  /** Return base and taught categories in the order of their scores, and the vectors of taught ones. */
  view(content) {
    const { model } = this;
    if (this.last?.content === content) return this.last;
    const places = new Map(model.categories.map((name, place) => [name, place]));
    const more = new Map(content.categories.map(({ name, examples }) => [places.get(name), examples.length]));
    const base = model.categories.map((name, place) => this.baseCategory(content, name, more.get(place) ?? null));
    const taught = content.categories.map(({ id, name, examples }) =>
      places.has(name)
        ? base[places.get(name)]
        : { id: base.length + id - 1, name, origin: "novel", examples: examples.length, hidden: false },
    );
    const vectors = model.generator === "ridge" ? this.solved(content) : content.categories.map((one) => this.composed(one));
    const counts = content.categories.map(({ examples }) => examples.length);
    const tightness = model.generator === "ridge" ? tightnessOf(content) : null;
    this.last = { content, base, taught, vectors, offsets: biases(model.calibration, counts, tightness), judged: unknownOffsets(model.calibration, counts, tightness) };
    return this.last;
  }

  baseCategory(content, name, examples) {
    const { shown = null, hidden = false } = content.base[name] ?? {};
    return { id: this.model.categories.indexOf(name), name: shown ?? name, origin: "base", examples, hidden };
  }

  /** The mean of the terms of a category's examples; where attention fades, its part weighs less. */
  composed({ examples }) {
    const { width, fading, classifier } = this.model;
    const mean = new Float64Array(examples[0].term.length);
    for (const { term } of examples) for (let place = 0; place < mean.length; place += 1) mean[place] += term[place] / examples.length;
    const weight = fading === null ? 0 : examples.length ** -fading;
    const vector = fading === null ? mean : mean.subarray(0, width).map((value, place) => value + weight * mean[width + place]);
    return classifier === "dot" ? vector : unit(vector);
  }

  /** Ridge regression over all examples Z: Yᵀ (Z M⁻¹Zᵀ + I)⁻¹ Z M⁻¹, of unit length. */
  solved(content) {
    const { width } = this.model;
    const terms = content.categories.flatMap(({ examples }) => examples.map(({ term }) => term));
    const seen = terms.map((term) => this.through(term));
    const matrix = terms.map((term, row) => Float64Array.from(terms, (_, column) => dot(seen[column], term) + (row === column ? 1 : 0)));
    const solve = cholesky(matrix);
    let start = 0;
    return content.categories.map(({ examples }) => {
      const shares = solve(Float64Array.from(terms, (_, row) => (row >= start && row < start + examples.length ? 1 : 0)));
      start += examples.length;
      const vector = new Float64Array(width);
      seen.forEach((row, place) => {
        for (let column = 0; column < width; column += 1) vector[column] += shares[place] * row[column];
      });
      return unit(vector);
    });
  }

  through(term) {
    if (!this.seen.has(term)) {
      const { width } = this.model;
      this.seen.set(term, Float64Array.from({ length: width }, (_, row) => dot(term, this.inverse, row * width)));
    }
    return this.seen.get(term);
  }

  scores(feature, view) {
    const { classifier, scale, width, categories } = this.model;
    const factor = classifier === "dot" ? scale : scale / Math.max(norm(feature), 1e-12);
    return {
      base: categories.map((_, place) => factor * dot(feature, this.base, place * width)),
      novel: view.vectors.map((vector) => factor * dot(feature, vector)),
    };
  }

  /** Return the scores that compete, with the categories that they are of; hidden ones are not among them. */
  joint({ base, novel }, view, offsets) {
    const scores = [...base];
    view.taught.forEach(({ origin, id }, place) => {
      const score = novel[place] + offsets[place];
      if (origin === "base") scores[id] = Math.max(scores[id], score);
    });
    const choices = view.base.map((category, place) => ({ category, score: scores[place] }));
    view.taught.forEach((category, place) => {
      if (category.origin === "novel") choices.push({ category, score: novel[place] + offsets[place] });
    });
    return choices.filter(({ category }) => !category.hidden);
  }

  /** Return the best answers for a feature: [{ category, probability, origin }]. */
  answers(feature, content, top) {
    const view = this.view(content);
    const scores = this.scores(feature, view);
    const choices = this.joint(scores, view, view.offsets);
    if (!choices.length) return [];
    const judged = this.joint(scores, view, view.judged);
    const share = this.strangeness(Math.max(...judged.map(({ score }) => score)), choices.length, view.taught.length);
    const shares = softmax(choices.map(({ score }) => score), this.model.calibration.temperature);
    const nearest = choices
      .map(({ category }, place) => ({ category: category.name, probability: shares[place] * (1 - share), origin: category.origin }))
      .sort((one, other) => other.probability - one.probability);
    const unsure = share >= 0.5 ? [{ category: "unknown", probability: share, origin: "unknown" }] : [];
    return [...unsure, ...nearest].slice(0, top);
  }

  /** Return the probability that a picture with this best score is of no known category. */
  strangeness(best, count, taught) {
    const { calibration, scale, classifier } = this.model;
    const rule = calibration.unknown;
    if (rule) {
      const cleared = best - rule.rise * Math.log1p(taught) - rule.threshold;
      const strange = sigmoid(rule.offset - rule.steepness * cleared);
      return count === 1 || cleared < 0 ? strange : 0;
    }
    if (count > 1) return 0;
    return sigmoid(((classifier === "cosine" ? scale / 2 : 0) - best) / calibration.temperature);
  }

  /** Return which categories the examples of one resemble, with their mean probability. */
  resembles(category, content, top) {
    const view = this.view(content);
    const own = view.taught[content.categories.indexOf(category)].id;
    const total = new Map();
    for (const { feature } of category.examples) {
      const scores = this.scores(feature, view);
      const others = this.joint(scores, view, view.offsets).filter((one) => one.category.id !== own);
      if (!others.length) return [];
      const judged = this.joint(scores, view, view.judged).filter((one) => one.category.id !== own);
      const share = this.strangeness(Math.max(...judged.map(({ score }) => score)), others.length, view.taught.length);
      softmax(others.map(({ score }) => score), this.model.calibration.temperature).forEach((value, place) => {
        const { name } = others[place].category;
        total.set(name, (total.get(name) ?? 0) + (value * (1 - share)) / category.examples.length);
      });
    }
    return ranked(total, top);
  }
}

/** Return the largest of some shares by name: [{ category, share }]. */
export function ranked(shares, top) {
  return [...shares]
    .map(([category, share]) => ({ category, share }))
    .sort((one, other) => other.share - one.share)
    .slice(0, top);
}

function softmax(scores, temperature) {
  const most = Math.max(...scores);
  const powers = scores.map((score) => Math.exp((score - most) / temperature));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

const sigmoid = (value) => 1 / (1 + Math.exp(-value));
const logShots = (count, most = MOST_SHOTS) => Math.log(Math.min(Math.max(count, 1), most));

/** Return the bias for a number of taught categories: one number, or interpolated over its logarithm. */
function biasAt(bias, taught) {
  if (typeof bias === "number") return bias;
  const known = Object.keys(bias).map(Number).sort((one, other) => one - other);
  const place = Math.log(Math.max(1, taught));
  const right = known.findIndex((number) => Math.log(number) >= place);
  if (right <= 0) return bias[right === 0 ? known[0] : known.at(-1)];
  const [low, high] = [known[right - 1], known[right]];
  const part = (place - Math.log(low)) / (Math.log(high) - Math.log(low));
  return bias[low] + part * (bias[high] - bias[low]);
}

const excess = (calibration, tightness) => (tightness === null ? 0 : tightness - calibration.tightness);

function biases(calibration, counts, tightness) {
  const slope = biasAt(calibration.bias_slope, counts.length);
  const start = biasAt(calibration.bias, counts.length) + slope * excess(calibration, tightness);
  const rise = biasAt(calibration.bias_rise, counts.length);
  return counts.map((count) => start + rise * logShots(count, calibration.most_shots));
}

function unknownOffsets(calibration, counts, tightness) {
  const offset = calibration.unknown?.taught;
  if (!offset) return biases(calibration, counts, tightness);
  const number = Math.min(Math.max(1, counts.length), offset.most ?? counts.length);
  const start = offset.start + offset.number * Math.log(Math.max(1, number)) + offset.slope * excess(calibration, tightness);
  return counts.map((count) => start + offset.rise * logShots(count));
}

/** Return the mean cosine between two examples of the same category, or null without any two. */
function tightnessOf(content) {
  const pairs = content.categories
    .filter(({ examples }) => examples.length > 1)
    .map(({ examples }) => {
      const total = new Float64Array(examples[0].term.length);
      for (const { term } of examples) for (let place = 0; place < total.length; place += 1) total[place] += term[place];
      return (dot(total, total) - examples.length) / (examples.length * (examples.length - 1));
    });
  return pairs.length ? pairs.reduce((sum, pair) => sum + pair, 0) / pairs.length : null;
}

/** Factor a symmetric matrix, and return a function that solves it for a right-hand side. */
function cholesky(matrix) {
  const size = matrix.length;
  const lower = matrix.map(() => new Float64Array(size));
  for (let row = 0; row < size; row += 1) {
    for (let column = 0; column <= row; column += 1) {
      let sum = matrix[row][column];
      for (let inner = 0; inner < column; inner += 1) sum -= lower[row][inner] * lower[column][inner];
      lower[row][column] = row === column ? Math.sqrt(sum) : sum / lower[column][column];
    }
  }
  return (right) => {
    const found = Float64Array.from(right);
    for (let row = 0; row < size; row += 1) {
      for (let column = 0; column < row; column += 1) found[row] -= lower[row][column] * found[column];
      found[row] /= lower[row][row];
    }
    for (let row = size - 1; row >= 0; row -= 1) {
      for (let below = row + 1; below < size; below += 1) found[row] -= lower[below][row] * found[below];
      found[row] /= lower[row][row];
    }
    return found;
  };
}
