// Pictures of rates over time, drawn as SVG without a library.

import { make, number } from "./dom.js";
import { History } from "./history.js";

const SPACE = "http://www.w3.org/2000/svg";
const WIDTH = History.length - 1;
const HEIGHT = 100;
export const LAYERS = ["pass", "delay", "refuse"];

function shape(tag, attributes) {
  const element = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** An empty picture: layers one on the other, and a line for the limit. */
function picture(kind, label) {
  const svg = shape("svg", { class: kind, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  for (const layer of LAYERS) svg.append(shape("path", { class: layer }));
  svg.append(shape("path", { class: "cap" }));
  return svg;
}

export const spark = (label) => picture("spark", label);

/** A large one, with its scale beside it. */
export function chart(label) {
  const svg = picture("chart", label);
  for (const height of [0, 50, 100]) svg.prepend(shape("line", { class: "grid", x1: 0, x2: WIDTH, y1: height, y2: height }));
  const words = (kind, ...texts) => make("div", { class: kind }, ...texts.map((text) => make("span", {}, text)));
  return make("div", { class: "chart-frame" }, words("ticks", "", "", "0"), svg, words("times", "2 min ago", "1 min ago", "now"));
}

/** Draws points, newest at the right edge. `limit` is a line where it is a number. */
export function draw(element, points, { limit = null, least = 1 } = {}) {
  const svg = element.tagName === "svg" ? element : element.querySelector("svg");
  const sums = points.map((point) => LAYERS.reduce((sum, layer) => sum + (point[layer] ?? 0), 0));
  const top = round(Math.max(least, (limit ?? 0) * 1.25, ...sums));
  const left = WIDTH - Math.max(0, points.length - 1);
  const y = (value) => (HEIGHT - (value / top) * HEIGHT).toFixed(1);
  let below = points.map(() => 0);
  for (const layer of LAYERS) {
    const above = points.map((point, at) => below[at] + (point[layer] ?? 0));
    const edge = above.map((value, at) => `${left + at},${y(value)}`);
    const back = below.map((value, at) => `${left + at},${y(value)}`).reverse();
    svg.querySelector(`.${layer}`).setAttribute("d", points.length > 1 ? `M${edge.join("L")}L${back.join("L")}Z` : "");
    below = above;
  }
  svg.querySelector(".cap").setAttribute("d", limit === null ? "" : `M0,${y(limit)}H${WIDTH}`);
  if (element !== svg) {
    const [most, half] = element.querySelectorAll(".ticks span");
    most.textContent = number(top);
    half.textContent = number(top / 2);
  }
}

/** The next number that people like to see on an axis. */
function round(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * unit).find((step) => step >= value);
}
