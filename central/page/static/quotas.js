// The tree of quotas with bars: who uses, borrows, lends and waits. As `kubectl lading quota` has it.

import { el, table, td, tr } from "./dom.js";
import { matches } from "./search.js";
import { amount, clean } from "./words.js";

const NONE = "–";
const HEADS = ["Quota", "Resource", "", "Used", "May use", "Min", "Max", "Borrowed", "Lent", "Waiting"];
const NO_LIMIT = 1e12;
const PARTS = ["own", "borrowed", "lent", "free"];

/** Draws the answer to `GET /v1/quotas`; null: there is none yet. Answers how many quotas are shown. */
export function drawQuotas(root, answer, words) {
  const found = (answer?.quotas ?? []).filter((one) => matches(`${one.quota} ${one.namespace}`.toLowerCase(), words));
  const most = mostOf(answer);
  const counted = found.filter((one) => !one.problem);
  const rows = counted.flatMap((one) => rowsOf(one, most));
  const refused = found.filter((one) => one.problem).map((one) => el("p", { class: "refused", text: `${clean(one.quota)}: refused, and so are its pods: ${clean(one.problem)}` }));
  const none = answer && !answer.quotas.length ? el("p", { class: "hint", text: "There are no quotas: no ElasticQuota of Koordinator or scheduler-plugins." }) : null;
  root.replaceChildren(...[rows.length ? table("", HEADS, rows) : null, ...refused, none].filter(Boolean));
  return found.length;
}

/** How much a whole bar is, by resource. */
function mostOf(answer) {
  const most = { ...answer?.totals };
  for (const one of (answer?.quotas ?? []).flatMap((quota) => quota.amounts)) {
    most[one.resource] = Math.max(most[one.resource] ?? 0, one.used, one.min);
  }
  return most;
}

function rowsOf(quota, most) {
  const name = el("th", { scope: "rowgroup", class: `level-${Math.min(quota.level, 6)}`, rowspan: Math.max(1, quota.amounts.length) });
  name.append(el("bdi", { text: clean(quota.quota) }));
  if (!quota.amounts.length) return [tr(name, ...HEADS.slice(1).map(() => td(NONE)))];
  return quota.amounts.map((one, at) => tr(...(at ? [] : [name]), ...cellsOf(one, most[one.resource])));
}

function cellsOf(one, most) {
  const used = el("td", { class: one.used > one.runtime ? "over" : null, text: shown(one, one.used) });
  const optional = [one.borrowed, one.lent, one.waiting].map((number) => td(number ? shown(one, number) : NONE));
  return [td(clean(one.resource)), td(bar(one, most)), used, ...[one.runtime, one.min, one.max].map((number) => td(shown(one, number))), ...optional];
}

function bar(one, most) {
  const own = one.used - one.borrowed;
  const sizes = [own, one.borrowed, one.lent, Math.max(0, one.min - own - one.lent)];
  const text = `used ${shown(one, own)}, borrowed ${shown(one, one.borrowed)}, lent ${shown(one, one.lent)}`;
  const made = el("div", { class: "quota-bar", role: "img", "aria-label": text, title: text });
  let left = most;
  sizes.forEach((size, at) => {
    const part = el("span", { class: PARTS[at] });
    part.style.width = `${most ? (100 * Math.min(size, left)) / most : 0}%`;
    left -= Math.min(size, left);
    made.append(part);
  });
  return made;
}

function shown(one, number) {
  if (number >= NO_LIMIT) return "no limit";
  return one.resource === "memory" ? amount(number) : `${Math.round(number * 1000) / 1000}`;
}
