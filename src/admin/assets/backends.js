// Who answers the requests: the servers of upstreams, breakers of locations, and groups that can be turned down.

import { cell, duration, find, keep, make, number, say, sayRate } from "./dom.js";
import { change } from "./api.js";
import { draw, spark } from "./charts.js";
import { History } from "./history.js";

const history = new History();

export const FAILING = "answers with errors";

/** How a server of an upstream is, in a word, and whether that is good: `none` is neither, it was taken out on purpose. */
export function condition(server, upstream) {
  if (server.down) return ["disabled", "none"];
  if (server.draining) return ["draining", "none"];
  if (server.forced === "open") return ["breaker forced open", "bad"];
  if (server.healthy === false) return ["unhealthy", "bad"];
  if (server.breaker === "open") return ["breaker open", "bad"];
  if (server.breaker === "half_open") return ["recovering", "doubt"];
  if (!server.up || server.failures > 0) return ["failed lately", "bad"];
  return isFailing(`${upstream} ${server.address}`) ? [FAILING, "bad"] : ["well", "good"];
}

/** Whether one in ten of its last answers, or more, says that it failed (5xx). */
function isFailing(series) {
  const [good, errors] = ["pass", "refuse"].map((kind) => history.rate(series, kind, 10));
  return errors > 0 && errors * 9 >= good;
}

/** Whether a request to the server gets a response of any kind. */
export const answers = (server, upstream) => {
  const [word, kind] = condition(server, upstream);
  return kind === "good" || kind === "doubt" || word === FAILING;
};

/** How many of these, `[{server, upstream}]`, are well, in words. */
export function countWell(servers) {
  const count = (kind) => servers.filter(({ server, upstream }) => condition(server, upstream)[1] === kind).length;
  const out = count("none");
  return `${count("good")} of ${servers.length - out} well` + (out ? `, ${out} taken out` : "");
}

export function showBackends(upstreams, breakers, groups, time) {
  for (const upstream of upstreams)
    for (const server of upstream.servers)
      history.note(`${upstream.name} ${server.address}`, time, { ...buckets(server), pass: server.requests - server.errors, refuse: server.errors, delay: 0 });
  history.tidy(time);
  keep(find("upstreams"), upstreams, (upstream) => upstream.name, upstreamCard, updateUpstream);
  keep(find("switches"), [{ breakers }, { groups }].filter((one) => (one.breakers ?? one.groups).length > 0), (one) => Object.keys(one)[0], switchCard, updateSwitches);
}

/** How many took how long, as counters: their rates are how many took how long of late. */
const buckets = (server) => Object.fromEntries(server.latency.map(({ seconds, count }) => [`within ${seconds}`, count]));

/** In how much time this share of the last minute's requests had their answer. */
function within(series, server, share) {
  const rate = ({ seconds }) => history.rate(series, `within ${seconds}`, 60);
  const all = rate(server.latency.at(-1));
  if (all === 0) return "–";
  const bound = server.latency.find((bucket) => rate(bucket) >= share * all - 1e-9);
  return bound.seconds === null ? `over ${duration(server.latency.at(-2).seconds)}` : duration(bound.seconds);
}

const column = (name, kind = "") => make("th", { scope: "col", class: kind }, name);

function upstreamCard(upstream) {
  return make("article", {},
    make("div", { class: "title" }, make("h3", {}, upstream.name), make("span", { class: "quiet" })),
    make("div", { class: "scroll" }, make("table", {},
      make("thead", {}, make("tr", {}, column("Server"), column("How it is"), column("Requests a second", "wide"), column("now\u00a0/s", "number"), column("errors\u00a0/s", "number"),
        column("in\u00a0progress", "number"), column("half answered in", "number"), column("99\u00a0% answered in", "number"), column("What to do", "alter"))),
      make("tbody"))));
}

function updateUpstream(element, upstream) {
  say(element.querySelector(".title .quiet"), countWell(upstream.servers.map((server) => ({ server, upstream: upstream.name }))));
  keep(element.querySelector("tbody"), upstream.servers.map((server) => ({ ...server, upstream: upstream.name })), (server) => server.address, serverRow, updateServer);
}

function serverRow(server) {
  const path = `/api/upstreams/${encodeURIComponent(server.upstream)}/servers/${encodeURIComponent(server.address)}`;
  const button = (name, body, done) =>
    make("button", { class: `small ${name.toLowerCase().replaceAll(" ", "-")}`, type: "button", "aria-label": `${name}: ${server.address}`, onclick: () => change("PATCH", path, body, `${server.address} ${done}`) }, name);
  return make("tr", {},
    cell(null, "lead", make("span", { class: "mono" }, server.address), make("small", {})),
    cell("how it is", "how", make("span", { class: "badge" })),
    cell("requests a second", "wide", spark(`Requests a second at ${server.address}`)),
    cell("now /s", "number", make("span")), cell("errors /s", "number refuse", make("b")), cell("in progress", "number", make("span")),
    cell("half answered in", "number", make("span")), cell("99 % answered in", "number", make("span")),
    cell(null, "do alter", make("div", { class: "actions" },
      button("Enable", { state: "up" }, "gets requests again"), button("Drain", { state: "drain" }, "gets no new requests"), button("Disable", { state: "down" }, "is down"),
      button("Open breaker", { breaker: "open" }, "is left alone"), button("Close breaker", { breaker: "closed" }, "is asked whatever it answers"),
      button("Release breaker", { breaker: "auto" }, "is judged by what it does"))));
}

function updateServer(element, server) {
  const [name, how, picture, now, errors, active, half, most, does] = element.children;
  const series = `${server.upstream} ${server.address}`;
  const [word, kind] = condition(server, server.upstream);
  say(how.firstElementChild, word);
  how.firstElementChild.className = `badge ${kind}`;
  say(name.querySelector("small"), [server.backup ? "backup" : null, server.weight !== 1 ? `weight ${server.weight}` : null].filter(Boolean).join(", "));
  draw(picture.querySelector("svg"), history.points(series));
  say(now.firstElementChild, number(history.rate(series, "pass") + history.rate(series, "refuse")));
  sayRate(errors.firstElementChild, history.rate(series, "refuse"));
  say(active.firstElementChild, number(server.active));
  say(half.firstElementChild, within(series, server, 0.5));
  say(most.firstElementChild, within(series, server, 0.99));
  const out = server.down || server.draining;
  does.querySelector(".enable").hidden = !out;
  does.querySelector(".drain").hidden = out;
  does.querySelector(".disable").hidden = server.down;
  does.querySelector(".open-breaker").hidden = server.breaker === null || server.forced === "open";
  does.querySelector(".close-breaker").hidden = server.breaker === null || server.forced === "closed";
  does.querySelector(".release-breaker").hidden = server.forced === null;
}

function switchCard(one) {
  const title = one.breakers ? "Breakers of locations" : "What can be degraded";
  return make("article", {}, make("div", { class: "title" }, make("h3", {}, title)), make("div", { class: "scroll" }, make("table", {}, make("tbody"))));
}

function updateSwitches(element, one) {
  const body = element.querySelector("tbody");
  if (one.breakers) keep(body, one.breakers, (breaker) => `${breaker.server} ${breaker.location}`, breakerRow, updateBreaker);
  else keep(body, one.groups, (group) => group.name, groupRow, updateGroup);
}

/** Buttons of which one is pressed. */
function choice(label, options, choose) {
  const buttons = options.map(([value, name]) => make("button", { class: "small", type: "button", "data-value": value, "aria-pressed": "false", onclick: () => choose(value, name) }, name));
  return make("div", { class: "actions", role: "group", "aria-label": label }, ...buttons);
}

function press(place, value) {
  for (const button of place.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.value === value));
}

function breakerRow({ server, location }) {
  const name = `${server || "default server"} ${location}`;
  const set = (breaker, word) => change("PATCH", "/api/breakers", { server, location, breaker }, `${name}: ${word}`);
  return make("tr", {}, cell(null, "lead", make("span", { class: "mono" }, name)), cell("how it is", "how", make("span", { class: "badge" })),
    cell(null, "do alter", choice(`Breaker of ${name}`, [["auto", "automatic"], ["open", "forced open"], ["closed", "forced closed"]], set)));
}

function updateBreaker(element, breaker) {
  const badge = element.querySelector(".badge");
  say(badge, breaker.state.replace("_", " "));
  badge.className = `badge ${{ closed: "good", half_open: "doubt", open: "bad" }[breaker.state]}`;
  press(element, breaker.forced ?? "auto");
}

function groupRow({ name }) {
  const set = (mode, word) => change("PATCH", `/api/groups/${encodeURIComponent(name)}`, { mode }, `${name}: ${word}`);
  return make("tr", {}, cell(null, "lead", make("span", {}, name)), cell("how it is", "how", make("span", { class: "badge none unaltered" })), cell(null, "do alter", choice(`Degradation of ${name}`, [["off", "never degraded"], ["auto", "automatic"], ["on", "degraded now"]], set)));
}

function updateGroup(element, group) {
  say(element.querySelector(".badge"), { off: "never degraded", auto: "automatic", on: "degraded now" }[group.mode]);
  press(element, group.mode);
}
