// The map: a grid with a row for each node. Rows are drawn when they come near what is seen, so that thousands cost little; the
// names of all others follow bit by bit, for text search and screen readers.

import { el } from "./dom.js";
import { drawDevices, drawHead, rowOf } from "./row.js";

const NEAR = "600px";
const PAGE = 10; // rows of PageUp and PageDown
const BIT_MS = 6; // of work, and then others have their turn

export class ClusterMap {
  #root;
  #rows = new Map(); // by node
  #headed = new Set(); // rows whose names are there
  #drawn = new Set(); // rows whose devices are there too
  #heading = false; // the names of the others are being drawn
  #nodes = new Map();
  #order = []; // names, as shown
  #arrangement = ""; // with their groups
  #chosen = "";
  #sizes;
  #near;
  #stop = null; // the one cell that Tab reaches
  #lit = new Set();
  #litAlways = new Set();
  #litWords = ""; // both, to see whether they are others

  /** `chosen(node, cell)` by click or Enter; `pointed(node, cell)` by pointer or focus, null for away. */
  constructor(root, { chosen, pointed, sizes }) {
    this.#root = root;
    this.#sizes = sizes;
    this.#near = new IntersectionObserver((seen) => this.#seen(seen), { rootMargin: NEAR });
    root.addEventListener("click", (event) => this.#with(event.target, chosen));
    root.addEventListener("keydown", (event) => this.#key(event, chosen));
    root.addEventListener("focusin", (event) => {
      this.#makeStop(event.target);
      this.#with(event.target, pointed);
    });
    root.addEventListener("focusout", () => pointed(null));
    root.addEventListener("pointerover", (event) => this.#with(event.target, pointed) || pointed(null));
    root.addEventListener("pointerleave", () => pointed(null));
  }

  get busy() {
    return this.#root.matches(":hover") || this.#root.contains(document.activeElement);
  }

  /** `groups` as search.arranged has them. */
  arrange(groups) {
    const shown = groups.flatMap(([, nodes]) => nodes);
    this.#nodes = new Map(shown.map((node) => [node.name, node]));
    const arrangement = JSON.stringify(groups.map(([title, nodes]) => [title, nodes.map((node) => node.name)]));
    if (arrangement === this.#arrangement) return;
    this.#arrangement = arrangement;
    this.#order = shown.map((node) => node.name);
    const focused = this.#root.contains(document.activeElement) ? document.activeElement : null;
    for (const [name, row] of this.#rows) if (!this.#nodes.has(name)) this.#forget(name, row);
    this.#root.dataset.size = this.#sizes(shown.length);
    this.#root.setAttribute("aria-rowcount", shown.length);
    let index = 0;
    const rowsOf = (nodes) =>
      nodes.map((node) => {
        const row = this.#row(node);
        index += 1;
        row.setAttribute("aria-rowindex", index);
        return row;
      });
    const drawn = groups.map(([title, nodes]) => {
      const label = title && `${title}: ${nodes.length}`;
      const said = { "aria-label": label || null, "data-title": label || null };
      return el("div", { class: "rows", role: "rowgroup", ...said }, ...rowsOf(nodes));
    });
    this.#root.replaceChildren(...drawn);
    if (focused?.isConnected) focused.focus({ preventScroll: true }); // moved elements lose it
    if (!this.#stop?.isConnected) this.#makeStop(this.#root.querySelector("[data-cell]"));
    if (!this.#heading && this.#headed.size < this.#rows.size) this.#headOthers();
  }

  /** These nodes are others than they were; where they are shown stays. */
  update(nodes) {
    for (const node of nodes) {
      const row = this.#rows.get(node.name);
      if (!row || !this.#nodes.has(node.name)) continue;
      this.#nodes.set(node.name, node);
      if (this.#headed.has(row)) drawHead(row, node);
      if (this.#drawn.has(row)) this.#draw(row, node);
    }
  }

  /** `lit` for a moment, `always` as long as something is chosen or searched: uids. */
  light(lit, always) {
    const words = `${[...lit]} ${[...always]}`;
    if (words === this.#litWords) return;
    this.#litWords = words;
    this.#lit = lit;
    this.#litAlways = always;
    this.#root.classList.toggle("dims", lit.size + always.size > 0);
    for (const row of this.#drawn) this.#lightRow(row);
  }

  /** The node whose details are shown; empty for none. */
  choose(name) {
    this.#rows.get(this.#chosen)?.removeAttribute("aria-selected");
    this.#chosen = name;
    this.#rows.get(name)?.setAttribute("aria-selected", true);
  }

  reveal(name, cell = "", block = "nearest") {
    const row = this.#rows.get(name);
    if (!row) return null;
    this.#fill(row);
    const found = [...row.querySelectorAll("[data-cell]")].find((one) => one.dataset.cell === cell) ?? row.firstElementChild;
    found.scrollIntoView({ block });
    return found;
  }

  focus() {
    this.#stop?.focus();
  }

  // ---- rows

  #row(node) {
    let row = this.#rows.get(node.name);
    if (!row) {
      row = rowOf(node);
      this.#rows.set(node.name, row);
      if (node.name === this.#chosen) row.setAttribute("aria-selected", true);
      this.#near.observe(row);
    }
    return row;
  }

  #forget(name, row) {
    this.#near.unobserve(row);
    this.#rows.delete(name);
    this.#headed.delete(row);
    this.#drawn.delete(row);
    row.remove();
  }

  #head(row, node) {
    if (this.#headed.has(row)) return;
    this.#headed.add(row);
    drawHead(row, node);
  }

  #headOthers() {
    this.#heading = true;
    const left = [...this.#rows.values()].filter((row) => !this.#headed.has(row));
    const some = () => {
      const until = performance.now() + BIT_MS;
      while (left.length && performance.now() < until) {
        const row = left.pop();
        const node = this.#nodes.get(row.dataset.node);
        if (row.isConnected && node) this.#head(row, node);
      }
      if (left.length) setTimeout(some);
      else this.#heading = false;
    };
    setTimeout(some);
  }

  #seen(entries) {
    for (const { target, isIntersecting } of entries) if (isIntersecting) this.#fill(target);
  }

  #fill(row) {
    if (this.#drawn.has(row)) return;
    const node = this.#nodes.get(row.dataset.node);
    if (!node) return;
    this.#drawn.add(row);
    row.classList.add("drawn");
    this.#head(row, node);
    this.#draw(row, node);
  }

  #draw(row, node) {
    drawDevices(row, node);
    this.#lightRow(row);
    if (!this.#stop?.isConnected) this.#makeStop(row.firstElementChild);
  }

  #lightRow(row) {
    for (const one of row.querySelectorAll("[data-pods]")) {
      const uids = one.dataset.pods.split(" ");
      const pinned = uids.some((uid) => this.#litAlways.has(uid));
      one.classList.toggle("pinned", pinned);
      one.classList.toggle("lit", pinned || uids.some((uid) => this.#lit.has(uid)));
    }
  }

  // ---- pointer and keys

  #with(target, told) {
    const cell = target.closest?.("[data-cell]");
    const row = cell?.closest(".node");
    const node = row && this.#nodes.get(row.dataset.node);
    if (!node) return false;
    told(node, cell);
    return true;
  }

  #makeStop(target) {
    const cell = target?.closest?.("[data-cell]");
    if (!cell || cell === this.#stop) return;
    this.#stop?.setAttribute("tabindex", -1);
    this.#stop = cell;
    cell.setAttribute("tabindex", 0);
  }

  #key(event, chosen) {
    const cell = event.target.closest("[data-cell]");
    if (!cell || event.altKey || event.metaKey) return;
    const go = (name, column) => this.#go(name, column);
    const name = cell.closest(".node").dataset.node;
    const cells = this.#cells(name);
    const column = cells.indexOf(cell);
    const row = this.#order.indexOf(name);
    const last = this.#order.length - 1;
    const steps = {
      ArrowRight: () => go(name, column + 1),
      ArrowLeft: () => go(name, column - 1),
      ArrowDown: () => go(this.#order[row + 1], column),
      ArrowUp: () => go(this.#order[row - 1], column),
      PageDown: () => go(this.#order[Math.min(row + PAGE, last)], column),
      PageUp: () => go(this.#order[Math.max(row - PAGE, 0)], column),
      Home: () => (event.ctrlKey ? go(this.#order[0], 0) : go(name, 0)),
      End: () => (event.ctrlKey ? go(this.#order[last], 0) : go(name, cells.length - 1)),
      Enter: () => this.#with(cell, chosen),
      " ": () => this.#with(cell, chosen),
    };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    step();
  }

  #cells(name) {
    return [...this.#rows.get(name).querySelectorAll("[data-cell]")];
  }

  #go(name, column) {
    if (name === undefined) return;
    this.#fill(this.#rows.get(name));
    const cells = this.#cells(name);
    const cell = cells[Math.max(0, Math.min(column, cells.length - 1))];
    cell.focus({ preventScroll: true });
    cell.scrollIntoView({ block: "nearest" });
  }
}
