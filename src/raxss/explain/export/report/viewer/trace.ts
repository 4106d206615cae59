// One channel, a page at a time: samples as they are where the report has them, elsewhere the envelope, labelled so.
// Below it the chosen window's probability and weight, and the means of all windows over the same moments.

import uPlot from "uplot";

import {
  Channel,
  NO_WINDOW,
  envelopeOf,
  heatOf,
  isTimed,
  lengthText,
  rangeOf,
  samplesOf,
  secondsOf,
  spanText,
  spansOf,
  timeOf,
  valueOf,
  weightsOf,
} from "./data";
import { BLUE, FAINT, FONT, HEAT, INK, RULE, el, figures, heatColor, probabilityText, significant, sized } from "./dom";
import { Filters, filtered, inWords, isOn } from "./filters";

const AXIS = 78; // pixels left of the plot
const RIGHT = 12;
const BINS = 2000;
const ENVELOPE = "#8a94a1";

export interface View {
  channel: Channel;
  class_: number;
  className: string;
  begin: number; // s
  seconds: number; // of a page
  gain: number;
  filters: Filters;
  windows: number[]; // start samples of the evidence windows
  window: number; // start sample of the chosen one
  rank: number; // its place among those of the class, from 1
  probability: number; // as it is weighted
  smoothed: boolean; // together with its neighbours
  weight: number; // × 1 is an equal share
  neighbors: number[]; // start samples of its neighbours
  neighbor: number | null; // the chosen one of them
  neighborName: string;
  overlapping: boolean; // windows share moments
}

export class Trace {
  readonly root = el("div", { class: "trace" });
  readonly caption = el("p", { class: "caption signal", attributes: { "aria-live": "off" } });
  private readonly legend = el("p", { class: "caption strips" });
  private readonly plot = el("div", { class: "plot" });
  private readonly strips = el("canvas", { attributes: { role: "img" } });
  private chart: uPlot | null = null;
  private shape = ""; // what the chart was built for
  private view: View | null = null;

  constructor(onTime: (time: number) => void) {
    this.root.append(this.plot, this.strips, this.legend, this.caption);
    this.strips.addEventListener("click", (event) => {
      if (!this.view) return;
      const width = this.strips.clientWidth - AXIS - RIGHT;
      onTime(this.view.begin + ((event.offsetX - AXIS) / width) * this.view.seconds);
    });
  }

  draw(view: View, width: number): void {
    this.view = view;
    const lanes = view.channel.n_variates;
    const height = lanes === 1 ? 230 : Math.min(90 + 60 * lanes, 560);
    const shape = `${lanes}:${width}:${height}:${isTimed(view.channel)}`;
    const { data, full, envelope, gaps } = pageOf(view, Math.max(width - AXIS - RIGHT, 100));
    if (shape !== this.shape || !this.chart) {
      this.chart?.destroy();
      this.chart = new uPlot(this.options(lanes, width, height), data, this.plot);
      this.shape = shape;
    } else {
      this.chart.setData(data);
    }
    this.drawStrips(view, width);
    this.legend.textContent = tellStrips(view);
    this.caption.textContent = tellPage(view, full, envelope, gaps);
  }

  private options(lanes: number, width: number, height: number): uPlot.Options {
    const series: uPlot.Series[] = [{}];
    const bands: uPlot.Band[] = [];
    for (let lane = 0; lane < lanes; lane++) {
      bands.push({ series: [series.length + 2, series.length + 1], fill: "rgba(138, 148, 161, 0.35)" });
      series.push({ stroke: INK, width: 1, points: { show: false } });
      series.push({ stroke: ENVELOPE, width: 0.7, points: { show: false } });
      series.push({ stroke: ENVELOPE, width: 0.7, points: { show: false } });
    }
    const axis = { stroke: FAINT, font: FONT, labelFont: FONT, grid: { stroke: "#eceff3", width: 1 }, ticks: { stroke: RULE } };
    const samples = !isTimed((this.view as View).channel);
    return {
      width,
      height,
      padding: [10, RIGHT, 0, 0],
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      series,
      bands,
      scales: { x: { time: false, range: () => this.pageRange() }, y: { range: () => this.heightRange() } },
      axes: [
        { ...axis, label: samples ? "time (samples)" : "time (s)", labelSize: 18, size: 30 },
        {
          ...axis,
          size: AXIS - (lanes === 1 ? 18 : 0),
          label: lanes === 1 ? (this.view?.channel.preparation ? "amplitude, prepared" : "amplitude as recorded") : undefined,
          labelSize: 18,
          ...(lanes === 1
            ? { values: (_: uPlot, ticks: number[]) => ticks.map((one) => significant(one)) }
            : {
                splits: () => Array.from({ length: lanes }, (_, lane) => -lane),
                values: (_: uPlot, ticks: number[]) => ticks.map((one) => `variate ${1 - one}`),
              }),
        },
      ],
      hooks: { drawAxes: [(chart) => this.drawShades(chart)], draw: [(chart) => this.drawOutlines(chart)] },
    };
  }

  private pageRange(): [number, number] {
    const view = this.view as View;
    return [view.begin, view.begin + view.seconds];
  }

  private heightRange(): [number, number] {
    const { channel, gain, filters } = this.view as View;
    if (channel.n_variates > 1) return [-channel.n_variates + 0.4, 0.6];
    const middle = filters.high > 0 ? 0 : rangeOf(channel, 0).middle;
    const half = (1.15 * rangeOf(channel, 0).half) / gain;
    return [middle - half, middle + half];
  }

  private box(chart: uPlot, start: number): [number, number, number, number] {
    const { channel } = this.view as View;
    const { left, width, top, height } = chart.bbox;
    const from = chart.valToPos(timeOf(channel, start), "x", true);
    const to = chart.valToPos(timeOf(channel, Math.min(start + channel.window_samples, channel.n_samples)), "x", true);
    const a = Math.min(Math.max(from, left), left + width);
    return [a, top, Math.max(0, Math.min(to, left + width) - a), height];
  }

  private drawShades(chart: uPlot): void {
    const view = this.view as View;
    const context = chart.ctx;
    context.save();
    context.fillStyle = "rgba(27, 99, 176, 0.10)";
    context.beginPath(); // one path, so that neighbours that overlap one another are not darker there
    for (const start of view.neighbors) context.rect(...this.box(chart, start));
    context.fill();
    context.fillStyle = "rgba(240, 143, 45, 0.20)";
    context.fillRect(...this.box(chart, view.window));
    context.restore();
  }

  private drawOutlines(chart: uPlot): void {
    const view = this.view as View;
    const context = chart.ctx;
    const ratio = window.devicePixelRatio || 1;
    const outline = (start: number, color: string, dash: number[]) => {
      const [x, y, width, height] = this.box(chart, start);
      if (width <= 0) return;
      context.strokeStyle = color;
      context.lineWidth = 2 * ratio;
      context.setLineDash(dash.map((one) => one * ratio));
      context.strokeRect(x, y + ratio, width, height - 2 * ratio);
    };
    context.save();
    for (const start of view.windows) {
      const [x, y, width] = this.box(chart, start);
      if (width > 0) {
        context.fillStyle = "rgba(31, 42, 55, 0.5)";
        context.fillRect(x, y - 5 * ratio, width, 2 * ratio);
      }
    }
    outline(view.window, INK, []);
    if (view.neighbor !== null) outline(view.neighbor, BLUE, [6, 4]);
    context.font = FONT.replace("12px", `${12 * ratio}px`);
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    context.lineJoin = "round";
    context.setLineDash([]);
    const name = (start: number, text: string, color: string, up: boolean) => {
      const [x, y, width, height] = this.box(chart, start);
      if (width <= 0) return;
      const right = chart.bbox.left + chart.bbox.width - context.measureText(text).width - 4 * ratio;
      const place: [number, number] = [Math.min(x + 6 * ratio, right), up ? y + 16 * ratio : y + height - 8 * ratio];
      context.strokeStyle = "rgba(255, 255, 255, 0.85)"; // so that the signal does not cross it out
      context.lineWidth = 4 * ratio;
      context.strokeText(text, ...place);
      context.fillStyle = color;
      context.fillText(text, ...place);
    };
    name(view.window, windowName(view), INK, true);
    if (view.neighbor !== null) name(view.neighbor, view.neighborName, BLUE, false);
    context.restore();
  }

  private drawStrips(view: View, width: number): void {
    const context = sized(this.strips, width, 86);
    const heat = heatOf(view.channel);
    const weights = weightsOf(view.channel);
    const wide = width - AXIS - RIGHT;
    const seconds = secondsOf(view.channel);
    const highest = Math.max(view.channel.highest_weight, 1.3);
    const base = 82;
    const tall = 34;
    for (let x = 0; x < wide; x++) {
      const time = view.begin + ((x + 0.5) / wide) * view.seconds;
      const bin = Math.floor(((time - view.channel.start_s) / seconds) * BINS);
      if (bin < 0 || bin >= BINS) continue;
      context.fillStyle = `rgb(${HEAT[heat[view.class_ * BINS + bin]].join(",")})`;
      context.fillRect(AXIS + x, 26, 1, 16);
      if (weights[bin] === NO_WINDOW) continue;
      const weight = (weights[bin] / 254) * view.channel.highest_weight;
      context.fillStyle = "#9aa5b1";
      context.fillRect(AXIS + x, base - (tall * weight) / highest, 1, (tall * weight) / highest);
    }
    context.strokeStyle = RULE;
    context.strokeRect(AXIS - 0.5, 25.5, wide + 1, 17);
    context.strokeStyle = INK;
    context.setLineDash([4, 3]);
    context.beginPath();
    context.moveTo(AXIS, base - tall / highest);
    context.lineTo(AXIS + wide, base - tall / highest);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = FAINT;
    context.font = FONT;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText("chosen", AXIS - 8, 11);
    context.fillText("mean p", AXIS - 8, 34);
    context.fillText("weight", AXIS - 8, 64);
    context.fillText("1 = equal", AXIS - 8, 78);
    this.drawOwn(context, view, wide, base - (tall * view.weight) / highest);
    this.strips.setAttribute(
      "aria-label",
      `${windowName(view)}, weight × ${figures(view.weight)}; mean window probability of ${view.className} and mean window weight on this page`,
    );
  }

  // The chosen window by itself: the strips below it are means, from which it may differ.
  private drawOwn(context: CanvasRenderingContext2D, view: View, wide: number, weightAt: number): void {
    const { channel } = view;
    const x = (sample: number) => AXIS + ((timeOf(channel, sample) - view.begin) / view.seconds) * wide;
    const from = x(view.window);
    const to = x(Math.min(view.window + channel.window_samples, channel.n_samples));
    const left = Math.max(from, AXIS);
    const right = Math.min(to, AXIS + wide);
    context.textAlign = "left";
    if (right - left < 1) {
      const before = to <= AXIS;
      const away = `${windowName(view)}, at ${spanText(channel, view.window)}`;
      context.textAlign = before ? "left" : "right";
      context.fillText(before ? `◀ ${away}` : `${away} ▶`, before ? AXIS : AXIS + wide, 11);
      return;
    }
    context.fillStyle = heatColor(view.probability);
    context.fillRect(left, 3, right - left, 16);
    context.strokeStyle = INK;
    context.lineWidth = 1.5;
    context.strokeRect(left, 3, right - left, 16);
    context.fillStyle = INK;
    context.fillRect(left, weightAt - 1, right - left, 2);
    const text = `${pName(view)} ${probabilityText(view.probability)}, weight × ${figures(view.weight)}`;
    const size = context.measureText(text).width;
    const at = size + 10 <= right - left ? left + 6 : right + 6 + size <= AXIS + wide ? right + 6 : left - 6 - size;
    context.fillText(text, at, 11.5);
  }
}

function pName(view: View): string {
  return view.smoothed ? "smoothed p" : "p";
}

function windowName(view: View): string {
  return `window ${view.rank}: ${pName(view)} ${probabilityText(view.probability)}`;
}

function tellStrips(view: View): string {
  const means = view.overlapping
    ? "mean p and weight: at each time the mean over all windows that cover it, which may differ from the value of the chosen window"
    : "mean p and weight: those of the window at each time";
  return (
    `Chosen: probability of ${view.className} for the chosen window alone; ${means}. ` +
    "Dark line over the weights: the chosen window's own. Blue: its neighbours. Bars above the plot: the windows listed below."
  );
}

// The samples of a page, by filter and sensitivity; x, then line, low and high of each variate.
function pageOf(view: View, width: number): { data: uPlot.AlignedData; full: boolean; envelope: boolean; gaps: boolean } {
  const { channel } = view;
  const first = Math.max(0, Math.floor((view.begin - channel.start_s) * channel.rate));
  const last = Math.min(channel.n_samples, Math.ceil((view.begin + view.seconds - channel.start_s) * channel.rate) + 1);
  const lanes = channel.n_variates;
  const x: number[] = [];
  const y: (number | null)[][] = Array.from({ length: 3 * lanes }, () => []);
  let gaps = false;
  const lane = (variate: number, value: number): number | null => {
    if (Number.isNaN(value)) {
      gaps = true;
      return null;
    }
    if (lanes === 1) return value;
    const { middle, half } = rangeOf(channel, variate);
    const from = view.filters.high > 0 ? 0 : middle;
    return -variate + (0.45 * view.gain * (value - from)) / half;
  };
  let at = first;
  const spans = spansOf(channel).filter((span) => span.first < last && span.last > first);
  const cost = spans.reduce((sum, span) => sum + Math.min(span.last, last) - Math.max(span.first, first), 0);
  const size = cost > 4 * width ? Math.ceil(cost / (2 * width)) : 1;
  const envelope = envelopeOf(channel);
  let enveloped = false;
  const addEnvelope = (from: number, to: number) => {
    if (to <= from) return;
    enveloped = true;
    for (let bin = Math.floor(from / envelope.samples); bin * envelope.samples < to; bin++) {
      const middle = Math.min(Math.max((bin + 0.5) * envelope.samples, from), to - 0.25); // times must ascend
      x.push(timeOf(channel, middle));
      for (let variate = 0; variate < lanes; variate++) {
        y[3 * variate].push(null);
        y[3 * variate + 1].push(lane(variate, valueOf(channel, variate, envelope.low[variate * envelope.n + bin])));
        y[3 * variate + 2].push(lane(variate, valueOf(channel, variate, envelope.high[variate * envelope.n + bin])));
      }
    }
    x.push(timeOf(channel, to) - 1e-9); // what comes next is another kind of line
    for (const one of y) one.push(null);
  };
  for (const span of spans) {
    addEnvelope(at, Math.min(span.first, last));
    const from = Math.max(span.first, first);
    const to = Math.min(span.last, last);
    const parts = Array.from({ length: lanes }, (_, variate) => shown(channel, variate, span.first, span.last, from, to, view.filters));
    for (let begin = from; begin < to; begin += size) {
      const end = Math.min(begin + size, to);
      const each = size === 1 ? 1 : 2;
      for (let turn = 0; turn < each; turn++) {
        x.push(timeOf(channel, begin + (turn * (end - begin)) / 2));
        for (let variate = 0; variate < lanes; variate++) {
          y[3 * variate].push(lane(variate, extreme(parts[variate], begin - from, end - from, turn)));
          y[3 * variate + 1].push(null);
          y[3 * variate + 2].push(null);
        }
      }
    }
    if (to < last) {
      x.push(timeOf(channel, to) - 1e-9);
      for (const one of y) one.push(null);
    }
    at = to;
  }
  addEnvelope(at, last);
  return { data: [x, ...y] as uPlot.AlignedData, full: spans.length > 0, envelope: enveloped, gaps };
}

// The lowest (turn 0) or highest (turn 1) of a stretch.
function extreme(values: Float64Array, from: number, to: number, turn: number): number {
  let found = values[from];
  for (let at = from + 1; at < to; at++) {
    if (Number.isNaN(found) || (turn ? values[at] > found : values[at] < found)) found = values[at];
  }
  return found;
}

// Filters need what lies around a page: ten seconds on both sides, as far as the stretch goes.
function shown(
  channel: Channel,
  variate: number,
  spanFirst: number,
  spanLast: number,
  from: number,
  to: number,
  filters: Filters,
): Float64Array {
  if (!isOn(filters, channel.rate)) return samplesOf(channel, variate, from, to) as Float64Array;
  const around = Math.ceil(10 * channel.rate);
  const first = Math.max(spanFirst, from - around);
  const last = Math.min(spanLast, to + around);
  const all = filtered(samplesOf(channel, variate, first, last) as Float64Array, channel.rate, filters);
  return all.subarray(from - first, to - first);
}

function tellPage(view: View, full: boolean, envelope: boolean, gaps: boolean): string {
  const { channel, filters } = view;
  const bin = lengthText(channel, envelopeOf(channel).samples / channel.rate);
  const kept = envelope
    ? full
      ? `Dark line: every sample, around evidence. Grey band: envelope elsewhere (minimum to maximum in each ${bin}).`
      : `Envelope only (lowest to highest of each ${bin}): no evidence window of this report lies on this page.`
    : "Every sample is shown.";
  const filter = isOn(filters, channel.rate)
    ? ` Filtered for display: ${inWords(filters, channel.rate)}; scores come from the unfiltered signal${envelope ? ", and the envelope is not filtered" : ""}.`
    : " Unfiltered.";
  const missing = gaps ? " Where no line is drawn the recording has a gap." : "";
  const scale = channel.n_variates > 1 ? " Each variate has a scale of its own." : "";
  const prepared = channel.preparation ? ` The signal is shown as input to the model: ${channel.preparation}.` : "";
  return `${kept}${missing}${filter} Positive is up.${scale}${prepared}`;
}
