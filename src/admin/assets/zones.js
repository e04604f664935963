// The zones: demand against limit, and of the chosen one its keys.

import { cell, find, keep, make, number, plural, say, sayRate } from "./dom.js";
import { change, look } from "./api.js";
import { ask } from "./ask.js";
import { chart, draw, spark } from "./charts.js";
import { History, perSecond } from "./history.js";
import { seek, showKeys } from "./keys.js";

const history = new History();
const ASKED = 24; // zones whose keys are asked for in one round
const busiest = new Map(); // of each zone that was asked: when, and its most refused key of now, else its busiest, if any
let chosen = null;
let byHand = false;
let ahead = 0; // rounds for which another zone has refused more than the open one

export const rates = (zone) => ({ pass: of(zone, "pass"), delay: of(zone, "delay"), refuse: of(zone, "refuse") });
const of = (zone, key) => history.rate(zone.name, key);
export const busiestOf = (zone) => busiest.get(zone.name)?.key ?? null;

/** What a key of a zone may have in a second, if it is a matter of seconds at all. */
export const limitOf = (zone) => (zone.kind === "limit_req" ? perSecond(zone.rate) : null);

/** The same in words. */
export const limitText = (zone) => (zone.kind === "limit_req" ? zone.rate : zone.limits.length ? `${zone.limits.join(" or ")} at once` : "none: no rule uses it");

/** Takes in all zones and shows them. */
export async function showZones(zones, time) {
  for (const zone of zones) history.note(zone.name, time, { pass: zone.pass, delay: zone.delay, refuse: zone.refuse });
  history.tidy(time);
  const inOrder = [...zones].sort((one, other) => of(other, "refuse") - of(one, "refuse"));
  if (!byHand || !zones.some((zone) => zone.name === chosen)) chosen = steady(inOrder);
  await Promise.all(due(inOrder).map((zone) => learn(zone, time)));
  find("no-zones").hidden = zones.length > 0;
  keep(find("zone-rows"), limitingFirst(zones), (zone) => zone.name, row, update);
  const zone = zones.find((candidate) => candidate.name === chosen);
  find("zone").hidden = !zone;
  if (zone) await showZone(zone, time);
}

/** Where there are many, those that refused or delayed requests lately are on top; a row moves when that begins or is long over. */
function limitingFirst(zones) {
  const limits = (zone) => ["refuse", "delay"].some((kind) => history.rate(zone.name, kind, 60) > 0);
  return [...zones.filter(limits), ...zones.filter((zone) => !limits(zone))];
}

/** The zone to open by itself: the one that refuses most, but not another every second, and not while the user works in it. */
function steady(inOrder) {
  const [first] = inOrder;
  const current = inOrder.find((zone) => zone.name === chosen);
  if (!current) return first?.name ?? null;
  ahead = of(first, "refuse") > of(current, "refuse") ? ahead + 1 : 0;
  const patience = of(current, "refuse") > 0 ? 5 : 1;
  return ahead < patience || find("zone").contains(document.activeElement) ? chosen : first.name;
}

/** Whose keys to ask for in this round: of those that refuse most, and of the others in turn. */
function due(inOrder) {
  const refusing = inOrder.filter((zone) => of(zone, "refuse") > 0).slice(0, ASKED / 2);
  const last = (zone) => busiest.get(zone.name)?.time ?? 0;
  const others = inOrder.filter((zone) => !refusing.includes(zone)).sort((one, other) => last(one) - last(other));
  return [...refusing, ...others].slice(0, ASKED);
}

async function learn(zone, time) {
  const [key] = await look(`/api/zones/${encodeURIComponent(zone.name)}/keys?sort=now&limit=1`);
  busiest.set(zone.name, { time, key: key ? { ...key, demand: demandOf(key) } : null });
}

const demandOf = ({ per_second: { pass, delay, refuse } }) => pass + delay + refuse;

function row(zone) {
  const open = () => {
    [chosen, byHand] = [zone.name, true];
    find("zone").scrollIntoView({ block: "nearest" });
  };
  return make("tr", {},
    cell(null, "lead", make("button", { class: "name", type: "button", onclick: open }, zone.name), make("small", {})),
    cell("limit", "limit", make("span"), make("small", {})),
    cell("requests a second", "wide", spark(`Requests a second in ${zone.name}`)),
    cell("passed /s", "number pass", make("span")),
    cell("delayed /s", "number delay", make("b")),
    cell("refused /s", "number refuse", make("b")),
    cell("busiest key", "busiest", make("div", {}, make("span", { class: "mono" }), make("small", {}), gauge())));
}

function update(element, zone) {
  const [name, limit, picture, pass, delay, refuse, key] = element.children;
  element.setAttribute("aria-current", String(zone.name === chosen));
  say(name.querySelector("small"), what(zone));
  say(limit.querySelector("span"), limitText(zone));
  say(limit.querySelector("small"), zone.override ? "changed while it runs" : "");
  draw(picture.querySelector("svg"), history.points(zone.name));
  for (const [place, kind] of [[pass, "pass"], [delay, "delay"], [refuse, "refuse"]]) sayRate(place.firstElementChild, of(zone, kind));
  const most = busiestOf(zone);
  say(key.querySelector("span"), most ? most.key : busiest.has(zone.name) ? "none lately" : "…");
  say(key.querySelector("small"), most ? against(zone, most) : "");
  measure(key.querySelector(".gauge"), zone.kind === "limit_conn" ? null : most?.demand, limitOf(zone));
}

const what = (zone) =>
  zone.kind === "limit_conn" ? `requests at once, ${plural(zone.keys, "key", "keys")}` : `${zone.algorithm.replaceAll("_", " ")}, ${plural(zone.keys, "key", "keys")}`;

function against(zone, key) {
  if (zone.kind === "limit_conn") return `${number(key.excess)} at once, of ${zone.limits.join(" or ") || "any number"}`;
  const limit = limitOf(zone);
  return `${number(key.demand)} a second` + (limit === null ? "" : ` of ${number(limit)}`);
}

function gauge() {
  return make("div", { class: "gauge", hidden: true, "aria-hidden": "true" }, make("i"), make("b"));
}

/** A bar as long as the demand, with a mark at the limit. */
function measure(element, demand, limit) {
  element.hidden = demand === undefined || demand === null || limit === null;
  if (element.hidden) return;
  const top = Math.max(demand, limit * 1.25);
  element.classList.toggle("over", demand > limit);
  element.querySelector("i").style.width = `${(100 * demand) / top}%`;
  element.querySelector("b").style.left = `${(100 * limit) / top}%`;
}

/** The chosen zone: its picture, what can be changed, its keys. */
async function showZone(zone, time) {
  const place = find("zone");
  if (place.dataset.zone !== zone.name) {
    place.dataset.zone = zone.name;
    place.replaceChildren(head(zone), chart(`Requests a second in ${zone.name}, last two minutes`), seek(zone.name), make("div", { class: "keys" }));
  }
  const detail = await look(`/api/zones/${encodeURIComponent(zone.name)}`);
  say(place.querySelector(".title .quiet"), facts(detail));
  place.querySelector(".back").hidden = !zone.override;
  draw(place.querySelector(".chart-frame"), history.points(zone.name));
  await showKeys(place.querySelector(".keys"), detail, time, limitOf(zone));
}

function facts(zone) {
  const rules = zone.rules.map((rule) => `${rule.server || "default server"} ${rule.location}${rule.burst ? `, burst ${number(rule.burst)}` : ""}${rule.limit ? `, ${rule.limit} at once` : ""}${rule.dry_run ? ", dry run" : ""}`);
  return [`by ${zone.key}`, rules.join("; "), `${number(zone.keys)} of ${number(zone.capacity)} keys`,
    zone.evictions ? `${plural(zone.evictions, "key", "keys")} evicted` : null, zone.store ? `shared through ${zone.store}` : null].filter(Boolean).join(" · ");
}

function head(zone) {
  const path = `/api/zones/${encodeURIComponent(zone.name)}`;
  const back = () => change("DELETE", `${path}/override`, undefined, `${zone.name} is as in the file again`);
  return make("div", { class: "title" },
    make("h3", {}, zone.name), make("span", { class: "quiet" }),
    make("span", { class: "actions alter" },
      make("button", { class: "small", type: "button", onclick: () => edit(zone.name, path) }, "Change limit…"),
      make("button", { class: "small back", type: "button", hidden: true, onclick: back }, "Back to the file")));
}

async function edit(name, path) {
  const zone = await look(path);
  const burst = zone.override?.burst ?? zone.rules.find((rule) => rule.burst !== null)?.burst ?? "";
  const limit = (label, value) => [{ name: "limit", label, type: "number", value: zone.override?.limit ?? value ?? "" }];
  const window = /^(\d+)r\/(.+)$/.exec(zone.rate ?? "");
  const fields = zone.kind === "limit_conn" ? limit("Requests at once for a key", zone.limits[0])
    : /window|log/.test(zone.algorithm) && window ? limit(`Requests of a key in ${window[2]}`, window[1])
    : [{ name: "rate", label: "Rate of a key, such as 20r/s or 100r/m", value: zone.rate ?? "" }, { name: "burst", label: "Burst, of every rule that uses it", type: "number", value: burst }];
  const given = await ask({ title: `Change ${name}`, text: "At once, and until the next reload. Counters stay as they are.", fields, go: "Change" });
  if (!given) return;
  const body = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== "").map(([key, value]) => [key, key === "rate" ? value : Number(value)]));
  await change("PATCH", path, body, `${name} is changed until the next reload`);
}
