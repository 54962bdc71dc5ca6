// The last known state of the cluster: nodes, which pods are where, which pods wait. No elements here.

import { clean, COUNTED, podName } from "./words.js";

const HOLDER = { namespace: "", pod: "", created: 0, claims: [], memory_mib: 0, core_percent: 0, whole: false, mig: [], isolation: "" };
const MIG = { state: "free", profile: "", memory_mib: 0 };
const holders = (listed = []) => listed.map((one) => ({ ...HOLDER, ...one }));

function gpuOf(gpu) {
  const mig = (gpu.mig ?? []).map((one) => ({ ...MIG, ...one, holders: holders(one.holders) }));
  return { held_mib: 0, held_percent: 0, why: "", idle: false, ...gpu, mig, holders: holders(gpu.holders) };
}

function pfOf(pf) {
  const vfs = (pf.vfs ?? []).map((vf) => ({ why: "", ...vf, holders: holders(vf.holders) }));
  return { why: "", ibdev: "", netdev: "", ...pf, vfs };
}

/** One node. What only those are asked for that are looked at, or searched, is made when it is asked for: there may be thousands. */
export class ClusterNode {
  #said;
  #gpus;
  #pfs;
  #gpu;
  #pf;
  #sum;
  #models;
  #text;

  /** The server leaves defaults out. */
  constructor(said) {
    this.#said = said;
    this.name = said.name;
    this.state = said.state;
    this.groups = said.groups ?? [];
    this.problems = said.problems ?? [];
    this.past = said.past ?? [];
    this.reporter = said.reporter ?? "";
    this.driver = said.driver ?? "";
    this.cordon = said.cordon ?? "";
    this.pods = podsOf(said);
  }

  get gpus() {
    return (this.#gpus ??= (this.#said.gpus ?? []).map(gpuOf));
  }

  get pfs() {
    return (this.#pfs ??= (this.#said.pfs ?? []).map(pfOf));
  }

  /** By UUID. */
  get gpu() {
    return (this.#gpu ??= new Map(this.gpus.map((gpu) => [gpu.uuid, gpu])));
  }

  /** By PCI address. */
  get pf() {
    return (this.#pf ??= new Map(this.pfs.map((pf) => [pf.bdf, pf])));
  }

  get sum() {
    return (this.#sum ??= sumOf(this.#said.gpus ?? []));
  }

  get models() {
    return (this.#models ??= [...new Set((this.#said.gpus ?? []).map((gpu) => gpu.model))].sort());
  }

  get #unusable() {
    return (this.#said.gpus ?? []).some((gpu) => gpu.state === "unusable") || (this.#said.pfs ?? []).some((pf) => pf.why);
  }

  get ails() {
    return this.#unusable || this.problems.length > 0;
  }

  /** The worst first. */
  get trouble() {
    return (this.state === "ready" ? 0 : 4) + (this.problems.length ? 2 : 0) + (this.#unusable ? 1 : 0);
  }

  get text() {
    return (this.#text ??= textOf(this));
  }
}

function sumOf(gpus) {
  const counted = { free: 0, held: 0, unusable: 0 };
  for (const gpu of gpus) counted[COUNTED[gpu.state]] += 1;
  return { ...counted, gpus: gpus.length, idle: gpus.filter((gpu) => gpu.idle).length };
}

function podsOf({ gpus = [], pfs = [] }) {
  const pods = new Map();
  const add = (by, device) => {
    for (const holder of holders(by)) {
      if (!pods.has(holder.uid)) pods.set(holder.uid, []);
      pods.get(holder.uid).push({ ...device, holder });
    }
  };
  for (const gpu of gpus) if (gpu.holders) add(gpu.holders, { kind: "gpu", cell: gpu.uuid });
  for (const pf of pfs) {
    for (const vf of pf.vfs ?? []) if (vf.holders) add(vf.holders, { kind: "vf", cell: pf.bdf, vf: vf.bdf });
  }
  return pods;
}

function textOf(node) {
  const words = [node.name, node.state, node.driver, node.cordon, ...node.models, ...node.problems];
  for (const gpu of node.gpus) {
    words.push(gpu.uuid, gpu.bdf, gpu.state, gpu.why, ...gpu.mig.flatMap((one) => [one.uuid, one.profile]));
  }
  for (const pf of node.pfs) words.push(pf.bdf, pf.ibdev, pf.netdev, pf.why);
  for (const [uid, devices] of node.pods) words.push(uid, podName(devices[0].holder));
  return [...new Set(words)].filter(Boolean).map(clean).join(" ").toLowerCase();
}

export class Store {
  nodes = new Map();
  pods = new Map(); // by uid: { uid, namespace, pod, nodes: Set of names }
  totals = {};
  waiting = [];
  waitingCount = 0;
  sentences = {};
  version = "";
  revision = null;

  /** Takes one answer of the server. Answers which nodes are others now, and whether some came or went. */
  apply(answer, now = Date.now()) {
    const whole = answer.after === undefined;
    const changed = answer.nodes.map((said) => new ClusterNode(said));
    const named = new Set(changed.map((node) => node.name));
    const gone = whole ? [...this.nodes.keys()].filter((name) => !named.has(name)) : answer.gone;
    const moved = whole || gone.length > 0 || changed.some((node) => !this.nodes.has(node.name));
    for (const name of gone) this.#put(name, undefined);
    for (const node of changed) this.#put(node.name, node);
    this.totals = { nodes: 1, ...answer.totals };
    if (answer.sentences) this.sentences = answer.sentences;
    if (answer.version) this.version = answer.version;
    if (answer.pending) {
      this.waiting = answer.pending.map((pod) => ({
        namespace: "", created: 0, reasons: {}, making_room_on: "", keeping_room_on: "", quota: "", gang: "", line: "", ...pod,
        since: pod.refused_s === undefined ? null : now - pod.refused_s * 1000,
      }));
      this.waitingCount = answer.pending_count;
    }
    this.revision = answer.revision;
    return { whole, moved, changed: [...named], waiting: Boolean(answer.pending) };
  }

  #put(name, node) {
    for (const uid of this.nodes.get(name)?.pods.keys() ?? []) {
      const pod = this.pods.get(uid);
      pod.nodes.delete(name);
      if (!pod.nodes.size) this.pods.delete(uid);
    }
    if (node === undefined) {
      this.nodes.delete(name);
      return;
    }
    this.nodes.set(name, node);
    for (const [uid, devices] of node.pods) {
      const { namespace, pod } = devices[0].holder;
      if (!this.pods.has(uid)) this.pods.set(uid, { uid, namespace, pod, nodes: new Set() });
      const known = this.pods.get(uid);
      known.nodes.add(name);
      if (pod) Object.assign(known, { namespace, pod });
    }
  }

  /** By the word of a link: its uid, or namespace/name. */
  findPod(word) {
    if (!word) return null;
    const is = (pod) => pod.uid === word || `${pod.namespace}/${pod.pod}` === word;
    return this.pods.get(word) ?? [...this.pods.values()].find(is) ?? this.waiting.find(is) ?? null;
  }
}

export const wordOf = (pod) => (pod.pod ? `${pod.namespace}/${pod.pod}` : pod.uid);
