// The ranked channels, the windows of one of them, and the neighbours of one window.

import { Channel, Contents, isFull, isTimed, lengthText, overlapOf, seenTag, seenText, sharesOf, spanText } from "./data";
import { button, el, figures, heatColor, percent, probabilityText, significant } from "./dom";

function head(...names: [string, string?][]): HTMLElement {
  const row = el("tr");
  for (const [name, title] of names) row.append(el("th", { title, attributes: { scope: "col" } }, name));
  return el("thead", {}, row);
}

function number(text: string, title?: string): HTMLElement {
  return el("td", { class: "number", title }, text);
}

// A row that is chosen by its button, or by a click anywhere on it.
function row(chosen: boolean, on: () => void, ...cells: Node[]): HTMLTableRowElement {
  const made = el("tr", {}, ...cells);
  if (chosen) made.setAttribute("aria-current", "true");
  made.addEventListener("click", on);
  return made;
}

// Buttons in rows need no handler of their own: their click reaches the row.
function pick(text: string, title?: string): HTMLButtonElement {
  return button(text, () => undefined, title);
}

function chip(probability: number): HTMLElement {
  const made = el("span", { class: "chip", attributes: { "aria-hidden": "true" } });
  made.style.backgroundColor = heatColor(probability);
  return made;
}

export function markCurrent(table: HTMLElement, place: number): void {
  table.querySelectorAll("tbody tr").forEach((one, at) => {
    if (at === place) one.setAttribute("aria-current", "true");
    else one.removeAttribute("aria-current");
  });
}

export function channelTable(contents: Contents, class_: number, order: number[], onPick: (channel: number) => void): HTMLElement {
  const labelled = contents.channels.some((one) => one.label !== null);
  const names: [string, string?][] = [
    ["rank"],
    ["channel"],
    [`P(${contents.classes[class_]})`, "series probability: the sum of all contributions"],
    ["equal", "probability under equal weights"],
    ["inverted", "probability under inverted weights"],
    ["effective", "1 / sum of squared weights, as a share of the usable windows"],
  ];
  if (contents.classes.length > 2) names.push(["predicted"]);
  if (labelled) names.push(["label", "the known label, for comparison: it does not enter the score"]);
  const body = el("tbody");
  order.forEach((place, rank) => {
    const channel = contents.channels[place];
    const warned = channel.warnings.length;
    const name = el(
      "td",
      { class: "name" },
      pick(channel.name, channel.name),
      seenTag(channel) ? " " : null, // for who copies the text, or hears it
      seenTag(channel) ? el("span", { class: "seen tag", title: seenText(channel) }, seenTag(channel)) : null,
      channel.doubt.abstains ? el("span", { class: "abstains", title: "its prediction set is not a single class" }, " abstains") : null,
      warned ? el("span", { class: "warned", title: channel.warnings.join("\n") }, ` ⚠ ${warned}`) : null,
    );
    const cells = [
      number(String(rank + 1)),
      name,
      el("td", { class: "number" }, chip(channel.probability[class_]), probabilityText(channel.probability[class_])),
      number(probabilityText(channel.uniform[class_])),
      number(probabilityText(channel.inverse[class_])),
      number(channel.effective_share === null ? "–" : percent(channel.effective_share)),
    ];
    if (contents.classes.length > 2) cells.push(el("td", {}, contents.classes[predictedClass(contents, channel)]));
    if (labelled) cells.push(el("td", {}, channel.label ?? "–"));
    body.append(row(false, () => onPick(place), ...cells));
  });
  return el("table", { class: "channels" }, head(...names), body);
}

// The predicted class: the most probable one, or by the factors of a tuned decision threshold.
export function predictedClass(contents: Contents, channel: Channel): number {
  const factors = contents.settings.decision_factors;
  const answer = channel.doubt.calibrated ?? channel.probability;
  return best(Array.isArray(factors) ? answer.map((value, place) => value * Number(factors[place])) : answer);
}

// The rule of a tuned decision threshold, in words; empty where there is none.
export function ruleText(contents: Contents): string {
  const factors = contents.settings.decision_factors;
  if (!Array.isArray(factors)) return "";
  if (factors.length === 2) return `; tuned threshold: ${contents.classes[1]} from ${significant(Number(factors[0]), 3)} on`;
  return `; tuned threshold: largest of ${factors.map((value, place) => `${significant(Number(value), 3)} P(${contents.classes[place]})`).join(", ")}`;
}

export function best(values: number[]): number {
  return values.reduce((found, value, place) => (value > values[found] ? place : found), 0);
}

export function windowTable(
  channel: Channel,
  class_: number,
  className: string,
  chosen: number,
  onPick: (row: number) => void,
): HTMLElement {
  const { windows } = channel;
  const names: [string, string?][] = [
    ["#"],
    [timeName(channel)],
    ["weight", "share of the decision; × 1 would be an equal share"],
    ["support", "mean similarity of its neighbours"],
    [`p(${className})`, "probability of this window alone, from the network"],
  ];
  if (windows.smoothed) names.push(["smoothed", "probability after smoothing over its neighbours"]);
  names.push(["adds", "contribution: weight × probability"], ["share", "of the series probability"]);
  const body = el("tbody");
  channel.top[class_].forEach((at, rank) => {
    const support = windows.support[at];
    const alone = channel.neighbors[at].window.length === 0;
    const adds = windows.contribution[class_][at];
    const cells = [
      number(String(rank + 1)),
      el("td", {}, pick(spanText(channel, windows.start[at]), `window ${windows.window[at]}`)),
      number(`× ${figures(windows.weight[at] * channel.n_usable)}`, `weight ${windows.weight[at]}`),
      number(
        support === null || alone ? "–" : minus(support.toFixed(3)),
        alone ? "it has no neighbours, so the mean support of the other windows is used" : undefined,
      ),
      el("td", { class: "number" }, chip(windows.posterior[class_][at]), probabilityText(windows.posterior[class_][at])),
    ];
    if (windows.smoothed) cells.push(number(probabilityText(windows.smoothed[class_][at])));
    cells.push(number(figures(adds), String(adds)), number(percent(adds / (channel.probability[class_] || 1))));
    body.append(row(at === chosen, () => onPick(at), ...cells));
  });
  return el("table", { class: "windows" }, head(...names), body);
}

export function neighborTable(
  channel: Channel,
  window: number, // row of channel.windows
  chosen: number | null,
  onPick: (place: number) => void,
): HTMLElement {
  const neighbors = channel.neighbors[window];
  if (neighbors.window.length === 0) {
    return el("p", { class: "caption" }, "This window has no neighbours: none is eligible, or more than half of it is missing.");
  }
  const body = el("tbody");
  const shares = sharesOf(neighbors);
  neighbors.window.forEach((other, place) => {
    const start = neighbors.start[place];
    const similarity = neighbors.similarity[place];
    const change = neighbors.weight_change[place];
    const overlap = overlapOf(channel, channel.windows.start[window], start);
    const time = spanText(channel, start);
    const kept = isFull(channel, start) ? null : el("span", { class: "faint", title: "kept as an envelope only" }, " ~");
    body.append(
      row(
        place === chosen,
        () => onPick(place),
        number(String(place + 1)),
        el("td", {}, pick(time, `window ${other}`), kept),
        number(similarity === null ? "–" : minus(similarity.toFixed(4))),
        el("td", { class: overlap > 0 ? "overlaps" : "" }, overlap > 0 ? `overlaps ${lengthText(channel, overlap)}` : "apart"),
        number(shares === null ? "–" : percent(shares[place]), shares === null ? "not defined if a similarity is negative or all are 0" : undefined),
        number(change === null ? "–" : signed(change * channel.n_usable), change === null ? undefined : `weight ${change}`),
      ),
    );
  });
  return el(
    "table",
    { class: "neighbors" },
    head(
      ["rank"],
      [timeName(channel)],
      ["similarity"],
      ["overlap", "time that it shares with the window"],
      ["share", "of the support: its similarity / sum of all similarities listed"],
      ["adds to weight", "change of the window's weight due to this neighbour (× 1 is an equal share); negative if the mean similarity would be higher without it"],
    ),
    body,
  );
}

function timeName(channel: Channel): string {
  return isTimed(channel) ? "time" : "time (samples)";
}

function minus(text: string): string {
  return text.replace("-", "−");
}

function signed(value: number): string {
  const text = figures(Math.abs(value), 2);
  return text === "0" ? text : (value > 0 ? "+" : "−") + text;
}
