// The details beside the map: of one node, or of one pod with all its devices.

import { el, id, keepFocus, link, table, td, tr } from "./dom.js";
import { wordOf } from "./store.js";
import { amount, clean, count, duration, gpuName, held, part, pfName, podName, stateOf, used } from "./words.js";

const MOST_PAST = 20;

export class Panel {
  #root;
  #go;

  /** `go.pod(word)`, `go.node(name, cell)`, `go.close()`. */
  constructor(root, go) {
    this.#root = root;
    this.#go = go;
  }

  get open() {
    return !this.#root.hidden;
  }

  close() {
    this.#root.hidden = true;
    this.#root.replaceChildren();
  }

  focus() {
    this.#root.querySelector("h2")?.focus();
  }

  contains(element) {
    return this.#root.contains(element);
  }

  /** `node` is undefined where there is none of that name. */
  showNode(node, name) {
    if (!node) {
      this.#show(clean(name), "node", [el("p", { text: "There is no such node, or none that reports devices." })]);
      return;
    }
    const cards = (model) => node.gpus.filter((gpu) => gpu.model === model).length;
    const facts = [
      ["State", stateOf(node)],
      ["GPUs", node.models.map((model) => `${cards(model)} × ${clean(model)}`).join(", ") || "none"],
      ["Driver", clean(node.driver)],
      ["lading-hooks", clean(node.reporter)],
      ["Cordon", clean(node.cordon)],
    ];
    const gpus = node.gpus.flatMap((gpu) => this.#gpuRows(gpu));
    const pfs = node.pfs.map((pf) => this.#pfRow(pf));
    const past = node.past.slice(0, MOST_PAST).map(pastRow);
    this.#show(clean(node.name), "node", [
      problemsOf(node),
      factsOf(facts),
      gpus.length ? table("GPUs", ["Held, and by whom", "Used"], gpus) : null,
      pfs.length ? table("NICs", ["NIC", "VFs held, and by whom"], pfs) : null,
      past.length ? table("Before", ["Device", "Pod", "Until"], past) : null,
    ]);
  }

  showPod(store, word) {
    const pod = store.findPod(word);
    if (!pod) this.#show(clean(word), "pod", [el("p", { text: "Holds no device now, and does not wait for one." })]);
    else if (pod.nodes) this.#showHolding(store, pod);
    else this.#showWaiting(store, pod);
  }

  #showHolding(store, pod) {
    const nodes = [...pod.nodes].sort().map((name) => store.nodes.get(name));
    const devices = nodes.flatMap((node) => node.pods.get(pod.uid).map((device) => ({ node, device })));
    const claims = new Set(devices.flatMap(({ device }) => device.holder.claims));
    const facts = [
      ["Held because", [...claims].map(clean).join(", ")],
      ["uid", clean(pod.uid)],
    ];
    const rows = devices.map(({ node, device }) => this.#deviceRow(node, device));
    this.#show(podName(pod), "pod", [
      factsOf(facts),
      table(count(rows.length, "device"), ["Node", "Device", "Held", "Used"], rows),
    ]);
  }

  #showWaiting(store, pod) {
    const refused = pod.since === null ? "not refused since it last fit" : duration((Date.now() - pod.since) / 1000);
    const facts = [
      ["Asks for", clean(pod.asks)],
      ["Refused for", refused],
      ["Making room on", clean(pod.making_room_on)],
      ["Keeping room on", clean(pod.keeping_room_on)],
      ["Quota", clean(pod.quota)],
      ["Gang", clean(pod.gang)],
      ["In line", clean(pod.line)],
      ["uid", clean(pod.uid)],
    ];
    const reasons = Object.entries(pod.reasons).map(([code, nodes]) =>
      tr(
        el("td", { class: "figure", text: nodes }),
        td(el("code", { text: clean(code) }), el("br"), clean(store.sentences[code] ?? "")),
      ),
    );
    const command = `kubectl lading why ${clean(pod.pod)} -n ${clean(pod.namespace)}`;
    this.#show(podName(pod), "waiting pod", [
      factsOf(facts),
      reasons.length
        ? table("Why", ["Nodes", "Reason"], reasons)
        : el("p", { text: "central has not been asked about it yet." }),
      el("p", { class: "hint" }, "Node by node: ", el("code", { text: command })),
    ]);
  }

  #show(title, kind, content) {
    const scrolled = this.#root.scrollTop;
    const name = el("bdi", { text: title });
    const close = { type: "button", class: "quiet", "aria-label": "Close details", "data-key": "close", text: "✕" };
    const kept = keepFocus(this.#root, () =>
      this.#root.replaceChildren(
        el(
          "header",
          {},
          el("h2", { tabindex: -1, "data-key": "title" }, el("span", { class: "kind", text: `${kind} ` }), name),
          el("button", { ...close, on: { click: () => this.#go.close() } }),
        ),
        ...content.filter(Boolean),
      ),
    );
    this.#root.hidden = false;
    this.#root.scrollTop = scrolled;
    if (!kept) this.focus();
  }

  // ---- rows

  #gpuRows(gpu) {
    const about = `${clean(gpu.model)}\n${clean(gpu.bdf)}`;
    const uuid = el("code", { class: "soft", text: clean(gpu.uuid) });
    const inParts = gpu.holders.length > 0 && !gpu.holders.some((one) => one.whole);
    const amounts = `${amount(gpu.held_mib)} of ${amount(gpu.memory_mib)}, ${gpu.held_percent}% compute`;
    const why = gpu.why ? `unusable: ${clean(gpu.why)}; ` : "";
    const mig = gpu.mig.map((one) =>
      el("div", {}, `${clean(one.profile) || "instance"}: `, ...this.#holders(one.holders, one.state)),
    );
    const by = mig.length ? mig : this.#holders(gpu.holders, "", inParts);
    return [
      tr(el("th", { scope: "rowgroup", colspan: 2, title: about }, `${gpuName(gpu)} `, uuid)),
      el("tr", { class: "below" }, td(el("div", { text: inParts ? why + amounts : held(gpu) }), ...by), td(used(gpu))),
    ];
  }

  #pfRow(pf) {
    const taken = pf.vfs.filter((vf) => vf.holders.length);
    const holders = [...new Map(taken.flatMap((vf) => vf.holders).map((one) => [one.uid, one])).values()];
    const name = el("b", { text: clean(pf.ibdev || pf.netdev || pf.bdf) });
    const words = pf.vfs.length ? `${taken.length} of ${pf.vfs.length}` : "it has no VFs";
    return tr(td(name, id(clean(pf.bdf))), td(el("div", { text: words }), ...this.#holders(holders, "")));
  }

  #deviceRow(node, { kind, cell, vf, holder }) {
    const go = link(clean(node.name), `node ${node.name} ${vf ?? cell}`, () => this.#go.node(node.name, cell));
    const where = el("td", { class: "short" }, go);
    if (kind === "vf") return tr(where, td(pfName(node.pf.get(cell)), id(clean(vf))), td("VF"), td());
    const gpu = node.gpu.get(cell);
    return tr(where, td(gpuName(gpu), id(clean(gpu.uuid))), td(part(holder)), td(used(gpu)));
  }

  #holders(holders, otherwise, parts = false) {
    if (!holders.length) return otherwise ? [otherwise] : [];
    return holders.map((one) => {
      const word = wordOf(one);
      const name = link(podName(one), `pod ${word}`, () => this.#go.pod(word));
      return el("div", {}, name, parts ? `: ${part(one)}` : null);
    });
  }
}

function problemsOf(node) {
  const unusable = node.gpus.filter((gpu) => gpu.why).map((gpu) => `${gpuName(gpu)}: ${gpu.why}`);
  const ports = node.pfs.filter((pf) => pf.why).map((pf) => `${pfName(pf)}: ${pf.why}`);
  const said = [...new Set([...node.problems, ...unusable, ...ports])].map((one) => el("li", { text: clean(one) }));
  return said.length ? el("ul", { class: "problems", "aria-label": "Problems" }, ...said) : null;
}

function factsOf(facts) {
  const known = facts.filter(([, value]) => value);
  const drawn = known.flatMap(([name, value]) => [el("dt", { text: name }), el("dd", { text: value })]);
  return el("dl", { class: "facts" }, ...drawn);
}

function pastRow(said) {
  const past = { namespace: "", pod: "", uid: "", ...said };
  const until = past.until ? new Date(past.until * 1000).toLocaleString() : "";
  return tr(td(id(clean(past.device))), td(el("bdi", { text: podName(past) })), td(until));
}
