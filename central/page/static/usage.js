// What pods hold and use, summed up as central/view/pods.py does: the use of a card counts for a group of pods only where all of
// its holders are in the group. No elements here.

/** What these holders have of the nodes' devices. */
export function shareOf(nodes, isMine) {
  const cards = nodes.flatMap((node) => node.gpus).filter((gpu) => gpu.holders.some(isMine));
  const vfs = nodes.flatMap((node) => node.pfs).flatMap((pf) => pf.vfs).filter((vf) => vf.holders.some(isMine));
  const own = cards.filter((gpu) => gpu.holders.every(isMine));
  const parts = cards.map((gpu) => part(gpu, gpu.holders.filter(isMine)));
  return {
    gpus: cards.length,
    reported: cards.filter((gpu) => gpu.use).length,
    idle: cards.filter((gpu) => gpu.idle).length,
    shared: cards.length - own.length,
    vfs: vfs.length,
    heldMib: sum(parts.map(([mib]) => mib)),
    heldPercent: sum(parts.map(([, percent]) => percent)),
    ...used(own),
  };
}

/** Of nodes: the use of all their cards, also of those that are used without a grant. */
export const shareOfNodes = (nodes) => ({ ...shareOf(nodes, () => true), ...used(nodes.flatMap((node) => node.gpus)) });

/** All pods that hold something or wait. */
export function podsOf(store) {
  const holding = [...store.pods.values()].map((pod) => {
    const nodes = [...pod.nodes].sort().map((name) => store.nodes.get(name));
    const holders = nodes.flatMap((node) => node.pods.get(pod.uid)).map((device) => device.holder);
    const share = shareOf(nodes, (one) => one.uid === pod.uid);
    const granted = holders.some((one) => one.claims.includes("granted"));
    return { ...pod, nodes, created: holders[0].created, share, state: stateOf(share, granted), asks: "" };
  });
  const none = shareOf([], () => false);
  const waiting = store.waiting.map((pod) => ({ ...pod, nodes: [], share: none, state: "waiting" }));
  return [...holding, ...waiting];
}

function stateOf(share, granted) {
  if (!granted) return "starting";
  return share.gpus && share.idle === share.gpus ? "idle" : "holding";
}

function used(gpus) {
  const memory = gpus.map((gpu) => gpu.use?.memory_mib).filter((mib) => mib !== undefined);
  const busy = gpus.map((gpu) => gpu.use?.busy_percent).filter((percent) => percent !== undefined);
  return {
    usedMib: memory.length ? sum(memory) : null,
    busyPercent: busy.length ? Math.round(sum(busy) / busy.length) : null,
  };
}

function part(gpu, holders) {
  if (holders.some((one) => one.whole)) return [gpu.memory_mib, 100];
  if (gpu.mig.length) {
    const mine = new Set(holders.flatMap((one) => one.mig));
    const mib = Math.min(gpu.memory_mib, sum(gpu.mig.filter((one) => mine.has(one.uuid)).map((one) => one.memory_mib)));
    return [mib, gpu.memory_mib ? Math.round((100 * mib) / gpu.memory_mib) : 0];
  }
  const total = (key) => sum(holders.map((one) => one[key]));
  return [Math.min(gpu.memory_mib, total("memory_mib")), Math.min(100, total("core_percent"))];
}

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
