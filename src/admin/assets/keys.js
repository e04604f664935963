// The keys of a zone that matter: who they are, what they ask for, and what can be done about them.

import { cell, duration, keep, make, number, say, sayRate } from "./dom.js";
import { change, look } from "./api.js";
import { ask } from "./ask.js";
import { draw, spark } from "./charts.js";
import { History } from "./history.js";

const history = new History();
const SHOWN = 10;

/** Shows the busiest keys of a zone in `place`. */
export async function showKeys(place, zone, time, limit) {
  const busy = await look(`/api/zones/${encodeURIComponent(zone.name)}/keys?sort=demand&limit=${SHOWN}`);
  const refused = await look(`/api/zones/${encodeURIComponent(zone.name)}/keys?sort=refuse&limit=${SHOWN}`);
  const keys = new Map([...refused.filter((key) => key.refuse > 0), ...busy].map((key) => [key.key, key]));
  for (const mark of zone.marked) if (!keys.has(mark.key)) keys.set(mark.key, { key: mark.key, pass: 0, delay: 0, refuse: 0, excess: 0, mark: mark.mark });
  for (const key of keys.values()) history.note(`${zone.name} ${key.key}`, time, { pass: key.pass, delay: key.delay, refuse: key.refuse });
  history.tidy(time);
  const marks = new Map(zone.marked.map((mark) => [mark.key, mark]));
  const rows = [...keys.values()].map((key) => ({ ...key, zone, limit, marked: marks.get(key.key) }));
  const body = place.querySelector("tbody") ?? table(place);
  keep(body, rows, (key) => `${zone.name} ${key.key}`, row, update);
  place.querySelector(".nobody").hidden = rows.length > 0;
}

function table(place) {
  const column = (name, kind = "") => make("th", { scope: "col", class: kind }, name);
  const body = make("tbody");
  place.replaceChildren(
    make("div", { class: "scroll" }, make("table", {},
      make("thead", {}, make("tr", {}, column("Key"), column("Requests a second", "wide"), column("passed /s", "number"), column("delayed /s", "number"),
        column("refused /s", "number"), column("refused in all", "number"), column("above limit", "number"), column("What to do"))), body)),
    make("p", { class: "quiet nobody" }, "Nobody has come yet."));
  return body;
}

function row(item) {
  const path = `/api/zones/${encodeURIComponent(item.zone.name)}/keys/${encodeURIComponent(item.key)}`;
  const button = (name, does) => make("button", { class: "small", type: "button", "aria-label": `${name} ${item.key}`, onclick: does }, name);
  return make("tr", {},
    cell(null, "lead", make("span", { class: "mono" }, item.key), make("small", { class: "mark" })),
    cell("requests a second", "wide", spark(`Requests a second of ${item.key}`)),
    cell("passed /s", "number pass", make("span")), cell("delayed /s", "number delay", make("b")), cell("refused /s", "number refuse", make("b")),
    cell("refused in all", "number", make("span")), cell("above limit", "number", make("span")),
    cell(null, "do", make("div", { class: "actions" },
      make("span", { class: "unmarked actions" }, button("Block", () => mark(item, path, "block")), button("Exempt", () => mark(item, path, "exempt")),
        item.zone.kind === "limit_req" ? button("Grant", () => grant(item, path)) : null,
        item.zone.kind === "limit_req" ? button("Forget", () => forget(item, path)) : null),
      make("span", { class: "marked" }))));
}

function update(element, item) {
  const [name, picture, pass, delay, refuse, all, excess, does] = element.children;
  const series = `${item.zone.name} ${item.key}`;
  draw(picture.querySelector("svg"), history.points(series), { limit: item.limit });
  for (const [place, kind] of [[pass, "pass"], [delay, "delay"], [refuse, "refuse"]]) sayRate(place.firstElementChild, history.rate(series, kind));
  say(all.firstElementChild, number(item.refuse));
  say(excess.firstElementChild, number(item.excess));
  say(name.querySelector(".mark"), told(item));
  const state = item.marked?.mark ?? "";
  if (does.dataset.mark === state) return;
  does.dataset.mark = state;
  does.querySelector(".unmarked").hidden = state !== "";
  const path = `/api/zones/${encodeURIComponent(item.zone.name)}/keys/${encodeURIComponent(item.key)}`;
  const undo = { block: "Unblock", exempt: "Limit again", grant: "Take back" }[state];
  does.querySelector(".marked").replaceChildren(...(undo
    ? [make("button", { class: "small", type: "button", "aria-label": `${undo} ${item.key}`, onclick: () => change("DELETE", `${path}/${state}`, undefined, `${item.key} is limited as others are`) }, undo)]
    : []));
}

function told({ mark, marked }) {
  if (!marked) return mark === "penalty" ? "serves a penalty" : "";
  const word = { block: "blocked", exempt: "exempt", grant: `${marked.requests} requests granted` }[marked.mark];
  return `${word}, ${duration(marked.seconds)} left${marked.reason ? `: ${marked.reason}` : ""}`;
}

async function mark(item, path, kind) {
  const given = await ask({
    title: `${kind === "block" ? "Block" : "Exempt"} ${item.key}`,
    text: kind === "block" ? `Every request with this key in ${item.zone.name} is refused.` : `${item.zone.name} does not limit it.`,
    fields: [{ name: "for", label: "For how long, such as 10m, 1h or 7d", value: "1h", required: true }, { name: "reason", label: "Reason, for whoever asks later" }],
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
