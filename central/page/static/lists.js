// The two lists beside the map: pods, and what pods, namespaces and nodes use. As `kubectl lading pods -A` and `top` have them.

import { el, keepFocus, link, table, td, tr } from "./dom.js";
import { matches } from "./search.js";
import { wordOf } from "./store.js";
import { podsOf, shareOf, shareOfNodes } from "./usage.js";
import { amount, clean, count, duration, podName } from "./words.js";

const MOST = 500; // rows; what is searched for shortens them
const NONE = "–";
const natural = new Intl.Collator("en", { numeric: true });

/** `choose.pod(word)`, `choose.node(name)`. */
export function drawList(root, store, { view, state, words }, choose) {
  const pods = podsOf(store);
  const [heads, rows] = view === "pods" ? listPods(pods, state, words, choose) : listUse(store, pods, view, words, choose);
  const drawn = table("", heads, rows.slice(0, MOST));
  const more = rows.length > MOST ? el("p", { class: "hint", text: `and ${rows.length - MOST} more: search` }) : null;
  keepFocus(root, () => root.replaceChildren(...[drawn, more].filter(Boolean)));
  return rows.length;
}

function listPods(pods, state, words, choose) {
  const found = pods.filter((pod) => (!state || pod.state === state) && matches(textOf(pod), words));
  found.sort((a, b) => natural.compare(podName(a), podName(b)));
  const rows = found.map((pod) =>
    tr(
      el("th", { scope: "row" }, link(podName(pod), `pod ${pod.uid}`, () => choose.pod(wordOf(pod)))),
      td(el("span", { class: `tag ${pod.state}`, text: pod.state })),
      td(pod.nodes.map((node) => clean(node.name)).join(", ") || NONE),
      td(`${pod.share.gpus || NONE}`),
      td(`${pod.share.vfs || NONE}`),
      td(idle(pod.share)),
      td(pod.created ? duration(Date.now() / 1000 - pod.created) : NONE),
      td(pod.state === "waiting" ? `asks ${clean(pod.asks)}` : held(pod.share)),
    ),
  );
  return [["Pod", "State", "Node", "GPUs", "VFs", "Idle", "Age", "Holds or asks for"], rows];
}

function textOf(pod) {
  const nodes = pod.nodes.map((node) => clean(node.name)).join(" ");
  return `${podName(pod)} ${pod.uid} ${pod.state} ${nodes}`.toLowerCase();
}

/** Rows: how many pods hold something and how many wait, what they hold, and where the name leads. */
const MAKERS = {
  "top-pods": (store, pods) =>
    pods.filter(holds).map((pod) => ({ name: podName(pod), holding: 1, waiting: 0, share: pod.share, word: wordOf(pod) })),
  namespaces: (store, pods) =>
    [...Map.groupBy(pods, (pod) => pod.namespace)].map(([name, own]) => {
      const nodes = [...new Set(own.flatMap((pod) => pod.nodes))];
      const holding = own.filter(holds).length;
      const share = shareOf(nodes, (one) => one.namespace === name);
      return { name: clean(name), holding, waiting: own.length - holding, share };
    }),
  nodes: (store) =>
    [...store.nodes.values()].map((node) => {
      return { name: clean(node.name), holding: node.pods.size, waiting: 0, share: shareOfNodes([node]), node: node.name };
    }),
};
const FIRST = { "top-pods": "Pod", namespaces: "Namespace", nodes: "Node" };
const holds = (pod) => pod.state !== "waiting";

/** Whether a link names one of the lists. */
export const isList = (view) => view === "pods" || view === "quotas" || Object.hasOwn(MAKERS, view);

const mostHeld = ({ share: a, name }, { share: b, name: other }) =>
  b.heldPercent - a.heldPercent || b.heldMib - a.heldMib || natural.compare(name, other);

function listUse(store, pods, view, words, choose) {
  const made = MAKERS[view](store, pods).filter((row) => matches(row.name.toLowerCase(), words));
  made.sort(mostHeld);
  const rows = made.map((row) =>
    tr(
      el("th", { scope: "row" }, named(row, choose)),
      td(`${row.holding}`),
      td(`${row.waiting || NONE}`),
      td(`${row.share.gpus || NONE}`),
      td(`${row.share.vfs || NONE}`),
      td(held(row.share)),
      td(inUse(row.share)),
      td(idle(row.share)),
    ),
  );
  return [[FIRST[view], "Pods", "Waiting", "GPUs", "VFs", "Held", "Used", "Idle"], rows];
}

function named(row, choose) {
  if (row.word) return link(row.name, `pod ${row.word}`, () => choose.pod(row.word));
  return row.node ? link(row.name, `node ${row.node}`, () => choose.node(row.node)) : row.name;
}

const idle = (share) => (share.reported ? `${share.idle}/${share.reported}` : NONE);
const held = (share) => (share.gpus ? `${amount(share.heldMib)} ${share.heldPercent}%` : NONE);

function inUse(share) {
  const known = [share.usedMib === null ? "" : amount(share.usedMib), share.busyPercent === null ? "" : `${share.busyPercent}%`];
  const shared = share.shared ? `${count(share.shared, "card")} shared` : "";
  return [known.filter(Boolean).join(" "), shared].filter(Boolean).join(" + ") || NONE;
}
