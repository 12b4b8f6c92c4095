// Fetches pages of this site, and finds parts of them.
export const byId = (selector, where = document) => where.querySelector(selector);

export async function fetchPage(url, signal) {
  const answer = await fetch(url, { signal, headers: { Accept: "text/html" } });
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

export function put(page, selector) {
  const [from, to] = [byId(selector, page), byId(selector)];
  if (from && to && from.innerHTML !== to.innerHTML) to.replaceChildren(...document.importNode(from, true).childNodes);
}

export function problemIn(page) { return byId("#main .banner.error", page); }
