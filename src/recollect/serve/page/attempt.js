// One way to ask the backend: waits for a token, for room and for the connection, and says so meanwhile.

import { backend } from "./backend.js";
import { $, wait } from "./dom.js";
import { banner } from "./notices.js";

const TRIES = 4;
const POLL = 2; // seconds
const onBack = new Set();
let away = false;
let asking = null;

/** Call something when the backend answers again after it did not. */
export const whenBack = (action) => onBack.add(action);

/**
 * Do something that asks the backend. Asks for a token if one is needed, and tries again if there is no room;
 * `waiting` is called with a word about that. Other failures are thrown.
 */
export async function attempt(action, { waiting = () => {} } = {}) {
  for (let tries = 1; ; tries += 1) {
    try {
      return await action();
    } catch (failure) {
      if (failure.kind === "token" && (await askToken())) continue;
      if (failure.kind === "offline") lose();
      if (failure.kind !== "busy" || tries === TRIES) throw failure;
      waiting("The service is busy. Trying again…");
      await wait(failure.after);
    }
  }
}

async function lose() {
  if (away) return;
  away = true;
  document.body.classList.add("away");
  banner("The service does not answer. Trying to reach it again…");
  for (;;) {
    await wait(POLL);
    try {
      await backend.ready();
      break;
    } catch (failure) {
      if (failure.kind !== "offline") break;
    }
  }
  away = false;
  document.body.classList.remove("away");
  banner(null);
  onBack.forEach((action) => action());
}

export const isAway = () => away;

/** Ask for the token; returns whether there is one now. */
export function askToken() {
  asking ??= new Promise((done) => {
    const dialog = $("token");
    const finish = (given) => {
      asking = null;
      $("token-form").onsubmit = null;
      dialog.onclose = null;
      dialog.close();
      done(given);
    };
    $("token-value").value = "";
    $("token-wrong").textContent = "";
    dialog.onclose = () => finish(false);
    $("token-cancel").onclick = () => finish(false);
    $("token-form").onsubmit = async (event) => {
      event.preventDefault();
      try {
        if (await backend.unlock($("token-value").value.trim())) {
          $("unlock").hidden = true;
          finish(true);
          document.dispatchEvent(new Event("unlocked"));
        } else {
          $("token-wrong").textContent = "This token is wrong.";
          $("token-value").select();
        }
      } catch (failure) {
        $("token-wrong").textContent = failure.message;
      }
    };
    dialog.showModal();
  });
  return asking;
}
