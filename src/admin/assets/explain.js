// What would happen to a request, rule by rule.

import { duration, find, make, number } from "./dom.js";
import { look, question } from "./api.js";

const form = find("explain-form");

let unknown = []; // what is not known of the request, if something is

form.addEventListener("input", () => (unknown = []));

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    find("explained").replaceChildren(...unknown, answer(await question("/api/explain", asked())));
  } catch (error) {
    find("explained").replaceChildren(make("p", { class: "wrong" }, error.message));
  }
});

/** Fills the form with a request that was refused, and asks. */
export async function explainThis({ method, host, path, client, zone, key }) {
  const detail = await look(`/api/zones/${encodeURIComponent(zone)}`).catch(() => null);
  form.elements.method.value = method;
  form.elements.url.value = `http://${host}${path}`;
  form.elements.remote_addr.value = client;
  const header = headerOf(detail?.key ?? "", key);
  form.elements.headers.value = header ?? "";
  unknown = header === null ? [make("p", { class: "wrong" }, "Its key was ", make("code", {}, key ?? "none"), `, by ${detail?.key ?? "a zone that is gone"}; its headers are not known. Fill in those that matter.`)] : [];
  form.requestSubmit();
  find("explain").scrollIntoView();
  form.querySelector("button").focus({ preventScroll: true });
}

/** The header that gives a request this key, "" if it needs none, null if that cannot be told. */
function headerOf(written, key) {
  const wanted = written.match(/\$\w+/g) ?? [];
  if (key === null || key.startsWith("(no key) ") || wanted.every((name) => KNOWN.test(name))) return "";
  // What cannot be printed, or is too long, is not shown as it came.
  if (wanted.length !== 1 || wanted[0] !== written || /\\|…#/.test(key)) return null;
  const [, kind, name] = /^\$(http|cookie)_(\w+)$/.exec(written) ?? [];
  if (kind === "cookie") return `Cookie: ${name}=${key}`;
  return kind === "http" ? `${name.replaceAll("_", "-")}: ${key}` : null;
}

/** What the form says of a request besides its headers. */
const KNOWN = /^\$(binary_remote_addr|remote_addr|host|http_host|uri|document_uri|request_uri|request_method|args|query_string|arg_\w+|is_args|server_name|server_port|server_addr|scheme)$/;

function asked() {
  const { method, url, remote_addr: remote, headers } = form.elements;
  const target = new URL(url.value.includes("://") ? url.value : `http://${url.value}`);
  const lines = headers.value.split("\n").filter((line) => line.includes(":"));
  const pairs = lines.map((line) => [line.slice(0, line.indexOf(":")).trim(), line.slice(line.indexOf(":") + 1).trim()]);
  return { method: method.value, host: target.host, path: target.pathname + target.search, remote_addr: remote.value, headers: Object.fromEntries(pairs) };
}

const WORDS = { pass: "passes", delay: "waits", refuse: "is refused" };

function answer(told) {
  // What limits let pass may still not be answered.
  const stopped = told.verdict !== "refuse" && told.obstacles.length > 0;
  const badge = stopped ? make("span", { class: "badge bad" }, "is stopped") : make("span", { class: `badge ${told.verdict}` }, WORDS[told.verdict]);
  return make("article", {},
    make("p", {}, badge, ` ${stopped ? butStopped(told) : outcome(told)}`),
    make("p", { class: "quiet" }, `Server ${told.server || "(default)"} on ${told.listen}, location ${told.location || "(none)"}, client ${told.client}${stopped ? `, to ${told.action}` : ""}.`),
    ...(stopped ? [] : told.obstacles.map((text) => make("p", { class: "wrong" }, text))),
    told.rules.length ? make("ol", {}, ...told.rules.map(rule)) : make("p", { class: "quiet" }, "No limit applies to it."));
}

function outcome({ verdict, action, wait, status, reason }) {
  const does = { pass: `passes: ${action}`, delay: `waits ${duration(wait)}, then ${action}`, refuse: `is refused with ${status}` }[verdict];
  return `It ${does}. ${reason}`;
}

function butStopped({ verdict, wait, obstacles }) {
  const after = verdict === "delay" ? ` after ${duration(wait)}` : "";
  return `Limits let it pass${after}, but: ${obstacles.join("; ")}.`;
}

function rule(one) {
  const limits = [one.rate, one.burst === null ? null : `burst ${number(one.burst)}`, one.limit === null ? null : `${one.limit} at once`].filter(Boolean).join(", ");
  const state = one.state ? ` It has ${number(one.state.remaining)} of ${number(one.state.limit)} left.` : "";
  return make("li", {},
    make("span", { class: `badge ${one.verdict}` }, WORDS[one.verdict]), " ", make("b", {}, one.zone), ` (${one.kind}, ${limits}${one.dry_run ? ", dry run" : ""}) `,
    "key ", make("code", {}, one.key ?? "none"), `. ${one.reason}.${state}`.replaceAll("..", "."));
}
