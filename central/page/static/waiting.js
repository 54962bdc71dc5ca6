// Pods that wait for devices: what each asks, for how long, and the reason that is true of the most nodes.

import { el, keepFocus, link, table, td, tr } from "./dom.js";
import { matches, waitingText } from "./search.js";
import { wordOf } from "./store.js";
import { clean, count, duration, podName } from "./words.js";

const HEADS = ["Pod", "Asks for", "Refused for", "Why, and on how many nodes"];

export function drawWaiting(section, list, store, words, choose) {
  const { waiting, waitingCount, sentences } = store;
  const found = waiting.filter((pod) => matches(waitingText(pod, sentences), words));
  section.hidden = waitingCount === 0;
  const title = `${count(waitingCount, "pod")} ${waitingCount === 1 ? "waits" : "wait"} for devices`;
  section.querySelector("h2").textContent = found.length === waitingCount ? title : `${title}, ${found.length} shown`;
  list.hidden = found.length === 0;
  const rows = found.map((pod) => drawPod(pod, sentences, choose));
  keepFocus(list, () => list.replaceChildren(table("", HEADS, rows)));
}

function drawPod(pod, sentences, choose) {
  const name = el("th", { scope: "row" }, link(podName(pod), pod.uid, () => choose(wordOf(pod))));
  const since = el("td", { class: "since", "data-since": pod.since ?? "", text: sinceText(pod.since) });
  const line = pod.line ? [el("span", { class: "line", text: clean(pod.line) })] : [];
  return tr(name, td(clean(pod.asks)), since, td(...why(pod, sentences), ...line));
}

function why(pod, sentences) {
  if (pod.making_room_on) return [`room is being made on ${clean(pod.making_room_on)}`];
  if (pod.keeping_room_on) return [`room is kept together on ${clean(pod.keeping_room_on)}`];
  if (pod.quota) return [clean(pod.quota)];
  if (pod.gang) return [`gang ${clean(pod.gang)}`];
  const reasons = Object.entries(pod.reasons);
  if (!reasons.length) return ["not evaluated yet"];
  return reasons.map(([code, nodes]) => {
    const title = clean(sentences[code] ?? "");
    return el("span", { class: "reason", title }, el("code", { text: clean(code) }), ` ${nodes}`);
  });
}

const sinceText = (since) => (since === null ? "–" : duration((Date.now() - since) / 1000));

/** Time goes by. */
export function tick(list) {
  for (const cell of list.querySelectorAll("[data-since]")) {
    if (cell.dataset.since) cell.textContent = sinceText(Number(cell.dataset.since));
  }
}
