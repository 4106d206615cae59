/*!
raxss report viewer. Contains uPlot 1.6.32, https://github.com/leeoniya/uPlot

The MIT License (MIT)

Copyright (c) 2022 Leon Sorokin

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in
all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN
THE SOFTWARE.
*/

// The report: state of the page, and what is redrawn when it changes.

import "uplot/dist/uPlot.min.css";
import "./style.css";

import { Channel, Contents, isTimed, lengthText, ranked, readContents, secondsOf, seenText, timeOf } from "./data";
import { button, choice, el, percent, probabilityText, significant } from "./dom";
import { answerOf, uncertaintyOf, faithful, reliability } from "./uncertainty";
import { facts, reading } from "./facts";
import { Overlay } from "./overlay";
import { Overview, heatLegend } from "./overview";
import { markContact, schematic } from "./schematic";
import { otherWeights, waterfall } from "./sums";
import { channelTable, markCurrent, neighborTable, predictedClass, ruleText, windowTable } from "./tables";
import { Trace } from "./trace";

const NOTE = "Research use only. Not for diagnosis.";
const HIGH = [0, 0.1, 0.5, 1, 5, 10, 30, 80];
const LOW = [0, 15, 30, 40, 70, 100, 150, 250];
const PAGES = [1, 2, 5, 10, 20, 30, 60, 300];
const PAGES_IN_WINDOWS = [1, 2, 4, 10, 40]; // where no rate is known
const KEYS: [string, string][] = [
  ["← →", "page back, forward"],
  ["↑ ↓", "channel above, below in rank"],
  ["n p", "next, previous window by contribution"],
  ["[ ]", "previous, next neighbour of the window"],
  ["w", "back to the window"],
  ["+ −", "sensitivity up, down"],
  ["?", "this help; Esc closes it"],
];

class Page {
  private class_: number;
  private order: number[];
  private channel: number;
  private window = 0; // row of channel.windows
  private neighbor: number | null = null;
  private begin = 0; // s
  private seconds: number;
  private looked = 0; // middle of the window or neighbour that was last gone to, s
  private gain = 1;
  private filters = { high: 0, low: 0, notch: 0 };
  private byRank = true;
  private picked = false; // the reader chose the channel; until then it is the first in rank
  private printing = false;

  private readonly overview: Overview;
  private readonly trace = new Trace((time) => this.goTo(time));
  private readonly overlay = new Overlay();
  private readonly parts: { [name: string]: HTMLElement } = {};
  private readonly status = el("p", { class: "hidden", attributes: { role: "status" } });
  private readonly help = el("dialog", { attributes: { "aria-label": "Keys" } });
  private readonly sensitivity = el("output", {});

  constructor(
    private readonly contents: Contents,
    private readonly root: HTMLElement,
  ) {
    this.class_ = contents.focus;
    this.order = ranked(contents, this.class_);
    this.channel = this.order[0];
    const longest = Math.max(...contents.channels.map(secondsOf));
    this.seconds = Math.min(isTimed(this.one) ? contents.page_seconds : 4 * this.one.window_samples, longest);
    this.overview = new Overview(contents, (channel, time) => {
      if (time === null) return this.chooseChannel(channel);
      if (channel !== this.channel) this.chooseChannel(channel, false);
      this.goTo(time);
    });
    this.build();
    this.drawClass();
    document.addEventListener("keydown", (event) => this.onKey(event));
    let waiting = 0;
    window.addEventListener("resize", () => {
      window.clearTimeout(waiting);
      waiting = window.setTimeout(() => this.drawAll(), 120);
    });
    window.addEventListener("beforeprint", () => this.print(true));
    window.addEventListener("afterprint", () => this.print(false));
  }

  private get one(): Channel {
    return this.contents.channels[this.channel];
  }

  private get className(): string {
    return this.contents.classes[this.class_];
  }

  // The page -------------------------------------------------------------------------------------------------

  private part(name: string, ...children: Node[]): HTMLElement {
    const made = el("div", { class: name }, ...children);
    this.parts[name] = made;
    return made;
  }

  private section(name: string, title: string, ...children: Node[]): HTMLElement {
    const heading = el("h2", {}, title);
    return el("section", { class: name, attributes: { "aria-label": title } }, heading, ...children);
  }

  private build(): void {
    const { contents } = this;
    const single = contents.channels.length === 1;
    document.title = `${contents.recording} · raxss report`;
    this.root.classList.toggle("single", single);
    this.root.classList.toggle("marked", contents.channels.some(seenText)); // the table of channels needs more room
    const classes = contents.classes.map((name, place): [string, string] => [String(place), name]);
    const header = el(
      "header",
      {},
      el("div", {}, el("h1", {}, el("bdi", {}, contents.recording)), el("p", { class: "caption" }, this.summary())),
      el("p", { class: contents.channels.some(seenText) ? "seen-all" : "caption seen-all" }, contents.seen_in_training),
      el("p", { class: "note", attributes: { role: "note" } }, NOTE),
      el(
        "div",
        { class: "tools" },
        choice(single ? "Class shown" : "Rank by probability of", classes, String(this.class_), (value) => {
          this.class_ = Number(value);
          this.order = ranked(contents, this.class_);
          this.drawClass();
        }),
        button("Keys ?", () => this.showHelp()),
        ...(window.self === window.top ? [button("Print", () => window.print())] : []), // frames of notebooks may not
      ),
    );
    const scales = el("p", { class: "caption" }, "Every channel is drawn to a scale of its own: heights cannot be compared between rows.");
    const overview = this.section("all", single ? "The whole recording" : "All channels", this.part("legends"), this.overview.root, ...(single ? [] : [scales]));
    if (!single) {
      const order = choice("Order", [["rank", "by rank"], ["file", "as recorded"]], "rank", (value) => {
        this.byRank = value === "rank";
        this.drawOverview();
      });
      this.parts.legends.append(order);
    }
    const left = single
      ? null
      : el(
          "div",
          { class: "left" },
          this.section("ranked", "Channels by probability", this.part("channels")),
          contents.electrodes.length ? this.section("contacts", "Electrodes", this.part("schematic")) : el("span"),
        );
    this.root.replaceChildren(
      header,
      el("div", { class: "top" }, ...(left ? [left] : []), overview),
      el(
        "section",
        { class: "chosen", attributes: { "aria-label": "Chosen channel" } },
        this.part("title"),
        this.controls(),
        this.trace.root,
        el(
          "div",
          { class: "two" },
          this.section("list", "Windows with the largest contributions", this.part("windows")),
          this.section("list", "Neighbours of the chosen window", this.part("neighbors")),
        ),
        this.section("over", "Window and neighbour, overlaid", this.part("similar"), this.overlay.root),
        el(
          "div",
          { class: "two" },
          this.section("sum", "How the score adds up", this.part("waterfall")),
          this.section("others", "Score under other weights", this.part("weights"), this.part("warnings")),
        ),
        el(
          "div",
          { class: "two" },
          this.section("trust", "Uncertainty of the score", this.part("trust")),
          this.section("tried", "Calibration on the validation set", reliability(contents)),
        ),
        this.section("faithful", "Faithfulness of the explanation", faithful(contents)),
      ),
      this.section("made", "Model and data", facts(contents)),
      this.section("how", "How to read this page", reading(contents)),
      el("footer", {}, `raxss ${contents.version}. ${NOTE} This file is self-contained: it loads and sends nothing.`),
      this.status,
      this.buildHelp(),
    );
  }

  private summary(): string {
    const { channels } = this.contents;
    const rates = [...new Set(channels.map((one) => significant(one.rate, 6)))];
    const longest = Math.max(...channels.map(secondsOf));
    const n = channels.length === 1 ? "" : `${channels.length} channels · `;
    const rate = !isTimed(channels[0]) ? `${longest} samples, rate unknown` : `${significant(longest, 4)} s at ${rates.join(", ")} Hz`;
    const hash = this.contents.settings.config_hash;
    return `${n}${rate}${hash ? ` · model ${String(hash).slice(0, 12)}` : ""}`;
  }

  private controls(): HTMLElement {
    const hertz = (values: number[]) =>
      values
        .filter((one) => one < Math.max(...this.contents.channels.map((channel) => channel.rate)) / 2)
        .map((one): [string, string] => [String(one), one ? `${one} Hz` : "off"]);
    const longest = Math.max(...this.contents.channels.map(secondsOf));
    const timed = isTimed(this.one);
    const lengths = timed ? PAGES : PAGES_IN_WINDOWS.map((one) => one * this.one.window_samples);
    const pages = lengths
      .filter((one) => one < longest && one >= longest / 5000)
      .map((one): [string, string] => [String(one), lengthText(this.one, one)]);
    if (longest <= (timed ? 300 : 300_000)) pages.push([String(longest), "all"]);
    const redraw = () => this.drawTrace();
    return el(
      "div",
      { class: "controls", attributes: { role: "group", "aria-label": "Display" } },
      button("◀ page", () => this.turn(-1), "page back (←)"),
      button("page ▶", () => this.turn(1), "page forward (→)"),
      choice("Page length", pages, String(this.seconds), (value) => {
        const middle = this.begin + this.seconds / 2;
        const seen = this.looked >= this.begin && this.looked <= this.begin + this.seconds;
        this.seconds = Number(value);
        this.goTo(seen ? this.looked : middle);
      }),
      el(
        "span",
        { class: "pairing", title: "× 1 fits the usual range of the channel into the plot, and every channel has its own: the axis tells the amplitude. Changes the picture only." },
        "Sensitivity ",
        button("−", () => this.amplify(1 / 1.5), "smaller (−)"),
        this.sensitivity,
        button("+", () => this.amplify(1.5), "larger (+)"),
      ),
      choice("High-pass", hertz(HIGH), "0", (value) => {
        this.filters.high = Number(value);
        redraw();
      }),
      choice("Low-pass", hertz(LOW), "0", (value) => {
        this.filters.low = Number(value);
        redraw();
      }),
      choice("Notch", hertz([0, 50, 60]), "0", (value) => {
        this.filters.notch = Number(value);
        redraw();
      }),
      el("span", { class: "faint" }, "Filters and sensitivity change the picture, not the scores."),
    );
  }

  private buildHelp(): HTMLElement {
    const terms = el("dl");
    for (const [keys, what] of KEYS) terms.append(el("dt", {}, keys), el("dd", {}, what));
    this.help.append(el("h2", {}, "Keys"), terms, button("Close", () => this.help.close()));
    return this.help;
  }

  private showHelp(): void {
    if (!this.help.open) this.help.showModal();
  }

  // What is chosen -------------------------------------------------------------------------------------------

  private chooseChannel(channel: number, move = true): void {
    const began = performance.now();
    this.channel = channel;
    this.picked = true;
    this.window = this.one.top[this.class_][0];
    this.neighbor = this.one.neighbors[this.window].window.length ? 0 : null;
    if (move) this.centre(this.one.windows.start[this.window]);
    this.drawChannel();
    this.overview.showRow(channel);
    const row = this.parts.channels?.querySelector("tr[aria-current]");
    if (row instanceof HTMLElement && this.parts.channels) keepInSight(this.parts.channels, row);
    this.status.textContent = `Channel ${this.one.name}, rank ${this.order.indexOf(channel) + 1}, ${probabilityText(this.one.probability[this.class_])}`;
    this.root.dataset.redrawMs = (performance.now() - began).toFixed(1);
  }

  private chooseWindow(row: number): void {
    this.window = row;
    this.neighbor = this.one.neighbors[row].window.length ? 0 : null;
    this.centre(this.one.windows.start[row]);
    this.drawWindow();
    this.status.textContent = `Window ${this.one.top[this.class_].indexOf(row) + 1}`;
  }

  private chooseNeighbor(place: number): void {
    this.neighbor = place;
    this.centre(this.one.neighbors[this.window].start[place]);
    this.drawNeighbor();
    this.status.textContent = `Neighbour ${place + 1}`;
  }

  // Pages ----------------------------------------------------------------------------------------------------

  // Show a window in the middle, unless all of it is on the page anyway.
  private centre(start: number): void {
    const from = timeOf(this.one, start);
    const to = timeOf(this.one, start + this.one.window_samples);
    this.looked = (from + to) / 2;
    if (from >= this.begin && to <= this.begin + this.seconds && this.within(this.begin)) return;
    this.begin = this.bounded(this.looked - this.seconds / 2);
  }

  private within(begin: number): boolean {
    return begin === this.bounded(begin);
  }

  private bounded(begin: number): number {
    const last = this.one.start_s + secondsOf(this.one) - this.seconds;
    return Math.max(this.one.start_s, Math.min(begin, last));
  }

  private goTo(middle: number): void {
    this.begin = this.bounded(middle - this.seconds / 2);
    this.drawTrace();
  }

  private turn(pages: number): void {
    this.begin = this.bounded(this.begin + pages * this.seconds);
    this.drawTrace();
  }

  private amplify(times: number): void {
    this.gain = Math.min(Math.max(this.gain * times, 0.05), 500);
    this.drawTrace();
  }

  // Drawing: each of these redraws what follows from it ------------------------------------------------------

  private width(): number {
    return this.printing ? 690 : Math.max(320, (this.trace.root.clientWidth || 900) - 2);
  }

  private drawClass(): void {
    const began = performance.now();
    if (this.parts.channels) {
      this.parts.channels.replaceChildren(
        channelTable(this.contents, this.class_, this.order, (channel) => this.chooseChannel(channel)),
      );
    }
    if (this.parts.schematic) {
      this.parts.schematic.replaceChildren(
        schematic(this.contents, this.class_, this.channel, (channel) => this.chooseChannel(channel)),
      );
    }
    this.parts.legends.querySelector(".legend")?.remove();
    this.parts.legends.prepend(heatLegend(this.className));
    this.drawOverview();
    const { picked } = this;
    this.chooseChannel(picked ? this.channel : this.order[0]);
    this.picked = picked;
    this.root.dataset.redrawMs = (performance.now() - began).toFixed(1);
  }

  private drawAll(): void {
    this.drawOverview();
    this.drawChannel();
  }

  private drawOverview(): void {
    const order = this.byRank ? this.order : this.contents.channels.map((_, place) => place);
    const width = this.printing ? 690 : Math.max(320, (this.overview.root.clientWidth || 900) - 2);
    this.overview.draw(width, this.class_, order, this.printing);
    this.markOverview();
  }

  private drawChannel(): void {
    const { one } = this;
    if (this.parts.channels) markCurrent(this.parts.channels, this.order.indexOf(this.channel));
    if (this.parts.schematic) markContact(this.parts.schematic, this.channel);
    this.parts.title.replaceChildren(...this.title());
    this.parts.windows.replaceChildren(
      windowTable(one, this.class_, this.className, this.window, (row) => this.chooseWindow(row)),
    );
    const half = this.printing ? 690 : Math.max(320, this.parts.waterfall.clientWidth || 560);
    this.parts.waterfall.replaceChildren(waterfall(one, this.class_, this.className, half));
    this.parts.weights.replaceChildren(
      otherWeights(one, this.class_, this.className, String(this.contents.settings.weighting)),
    );
    this.parts.warnings.replaceChildren(...this.warnings());
    this.parts.trust.replaceChildren(uncertaintyOf(this.contents, one, this.class_));
    this.drawWindow();
  }

  private title(): Node[] {
    const { one } = this;
    const single = this.contents.channels.length === 1;
    const predicted = predictedClass(this.contents, one);
    const facts = [
      single ? null : `rank ${this.order.indexOf(this.channel) + 1} of ${this.order.length}`,
      `${significant(one.effective_windows, 4)} of ${one.n_usable.toLocaleString("en")} windows effective${one.effective_share === null ? "" : ` (${percent(one.effective_share)})`}`,
      one.overlap_share === null ? "no neighbours" : `${percent(one.overlap_share)} of listed neighbours overlap their window`,
      one.label === null ? null : `known label: ${one.label}`,
    ];
    const n = one.warnings.length;
    const warned = button(`⚠ ${n} ${n === 1 ? "warning" : "warnings"}`, () => this.parts.warnings.scrollIntoView({ block: "center" }), one.warnings.join("\n"));
    warned.className = "warned";
    const others = this.contents.classes
      .map((name, place) => `${name} ${probabilityText(answerOf(one, place))}`)
      .join(" · ");
    return [
      el("h2", {}, el("bdi", {}, one.name)),
      el("p", { class: "score" }, `P(${this.className}) = ${probabilityText(answerOf(one, this.class_))}`),
      ...(seenText(one) ? [el("p", { class: "seen" }, seenText(one))] : []),
      ...(n ? [warned] : []),
      el("p", { class: "caption" }, `predicted ${this.contents.classes[predicted]} (${others})${ruleText(this.contents)}`),
      el("p", { class: "caption" }, facts.filter((fact) => fact !== null).join(" · ")),
    ];
  }

  private warnings(): Node[] {
    if (this.one.warnings.length === 0) return [el("p", { class: "caption" }, "No warnings about this channel.")];
    const list = el("ul");
    for (const warning of this.one.warnings) list.append(el("li", {}, warning));
    return [el("h3", {}, "Warnings"), list];
  }

  private drawWindow(): void {
    markCurrent(this.parts.windows, this.one.top[this.class_].indexOf(this.window));
    this.parts.neighbors.replaceChildren(
      neighborTable(this.one, this.window, this.neighbor, (place) => this.chooseNeighbor(place)),
    );
    this.drawNeighbor();
  }

  private drawNeighbor(): void {
    markCurrent(this.parts.neighbors, this.neighbor ?? -1);
    const features = this.contents.settings.space === "features";
    this.parts.similar.replaceChildren(
      el("p", { class: "caption" }, features ? "Windows were compared by the network's features, not by the shape of the signal: similar windows need not look alike." : `Windows were compared by the shape of the signal (${this.contents.settings.measure === "pearson" ? "Pearson" : String(this.contents.settings.measure)} similarity).`),
    );
    this.overlay.draw({ channel: this.one, window: this.one.windows.start[this.window], neighbor: this.neighborStart() }, this.width());
    this.drawTrace();
  }

  private neighborStart(): number | null {
    return this.neighbor === null ? null : this.one.neighbors[this.window].start[this.neighbor];
  }

  private neighborName(): string {
    if (this.neighbor === null) return "";
    const similarity = this.one.neighbors[this.window].similarity[this.neighbor];
    return `neighbour ${this.neighbor + 1}${similarity === null ? "" : `: similarity ${similarity.toFixed(3).replace("-", "−")}`}`;
  }

  private drawTrace(): void {
    const { one } = this;
    this.trace.draw(
      {
        channel: one,
        class_: this.class_,
        className: this.className,
        begin: this.begin,
        seconds: this.seconds,
        gain: this.gain,
        filters: this.filters,
        windows: one.top[this.class_].map((row) => one.windows.start[row]),
        window: one.windows.start[this.window],
        rank: one.top[this.class_].indexOf(this.window) + 1,
        probability: (one.windows.smoothed ?? one.windows.posterior)[this.class_][this.window],
        smoothed: one.windows.smoothed !== null,
        weight: one.windows.weight[this.window] * one.n_usable,
        neighbors: one.neighbors[this.window].start,
        neighbor: this.neighborStart(),
        neighborName: this.neighborName(),
        overlapping: Number(this.contents.settings.stride) < one.window_samples,
      },
      this.width(),
    );
    this.sensitivity.textContent = `× ${significant(this.gain, 2)}`;
    this.root.dataset.page = `${this.begin.toFixed(3)} ${(this.begin + this.seconds).toFixed(3)}`;
    if (!this.printing) this.markOverview(); // on paper they were drawn with the overview
  }

  private markOverview(): void {
    this.overview.mark({
      channel: this.channel,
      page: [this.begin, this.begin + this.seconds],
      windows: this.one.top[this.class_].map((row) => this.one.windows.start[row]),
      window: this.one.windows.start[this.window],
      neighbor: this.neighborStart(),
    });
  }

  // A4 at 96 pixels an inch, less margins, is some 700 pixels wide.
  private print(on: boolean): void {
    this.printing = on;
    this.drawAll();
  }

  // Keys -----------------------------------------------------------------------------------------------------

  private onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || this.help.open) return;
    if (event.target instanceof HTMLSelectElement || event.target instanceof HTMLInputElement) return;
    const act = this.actions()[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  private actions(): { [key: string]: () => void } {
    const step = (list: number[], now: number, by: number) =>
      list[Math.min(Math.max(list.indexOf(now) + by, 0), list.length - 1)];
    const channel = (by: number) => {
      const next = step(this.order, this.channel, by);
      if (next !== this.channel) this.chooseChannel(next);
    };
    const window_ = (by: number) => this.chooseWindow(step(this.one.top[this.class_], this.window, by));
    const neighbor = (by: number) => {
      const n = this.one.neighbors[this.window].window.length;
      if (n) this.chooseNeighbor(Math.min(Math.max((this.neighbor ?? -1) + by, 0), n - 1));
    };
    return {
      ArrowLeft: () => this.turn(-1),
      ArrowRight: () => this.turn(1),
      ArrowUp: () => channel(-1),
      ArrowDown: () => channel(1),
      n: () => window_(1),
      p: () => window_(-1),
      "[": () => neighbor(-1),
      "]": () => neighbor(1),
      w: () => {
        this.centre(this.one.windows.start[this.window]);
        this.drawTrace();
      },
      "+": () => this.amplify(1.5),
      "=": () => this.amplify(1.5),
      "-": () => this.amplify(1 / 1.5),
      "?": () => this.showHelp(),
    };
  }
}

function keepInSight(box: HTMLElement, row: HTMLElement): void {
  const top = row.offsetTop;
  if (top < box.scrollTop + 30 || top + row.offsetHeight > box.scrollTop + box.clientHeight) {
    box.scrollTop = top - box.clientHeight / 2;
  }
}

const root = document.getElementById("report");
if (root) {
  new Page(readContents(), root);
  root.dataset.ready = performance.now().toFixed(0);
}
