// The stream of refusals, newest first, each with its reason.

import { cell, find, make, number, say } from "./dom.js";
import { follow, look } from "./api.js";
import { explainThis } from "./explain.js";

const MOST = 200;
let paused = false;
let skipped = 0;

/** Shows refusals as they come, while the page is visible. */
export async function watchRefusals() {
  find("refusal-pause").addEventListener("click", (event) => {
    paused = !paused;
    event.target.setAttribute("aria-pressed", String(paused));
    event.target.textContent = paused ? "Go on" : "Pause";
  });
  find("refusal-filter").addEventListener("input", () => [...find("refusal-rows").children].forEach(sift));
  let latest = -1;
  for (;;) {
    await looked();
    try {
      const { refusals } = await look("/api/refusals?limit=100");
      for (const refusal of refusals.filter(({ id }) => id > latest)) [latest] = [refusal.id, show(refusal)];
      await follow("/api/refusals/stream", whileLooked(), (event, data) => {
        if (event === "refusal") [latest] = [data.id, show(data)];
        else if (event === "skipped") skip(data);
      });
    } catch {
      // The page is hidden, or weir is unreachable, which the page says elsewhere.
    }
    await new Promise((resolve) => setTimeout(resolve, document.hidden ? 0 : 2000));
  }
}

/** Resolves when the page is visible. */
async function looked() {
  while (document.hidden) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}

/** A signal that is aborted when the page is hidden. */
function whileLooked() {
  const end = new AbortController();
  const changed = () => document.hidden && end.abort();
  document.addEventListener("visibilitychange", changed, { signal: end.signal });
  return end.signal;
}

function skip(data) {
  skipped += Number(data.skipped ?? data);
  say(find("refusal-skipped"), `and ${number(skipped)} more, which were only counted`);
}

function show(refusal) {
  if (paused) return;
  const time = new Date(refusal.time).toLocaleTimeString("en-GB");
  const row = make("tr", {},
    cell("time", "time", time), cell("key", "mono lead", refusal.key ?? "(none)"), cell("request", "mono", `${refusal.method} ${refusal.host}${refusal.path}`),
    cell("zone", "", refusal.zone), cell("why", "", refusal.detail), cell("answer", "number", refusal.dry_run ? "let pass (dry run)" : String(refusal.status)),
    cell(null, "do", make("button", { class: "small", type: "button", onclick: () => explainThis(refusal) }, "Explain")));
  sift(row);
  const rows = find("refusal-rows");
  rows.prepend(row);
  while (rows.children.length > MOST) rows.lastElementChild.remove();
  find("no-refusals").hidden = true;
}

function sift(row) {
  const wanted = find("refusal-filter").value.trim().toLowerCase();
  row.hidden = wanted !== "" && !row.textContent.toLowerCase().includes(wanted);
}
