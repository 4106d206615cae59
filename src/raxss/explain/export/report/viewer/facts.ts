// Facts about the model, its training data and settings, and how to read the page.

import { Contents, Fact, isWhole, lengthText } from "./data";
import { el, significant } from "./dom";

const NAMES: { [fact: string]: string } = {
  config_hash: "config hash",
  weights_sha256: "SHA-256 of the weights",
  n_variates: "variates",
  window_length: "window length (samples)",
  best_epoch: "best epoch",
  scaling: "scaling by the model",
  n_series: "series",
  n_validation: "of these, for validation",
  n_groups: "groups (patients, pairs)",
  n_samples: "samples per series (min, max)",
  rates: "sampling rates (Hz)",
  classes: "series per class",
  n_neighbors: "neighbours",
  exclusion: "exclusion (samples)",
  spread: "spread (samples)",
  stride: "stride (samples)",
  bank_seconds: "bank (s)",
  bank_size: "bank (windows)",
};

const SHOWN_ONCE = new Set(["config_hash", "temperature", "window_length", "calibration"]); // settings that are facts of the model too

const OF_A_CHANNEL = ["bank_size", "bank_seconds"]; // where the bank is the channel, every channel has its own

function text(fact: Fact): string {
  if (fact === null) return "none";
  if (typeof fact === "number") return Number.isInteger(fact) ? String(fact) : significant(fact, 6);
  if (Array.isArray(fact)) return fact.map(text).join(", ");
  if (typeof fact === "object") return Object.entries(fact).map(([name, one]) => `${name} ${text(one)}`).join(", ");
  if (typeof fact === "boolean") return fact ? "yes" : "no";
  return fact === "" ? "none" : fact;
}

function list(title: string, facts: { [name: string]: Fact } | null, missing: string, skip = new Set<string>()): HTMLElement {
  const made = el("div", {}, el("h3", {}, title));
  if (facts === null) {
    made.append(el("p", { class: "caption" }, missing));
    return made;
  }
  const terms = el("dl");
  for (const [name, fact] of Object.entries(facts)) {
    if (skip.has(name)) continue;
    terms.append(el("dt", {}, NAMES[name] ?? name.split("_").join(" ")), el("dd", {}, text(fact)));
  }
  made.append(terms);
  return made;
}

export function facts(contents: Contents): HTMLElement {
  const known = contents.model !== null;
  const bounded = contents.settings.bank !== "series";
  return el(
    "div",
    { class: "facts" },
    list("Model", contents.model, "This report was made from evidence without the model, so its details are not available."),
    list("Training data", contents.training, "Not available."),
    list("Retrieval and weights", contents.settings, "Not available.", new Set([...(known ? SHOWN_ONCE : []), ...(bounded ? [] : OF_A_CHANNEL)])),
  );
}

export function kept(contents: Contents): string {
  const { channels } = contents;
  if (channels.every(isWhole)) return "Every sample of every channel is in this file.";
  const some = channels.filter((one) => one.full.spans.length > 0).length;
  return (
    "Full resolution around evidence, an envelope elsewhere. Kept sample by sample: for each channel its strongest " +
    `window with ${lengthText(channels[0], contents.page_seconds)} around it and that window's neighbours; then, best-ranked channels first, ` +
    `the other windows listed and their neighbours, up to the size limit of the report (${some} of ${channels.length} channels ` +
    "have such stretches). Neighbours marked ~ are there as an envelope only. Probability strips are means of the " +
    "windows over each of 2,000 moments of the recording."
  );
}

export function reading(contents: Contents): HTMLElement {
  const space = contents.settings.space === "features" ? "the network's features" : "the signal itself";
  return el(
    "div",
    { class: "reading" },
    el(
      "p",
      {},
      "The recording is cut into windows. A network gives each a probability. Each window is compared with the others " +
        `of the same channel, by ${space}; the mean similarity to its nearest neighbours is its support, which determines ` +
        "its weight. Weight × probability is what the window adds; these contributions add up exactly to the score.",
    ),
    el(
      "p",
      {},
      "A weight says how much the rest of the recording agrees with a window, not that the window is right. Artefacts and " +
        "line noise are repetitive, too. Look at the signal, and compare with the scores under equal and inverted weights.",
    ),
    el("p", {}, "What is kept: ", kept(contents)),
  );
}
