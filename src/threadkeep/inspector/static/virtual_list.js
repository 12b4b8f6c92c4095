// A list of which only the slices in view are in the page: the others are gaps as high as they would be. A slice is
// fetched when it comes into view, and leaves when it is far away, so a long list costs what a short one does.
import { byId, fetchPage, putTimes, textOf } from "./pages.js";

const MARGIN = 2400; // px above and below the window where rows are there already
const SETTLE_MS = 60; // a slice that is only passed by is not fetched
const KEPT = 12; // slices that are kept after they left

export class VirtualList {
  constructor(list) {
    this.list = list;
    this.size = Number(list.dataset.slice);
    this.total = Number(list.dataset.total);
    this.rows = new Map(); // rows of slices that were fetched
    this.shown = new Map(); // what stands for a slice in the page: its rows, or a gap
    this.heights = new Map();
    this.current = byId("[aria-current] a.row", list)?.dataset.permalink;
    const first = Number(list.dataset.first) / this.size, rows = [...list.children];
    this.above = gap();
    this.below = gap();
    list.prepend(this.above);
    list.append(this.below);
    if (rows.length) this.keep(first, rows);
    this.shown.set(first, rows);
    this.measure();
    this.layOut();
    if (first > 0) (byId("[aria-current]", list) ?? rows[0])?.scrollIntoView({ block: "center" });
    for (const event of ["scroll", "resize"]) addEventListener(event, () => this.later(), { passive: true });
    this.update();
  }

  get last() { return Math.max(Math.ceil(this.total / this.size) - 1, 0); }

  heightOf(slice) {
    const count = Math.min(this.size, this.total - slice * this.size);
    return this.heights.get(slice) ?? count * (this.rowHeight ?? 32);
  }

  later() { this.frame ??= requestAnimationFrame(() => { this.frame = undefined; this.update(); }); }

  // The slices that should be in the page now.
  wanted() {
    const top = -this.list.getBoundingClientRect().top - MARGIN, bottom = top + innerHeight + 2 * MARGIN;
    let first = this.last, last = 0, at = 0;
    for (let slice = 0; slice <= this.last; slice += 1) {
      const end = at + this.heightOf(slice);
      if (end > top && at < bottom) { first = Math.min(first, slice); last = Math.max(last, slice); }
      at = end;
    }
    return first <= last ? [first, last] : [this.last, this.last];
  }

  update() {
    const [first, last] = this.wanted();
    for (const slice of [...this.shown.keys()]) if (slice < first || slice > last) this.take(slice);
    for (let slice = first; slice <= last; slice += 1) if (!this.shown.has(slice)) this.show(slice);
    this.layOut();
  }

  take(slice) {
    for (const node of this.shown.get(slice)) node.remove();
    this.shown.delete(slice);
  }

  show(slice) {
    const rows = this.rows.get(slice);
    if (rows) { this.put(slice, rows); return; }
    const loading = [gap(this.heightOf(slice), "loading")];
    this.put(slice, loading);
    setTimeout(() => { if (this.shown.get(slice) === loading) this.fetch(slice); }, SETTLE_MS);
  }

  put(slice, nodes) {
    if (this.shown.has(slice)) this.take(slice);
    const after = [...this.shown.keys()].filter((each) => each > slice).sort((a, b) => a - b)[0];
    const next = after === undefined ? this.below : this.shown.get(after)[0];
    for (const node of nodes) { this.mark(node); this.list.insertBefore(node, next); }
    this.shown.set(slice, nodes);
  }

  async fetch(slice) {
    const page = await fetchPage(`${this.list.dataset.url}&from=${slice * this.size}`);
    const found = byId(`#${this.list.id}`, page);
    if (!found) return;
    this.total = Number(found.dataset.total);
    const rows = [...document.importNode(found, true).children], known = this.rows.get(slice);
    if (known && textOf(known) === textOf(rows)) { putTimes(rows, known); return; }
    const whole = document.documentElement, isAtEnd = scrollY + innerHeight >= whole.scrollHeight - 2;
    this.keep(slice, rows);
    if (this.shown.has(slice) && rows.length) this.put(slice, rows);
    this.measure();
    this.update();
    if (isAtEnd && scrollY > 0) scrollTo(0, whole.scrollHeight); // rows may be higher than was expected
  }

  keep(slice, rows) {
    this.rows.delete(slice);
    this.rows.set(slice, rows);
    for (const old of this.rows.keys()) if (this.rows.size > KEPT && !this.shown.has(old)) this.rows.delete(old);
  }

  // Read again what is in the page: the thread may have changed.
  async refresh() {
    for (const slice of this.rows.keys()) if (!this.shown.has(slice)) this.rows.delete(slice);
    await Promise.all([...this.shown.keys()].map((slice) => this.fetch(slice)));
  }

  choose(row) {
    this.current = byId("a.row", row).dataset.permalink;
    for (const nodes of this.rows.values()) nodes.forEach((node) => this.mark(node));
  }

  mark(node) {
    if (!this.current || !node.hasAttribute("data-row")) return;
    if (byId("a.row", node).dataset.permalink === this.current) node.setAttribute("aria-current", "true");
    else node.removeAttribute("aria-current");
  }

  measure() {
    for (const [slice, nodes] of this.shown) {
      if (nodes.length && nodes[0].isConnected && !nodes[0].classList.contains("gap")) {
        this.heights.set(slice, nodes.at(-1).getBoundingClientRect().bottom - nodes[0].getBoundingClientRect().top);
        this.rowHeight = this.heights.get(slice) / nodes.length;
      }
    }
  }

  layOut() {
    const [first, last] = [Math.min(...this.shown.keys()), Math.max(...this.shown.keys())];
    let [above, below] = [0, 0];
    for (let slice = 0; slice <= this.last; slice += 1) {
      if (slice < first) above += this.heightOf(slice);
      if (slice > last) below += this.heightOf(slice);
    }
    this.above.style.height = `${above}px`;
    this.below.style.height = `${below}px`;
  }
}

function gap(height = 0, more = "") {
  const node = document.createElement("li");
  node.className = `gap ${more}`.trim();
  node.setAttribute("aria-hidden", "true");
  node.style.height = `${height}px`;
  return node;
}
