// A canvas to draw a character on, with mouse, finger, pen or keys.

import { $ } from "./dom.js";

const WIDTH = 0.05; // of a stroke on the canvas, of which the side is 1
const STEP = 0.05; // of an arrow key
// The picture that is made of a drawing resembles those that the model learned: the character in the middle,
// as large as most, in strokes of one width.
const SIDE = 128;
const LONGER = 84;
const STROKE = 9;
const LEAST = 0.12; // a dot does not fill the picture
const INK = "#1c1c1c";
const GROUND = "#f4f4f4";

const canvas = $("canvas");
const context = canvas.getContext("2d");
let strokes = []; // lists of points [x, y] between 0 and 1
let current = null;
let pen = [0.5, 0.5];
let penDown = false;
let stale = false; // the next stroke begins a new drawing

/** Call `changed` after each stroke. */
export function listen(changed) {
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    begin(place(event));
    event.preventDefault();
    canvas.focus({ preventScroll: true });
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!current || !canvas.hasPointerCapture(event.pointerId)) return;
    for (const one of event.getCoalescedEvents?.() ?? [event]) current.push(place(one));
    paint();
  });
  const end = () => {
    if (!current) return;
    current = null;
    changed();
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] };
    if (event.key in steps) {
      const [x, y] = steps[event.key];
      pen = [clamp(pen[0] + x), clamp(pen[1] + y)];
      if (penDown) current.push(pen);
    } else if (event.key === " ") {
      penDown = !penDown;
      if (penDown) begin(pen);
      else end();
    } else return;
    event.preventDefault();
    paint(true);
  });
  canvas.addEventListener("blur", () => {
    penDown = false;
    end();
    paint();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paint());
}

export const isEmpty = () => strokes.length === 0;

export function clear() {
  strokes = [];
  stale = false;
  paint();
}

export function undoStroke() {
  strokes.pop();
  stale = false;
  paint();
}

export const isLeft = () => stale;

/** Let the next stroke begin a new drawing. */
export function leave() {
  stale = true;
}

/** Return the drawing as a picture. */
export function picture() {
  const points = strokes.flat();
  const [left, top] = [0, 1].map((axis) => Math.min(...points.map((point) => point[axis])));
  const [right, bottom] = [0, 1].map((axis) => Math.max(...points.map((point) => point[axis])));
  const scale = LONGER / Math.max(right - left, bottom - top, LEAST);
  const sheet = document.createElement("canvas");
  sheet.width = sheet.height = SIDE;
  const ink = sheet.getContext("2d");
  ink.fillStyle = GROUND;
  ink.fillRect(0, 0, SIDE, SIDE);
  ink.translate(SIDE / 2, SIDE / 2);
  ink.scale(scale, scale);
  ink.translate(-(left + right) / 2, -(top + bottom) / 2);
  trace(ink, INK, STROKE / scale);
  return new Promise((done) => sheet.toBlob(done, "image/png"));
}

function begin(point) {
  if (stale) clear();
  current = [point];
  strokes.push(current);
  paint();
}

const clamp = (value) => Math.min(1, Math.max(0, value));

function place(event) {
  const box = canvas.getBoundingClientRect();
  return [clamp((event.clientX - box.left) / box.width), clamp((event.clientY - box.top) / box.height)];
}

function paint(withPen = false) {
  const { width } = canvas;
  const colour = getComputedStyle(canvas).color;
  context.resetTransform();
  context.clearRect(0, 0, width, width);
  context.scale(width, width);
  trace(context, colour, WIDTH);
  if (withPen) {
    context.beginPath();
    context.arc(...pen, WIDTH * 0.8, 0, 2 * Math.PI);
    context.lineWidth = WIDTH / 5;
    context.stroke();
  }
  $("canvas-hint").classList.toggle("gone", strokes.length > 0 || withPen);
}

function trace(sheet, colour, width) {
  Object.assign(sheet, { strokeStyle: colour, lineWidth: width, lineCap: "round", lineJoin: "round" });
  for (const stroke of strokes) {
    sheet.beginPath();
    sheet.moveTo(...stroke[0]);
    for (const point of stroke) sheet.lineTo(...point);
    sheet.stroke();
  }
}
