// The camera: a square in the middle of what it sees.

import { $ } from "./dom.js";

const SECURE =
  "This browser gives a page the camera only at https:// or at localhost. Open the page there, or show pictures.";
const WORDS = {
  NotAllowedError: "The browser refuses the camera. Allow it for this page in the address bar, then try again.",
  NotFoundError: "There is no camera here. Show pictures.",
  NotReadableError: "Another program uses the camera. Close it, then try again.",
};
const QUALITY = 0.85;

const video = $("video");
const canvas = document.createElement("canvas");
let stream = null;
let facing = "environment";
let wanted = 0; // the number of the last start or stop

/** Turn the camera on; throws an Error with words for the person. */
export async function start() {
  if (!navigator.mediaDevices?.getUserMedia) throw new Error(SECURE);
  stop();
  const own = wanted;
  let found;
  try {
    found = await navigator.mediaDevices.getUserMedia({
      video: { facingMode: facing, width: { ideal: 640 }, height: { ideal: 480 } },
    });
  } catch (error) {
    if (own !== wanted) return;
    throw new Error(WORDS[error.name] ?? `The camera does not start: ${error.message}`);
  }
  if (own !== wanted) {
    found.getTracks().forEach((track) => track.stop()); // the person has gone on while the browser asked
    return;
  }
  stream = found;
  video.srcObject = stream;
  const faces = stream.getVideoTracks()[0].getSettings().facingMode;
  video.classList.toggle("mirrored", faces === "user");
  await video.play().catch((error) => {
    if (own === wanted) throw error;
  });
}

export function stop() {
  wanted += 1;
  stream?.getTracks().forEach((track) => track.stop());
  stream = null;
  video.srcObject = null;
}

export const isOn = () => stream !== null;

/** Take the other camera of a phone. */
export async function turn() {
  facing = facing === "environment" ? "user" : "environment";
  await start();
}

/** Return whether there is more than one. */
export async function hasOther() {
  const devices = await navigator.mediaDevices.enumerateDevices();
  return devices.filter((device) => device.kind === "videoinput").length > 1;
}

/** Return what the camera sees now, as a square JPEG. */
export function frame(side) {
  const size = Math.min(video.videoWidth, video.videoHeight);
  canvas.width = canvas.height = Math.min(size, side);
  const context = canvas.getContext("2d");
  const left = (video.videoWidth - size) / 2;
  const top = (video.videoHeight - size) / 2;
  context.drawImage(video, left, top, size, size, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/jpeg", QUALITY));
}
