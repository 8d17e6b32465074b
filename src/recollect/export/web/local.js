/**
 * The backend of a page that needs no service: onnxruntime computes in this browser, and what is taught stays in
 * it. service.js says what each method does.
 */

import { Failure } from "./failure.js";
import * as ort from "./ort.wasm.min.mjs";
import { ranked, norm, Recogniser } from "./recogniser.js";
import { pack, unpack } from "./safetensors.js";
import { Taught } from "./taught.js";

const SAME = 1e-4; // how far two features of one picture may lie apart, relative to their length
const LONGEST_NAME = 200;
const MOST_PICTURES = 100; // in one lesson
const THUMBNAIL = 96; // pixels a side, at most
const BACKUP = "application/octet-stream";

const refused = (words) => new Failure("refused", words);
const fetched = async (name) => {
  const response = await fetch(new URL(`model/${name}`, import.meta.url), { cache: "no-cache" }).catch(() => null);
  if (!response) throw new Failure("offline", "The server of this page does not answer.");
  if (!response.ok) throw refused(`model/${name} cannot be loaded: look whether the whole folder is there.`);
  return response;
};
const bytesOf = async (name) => new Uint8Array(await (await fetched(name)).arrayBuffer());
const floatsOf = async (name) => new Float32Array(await (await fetched(name)).arrayBuffer());

let loaded; // a promise of everything below
const load = () => {
  loaded ??= begin().catch((error) => {
    loaded = undefined; // so that it can be tried again
    throw error;
  });
  return loaded;
};

async function begin() {
  ort.env.wasm.numThreads = 1; // more would need headers that a static server does not send
  ort.env.wasm.wasmPaths = new URL("./", import.meta.url).href;
  const model = await (await fetched("model.json")).json();
  const [extractor, generator, base, inverse, given] = await Promise.all([
    bytesOf("extractor.onnx").then((bytes) => ort.InferenceSession.create(bytes)),
    bytesOf("generator.onnx").then((bytes) => ort.InferenceSession.create(bytes)),
    floatsOf("vectors.bin"),
    model.generator === "ridge" ? floatsOf("inverse.bin") : null,
    bytesOf("taught.safetensors"),
  ]);
  const taught = await Taught.open(model.fingerprint);
  if (!(await taught.content()).filled) {
    const content = await unpack(model.fingerprint, model.width, model.terms, given);
    await taught.change((kept) => {
      if (!kept.filled) fill(kept, content);
      kept.filled = true;
    });
  }
  return { model, extractor, generator, recogniser: new Recogniser(model, base, inverse), taught };
}

/** Run one thing after the other: a session takes one picture at a time. */
let turn = Promise.resolve();
function inTurn(work) {
  const result = turn.then(work);
  turn = result.catch(() => {});
  return result;
}

async function decoded(picture) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(picture, { colorSpaceConversion: "none" });
  } catch {
    throw refused(`${picture.name ?? "the picture"}: this browser cannot read it. Convert it to JPEG or PNG.`);
  }
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#fff"; // below what is transparent
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return canvas;
}

async function featureOf(canvas) {
  const { extractor } = await load();
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const pixels = new Uint8Array(width * height * 3);
  for (let from = 0, to = 0; from < data.length; from += 4, to += 3) {
    pixels[to] = data[from];
    pixels[to + 1] = data[from + 1];
    pixels[to + 2] = data[from + 2];
  }
  const input = new ort.Tensor("uint8", pixels, [1, height, width, 3]);
  const { features } = await inTurn(() => extractor.run({ pixels: input }));
  return Float32Array.from(features.data);
}

async function generated(feature, output) {
  const { generator } = await load();
  const input = new ort.Tensor("float32", feature, [1, feature.length]);
  const found = await inTurn(() => generator.run({ features: input }, [output]));
  return Float32Array.from(found[output].data);
}

async function thumbnailOf(canvas) {
  const scale = Math.min(1, THUMBNAIL / Math.max(canvas.width, canvas.height));
  const small = new OffscreenCanvas(Math.max(1, Math.round(canvas.width * scale)), Math.max(1, Math.round(canvas.height * scale)));
  const context = small.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(canvas, 0, 0, small.width, small.height);
  const blob = await small.convertToBlob({ type: "image/jpeg", quality: 0.85 });
  return new Uint8Array(await blob.arrayBuffer());
}

/** A name without differences of spelling: case, compatible forms and joiners. */
const fold = (name) => name.replace(/[\u200c\u200d]/g, "").normalize("NFKC").toUpperCase().toLowerCase().normalize("NFKC");

function tidy(name) {
  const tidied = name.normalize("NFC").trim();
  if (!tidied) throw refused("A category needs a name that is not empty.");
  if ([...tidied].length > LONGEST_NAME) throw refused(`A name has at most ${LONGEST_NAME} characters.`);
  if (/[^\P{C}\u200c\u200d]|[\u2028\u2029]/u.test(tidied)) throw refused("The name holds characters that cannot be printed: leave them out.");
  return tidied;
}

function newName(name) {
  const tidied = tidy(name);
  if (fold(tidied) === "unknown") throw refused(`'${tidied}' is the answer for pictures of no known category: choose another name.`);
  return tidied;
}

/** Return the name in the model of the base category that has or shows a name, or undefined. */
function baseName(model, content, name) {
  const folded = fold(tidy(name));
  const shown = Object.entries(content.base).find(([, one]) => one.shown !== null && fold(one.shown) === folded);
  return shown?.[0] ?? model.categories.find((own) => fold(own) === folded);
}

/** Return a taught category, or what a base category was taught. */
function found(model, content, name) {
  const own = baseName(model, content, name) ?? tidy(name);
  const category = content.categories.find((one) => fold(one.name) === fold(own));
  if (!category) throw refused(`No category called '${tidy(name)}' was taught.`);
  return category;
}

const isSame = (feature, other) => norm(feature.map((value, place) => value - other[place])) <= SAME * norm(feature);
const equal = (one, other) => one.length === other.length && one.every((value, place) => value === other[place]);

/** Add examples to a category of some content, which may be new. */
function add(content, name, examples) {
  let category = content.categories.find((one) => fold(one.name) === fold(name));
  if (!category) {
    content.lastCategory += 1;
    category = { id: content.lastCategory, name, examples: [] };
    content.categories.push(category);
  }
  for (const one of examples) {
    content.lastExample += 1;
    category.examples.push({ ...one, id: content.lastExample });
  }
}

/** Take over what other content holds and this does not; return how many examples came to each category. */
function fill(content, other) {
  const taken = {};
  if (!content.lastCategory && !Object.keys(content.base).length) {
    Object.assign(content, other);
    for (const { name, examples } of other.categories) taken[name] = examples.length;
    return taken;
  }
  for (const { name, examples } of other.categories) {
    const there = content.categories.find((one) => fold(one.name) === fold(name))?.examples ?? [];
    const more = examples.filter((one) => !there.some(({ feature }) => equal(feature, one.feature)));
    if (more.length) {
      add(content, name, more);
      taken[name] = more.length;
    }
  }
  content.base = { ...other.base, ...content.base };
  return taken;
}

async function changed(edit) {
  const { taught } = await load();
  return taught.change(edit);
}

/** Return a category as the page lists it. */
async function listed(name) {
  const { recogniser, taught, model } = await load();
  const content = await taught.content();
  const { base, taught: novel } = recogniser.view(content);
  const own = baseName(model, content, name);
  return own === undefined ? novel.find((one) => fold(one.name) === fold(name)) : base[model.categories.indexOf(own)];
}

export const backend = {
  async info() {
    const { model } = await load();
    return { drawn: model.drawn, saysUnknown: model.calibration.unknown !== null, needsToken: false, side: model.side, pictures: MOST_PICTURES };
  },

  async ready() {
    await load();
  },

  async unlock() {
    return true;
  },

  async predict(picture, { top = 5 } = {}) {
    const { recogniser, taught } = await load();
    const feature = await featureOf(await decoded(picture));
    const answers = recogniser.answers(feature, await taught.content(), top);
    if (!answers.length) throw refused("There are no categories to choose from: teach some first.");
    return answers;
  },

  async teach(name, pictures, { thumbnails = false } = {}) {
    const { model } = await load();
    newName(name);
    const examples = [];
    for (const picture of pictures) {
      const canvas = await decoded(picture);
      const feature = await featureOf(canvas);
      const thumbnail = thumbnails ? await thumbnailOf(canvas) : null;
      examples.push({ added: Date.now() / 1000, feature, term: await generated(feature, "terms"), thumbnail });
    }
    let skipped = 0;
    const kept = await changed((content) => {
      const own = baseName(model, content, name) ?? newName(name);
      const known = content.categories.find((one) => fold(one.name) === fold(own));
      if (known && known.name !== own) throw refused(`'${own}' is taught already as '${known.name}': use that spelling.`);
      const fresh = [];
      for (const one of examples) {
        if ([...(known?.examples ?? []), ...fresh].some(({ feature }) => isSame(one.feature, feature))) skipped += 1;
        else fresh.push(one);
      }
      if (fresh.length) add(content, own, fresh);
      return own;
    });
    return { category: await listed(kept), skipped };
  },

  async categories() {
    const { recogniser, taught } = await load();
    const view = recogniser.view(await taught.content());
    return [...view.base, ...view.taught.filter(({ origin }) => origin === "novel")];
  },

  async rename(name, other) {
    const { model } = await load();
    const wanted = newName(other);
    await changed((content) => {
      const own = baseName(model, content, name);
      const taken = baseName(model, content, wanted);
      if (taken !== undefined && taken !== own) throw refused(`'${wanted}' is a base category already: choose another name.`);
      const known = content.categories.find((one) => fold(one.name) === fold(wanted));
      if (own !== undefined) {
        if (known && known.name !== own) throw refused(`'${wanted}' is taught already: choose another name.`);
        content.base[own] = { hidden: false, ...content.base[own], shown: wanted === own ? null : wanted };
        return;
      }
      const category = found(model, content, name);
      if (known && known.id !== category.id) throw refused(`'${wanted}' is taught already: choose another name, or forget it first.`);
      category.name = wanted;
    });
    return listed(wanted);
  },

  async hide(name, hidden) {
    const { model } = await load();
    await changed((content) => {
      const own = baseName(model, content, name);
      if (own === undefined) throw refused(`Only base categories can be hidden: forget '${name}' instead.`);
      content.base[own] = { shown: null, ...content.base[own], hidden };
    });
    return listed(name);
  },

  async forget(name) {
    const { model } = await load();
    const gone = await changed((content) => {
      const category = found(model, content, name);
      content.categories.splice(content.categories.indexOf(category), 1);
      return { categories: [category], base: {}, lastCategory: content.lastCategory, lastExample: content.lastExample };
    });
    return new Blob([await pack(model.fingerprint, gone)], { type: BACKUP });
  },

  async examples(name) {
    const { model, taught } = await load();
    return found(model, await taught.content(), name).examples.map(({ id, thumbnail }) => ({
      id,
      thumbnail: thumbnail && new Blob([thumbnail], { type: "image/jpeg" }),
    }));
  },

  async forgetExample(id) {
    await changed((content) => {
      const category = content.categories.find(({ examples }) => examples.some((one) => one.id === id));
      if (!category) throw refused("This picture was forgotten already.");
      category.examples = category.examples.filter((one) => one.id !== id);
      if (!category.examples.length) content.categories.splice(content.categories.indexOf(category), 1);
    });
  },

  async explain(name, { top = 5 } = {}) {
    const { model, taught, recogniser } = await load();
    const content = await taught.content();
    const category = found(model, content, name);
    if (model.generator !== "attention") return { relation: "competes_with", shares: recogniser.resembles(category, content, top) };
    const { base } = recogniser.view(content);
    const total = new Map();
    for (const { feature } of category.examples) {
      const shares = await generated(feature, "attention");
      base.forEach((one, place) => total.set(one.name, (total.get(one.name) ?? 0) + shares[place] / category.examples.length));
    }
    return { relation: "leans_on", shares: ranked(total, top) };
  },

  async download() {
    const { model, taught } = await load();
    return new Blob([await pack(model.fingerprint, await taught.content())], { type: BACKUP });
  },

  async upload(file) {
    const { model } = await load();
    const content = await unpack(model.fingerprint, model.width, model.terms, new Uint8Array(await file.arrayBuffer()));
    return changed((kept) => fill(kept, content));
  },
};
