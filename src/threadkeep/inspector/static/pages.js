// Fetches pages of this site, and finds and replaces parts of them.
export const byId = (selector, where = document) => where.querySelector(selector);

// The inspector gave no page, and the reader has been told.
class NoPage extends Error {}
addEventListener("unhandledrejection", (event) => { if (event.reason instanceof NoPage) event.preventDefault(); });

export async function fetchPage(url, signal) {
  let answer, text;
  try {
    answer = await fetch(url, { signal, headers: { Accept: "text/html" } });
    text = await answer.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    tell("The inspector does not answer. Is it still running?");
    throw new NoPage(error.message);
  }
  if (!answer.headers.get("Content-Type")?.startsWith("text/html")) {
    tell(text.trim());
    throw new NoPage(answer.statusText);
  }
  byId(".toast")?.remove();
  return new DOMParser().parseFromString(text, "text/html");
}

// Say what is wrong, until a page is fetched again.
function tell(text) {
  const said = byId(".toast") ?? document.body.appendChild(document.createElement("p"));
  said.className = "toast";
  said.setAttribute("role", "status");
  if (said.textContent !== text) said.textContent = text;
}

// What elements say, without how long ago things were.
export function textOf(elements) {
  return elements.map((element) => element.innerHTML.replace(/<time.*?<\/time>/gs, "")).join("\n");
}

// Put a part of a fetched page in place. If only time has passed, nothing else is touched.
export function put(page, selector) {
  const [from, to] = [byId(selector, page), byId(selector)];
  if (!from || !to) return;
  if (textOf([from]) === textOf([to])) putTimes([from], [to]);
  else keepingPlace(to, () => to.replaceChildren(...document.importNode(from, true).childNodes));
}

// Change a part of the page; what has the focus in it, or is chosen in a list, keeps it.
function keepingPlace(part, change) {
  const hrefOf = (element) => element && part.contains(element) ? element.getAttribute("href") : null;
  const [focused, chosen] = [hrefOf(document.activeElement), hrefOf(byId("[data-row][aria-current] a", part))];
  const linkTo = (href) => href && [...part.querySelectorAll("a[href]")].find((link) => link.getAttribute("href") === href);
  change();
  linkTo(focused)?.focus({ preventScroll: true });
  linkTo(chosen)?.closest("[data-row]")?.setAttribute("aria-current", "true");
}

// Put how long ago things were into elements that say the same otherwise.
export function putTimes(from, to) {
  const times = (elements) => elements.flatMap((element) => [...element.querySelectorAll("time")]);
  const now = times(from);
  times(to).forEach((time, n) => { time.textContent = now[n].textContent; });
}

// Put the first rows of a list that was fetched further: the rows below them stay.
export function putFirstRows(page, selector) {
  const [from, to] = [byId(selector, page), byId(selector)];
  const keyOf = (row) => byId("a", row)?.getAttribute("href"), fresh = new Set([...from.children].map(keyOf));
  keepingPlace(to, () => {
    for (const row of [...to.children]) if (fresh.has(keyOf(row))) row.remove();
    to.prepend(...document.importNode(from, true).children);
  });
}

export function problemIn(page) { return byId("#main .banner.error", page); }
