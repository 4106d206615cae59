// Contributions that add up to a score, and the score under other weights.

import { Channel, spanText } from "./data";
import { FAINT, INK, el, figures, probabilityText, svg } from "./dom";

const GREY = "#b3bcc7";
const STEP = "#d97914";

export interface Sum {
  others: number; // sum of the windows that are not shown
  steps: [string, number][]; // the largest last
  score: number;
}

export function sumOf(channel: Channel, class_: number): Sum {
  const rows = channel.top[class_];
  const { start, contribution } = channel.windows;
  const steps = rows.map((row): [string, number] => [
    spanText(channel, start[row]),
    contribution[class_][row],
  ]);
  const score = channel.probability[class_];
  const others = channel.n_windows > rows.length ? score - steps.reduce((sum, one) => sum + one[1], 0) : 0;
  return { others, steps: steps.reverse(), score };
}

// A staircase: all other windows, then the strongest one by one, then the sum.
export function waterfall(channel: Channel, class_: number, className: string, width: number): HTMLElement {
  const { others, steps, score } = sumOf(channel, class_);
  const nOthers = channel.n_windows - steps.length;
  const cut = others > 0.75 * score ? Math.max(0, others - 0.5 * (score - others)) : 0;
  const rows: [string, number, number, string][] = []; // text, from, size, colour
  if (nOthers > 0) rows.push([`the other ${nOthers.toLocaleString("en")}`, 0, others, GREY]);
  let at = others;
  for (const [text, size] of steps) {
    rows.push([text, at, size, STEP]);
    at += size;
  }
  rows.push(["sum", 0, score, INK]);
  const left = 132;
  const right = 76;
  const line = 21;
  const height = rows.length * line + 8;
  const x = (value: number) => left + ((value - cut) / (score - cut || 1)) * (width - left - right);
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  picture.setAttribute("aria-label", `Contributions of windows that add up to ${probabilityText(score)}`);
  rows.forEach(([text, from, size, color], row) => {
    const y = row * line + 4;
    const a = x(Math.max(from, cut));
    const b = x(from + size);
    const isSum = row === rows.length - 1;
    picture.append(
      svg("text", { x: left - 8, y: y + 13, "text-anchor": "end", class: isSum ? "strong" : "" }, text),
      svg("rect", { x: a, y: y + 2, width: Math.max(b - a, 1), height: line - 6, fill: color }),
      svg("text", { x: b + 6, y: y + 13 }, `${isSum || from === 0 ? "" : "+"}${isSum ? probabilityText(size) : figures(size)}`),
    );
    if (!isSum) picture.append(svg("line", { x1: b, x2: b, y1: y + 2, y2: y + line + 4, stroke: FAINT, "stroke-width": 0.7 }));
    if (cut > 0 && from < cut) picture.append(svg("text", { x: a + 5, y: y + 13, fill: "#fff", class: "onbar" }, "//"));
  });
  const caption = cut > 0 ? " Bars marked // are cut on the left." : "";
  const n = channel.n_windows;
  const all = n === 1 ? "there is one window, and it is the score" : `all ${n.toLocaleString("en")} contributions add up to the score`;
  return el("div", { class: "waterfall" }, picture as unknown as HTMLElement, el("p", { class: "caption" }, `Contribution = weight × window probability of ${className}; ${all}.${caption}`));
}

// Scores of the same windows under equal and under inverted weights.
export function otherWeights(channel: Channel, class_: number, className: string, weighting: string): HTMLElement {
  const score = channel.probability[class_];
  const rows: [string, number][] = [
    [`own weights (${weighting})`, score],
    ["equal weights (the plain mean)", channel.uniform[class_]],
    ["inverted weights", channel.inverse[class_]],
  ];
  const body = el("tbody");
  for (const [text, value] of rows) {
    const bar = el("span", { class: "bar" });
    bar.style.width = `${Math.round(100 * value)}px`;
    body.append(
      el("tr", {}, el("th", { attributes: { scope: "row" } }, text), el("td", { class: "number" }, probabilityText(value)), el("td", { class: "bars" }, bar)),
    );
  }
  const change = Math.abs(score - channel.inverse[class_]);
  const by = change < 0.001 ? "less than 0.001" : figures(change, 2);
  const equal = channel.probability.every(
    (own, k) => Math.abs(own - channel.uniform[k]) < 1e-9 && Math.abs(own - channel.inverse[k]) < 1e-9,
  );
  const verdict =
    channel.n_usable < 2
      ? "There is only one usable window, so the weights have no effect."
      : equal
        ? "All weights are equal."
        : change < 0.02
          ? `Inverting the weights changes the score by ${by}: the weights have little influence here and explain little.`
          : `Inverting the weights changes the score by ${by}: the weights matter here.`;
  return el(
    "div",
    { class: "weights" },
    el("table", {}, el("thead", {}, el("tr", {}, ...["weights", `P(${className})`, ""].map((one) => el("th", { attributes: { scope: "col" } }, one)))), body),
    el("p", { class: "caption" }, verdict),
  );
}
