// The keys of a zone that matter: who they are, what they ask for, and what can be done about them.

import { cell, duration, keep, make, number, say, sayRate, toast } from "./dom.js";
import { change, look } from "./api.js";
import { ask } from "./ask.js";
import { draw, spark } from "./charts.js";
import { History } from "./history.js";

const history = new History();
const SHOWN = 10;
const MARKED = 100; // marked keys that are shown besides
const STRENGTH = ["block", "exempt", "grant"];
let sought = null; // the key that was looked up, and its zone
let order = []; // of the keys that were shown last

const pathOf = (zone, key) => `/api/zones/${encodeURIComponent(zone)}/keys/${encodeURIComponent(key)}`;

/** A field to look up a key that is not among the busiest. */
export function seek(zone) {
  const input = make("input", { type: "search", name: "key", autocomplete: "off", spellcheck: "false", placeholder: "as it is shown" });
  const find = async (event) => {
    event.preventDefault();
    sought = null;
    if (input.value.trim()) await look(pathOf(zone, input.value.trim())).then(({ key }) => (sought = { zone, key }), (error) => toast(error.message, true));
  };
  return make("form", { class: "bar seek", onsubmit: find }, make("label", {}, "Look up a key", input), make("button", { class: "small", type: "submit" }, "Show"));
}

/** Shows in `place` the keys of a zone that matter now: the one looked up, those refused or busy, those an operator has marked. */
export async function showKeys(place, zone, time, limit) {
  const wanted = sought?.zone === zone.name ? await look(pathOf(zone.name, sought.key)).catch(() => null) : null;
  const busy = await look(`/api/zones/${encodeURIComponent(zone.name)}/keys?sort=now&limit=${SHOWN}`);
  const keys = new Map([...(wanted ? [wanted] : []), ...calm(busy)].map((key) => [key.key, key]));
  const marks = new Map();
  for (const mark of zone.marked) marks.set(mark.key, [...(marks.get(mark.key) ?? []), mark].sort((one, other) => STRENGTH.indexOf(one.mark) - STRENGTH.indexOf(other.mark)));
  for (const key of [...marks.keys()].slice(0, MARKED)) if (!keys.has(key)) keys.set(key, { key });
  for (const key of keys.values()) if (key.per_second) history.note(`${zone.name} ${key.key}`, time, { pass: key.pass, delay: key.delay, refuse: key.refuse });
  history.tidy(time);
  const rows = [...keys.values()].map((key) => ({ ...key, zone, limit, marks: marks.get(key.key) ?? [] }));
  const body = place.querySelector("tbody") ?? table(place, zone);
  keep(body, rows, (key) => `${zone.name} ${key.key}`, row, update);
  place.querySelector(".empty").hidden = rows.length > 0;
  say(place.querySelector(".more"), marks.size > MARKED ? `${number(marks.size - MARKED)} more keys are marked.` : "");
}

/** The same keys, in the order they had where it is about as good: rows that change places every second cannot be read. */
function calm(keys) {
  const last = (key) => (order.includes(key.key) ? order.indexOf(key.key) : SHOWN);
  const sorted = [...keys].sort((one, other) => last(one) - last(other));
  for (let at = 1; at < sorted.length; at++)
    for (let to = at; to > 0 && isAbove(sorted[to], sorted[to - 1]); to--) [sorted[to - 1], sorted[to]] = [sorted[to], sorted[to - 1]];
  order = sorted.map((key) => key.key);
  return sorted;
}

function isAbove(one, other) {
  for (const kind of ["refuse", "delay", "pass"]) {
    const [mine, theirs] = [one.per_second[kind], other.per_second[kind]];
    if (mine > 1.5 * theirs + 0.5) return true;
    if (theirs > 1.5 * mine + 0.5) return false;
  }
  return false;
}

/** What the number is that says how far a key has gone, and what it may be. */
function measure({ kind, algorithm, rules, limits }) {
  const bursts = [...new Set(rules.map((rule) => rule.burst))];
  if (kind === "limit_conn") return ["in progress", ` of ${limits.join(" or ") || "any number"}`];
  if (algorithm === "leaky_bucket" && bursts.length && Math.max(...bursts) > 0) return ["burst used", ` of ${bursts.map(number).join(" or ")}`];
  return ["over its rate", " requests"];
}

function table(place, zone) {
  const column = (name, kind = "") => make("th", { scope: "col", class: kind }, name);
  const body = make("tbody");
  place.replaceChildren(
    make("div", { class: "scroll" }, make("table", {},
      make("thead", {}, make("tr", {}, column("Key"), column("Requests a second", "wide"), column("passed /s", "number"), column("delayed /s", "number"),
        column("refused /s", "number"), column("refused in all", "number"), column(measure(zone)[0], "number"), column("What to do", "alter"))), body)),
    make("p", { class: "quiet empty" }, "No requests lately."), make("p", { class: "quiet more" }));
  return body;
}

function row(item) {
  const path = pathOf(item.zone.name, item.key);
  const button = (name, kind, does) => make("button", { class: `small ${kind}`, type: "button", "aria-label": `${name} ${item.key}`, onclick: does }, name);
  const undo = (name, kind) => button(name, `un${kind}`, () => change("DELETE", `${path}/${kind}`, undefined, `${item.key}: ${kind} taken off`));
  const counts = item.zone.kind === "limit_req";
  return make("tr", {},
    cell(null, "lead", make("span", { class: "mono" }, item.key), make("small", { class: "mark" })),
    cell("requests a second", "wide", spark(`Requests a second of ${item.key}`)),
    cell("passed /s", "number pass", make("span")), cell("delayed /s", "number delay", make("b")), cell("refused /s", "number refuse", make("b")),
    cell("refused in all", "number", make("span")), cell(measure(item.zone)[0], "number", make("span")),
    cell(null, "do alter", make("div", { class: "actions" },
      button("Block", "block", () => mark(item, path, "block")), undo("Unblock", "block"),
      button("Exempt", "exempt", () => mark(item, path, "exempt")), undo("Limit again", "exempt"),
      ...(counts ? [button("Grant", "grant", () => grant(item, path)), undo("Take back", "grant"), button("Forget", "forget", () => forget(item, path))] : []))));
}

function update(element, item) {
  const [name, picture, pass, delay, refuse, all, excess, does] = element.children;
  draw(picture.querySelector("svg"), history.points(`${item.zone.name} ${item.key}`), { limit: item.limit });
  for (const [place, kind] of [[pass, "pass"], [delay, "delay"], [refuse, "refuse"]]) sayRate(place.firstElementChild, item.per_second?.[kind] ?? 0);
  say(all.firstElementChild, number(item.refuse));
  say(excess.firstElementChild, item.excess === undefined ? "–" : number(item.excess) + measure(item.zone)[1]);
  say(name.querySelector(".mark"), told(item));
  const has = (kind) => item.marks.some(({ mark }) => mark === kind);
  for (const button of does.querySelectorAll("button")) {
    const [, kind] = button.classList;
    // An existing mark is removed first: a second mark beside it would have no effect.
    button.hidden = kind.startsWith("un") ? !has(kind.slice(2)) : item.marks.length > 0;
  }
}

function told({ mark, marks, penalty, standing }) {
  const left = standing ? [`${number(standing.remaining)} of ${number(standing.limit)} left`] : [];
  const punished = mark === "penalty" || penalty ? ["serves a penalty"] : [];
  const words = marks.map(({ mark, requests, seconds, reason }, at) => {
    const word = { block: "blocked", exempt: "exempt", grant: `${requests} requests granted` }[mark];
    const idle = at > 0 && marks[0].mark === "block" ? ", but blocked" : "";
    return `${word}${idle}, ${duration(seconds)} left${reason ? `: ${reason}` : ""}`;
  });
  return [...left, ...punished, ...words].join("; ");
}

async function mark(item, path, kind) {
  const given = await ask({
    title: `${kind === "block" ? "Block" : "Exempt"} ${item.key}`,
    text: kind === "block" ? `Every request with this key in ${item.zone.name} is refused.` : `${item.zone.name} does not limit it.`,
    fields: [{ name: "for", label: "For how long, such as 10m, 1h or 7d", value: "1h", required: true }, { name: "reason", label: "Reason, for the log and other operators" }],
    go: kind === "block" ? "Block" : "Exempt",
  });
  if (given) await change("PUT", `${path}/${kind}`, given.reason ? given : { for: given.for }, `${item.key} is ${kind === "block" ? "blocked" : "exempt"} for ${given.for}`);
}

async function grant(item, path) {
  const given = await ask({
    title: `Grant ${item.key} more`,
    text: `So many requests are neither limited nor counted in ${item.zone.name}.`,
    fields: [{ name: "requests", label: "Requests", type: "number", value: "100", required: true }, { name: "for", label: "To be used within", value: "1h", required: true }],
    go: "Grant",
  });
  if (given) await change("PUT", `${path}/grant`, { requests: Number(given.requests), for: given.for }, `${item.key} has ${given.requests} requests more`);
}

async function forget(item, path) {
  const sure = await ask({ title: `Forget ${item.key}`, text: `It begins anew in ${item.zone.name}: with an empty bucket and without its penalty.`, go: "Forget" });
  if (sure) await change("DELETE", path, undefined, `${item.key} begins anew`);
}
