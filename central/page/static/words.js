// How things are said: names made harmless, amounts, devices in one sentence.

const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}]/gu; // what has no shape of its own, or turns the text around it

/** A name as it is shown: what could not be seen is written as its number. */
export const clean = (text) =>
  String(text ?? "").replace(HIDDEN, (char) => `\\u{${char.codePointAt(0).toString(16)}}`);

/** As `kubectl lading` writes it: 79.1Gi, 633Gi. */
export function amount(mib) {
  const gib = mib / 1024;
  return `${gib < 100 ? Math.round(gib * 10) / 10 : Math.round(gib)}Gi`;
}

/** The one order of the four numbers of devices. */
export const COUNTS = "free/held/unusable/total";
export const counts = ({ free, held, unusable }) => `${free}/${held}/${unusable}/${free + held + unusable}`;

/** Of the state of one device: in which of the three it is counted. */
export const COUNTED = { free: "free", shared: "held", held: "held", withheld: "unusable", unusable: "unusable" };

export const percent = (part, whole) => (whole ? Math.round((100 * part) / whole) : 0);

export const count = (number, one, several = `${one}s`) => `${number} ${number === 1 ? one : several}`;

export const podName = (pod) => (pod.pod ? `${clean(pod.namespace)}/${clean(pod.pod)}` : `pod ${clean(pod.uid)}`);

/** What one holder has of a card. */
export function part(holder) {
  if (holder.whole) return "whole";
  const parts = [];
  if (holder.memory_mib) parts.push(amount(holder.memory_mib));
  if (holder.core_percent) parts.push(`${holder.core_percent}% compute`);
  if (holder.isolation) parts.push(clean(holder.isolation));
  if (holder.mig.length) parts.push(count(holder.mig.length, "MIG instance"));
  return parts.join(", ") || "a part";
}

export function used(gpu) {
  if (!gpu.use) return "use not reported";
  const words = [];
  if (gpu.use.memory_mib !== undefined) words.push(`${amount(gpu.use.memory_mib)} used`);
  if (gpu.use.busy_percent !== undefined) words.push(`${gpu.use.busy_percent}% busy`);
  return words.join(", ") || "use not reported";
}

export function held(gpu) {
  if (gpu.state === "free") return "free";
  const amounts = gpu.holders.some((holder) => holder.whole)
    ? "held whole"
    : gpu.holders.length
      ? `${amount(gpu.held_mib)} and ${gpu.held_percent}% held`
      : "";
  const unusable = gpu.state === "unusable" ? `unusable: ${clean(gpu.why) || "no reason given"}` : "";
  const withheld = gpu.state === "withheld" ? "withheld: its node assigns no devices now" : "";
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
  const rail = pf.rail === undefined ? "" : `, rail ${pf.rail}`;
  return `${pfName(pf)}${rail}${pf.why ? `, unusable: ${clean(pf.why)}` : ""}, ${vfs}`;
}

const STATES = {
  ready: "ready",
  unreachable: "not reachable: what is held there stays held",
  unschedulable: "unschedulable (kubectl cordon)",
  rebooted: "has booted since its last report",
  "not-reconciled": "does not know yet which pods hold its devices",
  "no-report": "reports no devices",
};
export const stateOf = (node) => STATES[node.state] ?? clean(node.state);

export function nodeLabel(node) {
  const { gpus, free, held: taken, unusable } = node.sum;
  const words = [clean(node.name), stateOf(node), `${free} free, ${taken} held, ${unusable} unusable of ${count(gpus, "GPU")}`];
  if (node.problems.length) words.push(count(node.problems.length, "problem"));
  return words.join(", ");
}

/** As kubectl's AGE: 119s, 3m5s, 18h, 2d1h. */
export function duration(seconds) {
  const left = Math.max(0, Math.floor(seconds));
  if (left < 120) return `${left}s`;
  if (left < 10800) return inTwo(left, 60, "m", 1, "s", 10);
  return left < 172800 ? inTwo(left, 3600, "h", 60, "m", 8) : inTwo(left, 86400, "d", 3600, "h", 8);
}

/** With the unit below, as long as there are fewer than `until`. */
function inTwo(seconds, unit, name, below, itsName, until) {
  const number = Math.floor(seconds / unit);
  const fine = number < until ? Math.floor((seconds % unit) / below) : 0;
  return `${number}${name}${fine ? `${fine}${itsName}` : ""}`;
}
