// One node in the map: its name, and a cell for each GPU and NIC below the switch where it sits.

import { el } from "./dom.js";
import { amount, clean, COUNTS, counts, gpuLabel, nodeLabel, pfLabel, podName, stateOf, used } from "./words.js";

const MOST_DOTS = 8; // VFs that are drawn one by one; of more a bar

/** Nothing of it is drawn yet. */
export function rowOf(node) {
  return el(
    "div",
    { class: "node", role: "row", "data-node": node.name, "data-state": node.state },
    el("div", { class: "head", role: "rowheader", tabindex: -1, "data-cell": "" }),
    el("div", { class: "devices", role: "none" }),
  );
}

export function drawHead(row, node) {
  const { gpus } = node.sum;
  row.dataset.state = node.state;
  row.setAttribute("aria-label", nodeLabel(node));
  const head = row.firstElementChild;
  head.setAttribute("aria-label", nodeLabel(node));
  const marks = [];
  if (node.state !== "ready") marks.push(el("span", { class: "flag", text: node.state }));
  if (node.ails) {
    const title = node.problems.map(clean).join("\n") || "a device is unusable";
    marks.push(el("span", { class: "flag", text: "!", title }));
  }
  head.replaceChildren(
    el("span", { class: "name", text: clean(node.name), title: clean(node.name) }),
    ...marks,
    el("span", { class: "free", title: COUNTS, text: gpus ? counts(node.sum) : stateOf(node) }),
  );
}

/** All cells anew. What differs from before is marked, for the eye. */
export function drawDevices(row, node) {
  const cells = () => [...row.querySelectorAll("[role=gridcell]")];
  const before = new Map(cells().map((cell) => [cell.dataset.cell, cell.getAttribute("aria-label")]));
  const focused = row.contains(document.activeElement) ? document.activeElement.dataset.cell : undefined;
  const sockets = Map.groupBy(node.groups, (group) => group.socket ?? group.numa ?? -1);
  const drawn = [...sockets].map(([number, groups]) => {
    const title = number < 0 ? null : `Socket ${number}`;
    const switches = byIndex(node, groups).map((group) => drawGroup(node, group));
    return el("div", { class: "socket", role: "none", "data-title": title }, ...switches);
  });
  row.lastElementChild.replaceChildren(...drawn);
  for (const cell of cells()) {
    const was = before.get(cell.dataset.cell);
    if (was !== undefined && was !== cell.getAttribute("aria-label")) cell.classList.add("changed");
    if (cell.dataset.cell === focused) cell.focus({ preventScroll: true });
  }
  if (focused !== undefined && !row.contains(document.activeElement)) row.firstElementChild.focus({ preventScroll: true });
}

/** In the order of their GPUs' numbers; those without any last. */
function byIndex(node, groups) {
  const first = (group) => Math.min(...(group.gpus ?? []).map((uuid) => node.gpu.get(uuid)?.index ?? Infinity));
  return groups
    .map((group) => [first(group), group])
    .sort(([a], [b]) => (a === b ? 0 : a - b))
    .map(([, group]) => group);
}

function drawGroup(node, group) {
  const gpus = group.gpus?.map((uuid) => node.gpu.get(uuid)).filter(Boolean) ?? [];
  const pfs = group.pfs?.map((bdf) => node.pf.get(bdf)).filter(Boolean) ?? [];
  const title = `switch ${clean(group.name)}${group.numa === undefined ? "" : `, NUMA node ${group.numa}`}`;
  return el(
    "div",
    { class: "switch", role: "none", "data-title": title },
    gpus.length ? el("div", { class: "gpus", role: "none" }, ...gpus.map(drawGpu)) : null,
    pfs.length ? el("div", { class: "pfs", role: "none" }, ...pfs.map(drawPf)) : null,
  );
}

const uidsOf = (holders) => [...new Set(holders.map((holder) => holder.uid))].join(" ");

function cell(kind, id, label, holders, ...children) {
  return el(
    "div",
    {
      class: `cell ${kind}`,
      role: "gridcell",
      tabindex: -1,
      "aria-label": label,
      "data-cell": id,
      "data-pods": uidsOf(holders),
    },
    ...children,
  );
}

function drawGpu(gpu) {
  const share = (holder) => (holder.whole ? 1 : Math.max(holder.memory_mib / gpu.memory_mib || 0, holder.core_percent / 100));
  const parts = gpu.mig.length ? drawMig(gpu) : gpu.holders.map((holder) => drawPart(share(holder)));
  const usedMib = gpu.use?.memory_mib;
  return cell(
    `gpu ${gpu.state}`,
    gpu.uuid,
    gpuLabel(gpu),
    gpu.holders,
    el("span", { class: "box" }, el("span", { class: "held" }, ...parts), el("span", { class: "text" }, ...gpuText(gpu))),
    el("span", { class: gpu.use ? "used" : "used unknown" }, usedMib ? bar(usedMib / gpu.memory_mib) : null),
  );
}

function drawPart(share) {
  const part = el("span", { class: "part" });
  part.style.flexBasis = `${Math.min(100, 100 * share)}%`;
  return part;
}

const drawMig = (gpu) =>
  gpu.mig.map((one) => {
    const slot = el("span", { class: `slot ${one.state}` });
    slot.style.flexGrow = one.memory_mib || 1;
    return slot;
  });

function bar(share) {
  const made = el("span");
  made.style.height = `${Math.max(0, Math.min(100, 100 * (share || 0)))}%`;
  return made;
}

function gpuText(gpu) {
  const names = gpu.holders.map((holder) => el("span", { class: "who", text: podName(holder) }));
  const what = el("span", { class: "what", text: gpu.use ? used(gpu) : amount(gpu.memory_mib) });
  return [el("span", { class: "number", text: gpu.index }), ...names, what];
}

function drawPf(pf) {
  const taken = pf.vfs.filter((vf) => vf.holders.length);
  const made = cell(
    pf.why ? "pf unusable" : "pf",
    pf.bdf,
    pfLabel(pf),
    taken.flatMap((vf) => vf.holders),
    el("span", { class: "pf-name", text: clean(pf.ibdev || pf.netdev || pf.bdf) }),
  );
  if (!pf.vfs.length) made.append(el("span", { class: "none" }));
  else if (pf.vfs.length <= MOST_DOTS) made.append(el("span", { class: "vfs" }, ...pf.vfs.map(drawVf)));
  else {
    const level = el("span");
    level.style.width = `${(100 * taken.length) / pf.vfs.length}%`;
    made.append(el("span", { class: "level" }, level));
  }
  return made;
}

function drawVf(vf) {
  const state = vf.holders.length ? "held" : vf.state;
  return el("span", { class: `vf ${state}`, "data-pods": uidsOf(vf.holders) });
}
