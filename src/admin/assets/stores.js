// What is counted with other gateways: whether the store answers, who shares it, and what each has in hand.

import { cell, duration, find, keep, make, number, plural, say } from "./dom.js";
import { History } from "./history.js";

const history = new History();

export function showStores(stores, time) {
  for (const { name, asked, decided_here, missed } of stores) history.note(name, time, { asked, decided_here, missed });
  history.tidy(time);
  find("stores").hidden = stores.length === 0;
  keep(find("store-cards"), stores, (store) => store.name, storeCard, updateStore);
}

const column = (name) => make("th", { scope: "col" }, name);

function storeCard({ name }) {
  return make("article", {},
    make("div", { class: "title" }, make("h3", {}, name), make("span", { class: "badge" }), make("span", { class: "quiet" })),
    make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, column("Gateway"), column("Last seen"), column("In hand"))), make("tbody"))));
}

function updateStore(element, store) {
  const [, badge, about] = element.querySelector(".title").children;
  say(badge, store.degraded ? `away: ${store.why ?? "no answer"}` : "answers");
  badge.className = `badge ${store.degraded ? "bad" : "good"}`;
  const rate = (what) => number(history.rate(store.name, what));
  const missed = history.rate(store.name, "missed") >= 0.05 ? `, ${rate("missed")} without an answer in time` : "";
  say(about, `Counts for ${store.zones.join(", ") || "no zone"}. A second: ${rate("asked")} asked${missed}, ${rate("decided_here")} decided here.`);
  const gateways = store.gateways.map((gateway) => ({ ...gateway, own: gateway.name === store.gateway }));
  keep(element.querySelector("tbody"), gateways, (gateway) => gateway.name, gatewayRow, updateGateway);
}

function gatewayRow({ name, own }) {
  return make("tr", {}, cell(null, "lead", make("span", { class: "mono" }, name), make("small", {}, own ? "this one" : "")),
    cell("last seen", "", make("span")), cell("in hand", "", make("span")));
}

function updateGateway(element, gateway) {
  const [, seen, held] = element.children;
  say(seen.firstElementChild, `${duration(gateway.seen_ago_ms / 1000)} ago`);
  say(held.firstElementChild, gateway.leases.map(inHand).filter(Boolean).join("; ") || "nothing");
}

/** What a gateway may let through without asking, and what it no longer asks about. */
function inHand({ zone, keys, requests, local_keys }) {
  const leased = keys ? `${plural(requests, "request", "requests")} of ${plural(keys, "key", "keys")}` : null;
  const local = local_keys ? `${plural(local_keys, "key", "keys")} far over the limit` : null;
  const both = [leased, local].filter(Boolean).join(", ");
  return both ? `${zone}: ${both}` : null;
}
