// Overview of all channels: the envelope of each over its window probabilities, and the page that is shown.

import { Contents, envelopeOf, heatOf, rangeOf, secondsOf, timeOf } from "./data";
import { BLUE, FAINT, FONT, HEAT, INK, NOTHING, RULE, el, sized } from "./dom";

const LEFT = 96; // pixels for names
const RIGHT = 12;
const BINS = 2000;

export interface Marks {
  channel: number;
  page: [number, number]; // s
  windows: number[]; // start samples of the evidence windows
  window: number; // start sample of the chosen one
  neighbor: number | null;
}

export class Overview {
  readonly root = el("div", { class: "overview" });
  private readonly scroller = el("div", { class: "scroller" });
  private readonly base = el("canvas", { attributes: { role: "img" } });
  private readonly over = el("canvas", { class: "over", attributes: { "aria-hidden": "true" } });
  private readonly axis = el("canvas", { attributes: { "aria-hidden": "true" } });
  private readonly begin: number;
  private readonly end: number;
  private order: number[] = [];
  private width = 0;
  private row = 0;
  private printing = false;

  constructor(
    private readonly contents: Contents,
    private readonly onPick: (channel: number, time: number | null) => void, // null: the name was clicked
  ) {
    const channels = contents.channels;
    this.begin = Math.min(...channels.map((one) => one.start_s));
    this.end = Math.max(...channels.map((one) => one.start_s + secondsOf(one)));
    const stack = el("div", { class: "stack" }, this.base, this.over);
    this.scroller.append(stack);
    this.root.append(this.scroller, this.axis);
    this.over.addEventListener("click", (event) => {
      const row = Math.floor(event.offsetY / this.row);
      if (row < 0 || row >= this.order.length) return;
      const share = (event.offsetX - LEFT) / (this.width - LEFT - RIGHT);
      this.onPick(this.order[row], share < 0 ? null : this.begin + Math.min(share, 1) * (this.end - this.begin));
    });
  }

  private x(time: number): number {
    return LEFT + ((time - this.begin) / (this.end - this.begin || 1)) * (this.width - LEFT - RIGHT);
  }

  // Everything but the marks: on opening, and when width, class or order change.
  draw(width: number, class_: number, order: number[], printing: boolean): void {
    const { channels } = this.contents;
    const variates = Math.min(channels[0].n_variates, 8);
    this.width = width;
    this.order = order;
    this.printing = printing;
    const least = printing ? 5 : 15; // a screen scrolls, a sheet of paper does not
    this.row = order.length === 1 ? 40 + 24 * variates : Math.max(least, Math.min(26, Math.floor((printing ? 850 : 520) / order.length)));
    const height = this.row * order.length;
    const context = sized(this.base, width, height);
    const picture = document.createElement("canvas");
    picture.width = this.base.width;
    picture.height = this.base.height;
    const paint = picture.getContext("2d") as CanvasRenderingContext2D;
    const image = paint.createImageData(picture.width, picture.height);
    const pixels = new Uint32Array(image.data.buffer);
    pixels.fill(0xffffffff);
    const ratio = this.base.width / width;
    order.forEach((place, row) => this.drawRow(pixels, place, class_, row * this.row * ratio, ratio));
    paint.putImageData(image, 0, 0);
    context.drawImage(picture, 0, 0, width, height); // what is put into a canvas directly, Chromium does not print
    context.font = FONT.replace("12px", `${Math.min(12, this.row)}px`);
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.fillStyle = INK;
    order.forEach((place, row) => {
      context.fillText(shortened(context, channels[place].name, LEFT - 14), LEFT - 8, (row + 0.5) * this.row);
    });
    this.base.setAttribute("aria-label", `Envelopes and window probabilities of ${order.length} channels`);
    this.drawAxis();
  }

  private drawRow(pixels: Uint32Array, place: number, class_: number, top: number, ratio: number): void {
    const channel = this.contents.channels[place];
    const heat = heatOf(channel);
    const envelope = envelopeOf(channel);
    const stride = this.base.width;
    const height = Math.round(this.row * ratio);
    const begin = timeOf(channel, 0);
    const seconds = secondsOf(channel);
    const left = Math.round(this.x(begin) * ratio);
    const right = Math.max(left + 1, Math.round(this.x(begin + seconds) * ratio));
    const first = Math.round(top);
    const lanes = channel.n_variates;
    const before: ([number, number] | null)[] = Array.from({ length: lanes }, () => null);
    for (let x = left; x < right; x++) {
      const share = (x - left) / (right - left);
      const color = packed(HEAT[heat[class_ * BINS + Math.min(Math.floor(share * BINS), BINS - 1)]]);
      for (let y = first + 1; y < first + height; y++) pixels[y * stride + x] = color;
      const from = Math.floor(share * envelope.n);
      const to = Math.max(from + 1, Math.floor(((x + 1 - left) / (right - left)) * envelope.n));
      for (let lane = 0; lane < lanes; lane++) {
        let low = Infinity;
        let high = -Infinity;
        for (let bin = from; bin < to && bin < envelope.n; bin++) {
          const at = lane * envelope.n + bin;
          if (envelope.low[at] === -32768) continue;
          if (envelope.low[at] < low) low = envelope.low[at];
          if (envelope.high[at] > high) high = envelope.high[at];
        }
        if (low > high) {
          before[lane] = null;
          continue;
        }
        const { middle, half } = rangeOf(channel, lane);
        const step = channel.steps.step[lane];
        const offset = channel.steps.middle[lane] - middle;
        const tall = (height - 2) / lanes;
        const centre = first + 1 + (lane + 0.5) * tall;
        const reach = 0.46 * tall;
        const upper = centre - reach * clamp((offset + step * high) / half);
        const lower = centre - reach * clamp((offset + step * low) / half);
        // As a line would, a column reaches to where the one before it ended.
        const joined = before[lane] ?? [upper, lower];
        before[lane] = [upper, lower];
        const last = Math.round(Math.max(lower, Math.min(joined[0], centre + reach)));
        for (let y = Math.round(Math.min(upper, joined[1])); y <= last; y++) pixels[y * stride + x] = INK_PIXEL;
      }
    }
  }

  private drawAxis(): void {
    const context = sized(this.axis, this.width, 34);
    context.font = FONT;
    context.fillStyle = FAINT;
    context.strokeStyle = RULE;
    context.textAlign = "center";
    const step = niceStep((this.end - this.begin) / 8);
    for (let time = Math.ceil(this.begin / step) * step; time <= this.end + step / 1e6; time += step) {
      const x = Math.round(this.x(time)) + 0.5;
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x, 4);
      context.stroke();
      context.fillText(Number(time.toPrecision(10)).toString(), Math.min(x, this.width - 16), 16);
    }
    context.textAlign = "right";
    context.fillText(this.contents.channels[0].rate === 1 ? "time (samples)" : "time (s)", this.width - RIGHT, 31);
  }

  // The page and window that are shown; quick, because it follows every step.
  // On paper they are part of the picture: Chromium prints an empty canvas white, over what lies below it.
  mark(marks: Marks): void {
    const context = this.printing
      ? (this.base.getContext("2d") as CanvasRenderingContext2D)
      : sized(this.over, this.width, this.row * this.order.length);
    const channel = this.contents.channels[marks.channel];
    const top = this.order.indexOf(marks.channel) * this.row;
    const [from, to] = marks.page.map((time) => this.x(time));
    context.fillStyle = "rgba(27, 99, 176, 0.6)";
    for (const x of [from, to]) context.fillRect(Math.round(x), 0, 1, this.row * this.order.length);
    context.strokeStyle = BLUE;
    context.lineWidth = 1.5;
    if (this.order.length > 1) context.strokeRect(1, top + 0.75, this.width - 2, this.row - 0.5);
    context.strokeRect(from, top + 0.75, Math.max(to - from, 2), this.row - 0.5);
    const seconds = channel.window_samples / channel.rate;
    const bar = (start: number, color: string, y: number, height: number) => {
      context.fillStyle = color;
      const x = this.x(timeOf(channel, start));
      context.fillRect(x, y, Math.max(this.x(timeOf(channel, start) + seconds) - x, 2), height);
    };
    for (const start of marks.windows) bar(start, "rgba(31, 42, 55, 0.55)", top + this.row - 3, 2);
    bar(marks.window, INK, top + this.row - 4, 4);
    if (marks.neighbor !== null) bar(marks.neighbor, BLUE, top, 4);
  }

  showRow(channel: number): void {
    const top = this.order.indexOf(channel) * this.row;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop || top + this.row > scrollTop + clientHeight) {
      this.scroller.scrollTop = top - clientHeight / 2;
    }
  }
}

function packed([red, green, blue]: [number, number, number]): number {
  return (255 << 24) | (blue << 16) | (green << 8) | red;
}

const INK_PIXEL = packed([45, 58, 74]);

function clamp(value: number): number {
  return Math.min(Math.max(value, -1), 1);
}

export function niceStep(rough: number): number {
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  return ([1, 2, 5, 10].find((one) => one * power >= rough) ?? 10) * power;
}

export function shortened(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (context.measureText(text).width <= width) return text;
  let n = text.length;
  while (n > 1 && context.measureText(`${text.slice(0, n)}…`).width > width) n--;
  return `${text.slice(0, n)}…`;
}

export function heatLegend(class_: string): HTMLElement {
  const canvas = el("canvas", { attributes: { "aria-hidden": "true" } });
  const context = sized(canvas, 120, 12);
  for (let x = 0; x < 120; x++) {
    context.fillStyle = `rgb(${HEAT[Math.round((x / 119) * 254)].join(",")})`;
    context.fillRect(x, 0, 1, 12);
  }
  const none = el("canvas", { attributes: { "aria-hidden": "true" } });
  const other = sized(none, 18, 12);
  other.fillStyle = `rgb(${NOTHING.join(",")})`;
  other.fillRect(0, 0, 18, 12);
  const swatch = (kind: string) => el("span", { class: `swatch ${kind}`, attributes: { "aria-hidden": "true" } });
  return el(
    "span",
    { class: "legend" },
    el("span", {}, `p(${class_}), mean over the windows at each time: 0 `, canvas, " 1"),
    el("span", {}, none, " no window"),
    el("span", {}, swatch("ink"), "chosen window"),
    el("span", {}, swatch("blue"), "its neighbour"),
    el("span", {}, swatch("frame"), "page below"),
  );
}
