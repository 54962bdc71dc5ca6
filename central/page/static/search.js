// Which nodes and waiting pods are meant by what was typed, and in which order nodes are shown.

import { clean, podName } from "./words.js";

const natural = new Intl.Collator("en", { numeric: true });

/** Each word has to occur; upper and lower case are one. */
export const wordsOf = (query) => clean(query).toLowerCase().split(/\s+/).filter(Boolean);

export const matches = (text, words) => words.every((word) => text.includes(word));

/** Pods whose own name or uid is meant: they are lit where they are. */
export function podsMeant(store, words) {
  if (!words.length) return new Set();
  const meant = [...store.pods.values()].filter((pod) => matches(`${podName(pod)} ${pod.uid}`.toLowerCase(), words));
  return new Set(meant.map((pod) => pod.uid));
}

export function waitingText(pod, sentences) {
  const codes = Object.keys(pod.reasons);
  const said = codes.map((code) => sentences[code] ?? "");
  return clean([podName(pod), pod.uid, pod.asks, ...codes, ...said].join(" ")).toLowerCase();
}

const ORDERS = {
  name: () => 0,
  free: (a, b) => b.sum.free - a.sum.free,
  trouble: (a, b) => b.trouble - a.trouble,
  idle: (a, b) => b.sum.idle - a.sum.idle,
};

/** `[[title, nodes], …]`; one group without a title where they are not grouped. */
export function arranged(nodes, { words, sort, group }) {
  const order = ORDERS[sort] ?? ORDERS.name;
  const found = words.length ? nodes.filter((node) => matches(node.text, words)) : [...nodes];
  found.sort((a, b) => order(a, b) || natural.compare(a.name, b.name));
  if (group !== "model") return [["", found]];
  const groups = Map.groupBy(found, (node) => node.models.map(clean).join(", ") || "no GPUs");
  return [...groups].sort(([a], [b]) => natural.compare(a, b));
}
