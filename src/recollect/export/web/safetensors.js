// Backups of what was taught, as `recollect` reads and writes them: safetensors with names and ids in the header.

import { Failure } from "./failure.js";

const KEY = "recollect-backup";
const DIGEST = "sha256";
const PREFIX = "taught.";
const KINDS = { F32: Float32Array, U8: Uint8Array };
const NAMES = { F32: "float32", U8: "uint8" };
const DAMAGED = "This is not a backup of taught categories, or it is damaged.";

/** A number as it was written, so that it can be written again in the same way. */
class Written {
  constructor(value, source) {
    this.value = value;
    this.source = source;
  }
}

const plain = (value) => (value instanceof Written ? value.value : value);

/** Return the bytes of a backup of some content (see taught.js) for the model with this fingerprint. */
export async function pack(model, content) {
  const kept = content.categories.flatMap(({ examples }) => examples);
  const words = {
    model,
    taught: content.categories.map(({ id, name, examples }) => ({
      id,
      name,
      examples: examples.map((one) => ({ id: one.id, added: one.added, thumbnail: one.thumbnail?.length ?? 0 })),
    })),
    last_ids: content.lastCategory || content.lastExample ? [content.lastCategory, content.lastExample] : null,
    base_changes: content.base,
  };
  const tensors = kept.length
    ? {
        features: stacked("F32", kept.map((one) => one.feature), kept.length),
        terms: stacked("F32", kept.map((one) => one.term), kept.length),
        thumbnails: joined(kept.map((one) => one.thumbnail ?? new Uint8Array(0))),
      }
    : {};
  const header = { __metadata__: { [KEY]: JSON.stringify({ ...words, [DIGEST]: await digest(words, tensors) }) } };
  let end = 0;
  for (const [name, { kind, shape, bytes }] of Object.entries(tensors)) {
    header[PREFIX + name] = { dtype: kind, shape, data_offsets: [end, end + bytes.length] };
    end += bytes.length;
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const room = Math.ceil(text.length / 8) * 8;
  const file = new Uint8Array(8 + room + end).fill(0x20, 8, 8 + room);
  new DataView(file.buffer).setBigUint64(0, BigInt(room), true);
  file.set(text, 8);
  let place = 8 + room;
  for (const { bytes } of Object.values(tensors)) {
    file.set(bytes, place);
    place += bytes.length;
  }
  return file;
}

/** Return the content of a backup; refuse one that is damaged, or of another model. */
export async function unpack(model, width, terms, file) {
  let words, tensors;
  try {
    ({ words, tensors } = parsed(file));
  } catch {
    throw new Failure("refused", DAMAGED);
  }
  const expected = words[DIGEST];
  delete words[DIGEST];
  if (expected !== (await digest(words, tensors))) throw new Failure("refused", "This backup is damaged: take another one.");
  if (words.model !== model) throw new Failure("refused", "This backup belongs to another model: restore it there, or teach again.");
  const sizes = { features: width, terms };
  const examples = [];
  let end = 0;
  try {
    const counts = words.taught.flatMap((category) => category.examples);
    for (const [name, size] of Object.entries(sizes)) {
      if (counts.length && tensors[name].values.length !== counts.length * size) throw new Error(name);
    }
    counts.forEach((one, place) => {
      const start = end;
      end += plain(one.thumbnail);
      examples.push({
        id: plain(one.id),
        added: plain(one.added),
        feature: tensors.features.values.slice(place * width, (place + 1) * width),
        term: tensors.terms.values.slice(place * terms, (place + 1) * terms),
        thumbnail: end > start ? tensors.thumbnails.values.slice(start, end) : null,
      });
    });
    const [lastCategory, lastExample] = words.last_ids?.map(plain) ?? [0, 0];
    return {
      categories: words.taught.map(({ id, name, examples: some }) => ({
        id: plain(id),
        name: String(name),
        examples: examples.splice(0, some.length),
      })),
      base: Object.fromEntries(
        Object.entries(words.base_changes).map(([name, { shown, hidden }]) => [name, { shown, hidden }]),
      ),
      lastCategory,
      lastExample,
    };
  } catch {
    throw new Failure("refused", DAMAGED);
  }
}

function parsed(file) {
  const length = Number(new DataView(file.buffer, file.byteOffset, 8).getBigUint64(0, true));
  const { __metadata__: metadata, ...header } = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(file.subarray(8, 8 + length)));
  const words = JSON.parse(metadata[KEY], (_, value, context) =>
    typeof value === "number" ? new Written(value, context?.source ?? String(value)) : value,
  );
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [start, end] }] of Object.entries(header)) {
    const bytes = file.slice(8 + length + start, 8 + length + end);
    tensors[name.slice(PREFIX.length)] = { kind: dtype, shape, bytes, values: new KINDS[dtype](bytes.buffer) };
  }
  return { words, tensors };
}

function stacked(kind, rows, count) {
  const width = rows[0].length;
  const values = new KINDS[kind](count * width);
  rows.forEach((row, place) => values.set(row, place * width));
  return { kind, shape: [count, width], bytes: new Uint8Array(values.buffer) };
}

function joined(parts) {
  const bytes = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let place = 0;
  for (const part of parts) {
    bytes.set(part, place);
    place += part.length;
  }
  return { kind: "U8", shape: [bytes.length], bytes };
}

/** Return the digest of a backup, of its words as Python writes them, and of its tensors. */
async function digest(words, tensors) {
  if (!globalThis.crypto?.subtle) {
    throw new Failure("refused", "Browsers only do this for pages from https:// or from this machine.");
  }
  const encoder = new TextEncoder();
  const parts = [encoder.encode(dumps(words))];
  for (const name of Object.keys(tensors).sort()) {
    const { kind, shape, bytes } = tensors[name];
    const size = shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`;
    parts.push(encoder.encode(`${PREFIX}${name}${NAMES[kind]}${size}`), bytes);
  }
  const found = await crypto.subtle.digest("SHA-256", await new Blob(parts).arrayBuffer());
  return Array.from(new Uint8Array(found), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return JSON as Python's `json.dumps(value, sort_keys=True)` writes it. */
function dumps(value) {
  if (value instanceof Written) return value.source;
  if (Array.isArray(value)) return `[${value.map(dumps).join(", ")}]`;
  if (typeof value === "string") return ascii(value);
  if (value === null || typeof value !== "object") return String(value);
  const pairs = Object.keys(value).sort(byCodePoint).map((key) => `${ascii(key)}: ${dumps(value[key])}`);
  return `{${pairs.join(", ")}}`;
}

function ascii(text) {
  return JSON.stringify(text).replace(/[^ -~]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function byCodePoint(one, other) {
  const [a, b] = [[...one], [...other]];
  for (let place = 0; place < Math.min(a.length, b.length); place += 1) {
    const difference = a[place].codePointAt(0) - b[place].codePointAt(0);
    if (difference) return difference;
  }
  return a.length - b.length;
}
