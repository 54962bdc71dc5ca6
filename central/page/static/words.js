// How things are said: names made harmless, amounts, devices in one sentence.

const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}]/gu; // what has no shape of its own, or turns the text around it

/** A name as it is shown: what could not be seen is written as its number. */
export const clean = (text) =>
  String(text ?? "").replace(HIDDEN, (char) => `\\u{${char.codePointAt(0).toString(16)}}`);

export function amount(mib) {
  const gib = mib / 1024;
  if (gib >= 1024) return `${round(gib / 1024)} TiB`;
  return mib > 0 && gib < 0.1 ? `${mib} MiB` : `${round(gib)} GiB`;
}

const round = (number) => (number < 10 ? Math.round(number * 10) / 10 : Math.round(number)).toString();

export const percent = (part, whole) => (whole ? Math.round((100 * part) / whole) : 0);

export const count = (number, one, several = `${one}s`) => `${number} ${number === 1 ? one : several}`;

export const podName = (pod) => (pod.pod ? `${clean(pod.namespace)}/${clean(pod.pod)}` : `pod ${clean(pod.uid)}`);

/** What one holder has of a card. */
export function part(holder) {
  if (holder.whole) return "whole";
  const parts = [];
  if (holder.memory_mib) parts.push(amount(holder.memory_mib));
  if (holder.core_percent) parts.push(`${holder.core_percent} % compute`);
  if (holder.mig.length) parts.push(count(holder.mig.length, "MIG instance"));
  return parts.join(", ") || "a part";
}

export function used(gpu) {
  if (!gpu.use) return "use not reported";
  const words = [];
  if (gpu.use.memory_mib !== undefined) words.push(`${amount(gpu.use.memory_mib)} used`);
  if (gpu.use.busy_percent !== undefined) words.push(`${gpu.use.busy_percent} % busy`);
  return words.join(", ") || "use not reported";
}

export function held(gpu) {
  if (gpu.state === "free") return "free";
  const amounts = gpu.holders.some((holder) => holder.whole)
    ? "held whole"
    : gpu.holders.length
      ? `${amount(gpu.held_mib)} and ${gpu.held_percent} % held`
      : "";
  const unusable = gpu.state === "unusable" ? `unusable: ${clean(gpu.why) || "no reason given"}` : "";
  const withheld = gpu.state === "withheld" ? "withheld: its node gives nothing now" : "";
  return [unusable, withheld, amounts].filter(Boolean).join(", ");
}

const by = (holders) => (holders.length ? ` by ${holders.map(podName).join(", ")}` : "");

export const gpuName = (gpu) => `GPU ${gpu.index}`;
export const pfName = (pf) => `NIC ${clean(pf.ibdev || pf.netdev || pf.bdf)}`;

/** One sentence for a screen reader, and for the tip. */
export const gpuLabel = (gpu) => `${gpuName(gpu)}, ${held(gpu)}${by(gpu.holders)}; ${used(gpu)}`;

export function pfLabel(pf) {
  const taken = pf.vfs.filter((vf) => vf.holders.length);
  const holders = new Map(taken.flatMap((vf) => vf.holders).map((holder) => [holder.uid, holder]));
  const vfs = pf.vfs.length ? `${taken.length} of ${count(pf.vfs.length, "VF")} held${by([...holders.values()])}` : "no VFs";
  return `${pfName(pf)}${pf.why ? `, unusable: ${clean(pf.why)}` : ""}, ${vfs}`;
}

const STATES = {
  ready: "ready",
  unreachable: "not reachable: what is held there stays held",
  "not-reconciled": "does not know yet who holds its devices",
  "no-report": "reports no devices",
};
export const stateOf = (node) => STATES[node.state] ?? clean(node.state);

export function nodeLabel(node) {
  const { gpus, free, unusable } = node.sum;
  const words = [clean(node.name), stateOf(node), `${free} of ${count(gpus, "GPU")} free`];
  if (unusable) words.push(`${unusable} unusable`);
  if (node.problems.length) words.push(count(node.problems.length, "problem"));
  return words.join(", ");
}

export function duration(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "m"]];
  for (const [size, name] of units) if (seconds >= size) return `${Math.floor(seconds / size)} ${name}`;
  return `${Math.max(0, Math.floor(seconds))} s`;
}
