// One dialog for everything this page has to ask a person.

import { find, make } from "./dom.js";

/**
 * Shows fields, `[{name, label, type, value, required, placeholder, options}]`, and gives what was filled in by name; null if the
 * person thought better of it.
 */
export function ask({ title, text = "", fields = [], go, wrong = "" }) {
  const dialog = find("ask");
  find("ask-title").textContent = title;
  find("ask-text").textContent = text;
  find("ask-wrong").textContent = wrong;
  find("ask-go").textContent = go;
  find("ask-fields").replaceChildren(...fields.map(field));
  dialog.returnValue = "cancel";
  dialog.showModal();
  (find("ask-fields").querySelector("input, select") ?? find("ask-go")).focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "go" ? filledIn() : null), { once: true });
  });
}

function field({ name, label, type = "text", value = "", required = false, placeholder = "", options }) {
  const input = options
    ? make("select", { name }, ...options.map((option) => make("option", { selected: option === value }, option)))
    : make("input", { name, type, value, required, placeholder, autocomplete: "off", spellcheck: "false" });
  return make("label", {}, label, input);
}

function filledIn() {
  const inputs = find("ask-fields").querySelectorAll("input, select");
  return Object.fromEntries([...inputs].map((input) => [input.name, input.value.trim()]));
}

// Enter means yes: without this a browser would press the first button, which is Cancel.
find("ask").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.matches("input")) {
    event.preventDefault();
    find("ask-go").click();
  }
});
