// What the model knows: search, look inside, rename, hide, forget with undo, download and upload.

import { askToken, attempt, whenBack } from "./attempt.js";
import { backend } from "./backend.js";
import { $, arrange, clone, element, ORIGINS, percent, plural, showBlob } from "./dom.js";
import { settle, toast } from "./notices.js";

const AT_ONCE = 24; // rows
const MORE = 4; // times as many rows
const list = $("categories");
let known = null; // taught ones first, the latest before the others; then base ones that were taught pictures
let rows = new Map(); // by id
let limit = AT_ONCE;
let locked = false; // thumbnails need a token that was not given
let changed = () => {};

/** Load all categories; `then` is called whenever they change. */
export function start(then) {
  changed = then;
  for (const [id, kind] of [["search", "input"], ["which", "change"]]) {
    $(id).addEventListener(kind, () => {
      limit = AT_ONCE;
      render();
    });
  }
  $("more").addEventListener("click", () => {
    limit *= MORE;
    render();
  });
  $("download").addEventListener("click", () => download());
  $("upload").addEventListener("click", () => $("uploaded").click());
  $("uploaded").addEventListener("change", () => upload());
  document.addEventListener("unlocked", () => {
    locked = false;
    for (const row of rows.values()) row.show?.();
  });
  whenBack(() => {
    for (const row of rows.values()) if (row.unexplained) row.explain();
  });
}

export const lock = () => (locked = true);
export const isLoaded = () => known !== null;
export const all = () => known ?? [];
export const find = (name) => all().find((one) => one.name === name.trim().normalize("NFC"));
export const canAnswer = () => all().some((one) => !one.hidden);

export async function load() {
  set(await attempt(() => backend.categories()));
}

function set(found) {
  const rank = ({ origin, examples }) => (origin === "novel" ? 0 : examples === null ? 2 : 1);
  known = found.toSorted((one, other) => rank(one) - rank(other) || (rank(one) ? one.id - other.id : other.id - one.id));
  render();
  changed();
}

/** Take over a category that is new or changed. */
export function merge(category) {
  set([...all().filter((one) => one.id !== category.id), category]);
  rows.get(category.id)?.show?.();
}

function render() {
  if (!isLoaded()) return;
  const words = $("search").value.trim().toLowerCase();
  const origin = $("which").value;
  const found = known.filter(
    (one) => (origin === "all" || one.origin === origin) && one.name.toLowerCase().includes(words),
  );
  const ids = new Set(known.map((one) => one.id));
  rows = new Map([...rows].filter(([id]) => ids.has(id)));
  const shown = found.slice(0, limit).map((one) => {
    if (!rows.has(one.id)) rows.set(one.id, new Row());
    return rows.get(one.id).fill(one);
  });
  arrange(list, shown);
  list.removeAttribute("aria-busy");
  $("more").hidden = found.length <= limit;
  $("more").textContent = `Show more (${found.length - limit} left)`;
  const taught = known.filter((one) => one.origin === "novel").length;
  $("counts").textContent = `${known.length - taught} base · ${taught} taught`;
  const none = $("none");
  none.hidden = found.length > 0 && !(origin === "all" && !words && taught === 0);
  if (found.length > 0) none.textContent = "Nothing was taught yet. Show it something new, and name it.";
  else if (known.length === 0) none.textContent = "It knows nothing yet. Show it something, and name it.";
  else if (words) none.textContent = `No category has “${$("search").value.trim()}” in its name.`;
  else none.textContent = origin === "novel" ? "Nothing was taught yet." : "There are no base categories.";
}

class Row {
  constructor() {
    this.node = clone("category-row");
    this.part = (name) => this.node.querySelector(`.${name}`);
    this.head = this.part("head");
    this.body = this.part("body");
    this.head.addEventListener("click", () => this.toggle());
    this.part("rename").addEventListener("submit", (event) => this.rename(event));
    this.part("forget").addEventListener("click", () => this.forget());
    this.part("hide").addEventListener("click", () => this.hide());
    seen.observe(this.node);
    rowOf.set(this.node, this);
  }

  fill(category) {
    const before = this.category;
    this.category = category;
    if (before && ["name", "examples", "hidden"].every((key) => before[key] === category[key])) return this.node;
    const { name, origin, examples, hidden } = category;
    this.node.className = `category ${origin}${hidden ? " hidden-one" : ""}`;
    this.part("name").textContent = name;
    this.part("face").textContent = [...name][0];
    this.part("count").textContent = examples === null ? "" : plural(examples, "picture");
    this.part("tag").textContent = hidden ? "hidden" : ORIGINS[origin];
    this.part("new-name").value = name;
    this.part("new-name").setAttribute("aria-label", `New name for ${name}`);
    this.part("forget").hidden = examples === null;
    this.part("forget").textContent = origin === "base" ? "Forget what it was taught" : "Forget";
    this.part("hide").hidden = origin !== "base";
    this.part("hide").textContent = hidden ? "Answer with it again" : "Never answer with it";
    if (before) this.shown = false;
    if (examples === null) for (const name of ["kept", "leans"]) this.part(name).replaceChildren();
    else if (before && !this.body.hidden) this.explain();
    return this.node;
  }

  /** Load what belongs to it, once it is on the screen. */
  async show() {
    if (!this.isSeen || this.shown || this.category.examples === null || locked) return;
    this.shown = true;
    const { name } = this.category;
    const examples = await backend.examples(name).catch(() => []);
    const latest = examples.findLast((one) => one.thumbnail);
    if (latest) {
      const image = element("img", { alt: "" });
      showBlob(image, latest.thumbnail);
      this.part("face").replaceChildren(image);
    }
    const kept = examples.filter((one) => one.thumbnail);
    const items = kept.map(({ id, thumbnail }, place) => {
      const item = clone("kept-item");
      item.querySelector("img").alt = `Picture ${place + 1} of ${name}`;
      showBlob(item.querySelector("img"), thumbnail);
      item.querySelector("button").setAttribute("aria-label", `Forget picture ${place + 1} of ${name}`);
      item.querySelector("button").addEventListener("click", () => this.forgetExample(id));
      return item;
    });
    this.part("kept").replaceChildren(...items);
  }

  async toggle() {
    const open = this.body.hidden;
    this.body.hidden = !open;
    this.head.setAttribute("aria-expanded", String(open));
    if (open && this.category.examples !== null) await this.explain();
  }

  async explain() {
    const box = this.part("leans");
    try {
      const { relation, shares } = await attempt(() => backend.explain(this.category.name));
      const title = relation === "leans_on" ? "Leans on" : "Competes with";
      const items = shares.map(({ category, share }) => {
        const bar = element("span", { className: "fill" });
        bar.style.transform = `scaleX(${share})`;
        return element(
          "li",
          {},
          element("span", { className: "name", textContent: category }),
          element("span", { className: "percent", textContent: percent(share) }),
          element("span", { className: "track", ariaHidden: "true" }, bar),
        );
      });
      box.replaceChildren(element("h3", { textContent: title }), element("ul", {}, ...items));
      box.hidden = shares.length === 0;
      this.unexplained = false;
    } catch (failure) {
      this.unexplained = true;
      box.replaceChildren(element("p", { className: "quiet", textContent: failure.message }));
    }
  }

  async rename(event) {
    event.preventDefault();
    const { name } = this.category;
    const wanted = this.part("new-name").value.trim();
    await change(async () => {
      merge(await attempt(() => backend.rename(name, wanted)));
      toast(`“${name}” is now “${wanted}”.`);
      this.head.focus();
    });
  }

  async hide() {
    await change(async () => merge(await attempt(() => backend.hide(this.category.name, !this.category.hidden))));
  }

  async forgetExample(id) {
    await change(async () => {
      await attempt(() => backend.forgetExample(id));
      await load();
    });
  }

  async forget() {
    const { name } = this.category;
    await change(async () => {
      const kept = await attempt(() => backend.forget(name));
      await load();
      offerUndo(name, kept, `“${name}” is forgotten.`);
    });
  }
}

/** Offer to bring back what was forgotten, and again if that fails. */
function offerUndo(name, kept, words, kind) {
  const undo = async () => {
    try {
      await attempt(() => backend.upload(kept));
    } catch (failure) {
      offerUndo(name, kept, failure.message, "failed");
      return;
    }
    await change(load);
    toast(`“${name}” is back.`);
    rows.get(find(name)?.id)?.head.focus();
  };
  const box = toast(words, { label: "Undo", action: undo, kind });
  box.querySelector("button").focus(); // the button that was pressed is gone
}

const rowOf = new WeakMap();
const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    rowOf.get(target).isSeen = true;
    rowOf.get(target).show();
  }
});

/** Do something that changes what is known, and say what went wrong. */
async function change(action) {
  try {
    await action();
    settle();
  } catch (failure) {
    toast(failure.message, { kind: "failed" });
    if (failure.kind === "refused") await load().catch(() => {}); // somebody else may have changed it
  }
}

async function download() {
  await change(async () => {
    const blob = await attempt(() => backend.download());
    const link = element("a", { href: URL.createObjectURL(blob), download: "taught.safetensors" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  });
}

async function upload() {
  const [file] = $("uploaded").files;
  $("uploaded").value = "";
  if (!file) return;
  await change(async () => {
    const restored = Object.entries(await attempt(() => backend.upload(file)));
    await load();
    const total = restored.reduce((sum, [, count]) => sum + count, 0);
    toast(
      total
        ? `${plural(total, "picture")} came to ${plural(restored.length, "category", "categories")}.`
        : "Nothing new: all of it was known.",
    );
  });
}

$("unlock").addEventListener("click", () => askToken());
