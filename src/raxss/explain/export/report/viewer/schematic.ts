// Shafts and grids as channel names tell them: one button a contact, as dark as its probability.

import { Contents } from "./data";
import { el, heatColor, probabilityText } from "./dom";

export function schematic(contents: Contents, class_: number, chosen: number, onPick: (channel: number) => void): HTMLElement {
  const list = el("div", { class: "electrodes" });
  let left = 0;
  for (const electrode of contents.electrodes) {
    const contacts = el("div", { class: `row ${electrode.kind}` });
    const seen = new Set<number>();
    for (const [number, place] of electrode.contacts) {
      if (seen.has(number)) {
        left++; // another stretch or reference of the same contact
        continue;
      }
      seen.add(number);
      const channel = contents.channels[place];
      const probability = channel.probability[class_];
      const contact = el(
        "button",
        {
          title: `${channel.name}: ${probabilityText(probability)}`,
          on: () => onPick(place),
          attributes: { type: "button", "data-channel": String(place), "aria-label": `${channel.name}, ${probabilityText(probability)}` },
        },
        String(number),
      );
      contact.style.backgroundColor = heatColor(probability);
      const row = electrode.kind === "grid" ? Math.floor((number - 1) / contents.grid_row) + 1 : 1;
      contact.style.gridRow = String(row);
      contact.style.gridColumn = String(electrode.kind === "grid" ? ((number - 1) % contents.grid_row) + 1 : number);
      contacts.append(contact);
    }
    list.append(el("div", { class: "electrode" }, el("span", { class: "name", title: electrode.name }, electrode.name), contacts));
  }
  const grids = contents.electrodes.some((one) => one.kind === "grid");
  const twice = left ? ` ${left} more ${left === 1 ? "channel is" : "channels are"} of a contact that is already shown; see the list.` : "";
  const caption = `Inferred from channel names; not to scale, positions unknown${grids ? `; grids in rows of ${contents.grid_row}` : ""}.${twice}`;
  const made = el("div", { class: "schematic" }, list, el("p", { class: "caption" }, caption));
  markContact(made, chosen);
  return made;
}

export function markContact(root: HTMLElement, chosen: number): void {
  root.querySelectorAll("button[data-channel]").forEach((one) => {
    one.setAttribute("aria-pressed", String(one.getAttribute("data-channel") === String(chosen)));
  });
}
