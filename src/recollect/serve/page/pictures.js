// Pictures from files, drops and the clipboard, made no larger than the model needs.

import { $ } from "./dom.js";

const ENOUGH = 2; // times the short side that the model takes
const QUALITY = 0.92;

/** Return a picture as small as is enough; one that this browser cannot read is for the backend to judge. */
export async function shrink(file, side) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    return file;
  }
  const scale = (ENOUGH * side) / Math.min(bitmap.width, bitmap.height);
  if (scale >= 1) return file;
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff"; // below what is transparent
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", QUALITY));
  return new File([blob], file.name, { type: blob.type });
}

/** Call `take` with the files that are chosen, dropped anywhere on the page or pasted. */
export function receive(take) {
  $("choose").addEventListener("click", () => $("files").click());
  $("files").addEventListener("change", () => {
    take([...$("files").files]);
    $("files").value = ""; // so that the same file can be chosen again
  });
  document.addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    if (files.length) {
      event.preventDefault();
      take(files);
    }
  });
  let depth = 0; // of the elements that a drag is over
  const over = (change) => {
    depth = Math.max(0, change);
    $("over").hidden = depth === 0;
  };
  const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
  document.addEventListener("dragenter", (event) => carriesFiles(event) && over(depth + 1));
  document.addEventListener("dragleave", (event) => carriesFiles(event) && over(depth - 1));
  document.addEventListener("dragover", (event) => carriesFiles(event) && event.preventDefault());
  document.addEventListener("drop", (event) => {
    over(0);
    if (!carriesFiles(event)) return;
    event.preventDefault();
    take([...event.dataTransfer.files]);
  });
}
