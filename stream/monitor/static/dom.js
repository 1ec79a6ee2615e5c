// Creates HTML and SVG elements. Text becomes text nodes only, so that no text of the API can become markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) {
      continue;
    }
    if (name.startsWith("on")) {
      element.addEventListener(name.slice(2), value);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) {
      element.append(child);
    }
  }
  return element;
}

/** Create an HTML element. Attributes named on… are listeners; null, undefined and false attributes are left out. */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element. */
export function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Set an element's text if it differs: otherwise the user would lose a selection in it. */
export function setText(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

/** Set an attribute, or remove it for null, undefined or false. */
export function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) {
    element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) {
    element.setAttribute(name, value === true ? "" : String(value));
  }
}

/** A table's head with one column for each text. */
export function tableHead(...texts) {
  return make("thead", {}, make("tr", {}, texts.map((text) => make("th", { scope: "col" }, text))));
}

/** Save a blob as a file of the browser's user. */
export function download(blob, name) {
  const address = URL.createObjectURL(blob);
  make("a", { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}

/** A link within the page. */
export function link(route, ...children) {
  return make("a", { href: route }, ...children);
}

/**
 * Child elements for a list of items. An item keeps its element as long as its key is listed, so that
 * focus, selection and open details survive an update.
 *
 * `create()` returns `{ element, update(item) }`.
 */
export class KeyedList {
  constructor(parent, create) {
    this.parent = parent;
    this.create = create;
    this.rows = new Map();
  }

  show(items, keyOf) {
    const kept = new Map();
    let before = this.parent.firstChild;
    for (const item of items) {
      const key = keyOf(item);
      const row = this.rows.get(key) ?? this.create();
      row.update(item);
      kept.set(key, row);
      if (row.element === before) {
        before = before.nextSibling;
      } else {
        this.parent.insertBefore(row.element, before);
      }
    }
    for (const [key, row] of this.rows) {
      if (!kept.has(key)) {
        row.element.remove();
      }
    }
    this.rows = kept;
  }
}
