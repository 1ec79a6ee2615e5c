// Fields to search, filter and sort by.

import { make, setAttribute, setText } from "../dom.js";
import { route } from "../routes.js";

export function searchField(label, value, oninput) {
  const input = make("input", { type: "search", name: "search", value, placeholder: label, "aria-label": label, maxlength: "128", spellcheck: "false", autocomplete: "off", oninput });
  return { element: make("div", { class: "field search" }, input), input };
}

/** A link that removes the filter by one model's or source's periods. */
export function chip(place, of) {
  const element = make("a", { class: "chip", href: route(place), "aria-label": `Show all ${place}, not only the periods of ${of}` }, `periods of ${of} ×`);
  element.hidden = !of;
  return element;
}

/** A drop-down list of `[value, text]`. */
export function choice(label, options, value, onchoose, { labelled = false } = {}) {
  const select = make(
    "select",
    { "aria-label": label, onchange: () => onchoose(select.value) },
    options.map(([name, text]) => make("option", { value: name, selected: name === value }, text)),
  );
  return make("label", { class: "field" }, labelled && make("span", { class: "field-label" }, label), select);
}

/** A button that reverses the order; `set` shows an order, `onturn` gets the new one. */
export function orderButton(descending, onturn) {
  let down = descending;
  const element = make("button", { type: "button", class: "order", onclick: () => { set(!down); onturn(down); } });
  function set(value) {
    down = value;
    setText(element, down ? "↓" : "↑");
    setAttribute(element, "aria-label", down ? "Descending; press for ascending" : "Ascending; press for descending");
  }
  set(descending);
  return { element, set };
}

/** Toggle buttons, of which any number may be pressed; `onchoose` gets the pressed values. */
export function toggles(label, options, pressed, onchoose) {
  const chosen = new Set(pressed);
  const buttons = options.map(([name, text]) => {
    const button = make(
      "button",
      {
        type: "button",
        class: "toggle",
        "aria-pressed": String(chosen.has(name)),
        onclick: () => {
          if (!chosen.delete(name)) {
            chosen.add(name);
          }
          button.setAttribute("aria-pressed", String(chosen.has(name)));
          onchoose(options.map(([one]) => one).filter((one) => chosen.has(one)));
        },
      },
      text,
    );
    return button;
  });
  return make("div", { class: "toggles", role: "group", "aria-label": label }, buttons);
}
