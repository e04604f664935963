// What would happen to a request, rule by rule.

import { duration, find, make, number } from "./dom.js";
import { question } from "./api.js";

const form = find("explain-form");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    find("explained").replaceChildren(answer(await question("/api/explain", asked())));
  } catch (error) {
    find("explained").replaceChildren(make("p", { class: "wrong" }, error.message));
  }
});

/** Fills the form with a request that was refused, and asks. */
export function explainThis({ method, host, path, client }) {
  form.elements.method.value = method;
  form.elements.url.value = `http://${host}${path}`;
  form.elements.remote_addr.value = client;
  form.requestSubmit();
  find("explain").scrollIntoView();
  form.querySelector("button").focus({ preventScroll: true });
}

function asked() {
  const { method, url, remote_addr: remote, headers } = form.elements;
  const target = new URL(url.value.includes("://") ? url.value : `http://${url.value}`);
  const lines = headers.value.split("\n").filter((line) => line.includes(":"));
  const pairs = lines.map((line) => [line.slice(0, line.indexOf(":")).trim(), line.slice(line.indexOf(":") + 1).trim()]);
  return { method: method.value, host: target.host, path: target.pathname + target.search, remote_addr: remote.value, headers: Object.fromEntries(pairs) };
}

const WORDS = { pass: "passes", delay: "waits", refuse: "is refused" };

function answer(told) {
  const outcome = told.verdict === "delay" ? `waits ${duration(told.wait)}, then ${told.action}` : told.verdict === "refuse" ? `is refused with ${told.status}` : told.action;
  return make("article", {},
    make("p", {}, make("span", { class: `badge ${told.verdict}` }, WORDS[told.verdict]), ` It ${told.verdict === "pass" ? `passes: ${outcome}` : outcome}. ${told.reason}`),
    make("p", { class: "quiet" }, `Server ${told.server || "(default)"} on ${told.listen}, location ${told.location || "(none)"}, client ${told.client}.`),
    ...told.obstacles.map((text) => make("p", { class: "wrong" }, text)),
    told.rules.length ? make("ol", {}, ...told.rules.map(rule)) : make("p", { class: "quiet" }, "No limit applies to it."));
}

function rule(one) {
  const limits = [one.rate, one.burst === null ? null : `burst ${number(one.burst)}`, one.limit === null ? null : `${one.limit} at once`].filter(Boolean).join(", ");
  const state = one.state ? ` It has ${number(one.state.remaining)} of ${number(one.state.limit)} left.` : "";
  return make("li", {},
    make("span", { class: `badge ${one.verdict}` }, WORDS[one.verdict]), " ", make("b", {}, one.zone), ` (${one.kind}, ${limits}${one.dry_run ? ", dry run" : ""}) `,
    "key ", make("code", {}, one.key ?? "none"), `. ${one.reason}.${state}`.replaceAll("..", "."));
}
