// Asks weir every second how it is, and tells it in the order in which a person wants to know.

import { duration, find, make, number, plural, say, toast } from "./dom.js";
import { allowChanges, change, lock, look, showLock, unlock, unlocked } from "./api.js";
import { ask } from "./ask.js";
import { FAILING, answers, condition, countWell, showBackends } from "./backends.js";
import { History } from "./history.js";
import { watchRefusals } from "./refusals.js";
import { showStores } from "./stores.js";
import { busiestOf, limitText, rates, showZones } from "./zones.js";

const history = new History();
const PACE = 1000;

async function round() {
  const [status, zones, upstreams, breakers, groups, stores] = await Promise.all(
    ["/api/status", "/api/zones", "/api/upstreams", "/api/breakers", "/api/groups", "/api/store"].map(look));
  allowChanges(status.changes);
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
  const [kind, answer, more] = refusing.length ? refused(refusing) : delaying.length ? delayed(delaying) : ["", "No requests are limited.", passing(now)];
  glance("limited", kind, answer, more);
}

function refused(zones) {
  const [{ zone, refuse }] = zones;
  const most = busiestOf(zone);
  const key = most?.per_second.refuse > 0 ? most : null;
  const alone = key && key.per_second.refuse * 2 > refuse;
  const who = !key ? `${zone.name} refuses` : alone ? `${key.key} is refused by ${zone.name}` : `${zone.name} refuses many, ${key.key} most`;
  const subject = alone ? "It" : key?.key;
  const does = zone.kind === "limit_conn" ? `has ${plural(key?.excess ?? 0, "request", "requests")} in progress` : `asks ${number(key?.demand)} times a second`;
  const others = zones.length > 1 ? ` Also refusing: ${zones.slice(1).map((other) => other.zone.name).join(", ")}.` : "";
  return ["bad", who, `${key ? `${subject} ${does}; the limit is ${limitText(zone)}. ` : ""}${zone.name} refuses ${number(refuse)} requests a second.${others}`];
}

function delayed(zones) {
  const [{ zone, delay }] = zones;
  const most = busiestOf(zone);
  const who = most?.per_second.delay > 0 ? most.key : "A key";
  return ["doubt", `${who} is delayed by ${zone.name}`, `${number(delay)} requests a second are delayed; none are refused.`];
}

const passing = (zones) => (zones.length ? `All ${number(zones.reduce((sum, { pass }) => sum + pass, 0))} requests a second pass their limits.` : "This configuration limits nothing.");

/** The second question: whether the backends are healthy. */
function showWellness(upstreams, stores, breakers) {
  const servers = upstreams.flatMap(({ name, servers }) => servers.map((server) => ({ server, upstream: name, state: condition(server, name) })));
  // Of one that is away others do the work; what one answers with errors reaches people.
  const failing = servers.filter(({ state }) => state[0] === FAILING);
  const unwell = [...failing, ...servers.filter(({ state }) => state[0] !== FAILING && (state[1] === "bad" || state[1] === "doubt"))];
  const isOut = ({ server, upstream }) => condition(server, upstream)[1] === "none";
  const of = (name) => servers.filter(({ upstream }) => upstream === name);
  const names = (chosen) => chosen.map(({ name }) => `\`${name}\``).join(", ");
  const emptied = upstreams.filter(({ name }) => of(name).length > 0 && of(name).every(isOut));
  const silent = upstreams.filter((upstream) => !emptied.includes(upstream) && !of(upstream.name).some(({ server, upstream: name }) => answers(server, name)));
  const words = [
    ...unwell.map(({ server, upstream, state }) => `${server.address} of ${upstream}: ${state[0]}`),
    ...breakers.filter(({ state }) => state === "open").map(({ location }) => `breaker of ${location} is open`),
    ...stores.filter(({ degraded }) => degraded).map(({ name, why }) => `store ${name} is away: ${why ?? "no answer"}`),
  ];
  if (silent.length) return glance("wellness", "bad", `No server of ${names(silent)} answers`, words.join("; "));
  if (emptied.length) return glance("wellness", "doubt", `All servers of ${names(emptied)} are taken out`, ["They receive no requests until one is enabled", ...words].join("; ") + ".");
  if (words.length) return glance("wellness", failing.length ? "bad" : "doubt", words[0], [...words.slice(1), ...(servers.length ? [countWell(servers)] : [])].join("; "));
  if (!servers.length) return glance("wellness", "", "None configured.", "");
  const out = servers.filter(isOut).length;
  const busy = servers.reduce((sum, { server }) => sum + server.active, 0);
  const well = servers.length - out;
  return glance("wellness", "", well === 1 ? "It is well." : `All ${well} are well.`, `${plural(busy, "request", "requests")} in progress there.${out ? ` Taken out: ${out}.` : ""}`);
}

function glance(id, kind, answer, more) {
  find(id).className = `glance ${kind}`;
  say(find(id).querySelector(".answer"), answer);
  say(find(id).querySelector(".more"), more);
}

function showTiles(status, zones) {
  const sum = (kind) => zones.reduce((total, zone) => total + rates(zone)[kind], 0);
  const [lag, worst] = ["lag", "worst"].map((kind) => Math.max(0, ...status.loops.map((loop) => loop[kind] ?? 0)));
  const tiles = [
    ["Requests a second", number(history.rate("all", "requests"))], ["Refused a second", number(sum("refuse"))], ["Delayed a second", number(sum("delay"))],
    ["Client connections", number(status.connections.active)], ["Event-loop lag", duration(lag), lag > 0.1, `worst in a minute ${duration(worst)}`],
    ...(status.log_lines_lost ? [["Log lines lost", number(status.log_lines_lost), true]] : []),
  ];
  find("tiles").replaceChildren(...tiles.map(([name, value, bad, more]) =>
    make("div", { class: bad ? "bad" : "" }, make("dt", {}, name), make("dd", {}, value, more ? make("small", {}, more) : null))));
}

function connected(error) {
  // A token that was wrong is forgotten; the next round tells whether it goes without.
  find("connection").hidden = !error || error.wrong;
  if (!error) return;
  // Where there is no token, there is none to ask for.
  if (error.status === 403) allowChanges(false);
  if (error.wrong && !find("ask").open) toast("The token was not accepted. Enter it again.", true);
  find("enter").hidden = error.status !== 401;
  say(find("connection").firstElementChild, error.status === 401 ? "This listener requires the token." : error.message);
}

async function reload() {
  const sure = await ask({ title: "Reload the configuration", text: "Reads the file again. Limits that were changed here return to those of the file. If the file has an error, nothing changes.", go: "Reload" });
  if (sure) await change("POST", "/api/reload", undefined, "The configuration was read again.");
}

async function run() {
  showLock();
  find("lock").addEventListener("click", () => (unlocked() ? lock() : unlock()));
  find("enter").addEventListener("click", () => unlock());
  find("reload").addEventListener("click", reload);
  watchRefusals();
  for (;;) {
    // No polling while the page is hidden.
    if (!document.hidden) await round().then(() => connected(null), connected);
    await new Promise((resolve) => setTimeout(resolve, PACE));
  }
}

run();
