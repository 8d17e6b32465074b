/**
 * What a backend could not do. `message` is for the person; `kind` says what the page does about it:
 *
 * - "token": it needs a token, or another one;
 * - "busy": nothing was done, and it may work in `after` seconds;
 * - "offline": nobody answers;
 * - "refused": it will not work, and `message` says why.
 */
export class Failure extends Error {
  constructor(kind, message, after = 1) {
    super(message);
    this.kind = kind;
    this.after = after;
  }
}
