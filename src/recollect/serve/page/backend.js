// Who answers the page. `recollect export --web` puts a module here that computes in the browser.
export { backend } from "./service.js";
