// Messages: a banner for a state that lasts, toasts for what happened, and words for screen readers.

import { $, element } from "./dom.js";

const SHOWN = 5_000; // milliseconds
const LONGER = 10_000; // what went wrong, and what can be undone
let spokenLast = "";

export function banner(words) {
  $("banner").hidden = !words;
  $("banner").textContent = words ?? "";
}

/** Let a screen reader say something, once. */
export function say(words) {
  if (words === spokenLast) return;
  spokenLast = words;
  $("spoken").textContent = words;
}

/** Show a message for a while; `action` is what its button, named `label`, does. Resting on it keeps it. */
export function toast(words, { kind = "done", label, action } = {}) {
  const text = element("p", { textContent: words });
  const box = element("div", { className: `toast ${kind}` }, text);
  box.setAttribute("role", kind === "failed" ? "alert" : "status");
  let timer;
  const close = () => {
    clearTimeout(timer);
    box.remove();
  };
  const start = () => {
    clearTimeout(timer);
    timer = setTimeout(close, action || kind === "failed" ? LONGER : SHOWN);
  };
  const stop = () => clearTimeout(timer);
  if (action) {
    const button = element("button", { type: "button", className: "plain", textContent: label });
    button.addEventListener("click", () => {
      close();
      action();
    });
    box.append(button);
  }
  const dismiss = element("button", { type: "button", className: "plain dismiss", textContent: "×" });
  dismiss.setAttribute("aria-label", "Dismiss");
  dismiss.addEventListener("click", close);
  box.append(dismiss);
  box.addEventListener("pointerenter", stop);
  box.addEventListener("pointerleave", start);
  box.addEventListener("focusin", stop);
  box.addEventListener("focusout", start);
  box.addEventListener("keydown", (event) => event.key === "Escape" && close());
  while ($("toasts").childElementCount > 2) $("toasts").firstElementChild.remove();
  $("toasts").append(box);
  start();
  return box;
}
