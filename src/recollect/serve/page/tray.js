// The pictures at hand, which are taught together.

import { $, arrange, clone, percent, showBlob } from "./dom.js";

let items = []; // { blob, answers }
let chosen = null;
let handlers = {};

/**
 * `select(item)` is called when one is looked at, `change()` when there are more or fewer, and `removed(item)`
 * when a person takes out the one that is looked at; the item is another one to look at, if there is one.
 */
export function listen(given) {
  handlers = given;
  $("empty-tray").addEventListener("click", () => {
    empty();
    if (chosen) handlers.removed();
  });
}

export const blobs = () => items.map((item) => item.blob);
export const count = () => items.length;

export function add(blob, answers = null) {
  const item = { blob, answers, row: clone("tray-item") };
  showBlob(item.row.querySelector("img"), blob);
  item.row.querySelector(".thumb").addEventListener("click", () => handlers.select(item));
  item.row.querySelector(".remove").addEventListener("click", () => {
    remove(item);
    if (item === chosen) handlers.removed(items[0]);
  });
  items.push(item);
  render();
  return item;
}

export function remove(item) {
  const place = items.indexOf(item);
  items = items.filter((other) => other !== item);
  const hadFocus = item.row.contains(document.activeElement);
  render();
  if (hadFocus) (items[Math.min(place, items.length - 1)]?.row.querySelector(".remove") ?? $("name")).focus();
}

export function empty() {
  const hadFocus = $("tray").contains(document.activeElement);
  items = [];
  render();
  if (hadFocus) $("name").focus();
}

/** Mark the one that is looked at. */
export function mark(item) {
  chosen = item;
  render();
}

/** Write below a picture what it was taken for. */
export function caption(item, answers) {
  item.answers = answers;
  render();
}

function render() {
  $("tray").hidden = items.length === 0;
  items.forEach((item, place) => {
    const [best] = item.answers ?? [];
    const words = best ? `${best.category} ${percent(best.probability)}` : "";
    item.row.querySelector(".caption").textContent = best?.category ?? "";
    item.row.querySelector(".thumb").setAttribute("aria-label", `Look at picture ${place + 1}${words && `: ${words}`}`);
    item.row.querySelector(".thumb").setAttribute("aria-pressed", String(item === chosen));
    item.row.querySelector(".remove").setAttribute("aria-label", `Remove picture ${place + 1}`);
  });
  arrange($("tray-list"), items.map((item) => item.row));
  handlers.change?.();
}
