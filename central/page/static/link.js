// Keeps the view in the part of the address behind #: the address can be shared, and survives a reload.

const KEYS = ["view", "state", "q", "sort", "group", "pod", "node"];
const DEFAULTS = { view: "map", state: "", q: "", sort: "name", group: "", pod: "", node: "" };

export function readLink(hash) {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  return Object.fromEntries(KEYS.map((key) => [key, said.get(key) ?? DEFAULTS[key]]));
}

export function writeLink(state) {
  const said = new URLSearchParams();
  for (const key of KEYS) if (state[key] !== DEFAULTS[key]) said.set(key, state[key]);
  const text = said.toString().replaceAll("%2F", "/");
  return text ? `#${text}` : "#";
}
