// Asks weir every second how it is, and tells it in the order in which a person wants to know.

import { duration, find, make, number, plural, say } from "./dom.js";
import { lock, look, showLock, unlock, unlocked } from "./api.js";
import { condition, countWell, showBackends } from "./backends.js";
import { History } from "./history.js";
import { watchRefusals } from "./refusals.js";
import { showStores } from "./stores.js";
import { busiestOf, limitOf, rates, showZones } from "./zones.js";

const history = new History();
const PACE = 1000;

async function round() {
  const [status, zones, upstreams, breakers, groups, stores] = await Promise.all(
    ["/api/status", "/api/zones", "/api/upstreams", "/api/breakers", "/api/groups", "/api/store"].map(look));
  history.note("all", status.time, { requests: status.requests.total });
  await showZones(zones, status.time);
  showBackends(upstreams, breakers, groups, status.time);
  showStores(stores, status.time);
  showLimited(zones);
  showWellness(upstreams, stores, breakers);
  showTiles(status, zones);
  say(find("about"), `${status.version} · up ${duration(status.uptime)} · configuration ${status.generation}${status.ready ? "" : " · not ready"}`);
}

/** The first question: who is being limited, and by which rule. */
function showLimited(zones) {
  const now = zones.map((zone) => ({ zone, ...rates(zone) })).sort((one, other) => other.refuse - one.refuse || other.delay - one.delay);
  const refusing = now.filter(({ refuse }) => refuse >= 0.05);
  const delaying = now.filter(({ delay }) => delay >= 0.05);
  const [kind, answer, more] = refusing.length ? refused(refusing) : delaying.length ? delayed(delaying) : ["", "Nobody.", everybody(now)];
  glance("limited", kind, answer, more);
}

function refused(zones) {
  const [{ zone, refuse }] = zones;
  const key = busiestOf(zone);
  const limit = limitOf(zone) === null ? zone.kind : zone.rate;
  const who = key ? `${key.key} is refused by ${zone.name}` : `${zone.name} refuses`;
  const asks = key && limitOf(zone) !== null ? `It asks ${number(key.demand)} times a second; the limit is ${limit}. ` : "";
  const others = zones.length > 1 ? ` Also refusing: ${zones.slice(1).map((other) => other.zone.name).join(", ")}.` : "";
  return ["bad", who, `${asks}${zone.name} refuses ${number(refuse)} requests a second.${others}`];
}

function delayed(zones) {
  const [{ zone, delay }] = zones;
  const key = busiestOf(zone);
  return ["doubt", `${key?.key ?? "Somebody"} waits in ${zone.name}`, `${number(delay)} requests a second are delayed; nobody is refused.`];
}

const everybody = (zones) => (zones.length ? `All ${number(zones.reduce((sum, { pass }) => sum + pass, 0))} requests a second pass their limits.` : "This configuration limits nothing.");

/** The second: whether those behind are well. */
function showWellness(upstreams, stores, breakers) {
  const servers = upstreams.flatMap((upstream) => upstream.servers.map((server) => ({ server, upstream: upstream.name, state: condition(server) })));
  const bad = servers.filter(({ state }) => state[1] === "bad");
  const open = breakers.filter(({ state }) => state === "open");
  const away = stores.filter(({ degraded }) => degraded);
  const words = [...bad.map(({ server, upstream, state }) => `${server.address} of ${upstream}: ${state[0]}`), ...open.map(({ location }) => `breaker of ${location} is open`), ...away.map(({ name, why }) => `store ${name} is away: ${why ?? "no answer"}`)];
  const gone = upstreams.filter((upstream) => upstream.servers.every((server) => condition(server)[1] !== "good"));
  if (!servers.length) return glance("wellness", words.length ? "doubt" : "", words[0] ?? "None configured.", words.slice(1).join("; "));
  if (gone.length) return glance("wellness", "bad", `Nobody of ${gone.map(({ name }) => name).join(", ")} is well`, words.join("; "));
  if (words.length) return glance("wellness", "doubt", words[0], [...words.slice(1), countWell(servers.map(({ server }) => server))].join("; "));
  const busy = servers.reduce((sum, { server }) => sum + server.active, 0);
  return glance("wellness", "", servers.length === 1 ? "It is well." : `All ${servers.length} are well.`, `${plural(busy, "request", "requests")} in progress there.`);
}

function glance(id, kind, answer, more) {
  find(id).className = `glance ${kind}`;
  say(find(id).querySelector(".answer"), answer);
  say(find(id).querySelector(".more"), more);
}

function showTiles(status, zones) {
  const sum = (kind) => zones.reduce((total, zone) => total + rates(zone)[kind], 0);
  const lag = Math.max(0, ...status.loops.map((loop) => loop.worst ?? 0));
  const dropped = status.log_lines_dropped;
  const tiles = [
    ["Requests a second", number(history.rate("all", "requests"))], ["Refused a second", number(sum("refuse"))], ["Delayed a second", number(sum("delay"))],
    ["Client connections", number(status.connections.active)], ["Event-loop lag", duration(lag), lag > 0.1],
    ...(dropped ? [["Log lines lost", number(dropped), true]] : []),
  ];
  find("tiles").replaceChildren(...tiles.map(([name, value, bad]) => make("div", { class: bad ? "bad" : "" }, make("dt", {}, name), make("dd", {}, value))));
}

function connected(error) {
  const place = find("connection");
  place.hidden = !error;
  if (error) say(place, error.status === 401 || error.status === 403 ? `${error.message} Unlock with the token.` : error.message);
}

async function run() {
  showLock();
  find("lock").addEventListener("click", () => (unlocked() ? lock() : unlock()));
  watchRefusals();
  for (;;) {
    // Nobody looks: nothing is asked.
    if (!document.hidden) await round().then(() => connected(null), connected);
    await new Promise((resolve) => setTimeout(resolve, PACE));
  }
}

run();
