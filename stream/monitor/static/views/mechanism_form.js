// The fields of a mechanism for a planned stream on a source.

import { make } from "../dom.js";
import { flag, given, labelled, listed, numberInput, select, textInput, ticks, typed } from "../forms.js";
import { FIELDS, OPENINGS } from "../mechanisms.js";
import { isNumeric } from "./where.js";

const OVER_ATTRIBUTES = new Set(["sums", "attributes"]);

/** True if a field applies to such a source: a standing stream's query already says what is counted. */
function fits(name, kind, source) {
  switch (name) {
    case "sums":
    case "counts":
      return source.kind === "table";
    case "people":
      return source.kind === "table" && Boolean(source.person);
    case "dimensions":
      return source.kind === "values";
    case "answers":
      return kind !== "histogram" || source.kind === "events";
    default:
      return true;
  }
}

/** The sets of names in a text, as `a, b; b, c`; undefined without any. */
function setsOf(text) {
  const sets = text.split(";").map((set) => set.split(",").map((name) => name.trim()).filter(Boolean)).filter((set) => set.length);
  return sets.length ? sets : undefined;
}

/** `show(kind, source)` shows a mechanism's fields and keeps typed values; `value()` reads them. */
export function mechanismForm() {
  const element = make("div", { class: "sheet mechanism" });
  const kept = new Map();
  let shown = [];

  function control(name, source) {
    const { text, type, value = "", hint = "", options = [] } = FIELDS[name];
    if (type === "integers" || type === "attributes") {
      const names = Object.entries(source.attributes ?? {}).filter(([, domain]) => type === "attributes" || isNumeric(domain));
      const boxes = ticks(text, names.map(([one]) => [one, one]), type === "attributes" ? names.slice(0, 2).map(([one]) => one) : []);
      return { element: boxes.element, read: () => boxes.values() };
    }
    if (type === "flag") {
      const box = flag(hint ? `${text} (${hint})` : text);
      return { element: box.element, read: () => box.control.checked || undefined };
    }
    if (type === "choice") {
      const list = select(options);
      const { flag: isFlag, whole } = FIELDS[name];
      const read = () => (whole && /^\d+$/.test(list.value) ? Number(list.value) : list.value);
      return { element: labelled(text, list, hint), read: isFlag ? () => (list.value === "false" ? false : undefined) : read };
    }
    if (type === "sets") {
      const sets = textInput({ placeholder: "age, sex; age, income" });
      return { element: labelled(text, sets, hint), read: () => setsOf(sets.value) };
    }
    const input = numberInput({ value });
    return { element: labelled(text, input, hint), read: () => (type === "list" ? listed(input) : typed(input)) };
  }

  return {
    element,
    show(kind, source) {
      const wanted = OPENINGS[kind].fields.filter((name) => fits(name, kind, source));
      shown = wanted.map((name) => {
        const key = OVER_ATTRIBUTES.has(name) ? `${source.source} ${name}` : name;
        if (!kept.has(key)) {
          kept.set(key, control(name, source));
        }
        return [name, kept.get(key)];
      });
      element.replaceChildren(...shown.map(([, one]) => one.element));
    },
    value() {
      const read = Object.fromEntries(shown.map(([name, one]) => [name, one.read()]));
      return given({ ...read, sums: read.sums?.length ? read.sums : undefined });
    },
  };
}
