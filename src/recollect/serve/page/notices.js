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

/** Take away what went wrong before: something later went well, or was begun. What can still be undone stays. */
export function settle() {
  for (const box of plain()) if (box.matches(".failed")) box.remove();
}

/** Return the messages that nothing is lost with; an offer to undo may hold the only copy of what it brings back. */
const plain = () => [...$("toasts").querySelectorAll(".toast:not(.offer)")];

/** Show a message for a while; `action` is what its button, named `label`, does. Resting on it keeps it. */
export function toast(words, { kind = "done", label, action } = {}) {
  if (kind === "done") settle();
  for (const box of plain()) if (!action && box.dataset.words === words) box.remove(); // said once
  const text = element("p", { textContent: words });
  const box = element("div", { className: `toast ${kind}${action ? " offer" : ""}` }, text);
  box.dataset.words = words;
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
  while (plain().length > 2) plain()[0].remove();
  $("toasts").append(box);
  start();
  return box;
}
