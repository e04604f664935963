// The few ways in which this page touches the document. Text only ever goes in as text.

export const find = (id) => document.getElementById(id);

/** An element with these attributes (`on…` are listeners) and children. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Says a text where another may stand; touches nothing if it is the same, so that a selection survives. */
export function say(element, text) {
  if (element.textContent !== String(text)) element.textContent = text;
}

/** Says a rate where there is something to look at only if it is more than nothing. */
export function sayRate(element, rate) {
  say(element, number(rate));
  element.classList.toggle("some", rate >= 0.05);
}

/** A cell; `label` is its column, for narrow screens where there is no head. */
export const cell = (label, kind, ...children) =>
  make("td", { "data-label": label, class: kind }, ...children);

/**
 * Makes the children of `parent` those of `items`, in their order. One that stays keeps its element, so that a user who has
 * the focus in it, or is reading it, keeps it while numbers change around them.
 */
export function keep(parent, items, nameOf, create, update) {
  const before = parent.kept ?? new Map();
  const after = new Map();
  for (const item of items) {
    const name = nameOf(item);
    const element = before.get(name) ?? create(item);
    update(element, item);
    after.set(name, element);
  }
  for (const [name, element] of before) if (!after.has(name)) element.remove();
  arrange(parent, [...after.values()]);
  parent.kept = after;
}

/** Puts children in order. An element that is moved loses the focus, so the others are moved around the one that has it. */
function arrange(parent, children) {
  const still = children.findIndex((child) => child.contains(document.activeElement));
  for (let at = still - 1; at >= 0; at--)
    if (children[at].nextElementSibling !== children[at + 1]) parent.insertBefore(children[at], children[at + 1]);
  for (let at = still + 1; at < children.length; at++) {
    const place = at === 0 ? parent.firstElementChild : children[at - 1].nextElementSibling;
    if (place !== children[at]) parent.insertBefore(children[at], place);
  }
}

/** Numbers as people read them: 1,234 and 0.4 and 2.1 M. */
export function number(value) {
  if (!Number.isFinite(value)) return "–";
  if (value >= 1e6) return (value / 1e6).toFixed(1) + " M";
  if (value >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return value >= 10 ? value.toFixed(0) : value.toFixed(1);
}

/** A length of time: 340 µs, 12 ms, 3.4 s, 5 min, 2 h, 3 days. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.001) return Math.round(seconds * 1e6) + " µs";
  if (seconds < 1) return Number((seconds * 1e3).toPrecision(2)) + " ms";
  if (seconds < 90) return Number(seconds.toPrecision(2)) + " s";
  if (seconds < 5400) return Math.round(seconds / 60) + " min";
  if (seconds < 129600) return Math.round(seconds / 3600) + " h";
  return Math.round(seconds / 86400) + " days";
}

export const plural = (count, one, many) => `${number(count)} ${count === 1 ? one : many}`;

export function toast(text, bad = false) {
  const note = make("p", { class: bad ? "bad" : "" }, text);
  find("toasts").append(note);
  setTimeout(() => note.remove(), bad ? 9000 : 4000);
}
