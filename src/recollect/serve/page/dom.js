// What a person types reaches the page as text only: nothing here, or anywhere else, parses markup.

/** The element with an id. */
export const $ = (id) => document.getElementById(id);

/** A copy of what a template holds. */
export const clone = (id) => $(id).content.firstElementChild.cloneNode(true);

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** Let a list have these children; those that stay are not touched, and keep the focus. */
export function arrange(parent, children) {
  const wanted = new Set(children);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  children.forEach((child, place) => {
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] ?? null);
  });
}

const shown = new WeakMap();

/** Show a Blob in an img; the address of the one before is given back. */
export function showBlob(image, blob) {
  if (shown.has(image)) URL.revokeObjectURL(shown.get(image));
  const address = URL.createObjectURL(blob);
  shown.set(image, address);
  image.src = address;
}

export const wait = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

/** What answers and categories call where a category comes from. */
export const ORIGINS = { base: "base", novel: "taught" };

/** Return a share in percent, never 100 or 0: nothing is certain. */
export function percent(share) {
  if (share >= 0.995) return "> 99 %";
  if (share < 0.005) return "< 1 %";
  return `${Math.round(share * 100)} %`;
}
