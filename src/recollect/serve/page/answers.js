// What the model answers: bars, origins, and a button beside each other answer that corrects the first.

import { $, arrange, clone, ORIGINS, percent } from "./dom.js";
import { say } from "./notices.js";

const SETTLED = 700; // milliseconds that an answer stays before a screen reader says it
const list = $("answers");
let settling = null;

/** Call `fix` with the name of an answer that a person says is the right one. */
export function listen(fix) {
  list.addEventListener("click", (event) => {
    const row = event.target.closest(".fix")?.closest("li");
    if (row && event.detail < 2) fix(row.dataset.category); // the second click would be on another answer
  });
}

/** Show answers; while the camera is on they change too fast to be clicked on. */
export function show(answers, { live = false } = {}) {
  const [first] = answers;
  const unknown = first.origin === "unknown";
  const verdict = $("verdict");
  verdict.className = `verdict ${first.origin}`;
  verdict.textContent = unknown ? "Unknown" : first.category;
  note(unknown ? "It resembles nothing that is known. The nearest categories:" : "");
  const rows = answers.map((answer, place) => fill(list.children[place] ?? clone("answer-row"), answer, live || place === 0));
  arrange(list, rows);
  list.removeAttribute("aria-busy");
  clearTimeout(settling);
  const words = unknown ? "Unknown" : `${first.category}, ${percent(first.probability)}, ${ORIGINS[first.origin]}`;
  settling = setTimeout(() => say(words), live ? SETTLED : 0);
}

function fill(row, answer, fixed) {
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
  if (words) note(words);
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
