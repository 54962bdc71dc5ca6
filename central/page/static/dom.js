// Elements, made of text and attributes only: nothing that the cluster says is ever parsed as HTML.

export const byId = (id) => document.getElementById(id);

/** `attributes`: `class`, `text`, `on` (listeners by event), and any attribute; null and false leave one out. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "text") made.textContent = value;
    else if (key === "on") for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** A name that leads somewhere. `key`: by which it is found again when what is around it was drawn anew. */
export function link(text, key, go) {
  const attributes = { type: "button", class: "link", "data-key": key, on: { click: go } };
  return el("button", attributes, el("bdi", { text }));
}

export const td = (...children) => el("td", {}, ...children);
export const tr = (...cells) => el("tr", {}, ...cells);
export const id = (text) => el("code", { class: "id", title: text, text });

export function table(caption, heads, rows) {
  const columns = heads.map((head) => el("th", { scope: "col", text: head }));
  const title = caption ? el("caption", { text: caption }) : null;
  return el("table", {}, title, el("thead", {}, tr(...columns)), el("tbody", {}, ...rows));
}

/** What had the focus, once `draw` has drawn it anew. Answers whether there still is such a thing. */
export function keepFocus(root, draw) {
  const inside = root.contains(document.activeElement);
  const key = inside ? document.activeElement.dataset.key : undefined;
  draw();
  if (!inside) return true;
  const same = [...root.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key);
  same?.focus();
  return same !== undefined;
}
