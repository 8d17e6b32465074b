/**
 * What was taught, kept in IndexedDB. All tabs share it: a change is one transaction, and whoever reads sees the
 * changes of others.
 *
 * Content is { categories: [{ id, name, examples }], base, lastCategory, lastExample }, as in a backup; an example
 * is { id, added, feature, term, thumbnail }.
 */

import { Failure } from "./failure.js";

const EMPTY = { revision: 0, base: {}, lastCategory: 0, lastExample: 0, filled: false };

export class Taught {
  /** Open what was taught to the model with this fingerprint. */
  static async open(fingerprint) {
    const request = indexedDB.open(`recollect-${fingerprint}`, 1);
    request.onupgradeneeded = () => {
      for (const name of ["categories", "examples"]) request.result.createObjectStore(name, { keyPath: "id" });
      request.result.createObjectStore("state");
    };
    const opened = new Taught();
    try {
      opened.database = await finished(request);
    } catch {
      throw new Failure("refused", "This browser does not let the page keep anything: leave private browsing.");
    }
    navigator.storage?.persist?.().catch(() => {}); // so that it is not thrown away when the disk is full
    return opened;
  }

  /** Return the content; the same object as long as nobody changed it. */
  async content() {
    const transaction = this.database.transaction(["categories", "examples", "state"]);
    const state = (await finished(transaction.objectStore("state").get("state"))) ?? EMPTY;
    if (this.known?.revision !== state.revision) this.known = await read(transaction, state);
    return this.known;
  }

  /** Change the content by `edit`, which gets a copy of it and may throw to refuse; return what it returns. */
  async change(edit) {
    const transaction = this.database.transaction(["categories", "examples", "state"], "readwrite");
    const kept = new Promise((done, failed) => {
      transaction.oncomplete = done;
      transaction.onabort = () => failed(transaction.error);
    });
    kept.catch(() => {}); // whoever awaits it below sees it
    let result;
    try {
      const state = (await finished(transaction.objectStore("state").get("state"))) ?? EMPTY;
      const before = await read(transaction, state);
      const after = { ...before, categories: before.categories.map((one) => ({ ...one, examples: [...one.examples] })), base: { ...before.base } };
      result = edit(after);
      write(transaction, before, after);
    } catch (error) {
      transaction.abort();
      throw error;
    }
    try {
      await kept;
    } catch (error) {
      const full = error?.name === "QuotaExceededError";
      throw new Failure("refused", full ? "There is no room left in this browser: forget something first." : `This browser could not keep it (${error?.name}).`);
    }
    return result;
  }
}

async function read(transaction, state) {
  const [categories, examples] = await Promise.all(
    ["categories", "examples"].map((name) => finished(transaction.objectStore(name).getAll())),
  );
  const listed = new Map(categories.map((one) => [one.id, { ...one, examples: [] }]));
  for (const { category, ...example } of examples) listed.get(category)?.examples.push(example);
  return { ...state, categories: [...listed.values()] };
}

function write(transaction, before, after) {
  const [categories, examples] = ["categories", "examples"].map((name) => transaction.objectStore(name));
  const flat = (content) => content.categories.flatMap(({ id, examples: some }) => some.map((one) => [one.id, { ...one, category: id }]));
  const [old, now] = [new Map(flat(before)), new Map(flat(after))];
  for (const id of old.keys()) if (!now.has(id)) examples.delete(id);
  for (const [id, one] of now) if (!old.has(id)) examples.put(one);
  const names = new Map(after.categories.map(({ id, name }) => [id, name]));
  for (const { id } of before.categories) if (!names.has(id)) categories.delete(id);
  for (const [id, name] of names) categories.put({ id, name });
  const { base, lastCategory, lastExample, filled, revision } = after;
  transaction.objectStore("state").put({ base, lastCategory, lastExample, filled, revision: revision + 1 }, "state");
}

function finished(request) {
  return new Promise((done, failed) => {
    request.onsuccess = () => done(request.result);
    request.onerror = () => failed(request.error);
  });
}
