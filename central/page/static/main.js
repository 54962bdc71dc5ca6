// The page: what is heard goes into the store, what is chosen into the link, and both are drawn.

import { byId } from "./dom.js";
import { ask, follow } from "./feed.js";
import { drawList, isList } from "./lists.js";
import { readLink, writeLink } from "./link.js";
import { ClusterMap } from "./map.js";
import { Panel } from "./panel.js";
import { drawQuotas } from "./quotas.js";
import { arranged, podsMeant, wordsOf } from "./search.js";
import { Store, wordOf } from "./store.js";
import { drawLegend, drawTotals } from "./totals.js";
import { drawWaiting, tick } from "./waiting.js";
import { clean, count, gpuLabel, nodeLabel, pfLabel } from "./words.js";

const REORDER_MS = 15_000; // of an order that figures decide; never while the pointer is over it
const TELL_MS = 10_000; // between two announcements
const QUOTAS_MS = 5_000; // between two questions about quotas, while they are shown
const LIST_MS = 2_000; // between two drawings of a list: each looks at all nodes

const sizeFor = (nodes) => (nodes <= 2 ? "large" : nodes <= 48 ? "medium" : "small");

const store = new Store();
let state = readLink(location.hash);
let words = [];
let meant = new Set(); // pods that are searched for, by uid
let pointed = new Set();
let drawnFrom = new Set(); // nodes of the pod whose details are shown
let arrangedAt = 0;
let toldAt = 0;
let listing = 0; // a timer
let quotas = null; // the last answer
let asking = 0; // a timer: when quotas are asked for again
let from = null; // where Escape goes back to

const map = new ClusterMap(byId("map"), { chosen, pointed: point, sizes: sizeFor });
const panel = new Panel(byId("panel"), { pod: (word) => choose({ pod: word, node: "" }), node: showNode, close: closePanel });

// ---- what is chosen

function choose(changes, { push = true } = {}) {
  const before = writeLink(state);
  state = { ...state, ...changes };
  const link = writeLink(state);
  if (link !== before) history[push ? "pushState" : "replaceState"](null, "", link);
  draw();
}

function chosen(node, cell) {
  from = cell;
  const uids = cell.dataset.pods ? cell.dataset.pods.split(" ") : [];
  if (uids.length === 1) choose({ pod: wordOf(store.pods.get(uids[0])), node: "" });
  else choose({ pod: "", node: node.name });
  if (cell === document.activeElement && cell.matches(":focus-visible")) panel.focus();
}

function showNode(name, cell = "") {
  choose({ pod: "", node: name });
  map.reveal(name, cell);
}

function closePanel() {
  const inside = panel.contains(document.activeElement);
  choose({ pod: "", node: "" });
  if (inside) (from?.isConnected ? from : null)?.focus() ?? map.focus();
}

function point(node, cell) {
  const uids = node && cell.dataset.pods ? cell.dataset.pods.split(" ").filter(Boolean) : [];
  pointed = new Set(uids);
  light();
  showTip(node, cell);
}

// ---- what is drawn

function draw() {
  const { view, q, sort, group } = state;
  words = wordsOf(q);
  meant = podsMeant(store, words);
  for (const [id, value] of Object.entries({ view, state: state.state, search: q, sort, group })) if (byId(id).value !== value) byId(id).value = value;
  const groups = arranged([...store.nodes.values()], { words, sort, group });
  map.arrange(groups);
  arrangedAt = Date.now();
  drawWaitingPods();
  const shown = groups.reduce((sum, [, nodes]) => sum + nodes.length, 0);
  byId("found").textContent = words.length ? `${shown} of ${count(store.nodes.size, "node")}` : "";
  const empty = byId("empty");
  empty.hidden = listed() || shown > 0 || store.revision === null;
  empty.textContent = words.length
    ? "No node is or has what was searched for."
    : "No node reports devices yet. Does lading-hooks run there, with report?";
  byId("map").hidden = listed();
  byId("list").hidden = !listed();
  byId("of-pods").hidden = view !== "pods";
  for (const one of document.querySelectorAll(".of-map, #legend")) one.hidden = listed();
  if (listed()) drawListed();
  drawPanel();
  light();
}

const listed = () => isList(state.view);

function drawListed() {
  clearTimeout(listing);
  listing = 0;
  if (state.view === "quotas") {
    byId("found").textContent = count(drawQuotas(byId("list"), quotas, words), "quota");
    if (!asking) askQuotas();
    return;
  }
  const go = { pod: (word) => choose({ pod: word, node: "" }), node: (name) => choose({ pod: "", node: name }) };
  const shown = drawList(byId("list"), store, { ...state, words }, go);
  byId("found").textContent = count(shown, "row");
}

/** Asks for quotas, again and again as long as they are shown. */
async function askQuotas() {
  asking = setTimeout(() => {
    asking = 0;
    if (state.view === "quotas") askQuotas();
  }, QUOTAS_MS);
  if (document.hidden) return;
  try {
    quotas = await ask("v1/quotas");
  } catch {
    return; // that central does not answer is said already
  }
  if (state.view === "quotas") drawListed();
}

function drawListedSoon() {
  if (listed() && !listing) listing = setTimeout(drawListed, LIST_MS);
}

function drawPanel() {
  if (store.revision === null) return;
  drawnFrom = new Set(nodesOfPod());
  if (state.pod) panel.showPod(store, state.pod);
  else if (state.node) panel.showNode(store.nodes.get(state.node), state.node);
  else panel.close();
  map.choose(state.pod ? "" : state.node);
}

function drawWaitingPods() {
  drawWaiting(byId("waiting"), byId("waiting-list"), store, words, (word) => choose({ pod: word, node: "" }));
}

const nodesOfPod = () => (state.pod && store.findPod(state.pod)?.nodes) || new Set();

/** Whether the panel must be drawn again: drawing it loses the text that the user selected. */
function concernsPanel(changed, waiting) {
  if (state.node) return changed.has(state.node);
  return Boolean(state.pod) && (waiting || [...drawnFrom, ...nodesOfPod()].some((name) => changed.has(name)));
}

function light() {
  const always = new Set(meant);
  const pod = state.pod && store.findPod(state.pod);
  if (pod?.nodes) always.add(pod.uid); // a waiting pod is on no node
  map.light(pointed, always);
}

function showTip(node, cell) {
  const tip = byId("tip");
  tip.hidden = !node;
  if (!node) return;
  const gpu = node.gpu.get(cell.dataset.cell);
  const pf = node.pf.get(cell.dataset.cell);
  if (gpu) tip.textContent = `${clean(node.name)}, ${gpuLabel(gpu)}. ${clean(gpu.model)}`;
  else tip.textContent = pf ? `${clean(node.name)}, ${pfLabel(pf)}` : nodeLabel(node);
  const at = cell.getBoundingClientRect();
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.max(8, Math.min(at.left, innerWidth - width - 8));
  tip.style.left = `${left}px`;
  tip.style.top = `${at.bottom + height + 16 > innerHeight ? Math.max(8, at.top - height - 8) : at.bottom + 8}px`;
}

// ---- what is heard

function heard(answer) {
  const first = store.revision === null;
  const { whole, moved, changed, waiting } = store.apply(answer);
  connected();
  drawTotals(byId("totals"), store.totals, store.waitingCount);
  const stale = state.sort !== "name" && Date.now() - arrangedAt > REORDER_MS && !map.busy;
  if (whole || moved || words.length || stale) draw();
  meant = podsMeant(store, words);
  map.update(changed.map((name) => store.nodes.get(name)));
  if (waiting) drawWaitingPods();
  drawListedSoon();
  if (concernsPanel(new Set(changed), waiting)) drawPanel();
  light();
  if (first && state.node) map.reveal(state.node, "", "center");
  else if (first && state.pod) revealPod();
  if (first || changed.length || waiting) tell(first, changed.length);
}

function revealPod() {
  const [name] = store.findPod(state.pod)?.nodes ?? [];
  if (name) map.reveal(name, store.nodes.get(name).pods.get(store.findPod(state.pod).uid)[0].cell, "center");
}

function tell(first, changed) {
  if (!first && Date.now() - toldAt < TELL_MS) return;
  toldAt = Date.now();
  const { gpus = 0, gpus_free: free = 0 } = store.totals;
  const what = first ? count(store.nodes.size, "node") : `${count(changed, "node")} changed`;
  byId("news").textContent = `${what}, ${free} of ${count(gpus, "GPU")} free, ${count(store.waitingCount, "pod")} waiting`;
}

function connected() {
  setConnection("live", "live");
  byId("notice").hidden = true;
}

function lost(why, again) {
  setConnection("lost", "connection lost");
  const notice = byId("notice");
  const old = store.revision === null ? "" : " What is shown may be old.";
  const said = why.startsWith("503 not the leader")
    ? "The replica of lading-central that answers does not lead."
    : `lading-central does not answer: ${clean(why)}.`;
  notice.textContent = `${said}${old} It is asked again in ${Math.ceil(again / 1000)} s.`;
  notice.hidden = false;
}

function setConnection(name, text) {
  const shown = byId("connection");
  if (shown.dataset.state === name) return;
  shown.dataset.state = name;
  shown.textContent = text;
  document.body.classList.toggle("stale", name === "lost");
}

// ---- what people do

function typed() {
  choose({ q: byId("search").value }, { push: false });
}

byId("search").addEventListener("input", typed);
byId("tools").addEventListener("submit", (event) => event.preventDefault());
byId("sort").addEventListener("change", (event) => choose({ sort: event.target.value }, { push: false }));
byId("view").addEventListener("change", (event) => choose({ view: event.target.value }));
byId("state").addEventListener("change", (event) => choose({ state: event.target.value }, { push: false }));
byId("group").addEventListener("change", (event) => choose({ group: event.target.value }, { push: false }));
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  map.focus();
});
addEventListener("popstate", () => {
  state = readLink(location.hash);
  draw();
});
addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    byId("search").focus();
    byId("search").select();
  } else if (event.key === "Escape") {
    byId("tip").hidden = true;
    if (panel.open) closePanel();
    else if (state.q) choose({ q: "" }, { push: false });
    if (event.target.id === "search") event.preventDefault();
  }
});
addEventListener("scroll", () => (byId("tip").hidden = true), { passive: true, capture: true });
setInterval(() => tick(byId("waiting-list")), 1000);

drawLegend(byId("legend"));
follow("v1/cluster", { heard, lost });
