// The cluster in six figures, and what the marks of the map mean.

import { el } from "./dom.js";
import { amount, COUNTS, counts, percent } from "./words.js";

export function drawTotals(root, totals, waiting) {
  const of = (key) => totals[key] ?? 0;
  const heldOf = (part, whole) => stack({ held: of(part), free: of(whole) - of(part) });
  const inStates = (kind) =>
    Object.fromEntries(["held", "shared", "free", "withheld", "unusable"].map((state) => [state, of(`${kind}_${state}`)]));
  const together = (kind, ...states) => states.reduce((sum, state) => sum + of(`${kind}_${state}`), 0);
  const counted = (kind) =>
    counts({
      free: of(`${kind}_free`),
      held: together(kind, "shared", "held"),
      unusable: together(kind, "withheld", "unusable"),
    });
  const memory = `${percent(of("held_mib"), of("memory_mib"))}% of ${amount(of("memory_mib"))}`;
  const compute = `${percent(of("held_percent"), of("core_percent"))}%`;
  const notReady = of("nodes_not_ready") ? `, ${of("nodes_not_ready")} not ready` : "";
  root.replaceChildren(
    figure(`GPUs ${COUNTS}`, counted("gpus"), stack(inStates("gpus"))),
    figure("GPU memory held", memory, heldOf("held_mib", "memory_mib")),
    figure("Compute held", compute, heldOf("held_percent", "core_percent")),
    figure(`RDMA VFs ${COUNTS}`, counted("vfs"), stack(inStates("vfs"))),
    figure("Nodes", `${of("nodes")}${notReady}`),
    figure("Waiting pods", `${waiting}`),
  );
}

const figure = (name, value, drawn = null) =>
  el("div", { class: "figure" }, el("dt", { text: name }), el("dd", {}, value, drawn));

function stack(parts) {
  const sizes = Object.entries(parts).filter(([, size]) => size > 0);
  const whole = sizes.reduce((sum, [, size]) => sum + size, 0);
  const words = sizes.map(([name, size]) => `${percent(size, whole)}% ${name}`).join(", ");
  const drawn = sizes.map(([name, size]) => {
    const part = el("span", { class: name });
    part.style.flexGrow = size;
    return part;
  });
  return el("span", { class: "stack", title: words, "aria-hidden": true }, ...drawn);
}

export function drawLegend(root) {
  const rows = [
    [sampleGpu("free", 0), "free"],
    [sampleGpu("shared", 40), "held in part"],
    [sampleGpu("held", 100), "held"],
    [sampleGpu("unusable", 0), "unusable"],
    [sampleGpu("held", 100, 60), "bar beside it: memory in use, as the driver saw it"],
    [sampleVf("held"), "VF held"],
    [sampleVf("free"), "VF free"],
  ];
  root.replaceChildren(...rows.map(([drawn, words]) => el("li", {}, drawn, words)));
}

function sampleGpu(state, held, used = null) {
  const part = el("span", { class: "part" });
  part.style.flexBasis = `${held}%`;
  const box = el("span", { class: "box" }, el("span", { class: "held" }, part));
  const drawn = el("span", { class: `cell gpu ${state}`, "aria-hidden": true }, box);
  if (used !== null) {
    const level = el("span");
    level.style.height = `${used}%`;
    drawn.append(el("span", { class: "used" }, level));
  }
  return drawn;
}

function sampleVf(state) {
  const dots = el("span", { class: "vfs" }, el("span", { class: `vf ${state}` }));
  return el("span", { class: "cell pf", "aria-hidden": true }, dots);
}
