/**
 * The backend of the page: here, the HTTP service that served it. No other module of the page uses the network.
 *
 * Another backend exports an object `backend` with the same methods. All of them return promises and reject
 * with a Failure (see failure.js). Pictures are Blobs, or Files with a name.
 *
 *   info()                        { drawn, needsToken, side, pictures }
 *                                 drawn: characters, for which there is a canvas; needsToken: changes need
 *                                 `unlock` first; side: pixels that suffice for the short side of a picture;
 *                                 pictures: at most so many in `teach`
 *   ready()                       resolves when the backend can answer
 *   unlock(token)                 whether the token is right; it is used from now on
 *   predict(picture, { top })     [{ category, probability, origin }], the best first;
 *                                 origin: "base", "novel" (taught) or "unknown"
 *   teach(name, pictures, { thumbnails })
 *                                 { category, skipped }: the category as in `categories`, and how many
 *                                 pictures were left out because it was taught them before
 *   categories()                  [{ id, name, origin, examples, hidden }], base ones first;
 *                                 examples: null for a base category that was taught nothing
 *   rename(name, other)           the category
 *   hide(name, hidden)            the category; only base ones can be hidden
 *   forget(name)                  a Blob that `upload` takes to undo it
 *   examples(name)                [{ id, thumbnail }], thumbnail: a Blob or null
 *   forgetExample(id)             nothing
 *   explain(name, { top })        { relation, shares: [{ category, share }] },
 *                                 relation: "leans_on" or "competes_with"
 *   download()                    a Blob with everything that was taught
 *   upload(file)                  { name: how many examples came to it }
 */

import { Failure } from "./failure.js";

const PATIENCE = 60_000; // milliseconds
const TOKEN = "recollect-token"; // kept as long as the tab is open

const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (value) => sessionStorage.setItem(TOKEN, value),
};

async function call(method, path, { query = {}, body, type } = {}) {
  const url = new URL(path, document.baseURI);
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  const headers = new Headers();
  if (token.get()) headers.set("Authorization", `Bearer ${token.get()}`);
  if (type) headers.set("Content-Type", type);
  let response;
  try {
    const signal = AbortSignal.timeout(PATIENCE);
    response = await fetch(url, { method, body, headers, signal, cache: "no-store" });
  } catch {
    throw new Failure("offline", "The service does not answer.");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

async function failure(response) {
  const problem = await response.json().catch(() => ({}));
  const words = problem.detail ?? `The service answered with status ${response.status}.`;
  if (response.status === 401) return new Failure("token", "This needs the token of the service.");
  if (response.status === 503) return new Failure("busy", words, Number(response.headers.get("Retry-After") ?? 1));
  return new Failure("refused", words);
}

const json = async (...request) => (await call(...request)).json();
const at = (name) => `v1/categories/${encodeURIComponent(name)}`;

function form(pictures) {
  const data = new FormData();
  for (const picture of pictures) data.append("picture", picture, picture.name ?? "picture.jpg");
  return data;
}

async function blobOf(base64) {
  return new Blob([Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0))], { type: "image/jpeg" });
}

export const backend = {
  async info() {
    const model = await json("GET", "v1/model");
    return {
      drawn: model.drawn,
      needsToken: model.needs_token && !token.get(),
      side: model.input.short_side ?? model.input.size,
      pictures: model.pictures,
    };
  },

  async ready() {
    await call("GET", "readyz");
  },

  async unlock(value) {
    const before = token.get();
    token.set(value);
    try {
      // The cheapest call that needs the token; that there is no such category is found out after it.
      await call("GET", "v1/examples", { query: { category: "unknown", features: false } });
    } catch (error) {
      if (error.kind === "refused") return true;
      token.set(before ?? "");
      if (error.kind === "token") return false;
      throw error;
    }
    return true;
  },

  async predict(picture, { top = 5 } = {}) {
    const body = picture.name ? form([picture]) : picture;
    const { predictions } = await json("POST", "v1/predict", { query: { top }, body });
    return predictions[0].answers;
  },

  async teach(name, pictures, { thumbnails = false } = {}) {
    const query = { name, thumbnails };
    const lesson = await json("POST", "v1/categories", { query, body: form(pictures) });
    return { category: lesson.categories[0], skipped: lesson.skipped.length };
  },

  async categories() {
    return (await json("GET", "v1/categories")).categories;
  },

  async rename(name, other) {
    return json("PATCH", at(name), { body: JSON.stringify({ name: other }), type: "application/json" });
  },

  async hide(name, hidden) {
    return json("PATCH", at(name), { body: JSON.stringify({ hidden }), type: "application/json" });
  },

  async forget(name) {
    // First what brings it back, so that nothing is lost if the connection is.
    const kept = await (await call("GET", "v1/taught", { query: { category: name } })).blob();
    await call("DELETE", at(name));
    return kept;
  },

  async examples(name) {
    const query = { category: name, features: false };
    const { examples } = await json("GET", "v1/examples", { query });
    return Promise.all(
      examples.map(async ({ id, thumbnail }) => ({ id, thumbnail: thumbnail && (await blobOf(thumbnail)) })),
    );
  },

  async forgetExample(id) {
    await call("DELETE", `v1/examples/${id}`);
  },

  async explain(name, { top = 5 } = {}) {
    const { relation, shares } = await json("GET", `v1/explain/${encodeURIComponent(name)}`, { query: { top } });
    return { relation, shares };
  },

  async download() {
    return (await call("GET", "v1/taught")).blob();
  },

  async upload(file) {
    return (await json("POST", "v1/taught", { body: file, type: "application/octet-stream" })).restored;
  },
};
