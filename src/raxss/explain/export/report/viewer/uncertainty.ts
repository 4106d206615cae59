// Uncertainty of a score: interval, calibrated score, prediction set; and the reliability diagram of the validation report.

import { Channel, Contents } from "./data";
import { FAINT, INK, RULE, el, probabilityText, significant, svg } from "./dom";

const BAND = "#fbe6c2";
const HOLDS: { [holds: string]: string } = { yes: "✓", no: "✗" };
const MARK: { [name: string]: string } = { calibrated: "#1b63b0", uncalibrated: FAINT };

// As `predict_proba` returns it: calibrated where scores of series are.
export function answerOf(channel: Channel, class_: number): number {
  return (channel.doubt.calibrated ?? channel.probability)[class_];
}

export function setText(contents: Contents, channel: Channel): string | null {
  const held = channel.doubt.set;
  if (held === null) return null;
  const names = contents.classes.filter((_, place) => held[place]);
  return names.length === 1 ? names[0] : names.length === 0 ? "none of the classes: abstains" : `${names.join(" or ")}: abstains`;
}

function term(list: HTMLElement, name: string, ...caption: (Node | string)[]): void {
  list.append(el("dt", {}, name), el("dd", {}, ...caption));
}

// Of two classes: between these scores a prediction set is no answer. Below .5 no class is likely enough, above it both are.
export function abstainBand(contents: Contents): [number, number] | null {
  const threshold = contents.settings.conformal_threshold;
  if (typeof threshold !== "number" || contents.classes.length !== 2) return null;
  return [Math.max(0, Math.min(threshold, 1 - threshold)), Math.min(1, Math.max(threshold, 1 - threshold))];
}

// A line from 0 to 1 with the abstain band behind it, the interval as a bar and the answer as a mark.
function scale(band: [number, number] | null, low: number, high: number, at: number, caption: string): HTMLElement {
  const width = 220;
  const x = (value: number) => 6 + value * (width - 12);
  const picture = svg("svg", { width, height: 22, viewBox: `0 0 ${width} 22`, role: "img", "aria-label": caption });
  if (band) picture.append(svg("rect", { class: "band", x: x(band[0]), y: 1, width: x(band[1]) - x(band[0]), height: 20, fill: BAND }));
  picture.append(
    svg("line", { x1: x(0), x2: x(1), y1: 11, y2: 11, stroke: RULE, "stroke-width": 2 }),
    svg("line", { x1: x(0.5), x2: x(0.5), y1: 5, y2: 17, stroke: RULE, "stroke-width": 1 }),
    svg("rect", { x: x(low), y: 7, width: Math.max(x(high) - x(low), 1), height: 8, fill: "#9fb8d6" }),
    svg("line", { x1: x(at), x2: x(at), y1: 3, y2: 19, stroke: INK, "stroke-width": 2 }),
  );
  return picture as unknown as HTMLElement;
}

export function uncertaintyOf(contents: Contents, channel: Channel, class_: number): HTMLElement {
  const { calibrated, interval } = channel.doubt;
  const name = contents.classes[class_];
  const answer = answerOf(channel, class_);
  const list = el("dl", { class: "doubt" });
  const band = abstainBand(contents);
  if (calibrated !== null) {
    const method = String(contents.settings.calibration ?? "calibration");
    term(list, `P(${name}), calibrated`, `${probabilityText(answer)} (${method}, of the score)`);
    term(list, "not calibrated", `${probabilityText(channel.probability[class_])}: what the windows add up to`);
  } else {
    term(list, `P(${name})`, probabilityText(answer));
  }
  if (interval === null) {
    term(list, "interval", "none: the series is too short for a block bootstrap");
  } else {
    const caption = `${probabilityText(interval.low[class_])} to ${probabilityText(interval.high[class_])}`;
    const level = interval.level === null ? "" : `, ${significant(100 * interval.level)} % of bootstrap samples`;
    term(list, "interval", `${caption} (${interval.method}${level}) `, scale(band, interval.low[class_], interval.high[class_], answer, caption));
  }
  if (band) {
    term(list, "abstain band", `${probabilityText(band[0])} to ${probabilityText(band[1])}: scores for which the prediction set is not a single class`);
  }
  const held = setText(contents, channel);
  const alpha = contents.settings.conformal_alpha;
  if (held !== null && typeof alpha === "number") {
    const said = el("span", { class: channel.doubt.abstains ? "abstains" : "" }, held);
    term(list, `${significant(100 * (1 - alpha))} % prediction set`, said);
  } else {
    term(list, "prediction set", "none: too few validation series, or settings changed after fitting");
  }
  const about =
    interval === null || interval.level !== null
      ? "The interval shows how much the score varies with the sampled segments of the recording, not whether the network is right."
      : "The interval is the pair of Venn-Abers probabilities, one of which is calibrated; it is wide if few validation series had a similar score.";
  const sets = held === null ? "" : " A prediction set contains the true class with the stated probability if this recording is exchangeable with the validation set.";
  return el("div", {}, list, el("p", { class: "caption" }, about + sets));
}

// The faithfulness verdict, where there is one.
export function faithful(contents: Contents): HTMLElement {
  const found = contents.faithfulness;
  if (found === null) {
    const caption = "Not tested for this model. Run raxss faithfulness, and pass its output to raxss explain --faithfulness to show the verdict here.";
    return el("p", { class: "caption" }, caption);
  }
  const list = el("ul", { class: "claims" });
  for (const [holds, said] of found.said) list.append(el("li", {}, `${HOLDS[holds] ?? "?"} ${said}`));
  const page = /^(?!\/)[A-Za-z0-9_.~%/-]+$/.test(found.link) // a place beside this file, nothing that runs
    ? el("a", { attributes: { href: found.link, rel: "noreferrer" } }, "The page with all plots and rules")
    : el("span");
  return el("div", {}, el("p", {}, el("b", {}, found.verdict), `: ${found.why}.`), list, el("p", { class: "caption" }, "✓ met, ✗ not met, ? undetermined. ", page));
}

// Reliability diagram of the validation set.
export function reliability(contents: Contents): HTMLElement {
  const { trial } = contents;
  if (trial === null) return el("p", { class: "caption" }, "The model has no validation set, so its calibration is unknown.");
  const size = 260;
  const [left, top, inner] = [40, 8, size - 56];
  const x = (value: number) => left + value * inner;
  const y = (value: number) => top + (1 - value) * inner;
  const caption = "Reliability diagram: predicted probability against observed frequency";
  const picture = svg("svg", { width: size, height: size, viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": caption });
  for (const value of [0, 0.5, 1]) {
    picture.append(
      svg("line", { x1: x(value), x2: x(value), y1: y(0), y2: y(1), stroke: RULE }),
      svg("line", { x1: x(0), x2: x(1), y1: y(value), y2: y(value), stroke: RULE }),
      svg("text", { x: x(value), y: y(0) + 14, "text-anchor": "middle" }, String(value)),
      svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, String(value)),
    );
  }
  picture.append(svg("line", { x1: x(0), y1: y(0), x2: x(1), y2: y(1), stroke: FAINT, "stroke-dasharray": "4 3" }));
  for (const [name, rows] of Object.entries(trial.reliability)) {
    const color = MARK[name] ?? INK;
    for (const row of rows) {
      picture.append(
        svg("line", { x1: x(row.said), x2: x(row.said), y1: y(row.low), y2: y(row.high), stroke: color }),
        svg("circle", { cx: x(row.said), cy: y(row.found), r: 3.5, fill: color }),
      );
    }
  }
  const of = contents.classes.length === 2 ? `P(${contents.classes[1]})` : "the largest probability";
  picture.append(svg("text", { x: x(0.5), y: size - 8, "text-anchor": "middle" }, `predicted ${of}`));
  picture.append(svg("text", { x: 12, y: y(0.5), "text-anchor": "middle", transform: `rotate(-90 12 ${y(0.5)})` }, "observed frequency"));
  const body = el("tbody");
  for (const [name, one] of Object.entries(trial.figures)) {
    const key = el("span", {}, "● ");
    key.style.color = MARK[name] ?? INK;
    const numbers = [one.brier, one.ece, one.log_loss].map((value) => el("td", { class: "number" }, value.toFixed(4)));
    body.append(el("tr", {}, el("th", { attributes: { scope: "row" } }, key, name), ...numbers));
  }
  const heads = ["", "Brier score", "calibration error", "log loss"].map((one) => el("th", { attributes: { scope: "col" } }, one));
  return el(
    "div",
    { class: "reliability" },
    picture as unknown as HTMLElement,
    el(
      "div",
      {},
      el("table", {}, el("thead", {}, el("tr", {}, ...heads)), body),
      el(
        "p",
        { class: "caption" },
        `${trial.n_series} validation series in ${trial.n_groups} groups, which were also used for early stopping. On the ` +
          "dashed line, predicted probabilities equal observed frequencies. Bars are 95 % intervals. Calibrated values are cross-fitted: the map for each series is " +
          "fitted without the series' own group.",
      ),
    ),
  );
}
