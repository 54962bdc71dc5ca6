// Asks the server what changed, again and again: each question waits there until there is an answer.

const PATIENCE_MS = 60_000; // the server answers within 25 s, and a whole large cluster takes a while
const LONGEST_MS = 15_000;

/** `heard` gets each answer; `lost` is called with the reason for none, and in how many ms it is tried again. Never ends. */
export async function follow(url, { heard, lost }) {
  let revision = null;
  let failures = 0;
  for (;;) {
    await visible();
    try {
      const atOnce = failures ? "&wait=0" : ""; // so that it is known at once that it answers again
      const answer = await ask(revision === null ? url : `${url}?after=${encodeURIComponent(revision)}${atOnce}`);
      heard(answer);
      revision = answer.revision;
      failures = 0;
    } catch (error) {
      const pause = Math.min(LONGEST_MS, 500 * 2 ** failures) * (0.75 + Math.random() / 2);
      failures += 1;
      lost(error.message, pause);
      await sleep(pause);
    }
  }
}

/** One question; throws an Error that says why there is no answer. */
export async function ask(url) {
  const signal = AbortSignal.timeout(PATIENCE_MS);
  const response = await fetch(url, { cache: "no-store", credentials: "same-origin", signal });
  if (response.ok) return response.json();
  const said = (await response.text()).trim().slice(0, 200);
  throw new Error(`${response.status} ${said || response.statusText}`);
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

/** Wait until the page is visible: a hidden page sends no requests. */
function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((done) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      done();
    };
    document.addEventListener("visibilitychange", look);
  });
}
