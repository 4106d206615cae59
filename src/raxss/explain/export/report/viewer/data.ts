// The data block of a report: its types, and decoding of its packed arrays.
// Made by ../contents.py; every number that is shown is in here or follows from it.

import { significant } from "./dom";

export interface Neighbors {
  window: number[];
  start: number[]; // sample of the channel
  similarity: (number | null)[];
  weight_change: (number | null)[];
}

export interface Doubt {
  calibrated: number[] | null; // by class: calibrated `probability`
  interval: { low: number[]; high: number[]; method: string; level: number | null } | null;
  set: boolean[] | null; // by class: whether it is in the conformal set
  abstains: boolean | null;
}

export interface Trial {
  n_series: number;
  n_groups: number;
  reliability: { [name: string]: { from: number; to: number; n: number; said: number; found: number; low: number; high: number }[] };
  figures: { [name: string]: { brier: number; ece: number; log_loss: number } };
}

export interface Channel {
  name: string;
  label: string | null;
  seen_in_training: string; // whether the model was fitted on it: a key of SEEN
  rate: number;
  start_s: number;
  n_samples: number;
  n_variates: number;
  preparation: string;
  probability: number[]; // the sum of the contributions
  doubt: Doubt;
  uniform: number[];
  inverse: number[];
  effective_windows: number;
  effective_share: number | null;
  overlap_share: number | null;
  n_windows: number;
  n_usable: number;
  window_samples: number;
  warnings: string[];
  heat: string;
  weights: string;
  highest_weight: number;
  top: number[][]; // by class: rows of `windows`, the largest contribution first
  windows: {
    window: number[];
    start: number[];
    weight: number[];
    support: (number | null)[];
    posterior: number[][]; // by class
    smoothed: number[][] | null;
    contribution: number[][];
  };
  neighbors: Neighbors[];
  steps: { middle: number[]; step: number[] };
  envelope: { samples: number; low: string; high: string };
  full: { spans: [number, number][]; samples: string };
}

export interface Electrode {
  name: string;
  kind: "shaft" | "grid";
  contacts: [number, number][]; // number, channel
}

// Verdict of raxss faithfulness on the model.
export interface Faithfulness {
  verdict: string;
  why: string;
  said: [string, string][]; // yes, no or unclear; a sentence
  link: string; // to its page, from this file
}

export type Fact = string | number | boolean | null | Fact[] | { [name: string]: Fact };

export interface Contents {
  format: string;
  version: string;
  recording: string;
  classes: string[];
  seen_in_training: string; // of how many channels that is so, in a sentence
  focus: number;
  n_top: number;
  page_seconds: number;
  settings: { [name: string]: Fact };
  model: { [name: string]: Fact } | null;
  training: { [name: string]: Fact } | null;
  trial: Trial | null;
  faithfulness: Faithfulness | null;
  electrodes: Electrode[];
  grid_row: number;
  channels: Channel[];
}

// How a channel is marked that the model was fitted on; the same words as MARKS in data/training_overlap.py.
const SEEN: { [state: string]: string } = {
  training: "in training data",
  validation: "in validation data",
  "training or validation": "in training or validation data",
  "in part": "partly in training data",
  no: "",
  unknown: "training data: unknown",
};

const SHORT: { [state: string]: string } = { "training or validation": "training/val.", "in part": "training, part" };

export function seenText(channel: Channel): string {
  return SEEN[channel.seen_in_training] ?? "";
}

// The same in a word, for the table of channels.
export function seenTag(channel: Channel): string {
  return seenText(channel) && (SHORT[channel.seen_in_training] ?? channel.seen_in_training);
}

export const NO_WINDOW = 255;
const GAP = -32768;

export function readContents(): Contents {
  const block = document.getElementById("report-data");
  return JSON.parse(block?.textContent ?? "null") as Contents;
}

function bytesOf(text: string): Uint8Array {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
  return bytes;
}

// Unpacked once, when first looked at: of 128 channels a reader opens a few.
function remembered<T>(make: (channel: Channel) => T): (channel: Channel) => T {
  const known = new WeakMap<Channel, T>();
  return (channel) => {
    let found = known.get(channel);
    if (found === undefined) {
      found = make(channel);
      known.set(channel, found);
    }
    return found;
  };
}

// The heat strip of every class, one after the other: 0 to 254, or NO_WINDOW.
export const heatOf = remembered((channel) => bytesOf(channel.heat));

export const weightsOf = remembered((channel) => bytesOf(channel.weights));

export interface Envelope {
  samples: number; // in a bin
  n: number; // bins
  low: Int16Array; // variate by variate
  high: Int16Array;
}

export const envelopeOf = remembered((channel): Envelope => {
  const low = new Int16Array(bytesOf(channel.envelope.low).buffer);
  const high = new Int16Array(bytesOf(channel.envelope.high).buffer);
  return { samples: channel.envelope.samples, n: low.length / channel.n_variates, low, high };
});

export interface Span {
  first: number;
  last: number; // the sample after the last
  numbers: Int16Array; // variate by variate
}

export const spansOf = remembered((channel): Span[] => {
  const all = new Int16Array(bytesOf(channel.full.samples).buffer);
  let at = 0;
  return channel.full.spans.map(([first, last]) => {
    const n = (last - first) * channel.n_variates;
    const numbers = all.subarray(at, at + n);
    at += n;
    return { first, last, numbers };
  });
});

export function valueOf(channel: Channel, variate: number, number: number): number {
  return number === GAP ? NaN : channel.steps.middle[variate] + channel.steps.step[variate] * number;
}

// Samples `first` to `last` of one variate as they are, or null where the report has not all of them.
export function samplesOf(channel: Channel, variate: number, first: number, last: number): Float64Array | null {
  const span = spansOf(channel).find((one) => one.first <= first && last <= one.last);
  if (!span) return null;
  const from = variate * (span.last - span.first) + first - span.first;
  return Float64Array.from(span.numbers.subarray(from, from + last - first), (one) => valueOf(channel, variate, one));
}

export interface Range {
  middle: number;
  half: number;
}

// Where most of a variate lies, so that one artefact does not flatten the rest.
const rangesOf = remembered((channel): Range[] => {
  const { low, high, n } = envelopeOf(channel);
  return Array.from({ length: channel.n_variates }, (_, variate) => {
    const lows: number[] = [];
    const highs: number[] = [];
    for (let bin = variate * n; bin < (variate + 1) * n; bin++) {
      if (low[bin] === GAP) continue;
      lows.push(low[bin]);
      highs.push(high[bin]);
    }
    if (lows.length === 0) return { middle: 0, half: 1 };
    const ascending = (a: number, b: number) => a - b;
    lows.sort(ascending);
    highs.sort(ascending);
    const bottom = lows[Math.floor(0.01 * (lows.length - 1))];
    const top = highs[Math.ceil(0.99 * (highs.length - 1))];
    const step = channel.steps.step[variate];
    const middle = (bottom + top) / 2;
    const all = Math.max(highs[highs.length - 1] - middle, middle - lows[0]);
    return {
      middle: channel.steps.middle[variate] + step * middle,
      half: Math.max(step * Math.min(all, 1.6 * (top - middle)), step),
    };
  });
});

export function rangeOf(channel: Channel, variate: number): Range {
  return rangesOf(channel)[variate];
}

export function secondsOf(channel: Channel): number {
  return channel.n_samples / channel.rate;
}

export function timeOf(channel: Channel, sample: number): number {
  return channel.start_s + sample / channel.rate;
}

// A rate of 1 means that it is unknown: times then count samples.
export function isTimed(channel: Channel): boolean {
  return channel.rate !== 1;
}

export function spanText(channel: Channel, start: number): string {
  const from = timeOf(channel, start);
  const to = timeOf(channel, start + channel.window_samples);
  if (!isTimed(channel)) return `${from} – ${to}`;
  const decimals = to - from < 0.5 ? 3 : to < 1000 ? 2 : 1;
  return `${from.toFixed(decimals)} – ${to.toFixed(decimals)} s`;
}

// A length of time in words.
export function lengthText(channel: Channel, seconds: number): string {
  return isTimed(channel) ? `${significant(seconds, 2)} s` : `${Math.round(seconds)} ${seconds === 1 ? "sample" : "samples"}`;
}

export function isWhole(channel: Channel): boolean {
  const spans = channel.full.spans;
  return spans.length === 1 && spans[0][0] === 0 && spans[0][1] === channel.n_samples;
}

export function isFull(channel: Channel, start: number): boolean {
  const last = Math.min(start + channel.window_samples, channel.n_samples);
  return spansOf(channel).some((span) => span.first <= start && last <= span.last);
}

// What a neighbour shares with its window, in seconds.
export function overlapOf(channel: Channel, start: number, neighbor: number): number {
  return Math.max(channel.window_samples - Math.abs(start - neighbor), 0) / channel.rate;
}

// Each neighbour's part of the support: its similarity over the sum of all. None where that is no share.
export function sharesOf(neighbors: Neighbors): number[] | null {
  const known = neighbors.similarity.filter((one): one is number => one !== null && one >= 0);
  const sum = known.reduce((total, one) => total + one, 0);
  return known.length === neighbors.similarity.length && sum > 0 ? known.map((one) => one / sum) : null;
}

// Channels by probability of a class, the highest first; of equals the earlier first.
export function ranked(contents: Contents, class_: number): number[] {
  const order = contents.channels.map((_, place) => place);
  return order.sort(
    (a, b) => contents.channels[b].probability[class_] - contents.channels[a].probability[class_] || a - b,
  );
}
