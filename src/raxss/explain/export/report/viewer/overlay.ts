// Two windows laid over one another, as recorded and each scaled to mean 0 and deviation 1.

import uPlot from "uplot";

import { Channel, isTimed, samplesOf, spanText } from "./data";
import { BLUE, FAINT, FONT, INK, RULE, el, significant } from "./dom";

export interface Pair {
  channel: Channel;
  window: number; // start samples
  neighbor: number | null;
}

export class Overlay {
  readonly root = el("div", { class: "overlay" });
  private charts: uPlot[] = [];

  draw(pair: Pair, width: number): void {
    for (const chart of this.charts) chart.destroy();
    this.charts = [];
    this.root.replaceChildren();
    const query = cut(pair.channel, pair.window);
    const other = pair.neighbor === null ? null : cut(pair.channel, pair.neighbor);
    const span = (start: number) => spanText(pair.channel, start);
    this.root.append(
      el(
        "p",
        { class: "key" },
        el("span", { class: "ink" }, `— window, ${span(pair.window)}`),
        pair.neighbor === null ? null : el("span", { class: "blue" }, `— neighbour, ${span(pair.neighbor)}`),
      ),
    );
    if (pair.neighbor === null) {
      this.root.append(el("p", { class: "caption" }, "This window has no neighbour to overlay."));
    }
    if (query === null || (pair.neighbor !== null && other === null)) {
      const which = query === null ? "this window" : "this neighbour";
      this.root.append(
        el("p", { class: "caption" }, `The file contains only the envelope of ${which}; see “What is kept” below.`),
      );
      if (query === null) return;
    }
    const pairs = el("div", { class: "pair" });
    this.root.append(pairs);
    const each = width > 640 ? Math.floor((width - 24) / 2) : width;
    for (const scaled of [false, true]) {
      const holder = el("figure", {}, el("figcaption", {}, scaled ? "z-scored" : pair.channel.preparation ? "as prepared" : "as recorded"));
      pairs.append(holder);
      this.charts.push(this.chart(pair.channel, query, other, scaled, each, holder));
    }
  }

  private chart(
    channel: Channel,
    query: Float64Array[],
    other: Float64Array[] | null,
    scaled: boolean,
    width: number,
    holder: HTMLElement,
  ): uPlot {
    const lanes = query.length;
    const x = Array.from({ length: query[0].length }, (_, at) => at / channel.rate);
    const data: (number | null)[][] = [x];
    const series: uPlot.Series[] = [{}];
    for (let variate = 0; variate < lanes; variate++) {
      const [low, high] = extent(query[variate]);
      const lane = (value: number) =>
        lanes === 1 ? value : scaled ? value / 6 - variate : (value - (low + high) / 2) / (1.2 * (high - low) || 1) - variate;
      for (const [window, color, thick] of [
        [other, BLUE, 1.4],
        [query, INK, 1.4],
      ] as [Float64Array[] | null, string, number][]) {
        if (window === null) continue;
        const values = scaled ? standardised(window[variate]) : window[variate];
        data.push(x.map((_, at) => (at < values.length && !Number.isNaN(values[at]) ? lane(values[at]) : null)));
        series.push({ stroke: color, width: thick, points: { show: false } });
      }
    }
    const axis = { stroke: FAINT, font: FONT, labelFont: FONT, grid: { stroke: "#eceff3", width: 1 }, ticks: { stroke: RULE } };
    return new uPlot(
      {
        width,
        height: lanes === 1 ? 190 : Math.min(80 + 46 * lanes, 420),
        padding: [6, 10, 0, 0],
        legend: { show: false },
        cursor: { show: false },
        scales: { x: { time: false }, y: lanes === 1 ? { range: (_, low, high) => roomFor(low, high) } : { range: [0.6 - lanes, 0.6] } },
        series,
        axes: [
          { ...axis, label: isTimed(channel) ? "time in the window (s)" : "time in the window (samples)", labelSize: 18, size: 30 },
          {
            ...axis,
            size: lanes === 1 ? 60 : 78,
            ...(lanes === 1
              ? { values: (_: uPlot, ticks: number[]) => ticks.map((one) => significant(one)) }
              : {
                  splits: () => Array.from({ length: lanes }, (_, lane) => -lane),
                  values: (_: uPlot, ticks: number[]) => ticks.map((one) => `variate ${1 - one}`),
                }),
          },
        ],
      },
      data as uPlot.AlignedData,
      holder,
    );
  }
}

// The samples of a window, by variate; null where the report has them as an envelope only.
function cut(channel: Channel, start: number): Float64Array[] | null {
  const last = Math.min(start + channel.window_samples, channel.n_samples);
  const parts: Float64Array[] = [];
  for (let variate = 0; variate < channel.n_variates; variate++) {
    const samples = samplesOf(channel, variate, start, last);
    if (samples === null) return null;
    parts.push(samples);
  }
  return parts;
}

// A little above and below; a flat line lies in the middle.
function roomFor(low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) return [-1, 1];
  const room = 0.08 * (high - low) || Math.max(1, 0.1 * Math.abs(low));
  return [low - room, high + room];
}

function extent(values: Float64Array): [number, number] {
  let low = Infinity;
  let high = -Infinity;
  for (const one of values) {
    if (one < low) low = one;
    if (one > high) high = one;
  }
  return low <= high ? [low, high] : [0, 0];
}

function standardised(values: Float64Array): Float64Array {
  const finite = values.filter((one) => !Number.isNaN(one));
  const mean = finite.reduce((sum, one) => sum + one, 0) / (finite.length || 1);
  const variance = finite.reduce((sum, one) => sum + (one - mean) ** 2, 0) / (finite.length || 1);
  const deviation = Math.sqrt(variance) || 1;
  return values.map((one) => (one - mean) / deviation);
}
