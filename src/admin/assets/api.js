// Calls to the admin API. What changes something needs the token, which is asked for once and forgotten with the tab.

import { find, toast } from "./dom.js";
import { ask } from "./ask.js";

const TOKEN = "weir-token";

const headers = () => {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
};

async function call(method, path, body, signal) {
  const options = { method, headers: headers(), cache: "no-store", signal };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const response = await fetch(path, options).catch((cause) => {
    throw Object.assign(new Error("weir does not answer. Trying again…", { cause }), { away: true });
  });
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  throw Object.assign(new Error(told.error ?? `${response.status} ${response.statusText}`), { status: response.status });
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
    if (!sessionStorage.getItem(TOKEN) && !(await unlock(wrong))) return false;
    try {
      await call(method, path, body);
      toast(done);
      return true;
    } catch (error) {
      if (error.status !== 401) {
        toast(error.message, true);
        return false;
      }
      lock();
      wrong = "That was not the token.";
    }
  }
}

/** Asks for the token; false if nobody gives one. */
export async function unlock(wrong = "") {
  const given = await ask({
    title: "Token",
    text: "Changes need the token of the configuration (admin.token). It is kept until this tab is closed.",
    fields: [{ name: "token", label: "Token", type: "password", required: true }],
    go: "Unlock",
    wrong,
  });
  if (given) sessionStorage.setItem(TOKEN, given.token);
  showLock();
  return Boolean(given);
}

export function lock() {
  sessionStorage.removeItem(TOKEN);
  showLock();
}

export const unlocked = () => sessionStorage.getItem(TOKEN) !== null;

export function showLock() {
  find("lock").textContent = unlocked() ? "Forget the token" : "Unlock changes";
}
