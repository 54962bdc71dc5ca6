// What the cluster is, as it was heard last: nodes, which pods are where, who waits. No elements here.

import { clean, podName } from "./words.js";

const IDLE_MIB = 1024; // a context that does nothing takes some hundred

const HOLDER = { namespace: "", pod: "", claims: [], memory_mib: 0, core_percent: 0, whole: false, mig: [] };
const MIG = { state: "free", profile: "", memory_mib: 0 };
const holders = (listed = []) => listed.map((one) => ({ ...HOLDER, ...one }));

function gpuOf(gpu) {
  const mig = (gpu.mig ?? []).map((one) => ({ ...MIG, ...one, holders: holders(one.holders) }));
  return { held_mib: 0, held_percent: 0, why: "", ...gpu, mig, holders: holders(gpu.holders) };
}

function pfOf(pf) {
  const vfs = (pf.vfs ?? []).map((vf) => ({ why: "", ...vf, holders: holders(vf.holders) }));
  return { why: "", ibdev: "", netdev: "", ...pf, vfs };
}

/** The server leaves defaults out. */
export function nodeOf(said) {
  const node = { groups: [], problems: [], past: [], reporter: "", driver: "", cordon: "", ...said };
  node.gpus = (said.gpus ?? []).map(gpuOf);
  node.pfs = (said.pfs ?? []).map(pfOf);
  node.gpu = new Map(node.gpus.map((gpu) => [gpu.uuid, gpu]));
  node.pf = new Map(node.pfs.map((pf) => [pf.bdf, pf]));
  const inState = (state) => node.gpus.filter((gpu) => gpu.state === state).length;
  const idle = node.gpus.filter(isIdle).length;
  node.sum = { gpus: node.gpus.length, free: inState("free"), unusable: inState("unusable"), idle };
  node.models = [...new Set(node.gpus.map((gpu) => gpu.model))].sort();
  const unusable = node.sum.unusable > 0 || node.pfs.some((pf) => pf.why);
  node.ails = unusable || node.problems.length > 0;
  node.trouble = (node.state === "ready" ? 0 : 4) + (node.problems.length ? 2 : 0) + (unusable ? 1 : 0); // the worst first
  node.pods = podsOf(node);
  node.text = textOf(node);
  return node;
}

/** Somebody holds it, and nobody uses it, as far as that is reported. */
function isIdle({ holders: by, use }) {
  return by.length > 0 && use !== undefined && !use.busy_percent && (use.memory_mib ?? 0) < IDLE_MIB;
}

function podsOf(node) {
  const pods = new Map();
  const add = (holder, device) => {
    if (!pods.has(holder.uid)) pods.set(holder.uid, []);
    pods.get(holder.uid).push({ ...device, holder });
  };
  for (const gpu of node.gpus) for (const holder of gpu.holders) add(holder, { kind: "gpu", cell: gpu.uuid });
  for (const pf of node.pfs)
    for (const vf of pf.vfs) for (const holder of vf.holders) add(holder, { kind: "vf", cell: pf.bdf, vf: vf.bdf });
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
    const changed = answer.nodes.map(nodeOf);
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
        namespace: "", reasons: {}, making_room_on: "", ...pod,
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
