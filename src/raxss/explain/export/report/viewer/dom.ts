// Elements whose texts are texts: nothing here, and nowhere else, turns a string into markup.

type Child = Node | string | null;

interface Options {
  class?: string;
  title?: string;
  attributes?: { [name: string]: string };
  on?: (element: HTMLElement) => void;
}

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  options: Options = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  if (options.class) element.className = options.class;
  if (options.title) element.title = options.title;
  for (const [name, value] of Object.entries(options.attributes ?? {})) element.setAttribute(name, value);
  if (options.on) element.addEventListener("click", () => options.on?.(element));
  for (const child of children) if (child !== null) element.append(child);
  return element;
}

export function svg(tag: string, attributes: { [name: string]: string | number }, text?: string): SVGElement {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  if (text !== undefined) element.textContent = text;
  return element;
}

export function button(text: string, on: () => void, title?: string): HTMLButtonElement {
  return el("button", { title, on, attributes: { type: "button" } }, text);
}

export function choice(
  name: string,
  options: [string, string][],
  value: string,
  on: (value: string) => void,
): HTMLLabelElement {
  const select = el("select", { attributes: { "aria-label": name } });
  for (const [key, text] of options) select.append(el("option", { attributes: { value: key } }, text));
  select.value = value;
  // Who chose with the mouse goes on with the keys of the page; who chose with the keyboard stays in the list.
  let byMouse = false;
  select.addEventListener("pointerdown", () => (byMouse = true));
  select.addEventListener("keydown", () => (byMouse = false));
  select.addEventListener("change", () => {
    on(select.value);
    if (byMouse) select.blur();
  });
  return el("label", { class: "choice" }, `${name} `, select);
}

// A canvas as sharp as the screen; drawing is in CSS pixels.
export function sized(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

export const INK = "#1f2a37";
export const FAINT = "#5b6673";
export const RULE = "#d5dae1";
export const BLUE = "#1b63b0"; // the chosen neighbour
export const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";

// One hue that darkens as probability grows: read alike by every eye, and on grey paper.
const STOPS: [number, number, number][] = [
  [255, 253, 247],
  [254, 238, 205],
  [253, 212, 147],
  [247, 169, 86],
  [224, 112, 34],
];
export const NOTHING: [number, number, number] = [226, 230, 235];

export const HEAT: [number, number, number][] = Array.from({ length: 256 }, (_, value) => {
  if (value === 255) return NOTHING;
  const at = (value / 254) * (STOPS.length - 1);
  const low = Math.min(Math.floor(at), STOPS.length - 2);
  return STOPS[low].map((one, part) => Math.round(one + (at - low) * (STOPS[low + 1][part] - one))) as [
    number,
    number,
    number,
  ];
});

export function heatColor(probability: number): string {
  return `rgb(${HEAT[Math.round(254 * Math.min(Math.max(probability, 0), 1))].join(",")})`;
}

export function probabilityText(value: number): string {
  return value.toFixed(3);
}

export function significant(value: number, digits = 3): string {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-4 ? value.toExponential(digits - 1) : Number(value.toPrecision(digits)).toString();
}

// As many digits in every row, so that a column can be read down.
export function figures(value: number, digits = 3): string {
  const size = Math.abs(value);
  if (size < 1e-12) return "0"; // what is left of rounding
  return size >= 10 ** digits ? Math.round(value).toString() : size < 1e-4 ? value.toExponential(digits - 1) : value.toPrecision(digits);
}

export function percent(share: number): string {
  return `${figures(100 * share)} %`;
}
