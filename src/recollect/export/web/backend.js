// Who answers the page: this browser.
export { backend } from "./local.js";
