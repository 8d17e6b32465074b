// The page: pictures come in, answers come out, and a name teaches.

import * as answers from "./answers.js";
import { attempt, isAway, whenBack } from "./attempt.js";
import { backend } from "./backend.js";
import * as camera from "./camera.js";
import * as categories from "./categories.js";
import { $, element, plural, showBlob, wait } from "./dom.js";
import * as drawing from "./drawing.js";
import { say, settle, toast } from "./notices.js";
import { receive, shrink } from "./pictures.js";
import * as tray from "./tray.js";

const OFTEN = 0.1; // seconds between two looks of the camera, at least
const SLOW = 400; // milliseconds after which the page says that it is working
const VERY_SLOW = 5000;
const HELD = 250; // milliseconds between two captures while the button is held
const STILL = 2; // seconds that a corrected picture is shown before the camera goes on
const AT_ONCE = 4; // pictures that are asked about at a time
const NOTHING = "Nothing yet. Show it a picture.";
const KEEP = "recollect-thumbnails";

let info = { drawn: false, side: 224, pictures: 128 };
let mode = "picture";
let view = null; // the picture that the answers are about
let pictured = null; // the picture of the tray that was looked at last
let paused = false;
let looking = false; // through the camera
let held = false; // the camera's picture, because somebody is about to correct an answer
let holding = null; // the timer that ends it
let teaching = false;
let hindered = ""; // what teaching waits for
let answered = null; // the picture that the answers on the page are about
let asked = 0; // the number of the last question, so that late answers to others are not shown

async function begin() {
  answers.listen({ fix, hold, release });
  tray.listen({ select: look, change: describe, removed: (other) => (other ? look(other) : clearPicture()) });
  categories.start(() => {
    $("names").replaceChildren(...categories.all().map((one) => element("option", { value: one.name })));
    describe();
  });
  drawing.listen(drawn);
  receive(take);
  whenBack(async () => {
    settle();
    await refresh();
    if (view && mode !== "camera") await ask(view).catch(() => {});
  });
  document.addEventListener("unlocked", () => {
    settle();
    describe();
  });
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
  for (const button of document.querySelectorAll("[data-mode]:is(button)")) {
    button.addEventListener("click", () => choose(button.dataset.mode));
  }
  $("name").addEventListener("input", describe);
  $("teach").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  $("thumbnails").checked = localStorage.getItem(KEEP) !== "no";
  $("thumbnails").addEventListener("change", () => localStorage.setItem(KEEP, $("thumbnails").checked ? "yes" : "no"));
  $("pause").addEventListener("click", () => pause(!paused));
  $("turn").addEventListener("click", () => turnOn(camera.turn));
  $("camera-again").addEventListener("click", () => turnOn(camera.start));
  holdable($("capture"), capture);
  $("add").addEventListener("click", addDrawing);
  $("clear").addEventListener("click", clearDrawing);
  $("back").addEventListener("click", () => {
    drawing.undoStroke();
    drawn();
  });
  await refresh();
}

/** Learn what the backend is and knows. */
async function refresh() {
  try {
    info = await attempt(() => backend.info());
    if (info.needsToken) categories.lock();
    $("unlock").hidden = !info.needsToken;
    document.querySelector("[data-mode=draw]").hidden = !info.drawn;
    if (info.drawn && !categories.isLoaded() && mode === "picture") choose("draw"); // when it starts
    await categories.load();
  } catch (failure) {
    if (failure.kind !== "offline") toast(failure.message, { kind: "failed" });
  }
}

/** Say what is known, and what "Teach" would do now. */
function describe() {
  const known = categories.all();
  const taught = known.filter((one) => one.origin === "novel").length;
  if (categories.isLoaded()) {
    $("summary").textContent = `Knows ${plural(known.length, "category", "categories")}, ${taught} of them taught`;
  }
  const count = teachable().length;
  const unfinished = count > tray.count() ? " and this drawing" : "";
  $("tray-title").textContent = `${plural(tray.count(), "picture")}${unfinished} to teach`;
  $("teach-label").textContent = count > 1 ? `These ${count} are` : "This is";
  $("teach-button").textContent = count > 1 ? `Teach ${count}` : "Teach";
  const name = $("name").value.trim();
  const category = name && categories.find(name);
  if (hindered) $("teach-hint").textContent = hindered;
  else if (category) {
    const has = category.examples === null ? "which it knows" : `which has ${plural(category.examples, "picture")}`;
    $("teach-hint").textContent = `Adds to “${category.name}”, ${has}.`;
  } else $("teach-hint").textContent = name ? "A new category." : "One picture is enough; three to five are better.";
  if (categories.isLoaded() && !known.length && !view) answers.instead("It knows nothing yet. Show it something, and name it.");
}

/** Return the kinds of pictures that "Teach" would take now; a camera picture is taken when it is needed. */
function teachable() {
  const kinds = tray.blobs();
  if (mode === "draw" && !drawing.isEmpty() && !drawing.isLeft()) return [...kinds, "drawing"];
  if (kinds.length) return kinds;
  if (mode === "camera" && camera.isOn() && !paused && !held) return ["frame"];
  return view ? [view] : [];
}

const pictureOf = (kind) => {
  if (kind === "frame") return camera.frame(side());
  return kind === "drawing" ? drawing.picture() : kind;
};
/** Return how many pixels a side the model, and a person who looks at the picture, need. */
const side = () => Math.max(info.side, 192);

async function submit() {
  const name = $("name").value.trim();
  const kinds = teachable();
  if (!kinds.length) {
    toast("Show it a picture first.", { kind: "failed" });
    return;
  }
  if (kinds.length > info.pictures) {
    toast(`At most ${info.pictures} pictures can be taught at a time: remove some.`, { kind: "failed" });
    return;
  }
  const pictures = await Promise.all(kinds.map(pictureOf));
  if (await teach(name, pictures)) {
    tray.empty();
    drawing.leave();
    $("name").value = "";
    describe();
  }
}

/** Teach, and ask about the last of the pictures again; returns whether it was taught. */
async function teach(name, pictures) {
  if (teaching) return false;
  teaching = true;
  document.body.classList.add("teaching");
  try {
    const thumbnails = $("thumbnails").checked;
    const { category, skipped } = await attempt(() => backend.teach(name, pictures, { thumbnails }), {
      waiting: (words) => {
        hindered = words;
        describe();
      },
    });
    categories.merge(category);
    await ask(pictures.at(-1)).catch(() => {}); // the answers say why
    showVerdict();
    const taught = pictures.length - skipped;
    if (taught) toast(`Taught “${category.name}” from ${plural(taught, "picture")}.`);
    else toast(`“${category.name}” was taught ${pictures.length === 1 ? "this picture" : "these pictures"} before.`);
    return true;
  } catch (failure) {
    toast(failure.message, { kind: "failed" });
    return false;
  } finally {
    teaching = false;
    hindered = "";
    document.body.classList.remove("teaching");
    describe();
  }
}

/** Correct the answers: teach the picture that they are about. */
async function fix(name) {
  if (answered !== view) return;
  await teach(name, [view]);
  if (held) release(STILL);
}

/** Keep the camera's picture and its answers as they are, so that what is corrected is what was seen. */
function hold() {
  clearTimeout(holding);
  if (held || mode !== "camera" || !camera.isOn() || paused || !answered) return;
  held = true;
  asked += 1; // an answer on its way is about another picture
  view = answered;
  answers.still();
  showBlob($("still"), view);
  $("still").classList.toggle("mirrored", $("video").classList.contains("mirrored"));
  $("still").hidden = $("held").hidden = false;
}

/** Let the camera go on after some seconds. */
function release(seconds) {
  clearTimeout(holding);
  holding = setTimeout(() => teaching || letGo(), seconds * 1000); // `fix` lets go of what is being taught
}

function letGo() {
  clearTimeout(holding);
  if (!held) return;
  held = false;
  $("still").hidden = $("held").hidden = true;
}

/** On a phone, go back up to the picture and its new name. */
function showVerdict() {
  const hidden = $("stage").getBoundingClientRect().top < 0 || $("verdict").getBoundingClientRect().bottom > innerHeight;
  if (hidden) $("stage").scrollIntoView();
}

/** Ask what a picture shows, and show the answers; returns them. */
async function ask(picture, { live: isLive = false } = {}) {
  asked += 1;
  const own = asked;
  const isLatest = () => own === asked;
  view = picture;
  const slow = setTimeout(() => isLatest() && answers.busy(isLive ? "" : "Looking…"), SLOW);
  const verySlow = setTimeout(() => isLatest() && answers.busy("This takes longer than usual…"), VERY_SLOW);
  try {
    const found = await attempt(() => backend.predict(picture, { top: 5 }), {
      waiting: (words) => {
        clearTimeout(slow);
        clearTimeout(verySlow);
        if (isLatest()) answers.busy(words);
      },
    });
    if (isLatest()) {
      answered = picture;
      answers.show(found, { live: isLive });
    }
    return found;
  } catch (failure) {
    if (isLatest() && failure.kind === "offline") answers.instead("Waiting for the service…");
    else if (isLatest()) answers.instead(failure.message, true);
    throw failure;
  } finally {
    clearTimeout(slow);
    clearTimeout(verySlow);
  }
}

function choose(wanted, { again = true } = {}) {
  if (wanted === mode && wanted !== "camera") return;
  letGo();
  mode = wanted;
  $("stage").dataset.mode = mode;
  for (const button of document.querySelectorAll("[data-mode]:is(button)")) {
    button.setAttribute("aria-pressed", String(button.dataset.mode === mode));
  }
  for (const tool of document.querySelectorAll("[data-for]")) tool.hidden = tool.dataset.for !== mode;
  $("canvas").hidden = $("canvas-hint").hidden = mode !== "draw";
  $("picture").hidden = mode !== "picture" || !$("picture").src;
  $("drop").hidden = mode !== "picture" || !$("picture").hidden;
  $("camera-problem").hidden = $("turn").hidden = true;
  view = answered = null;
  asked += 1;
  answers.instead(NOTHING);
  if (mode === "camera") turnOn(camera.start);
  else {
    camera.stop();
    $("video").hidden = true;
  }
  if (mode === "draw") drawn();
  if (mode === "picture" && again && pictured) look(pictured);
  describe();
}

async function turnOn(how) {
  $("camera-problem").hidden = true;
  $("video").hidden = false;
  $("capture").disabled = $("pause").disabled = false;
  pause(false);
  try {
    await how();
    if (!camera.isOn()) return;
    live();
    $("turn").hidden = !(await camera.hasOther());
  } catch (error) {
    $("video").hidden = true;
    $("camera-problem").hidden = false;
    $("camera-words").textContent = error.message;
    $("capture").disabled = $("pause").disabled = true;
    say(error.message);
  }
  describe();
}

/** Look through the camera, again and again, as long as it is on. */
async function live() {
  if (looking) return;
  looking = true;
  while (camera.isOn()) {
    const began = performance.now();
    if (!paused && !held && !document.hidden && !isAway() && categories.canAnswer()) {
      try {
        const frame = await camera.frame(side());
        if (camera.isOn() && !paused && !held && frame) await ask(frame, { live: true });
      } catch {
        await wait(1); // the answers say why
      }
    }
    await wait(Math.max(OFTEN - (performance.now() - began) / 1000, 0.01));
  }
  looking = false;
}

async function pause(wanted) {
  letGo();
  paused = wanted;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Go on" : "Pause";
  if (!camera.isOn()) return;
  if (paused) {
    $("video").pause();
    await ask(await camera.frame(side())).catch(() => {});
  } else await $("video").play();
}

async function capture() {
  tray.add(await camera.frame(side()));
}

/** Do something when a button is pressed, and again while it is held. */
function holdable(button, action) {
  let timer = null;
  const release = () => {
    clearInterval(timer);
    timer = null;
  };
  button.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || timer) return;
    action();
    timer = setInterval(action, HELD);
  });
  for (const kind of ["pointerup", "pointerleave", "pointercancel"]) button.addEventListener(kind, release);
  button.addEventListener("click", (event) => event.detail === 0 && action()); // from the keyboard
}

/** Take pictures that were chosen, dropped or pasted. */
async function take(files) {
  if (!files.length) return;
  settle();
  if (mode !== "picture") choose("picture", { again: false });
  const items = [];
  for (const file of files) items.push(tray.add(await shrink(file, side()))); // in their order
  const [first, ...others] = items;
  const work = async () => {
    while (others.length) await caption(others.shift());
  };
  await Promise.all([look(first), ...Array.from({ length: AT_ONCE }, work)]);
}

/** Write below a picture of the tray what it is taken for. */
async function caption(item) {
  if (!categories.canAnswer()) return;
  try {
    tray.caption(item, await attempt(() => backend.predict(item.blob, { top: 1 })));
  } catch (failure) {
    reject(item, failure);
  }
}

function reject(item, failure) {
  if (failure.kind === "refused") tray.remove(item); // a broken picture
  toast(failure.message, { kind: "failed" });
}

/** Show a picture of the tray, and what it is taken for. */
async function look(item) {
  if (mode !== "picture") choose("picture", { again: false });
  pictured = item;
  tray.mark(item);
  showBlob($("picture"), item.blob);
  $("picture").alt = `The picture that is looked at: ${item.blob.name ?? "from the camera or the canvas"}`;
  $("picture").hidden = false;
  $("drop").hidden = true;
  view = item.blob;
  describe();
  if (!categories.canAnswer()) return;
  try {
    tray.caption(item, await ask(item.blob));
  } catch (failure) {
    if (failure.kind !== "refused") return;
    reject(item, failure);
    clearPicture();
  }
}

function clearPicture() {
  pictured = null;
  tray.mark(null);
  if (mode !== "picture") return;
  $("picture").hidden = true;
  $("picture").removeAttribute("src");
  $("drop").hidden = false;
  view = null;
  asked += 1;
  answers.instead(NOTHING);
  describe();
}

async function drawn() {
  settle();
  describe();
  if (drawing.isEmpty()) {
    view = null;
    asked += 1;
    answers.instead("Nothing yet. Draw a character.");
  } else if (categories.canAnswer()) await ask(await drawing.picture()).catch(() => {});
}

async function addDrawing() {
  if (drawing.isEmpty()) return;
  const picture = drawing.picture();
  clearDrawing(); // at once: the next stroke belongs to the next drawing
  tray.add(await picture);
}

function clearDrawing() {
  drawing.clear();
  drawn();
}

begin();
