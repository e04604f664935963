// Calls to the admin API. What changes something needs the token, which is asked for once and forgotten with the tab.

import { find, toast } from "./dom.js";
import { ask } from "./ask.js";

const TOKEN = "weir-token";

const headers = () => {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
};

async function call(method, path, body, signal) {
  const sent = sessionStorage.getItem(TOKEN);
  const options = { method, headers: headers(), cache: "no-store", signal };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const response = await fetch(path, options).catch((cause) => {
    throw Object.assign(new Error("weir does not answer. Trying again…", { cause }), { away: true });
  });
  if (response.ok) return response;
  // A wrong token shuts out even where none is needed. Another may have been given while this one was under way.
  const wrong = response.status === 401 && sent !== null;
  if (wrong && sent === sessionStorage.getItem(TOKEN)) lock();
  const told = await response.json().catch(() => ({}));
  const text = [told.error ?? `${response.status} ${response.statusText}`, ...(told.problems ?? [])].join("\n");
  throw Object.assign(new Error(text), { status: response.status, wrong });
}

/** Looks something up. */
export const look = (path) => call("GET", path).then((response) => response.json());

/** Asks something that changes nothing. */
export const question = (path, body) => call("POST", path, body).then((response) => response.json());

/** Each event of a stream, with its name and what it carries; ends when the stream does. */
export async function follow(path, signal, event) {
  const response = await call("GET", path, undefined, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const line = (name) => block.split("\n").find((text) => text.startsWith(name))?.slice(name.length).trim();
      const data = line("data:");
      if (data !== undefined) event(line("event:") ?? "message", JSON.parse(data));
    }
  }
}

/** Changes something, and says what became of it. True if it was done. */
export async function change(method, path, body, done) {
  for (let wrong = ""; ; ) {
    if (!unlocked() && !(await unlock(wrong))) return false;
    try {
      await call(method, path, body);
      toast(done);
      return true;
    } catch (error) {
      if (error.status !== 401) {
        toast(error.message, true);
        return false;
      }
      wrong = WRONG;
    }
  }
}

/** Prompts for the token until it is accepted; false if the prompt is dismissed. */
export async function unlock(wrong = "") {
  for (;;) {
    const given = await ask({
      title: "Token",
      text: "Changes need the token of the configuration (admin.token). It is kept until this tab is closed.",
      fields: [{ name: "token", label: "Token", type: "password", required: true }],
      go: "Unlock",
      wrong,
    });
    if (!given) return false;
    sessionStorage.setItem(TOKEN, given.token);
    showLock();
    const answer = await look("/api/status").catch((error) => error);
    if (answer.status !== 401) return true;
    wrong = WRONG;
  }
}

const WRONG = "The token is wrong.";

export function lock() {
  sessionStorage.removeItem(TOKEN);
  showLock();
}

export const unlocked = () => sessionStorage.getItem(TOKEN) !== null;

export function showLock() {
  find("lock").textContent = unlocked() ? "Forget the token" : "Unlock changes";
}

/** Shows the controls that change something only where changes are allowed, which needs an `admin.token`. */
export function allowChanges(allowed) {
  document.body.classList.toggle("fixed", !allowed);
  find("fixed").hidden = allowed;
}
