// Display filters: Butterworth of second order, run forwards and backwards, so that nothing is shifted in time.
// Both passes together take 6 dB away at the corner. They change the picture, never a score.

export interface Filters {
  high: number; // Hz, 0: off
  low: number;
  notch: number;
}

const NOTCH_Q = 30;

type Biquad = [number, number, number, number, number]; // b0 b1 b2 a1 a2

function biquad(kind: "high" | "low" | "notch", frequency: number, rate: number): Biquad {
  const angle = (2 * Math.PI * frequency) / rate;
  const cosine = Math.cos(angle);
  const quality = kind === "notch" ? NOTCH_Q : Math.SQRT1_2;
  const width = kind === "notch" ? Math.tan(angle / (2 * quality)) : Math.sin(angle) / (2 * quality);
  const scale = 1 + width;
  const a1 = (-2 * cosine) / scale;
  const a2 = (1 - width) / scale;
  if (kind === "notch") return [1 / scale, a1, 1 / scale, a1, a2];
  const side = kind === "low" ? 1 - cosine : 1 + cosine;
  const middle = kind === "low" ? side : -side;
  return [side / 2 / scale, middle / scale, side / 2 / scale, a1, a2];
}

// One pass, begun as if the first value had been there for ever.
function pass([b0, b1, b2, a1, a2]: Biquad, values: Float64Array): void {
  const first = values[0];
  const settled = (first * (b0 + b1 + b2)) / (1 + a1 + a2);
  let x1 = first;
  let x2 = first;
  let y1 = settled;
  let y2 = settled;
  for (let at = 0; at < values.length; at++) {
    const x = values[at];
    const y = b0 * x + b1 * x1 + b2 * x2 - a1 * y1 - a2 * y2;
    x2 = x1;
    x1 = x;
    y2 = y1;
    y1 = y;
    values[at] = y;
  }
}

const KINDS: ("high" | "low" | "notch")[] = ["high", "low", "notch"];

// Those that are set; one at or above half the sampling rate can do nothing.
function wantedOf(filters: Filters, rate: number): ("high" | "low" | "notch")[] {
  return KINDS.filter((kind) => filters[kind] > 0 && filters[kind] < rate / 2);
}

export function isOn(filters: Filters, rate: number): boolean {
  return wantedOf(filters, rate).length > 0;
}

// Description of the filters.
export function inWords(filters: Filters, rate: number): string {
  const wanted = wantedOf(filters, rate);
  const passes = wanted.filter((kind) => kind !== "notch").map((kind) => `${kind}-pass ${filters[kind]} Hz`);
  const parts = passes.length ? [`${passes.join(", ")} (Butterworth, 2nd order; −6 dB at the corner)`] : [];
  if (wanted.includes("notch")) parts.push(`notch ${filters.notch} Hz (Q ${NOTCH_Q})`);
  return `${parts.join(", ")}, forwards and backwards, so that nothing is shifted in time`;
}

// A filtered copy. A gap ends a stretch: both sides are filtered alone.
export function filtered(samples: Float64Array, rate: number, filters: Filters): Float64Array {
  const wanted = wantedOf(filters, rate);
  const result = samples.slice();
  if (wanted.length === 0) return result;
  let first = 0;
  while (first < result.length) {
    if (Number.isNaN(result[first])) {
      first++;
      continue;
    }
    let last = first;
    while (last < result.length && !Number.isNaN(result[last])) last++;
    const stretch = result.subarray(first, last);
    for (const kind of wanted) {
      const stage = biquad(kind, filters[kind], rate);
      pass(stage, stretch);
      stretch.reverse();
      pass(stage, stretch);
      stretch.reverse();
    }
    first = last;
  }
  return result;
}
