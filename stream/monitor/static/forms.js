// Creates form controls with labels, and reads them.

import { make } from "./dom.js";

let made = 0;

/** A control with its label and a hint; `control` gets an id. */
export function labelled(text, control, hint = "") {
  made += 1;
  control.id ||= `field-${made}`;
  const about = hint ? make("span", { class: "hint", id: `${control.id}-hint` }, hint) : null;
  if (about) {
    control.setAttribute("aria-describedby", about.id);
  }
  return make("div", { class: "form-field" }, make("label", { for: control.id }, text), control, about);
}

export function textInput(attributes = {}) {
  return make("input", { type: "text", autocomplete: "off", spellcheck: "false", ...attributes });
}

export function numberInput(attributes = {}) {
  return make("input", { type: "text", inputmode: "decimal", autocomplete: "off", spellcheck: "false", class: "number", ...attributes });
}

/** Enable a button after its request, and give it back the keyboard's focus that it lost while disabled. */
export function enableAgain(button) {
  button.disabled = false;
  if (document.activeElement === document.body) {
    button.focus({ preventScroll: true });
  }
}

/** A drop-down list of `[value, text]`. */
export function select(options, value = "", attributes = {}) {
  return make("select", attributes, options.map(([name, text]) => make("option", { value: name, selected: name === value }, text)));
}

/** Replace a list's options; keep the chosen one if it is still offered. */
export function offer(list, options, wanted = list.value) {
  list.replaceChildren(...options.map(([name, text]) => make("option", { value: name }, text)));
  list.value = options.some(([name]) => name === wanted) ? wanted : (options[0]?.[0] ?? "");
}

export function flag(text, checked = false) {
  const control = make("input", { type: "checkbox", checked });
  return { control, element: make("label", { class: "flag" }, control, text) };
}

/** Checkboxes, one for each `[value, text]`; `values()` returns the checked values in order. */
export function ticks(legend, options, chosen = []) {
  const boxes = options.map(([name, text]) => {
    const control = make("input", { type: "checkbox", value: name, checked: chosen.includes(name) });
    return { name, control, element: make("label", { class: "flag" }, control, text) };
  });
  return {
    element: make("fieldset", { class: "ticks" }, make("legend", {}, legend), boxes.length ? boxes.map((one) => one.element) : make("span", { class: "quiet" }, "none")),
    values: () => boxes.filter(({ control }) => control.checked).map(({ name }) => name),
  };
}

/** Return a typed number, or the text if it is no number: the API's answer then names the field. */
export function typed(control) {
  const text = control.value.trim();
  if (text === "") {
    return undefined;
  }
  return Number.isFinite(Number(text)) ? Number(text) : text;
}

/** Return a typed number, or a list of the numbers between commas. */
export function typedNumbers(control) {
  const parts = control.value.split(",").map((part) => part.trim()).filter(Boolean).map((part) => typed({ value: part }));
  return parts.length > 1 ? parts : parts[0];
}

/** Return typed names: one on each line, or separated by commas if there is only one line. */
export function listed(control) {
  const text = control.value;
  const parts = text.includes("\n") ? text.split("\n") : text.split(",");
  return parts.map((one) => one.trim()).filter(Boolean);
}

/** Return an object without its undefined fields. */
export function given(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}

/** A block that shows the JSON of a request, to be copied. */
export function jsonBlock(label) {
  const code = make("code");
  const element = make("pre", { tabindex: "0", class: "json", "aria-label": label, role: "region" }, code);
  return {
    element,
    show(value) {
      code.textContent = JSON.stringify(value, null, 2);
    },
  };
}

/** Wrap `run`: it gets a function that returns false once a later call has started or `outdate()` was called. */
export function latest(run) {
  let number = 0;
  const start = async (...values) => {
    number += 1;
    const mine = number;
    return run(() => mine === number, ...values);
  };
  start.outdate = () => {
    number += 1;
  };
  return start;
}

/** The id of a form's request: `keep()` it when it is sent, because a repetition of the same content is the same request. */
export function requestId() {
  let id = crypto.randomUUID();
  let latest = "";
  let kept = null; // the content that was sent, although perhaps without a receipt

  function renew() {
    id = crypto.randomUUID();
    kept = null;
  }

  return {
    of(content) {
      latest = JSON.stringify(content);
      if (kept !== null && kept !== latest) {
        renew();
      }
      return id;
    },
    keep() {
      kept = latest;
    },
    renew,
  };
}
