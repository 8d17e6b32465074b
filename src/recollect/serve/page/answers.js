// What the model answers: bars, origins, and a button beside each other answer that corrects the first.

import { $, arrange, clone, ORIGINS, percent } from "./dom.js";
import { say } from "./notices.js";

const SETTLED = 700; // milliseconds that an answer stays before a screen reader says it
const READABLE = 400; // milliseconds that an answer stays before a click on it can be meant
const SHORT = 0.4; // seconds that answers are held after a mouse has left them
const LONG = 3; // and after a finger has, which covers what it points at
const list = $("answers");
const since = new WeakMap(); // when the camera put another category into a row
let settling = null;
let taken = false; // the last click

/**
 * Call `fix` with the name of an answer that a person says is the right one, `hold` when they are about to say
 * so, and `release` with the seconds after which they are not any more.
 */
export function listen({ fix, hold, release }) {
  const meant = (event) => event.target.closest(".fix")?.closest("li");
  for (const kind of ["pointerover", "pointerdown", "focusin"]) {
    list.addEventListener(kind, (event) => meant(event) && hold());
  }
  for (const kind of ["pointerout", "focusout"]) {
    list.addEventListener(kind, (event) => meant(event) && release(event.pointerType === "touch" ? LONG : SHORT));
  }
  list.addEventListener("click", (event) => {
    const row = meant(event);
    if (!row || (taken && event.detail > 1)) return; // the second click would be on another answer
    taken = performance.now() - (since.get(row) ?? 0) > READABLE; // else another one was meant
    if (taken) fix(row.dataset.category);
    else note("The answer changed just then. Click again if this is it.");
  });
}

/** Show answers; `live` ones come several times a second. */
export function show(answers, { live = false } = {}) {
  const [first] = answers;
  const unknown = first.origin === "unknown";
  const verdict = $("verdict");
  verdict.className = `verdict ${first.origin}`;
  verdict.textContent = unknown ? "Unknown" : first.category;
  explain();
  const rows = answers.map((answer, place) => fill(list.children[place] ?? clone("answer-row"), answer, place === 0, live));
  arrange(list, rows);
  list.removeAttribute("aria-busy");
  clearTimeout(settling);
  const words = unknown ? "Unknown" : `${first.category}, ${percent(first.probability)}, ${ORIGINS[first.origin]}`;
  settling = setTimeout(() => say(words), live ? SETTLED : 0);
}

function explain() {
  const unknown = $("verdict").classList.contains("unknown");
  note(unknown ? "It resembles nothing that is known. The nearest categories:" : "");
}

/** Wait for no other answers than those that are there. */
export function still() {
  if (!list.hasAttribute("aria-busy")) return;
  list.removeAttribute("aria-busy");
  explain();
}

function fill(row, answer, fixed, live) {
  if (!live) since.delete(row);
  else if (row.dataset.category !== answer.category) since.set(row, performance.now());
  row.dataset.category = answer.category;
  row.className = `answer-row ${answer.origin}`;
  row.querySelector(".name").textContent = answer.origin === "unknown" ? "Unknown" : answer.category;
  row.querySelector(".tag").textContent = ORIGINS[answer.origin] ?? "";
  row.querySelector(".percent").textContent = percent(answer.probability);
  row.querySelector(".fill").style.transform = `scaleX(${answer.probability})`;
  const button = row.querySelector(".fix");
  button.hidden = fixed || answer.origin === "unknown";
  button.setAttribute("aria-label", `This is ${answer.category}`);
  return row;
}

/** Say that the answers to come take a while. */
export function busy(words = "") {
  list.setAttribute("aria-busy", "true");
  if (!words) return;
  if (list.children.length) note(words);
  else {
    $("verdict").className = "verdict quiet";
    $("verdict").textContent = words; // and not that there is nothing to see
  }
}

/** Show words instead of answers. */
export function instead(words, failed = false) {
  clearTimeout(settling);
  list.replaceChildren();
  list.removeAttribute("aria-busy");
  $("verdict").className = `verdict ${failed ? "failed" : "quiet"}`;
  $("verdict").textContent = words;
  note("");
  if (failed) say(words);
}

export function note(words) {
  $("answer-note").textContent = words;
}
