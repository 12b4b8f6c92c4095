// What pages can do besides following links. Every page works without it: it fetches ordinary pages of this site, and
// puts a part of them in place. Nothing is sent anywhere else.
import { byId, fetchPage, problemIn, put, putFirstRows } from "./pages.js";
import { Player } from "./player.js";
import { VirtualList } from "./virtual_list.js";

const wide = matchMedia("(min-width: 68rem)");
const REFRESH_MS = 3000, TYPING_MS = 200, KEYS_MS = 80;

// --- search as you type: the filters of a list are in the address

let typing, searching;
function searchNow(form) {
  searching?.abort();
  searching = new AbortController();
  const fields = [...new FormData(form)].filter(([, value]) => value !== "");
  const url = `${form.action.split("?")[0]}?${new URLSearchParams(fields)}`;
  fetchPage(url, searching.signal).then((page) => {
    const problem = problemIn(page);
    if (problem && !byId(form.dataset.live, page)) byId(form.dataset.live).replaceChildren(document.importNode(problem, true));
    else put(page, form.dataset.live);
    history.replaceState(null, "", url);
    watchMore();
  }).catch((error) => { if (error.name !== "AbortError") throw error; });
}
for (const form of document.querySelectorAll("form[data-live]")) {
  form.addEventListener("input", (event) => {
    if (event.target.dataset.refresh) return;
    clearTimeout(typing);
    typing = setTimeout(() => searchNow(form), TYPING_MS);
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); searchNow(form); });
}

// --- live refresh

async function refresh() {
  const live = byId("input[data-refresh]:checked");
  try { if (live && !document.hidden) await refreshPart(live.dataset.refresh); }
  finally { setTimeout(refresh, REFRESH_MS); } // after the answer: a slow storage is not asked more often than it answers
}
setTimeout(refresh, REFRESH_MS);

async function refreshPart(selector) {
  if (checkpoints) { await checkpoints.refresh(); return; }
  const page = await fetchPage(location.href), list = "tbody[data-rows]";
  if (problemIn(page)) return;
  if (byId(list)?.children.length > byId(list, page)?.children.length && byId("a[data-more]", page)) putFirstRows(page, list);
  else { put(page, selector); watchMore(); }
}

// --- long lists: the next slice is fetched when its link comes into view

const comingIntoView = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) { comingIntoView.unobserve(entry.target); loadMore(entry.target); }
}, { rootMargin: "600px" });

function watchMore() { for (const link of document.querySelectorAll("a[data-more^='#']")) comingIntoView.observe(link); }

async function loadMore(link) {
  if (link.dataset.busy) return;
  link.dataset.busy = "1";
  const selector = link.dataset.more || ".tree .children";
  const page = await fetchPage(link.href);
  const list = link.dataset.more ? byId(selector) : link.parentElement;
  const found = byId(selector, page);
  if (!found) { location.href = link.href; return; }
  list.append(...document.importNode(found, true).childNodes);
  const next = link.dataset.more && byId(`a[data-more="${selector}"]`, page);
  if (next) { const copy = document.importNode(next, true); link.replaceWith(copy); comingIntoView.observe(copy); }
  else (link.closest("p.more") ?? link).remove();
}

// --- values: parts of large ones are fetched when they are opened

document.addEventListener("toggle", async (event) => {
  const node = event.target;
  if (!node.open || !node.dataset?.load) return;
  const url = node.dataset.load;
  delete node.dataset.load;
  const found = byId(".tree .children", await fetchPage(url));
  if (found) byId(".children", node).replaceChildren(...document.importNode(found, true).childNodes);
}, true);

// --- a checkpoint beside the tree

let opening;
async function openInPanel(row, { remember = true, afterMs = 0 } = {}) {
  const link = byId("a.row", row), panel = byId(row.parentElement.dataset.panel);
  for (const other of row.parentElement.querySelectorAll("[aria-current]")) other.removeAttribute("aria-current");
  row.setAttribute("aria-current", "true");
  checkpoints?.choose(row);
  if (remember) history.replaceState(null, "", link.dataset.permalink);
  opening?.abort();
  const { signal } = opening = new AbortController();
  if (afterMs) await new Promise((done) => setTimeout(done, afterMs)); // a row that is only passed by is not fetched
  if (signal.aborted) return;
  try {
    const page = await fetchPage(link.href, signal);
    const found = byId("[data-content]", page) ?? problemIn(page);
    panel.replaceChildren(document.importNode(found, true));
    panel.scrollTop = 0;
  } catch (error) { if (error.name !== "AbortError") throw error; }
}

document.addEventListener("click", (event) => {
  const row = event.target.closest?.("[data-panel] > [data-row]");
  if (row && wide.matches && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) {
    event.preventDefault();
    openInPanel(row);
  }
  const more = event.target.closest?.("a[data-more]");
  if (more) { event.preventDefault(); loadMore(more); }
  const copy = event.target.closest?.("[data-copy]");
  if (copy) { event.preventDefault(); copyText(copy); }
  if (event.target.closest?.("[data-keys]")) byId("#keys").showModal();
  const compare = event.target.closest?.("[data-compare]");
  if (compare) chooseForDiff(compare.dataset);
});

async function copyText(button) {
  await navigator.clipboard.writeText(button.dataset.copy);
  button.classList.add("copied");
  setTimeout(() => button.classList.remove("copied"), 1200);
}

// --- comparisons: the first choice waits, in this tab, for the second

const CHOSEN = "threadkeep-chosen";
function chooseForDiff(place) {
  const first = JSON.parse(sessionStorage.getItem(CHOSEN) ?? "null");
  if (!first || (first.id === place.id && first.thread === place.thread)) {
    sessionStorage.setItem(CHOSEN, JSON.stringify({ ...place }));
    showChosen();
    return;
  }
  sessionStorage.removeItem(CHOSEN);
  const query = { thread: first.thread, kind: first.kind, ns: first.ns, a: first.id, b: place.id };
  if (place.thread !== first.thread || place.kind !== first.kind || place.ns !== first.ns) query.other = place.thread;
  if (place.kind !== first.kind) query.other_kind = place.kind;
  const given = Object.entries(query).filter(([, value]) => value);
  if (place.ns !== first.ns) given.push(["other_ns", place.ns]);
  location.href = `${place.diff}?${new URLSearchParams(given)}`;
}

function showChosen() {
  byId(".compare-bar")?.remove();
  const first = JSON.parse(sessionStorage.getItem(CHOSEN) ?? "null");
  if (!first) return;
  const bar = document.createElement("div"), text = document.createElement("span"), stop = document.createElement("button");
  bar.className = "compare-bar";
  bar.setAttribute("role", "status");
  text.textContent = `Comparing ${first.thread} · ${first.id.slice(-8)} with … choose another checkpoint`;
  stop.textContent = "Cancel";
  stop.addEventListener("click", () => { sessionStorage.removeItem(CHOSEN); bar.remove(); });
  bar.append(text, stop);
  document.body.append(bar);
}

// --- the slider over time

const player = byId("form[data-play]") && new Player(byId("form[data-play]"));

// --- keys

function step(by) {
  const rows = [...document.querySelectorAll("[data-rows] > [data-row]")];
  const at = rows.findIndex((row) => row.hasAttribute("aria-current"));
  const row = rows[Math.min(Math.max(at + by, 0), rows.length - 1)];
  if (!row || row === rows[at]) return;
  if (row.parentElement.dataset.panel && wide.matches) openInPanel(row, { afterMs: KEYS_MS });
  else { rows[at]?.removeAttribute("aria-current"); row.setAttribute("aria-current", "true"); }
  row.scrollIntoView({ block: "nearest" });
  byId("a", row)?.focus({ preventScroll: true });
}

const KEYS = {
  j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1),
  "/": () => byId("[data-search]")?.focus(),
  "?": () => byId("#keys").showModal(),
  c: () => byId("[data-compare]")?.click(),
  " ": () => byId("[data-toggle]")?.click(),
  ArrowLeft: () => player.step(-1), ArrowRight: () => player.step(1),
};
// Whether the element with the focus takes a key itself.
function isForElement({ target, key }) {
  if (target.closest?.("input[type=range]")) return key.startsWith("Arrow");
  if (target.closest?.("button, summary, input[type=checkbox]")) return key === " ";
  return target.closest?.("input, select, textarea, dialog, pre");
}

document.addEventListener("keydown", (event) => {
  if (isForElement(event) || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
  if (event.key === " " && !byId("[data-toggle]")) return;
  if (event.key.startsWith("Arrow") && !(/Left|Right/.test(event.key) ? player : byId("[data-rows]"))) return;
  event.preventDefault();
  KEYS[event.key]();
});

// --- at the start

const checkpoints = byId("ol[data-url]") && new VirtualList(byId("ol[data-url]"));
watchMore();
showChosen();
const first = byId("[data-panel] > [aria-current], [data-panel] > [data-first]");
if (first && wide.matches) openInPanel(first, { remember: false });
