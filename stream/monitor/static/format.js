// Formats numbers and times, always in one locale, so that a screenshot means the same everywhere.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
const significant = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const percents = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 1 });
const dateAndTime = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" });
const zones = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" });

const MECHANISMS = {
  above_threshold: "Above threshold",
  numeric_sparse: "Numeric sparse",
  laplace: "Laplace",
  randomized_response: "Randomized response",
  histogram: "Histogram",
  noisy_max: "Noisy max",
  exponential: "Exponential",
  pmw: "PMW",
  sparse_pmw: "Sparse PMW",
  sparse_project: "Sparse projection",
  lazy_histogram: "Lazy histogram",
  running_count: "Running count",
  unknown_groups: "Unknown groups",
};

/** Pairs of a mechanism's kind and its displayed name. */
export const mechanisms = Object.entries(MECHANISMS);

const DECISIONS = { charged: "answers above", free: "answers below", used: "answers above" };
const ANSWERS = { charged: "noisy answers", free: "free answers", used: "answers" };
const RELEASE = { charged: "charged answers", free: "answers from the release", used: "answers" };
const WORDS = {
  above_threshold: DECISIONS,
  numeric_sparse: DECISIONS,
  laplace: ANSWERS,
  noisy_max: { ...ANSWERS, charged: "choices" },
  exponential: { ...ANSWERS, charged: "choices" },
  randomized_response: { charged: "charged answers", free: "responses", used: "responses" },
  histogram: RELEASE,
  lazy_histogram: RELEASE,
  running_count: { charged: "counts", free: "free answers", used: "counts" },
  sparse_project: RELEASE,
  pmw: { charged: "measured answers", free: "estimated answers", used: "measurements" },
  unknown_groups: ANSWERS,
  sparse_pmw: { charged: "updates", free: "answers from the hypothesis", used: "updates" },
};
const COUNTED = /(answer|choice|count|measurement|response|update)s\b/;
const ANY = { charged: "charged answers", free: "free answers", used: "charged answers" };

/** Return a number of answers with one of a mechanism's words, as "1 noisy answer". */
export function countOf(value, many) {
  return plural(value, many.replace(COUNTED, "$1"), many);
}

/** The words for a mechanism's `charged` and `free` answers, and for the answers `used` of a grant. */
export function words(kind) {
  return Object.hasOwn(WORDS, kind) ? WORDS[kind] : ANY;
}

export function mechanism(kind) {
  return Object.hasOwn(MECHANISMS, kind) ? MECHANISMS[kind] : kind;
}

export function count(value) {
  return Math.abs(value) < 1e7 ? whole.format(value) : short.format(value);
}

/** Format the lag of an overview, process or partition: a range if more questions may wait. */
export function lag({ lag: least, hidden_lag: hidden }) {
  return hidden ? `${count(least)} to ${count(least + hidden)}` : count(least);
}

/** Format a declared number with all its digits. */
export function exact(value) {
  return value.toLocaleString("en-US", { maximumSignificantDigits: 15 });
}

function roundDown(value, maximumSignificantDigits) {
  return Number(new Intl.NumberFormat("en", { maximumSignificantDigits, roundingMode: "floor", useGrouping: false }).format(value));
}

/** Format four significant digits, rounded `down` or to the nearest; very small and very large numbers with a power of ten. */
export function number(value, down = false) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e9)) {
    const [digits, power] = (down ? roundDown(value, 3) : value).toExponential(2).split("e");
    return `${Number(digits)}·10${superscript(Number(power))}`;
  }
  return significant.format(down ? roundDown(value, 4) : value);
}

/** Return the decimal places that show `digits` significant digits; all whole digits are always shown. */
function places(value, digits) {
  const power = value ? Number(value.toExponential().split("e")[1]) : -Infinity;
  return Math.min(Math.max(digits - 1 - power, 0), 20);
}

function written(value, maximumFractionDigits, roundingMode) {
  return new Intl.NumberFormat("en", { maximumFractionDigits, roundingMode }).format(value).replace(/^-0$/, "0");
}

/** Format an error bound with four digits, or all whole ones, rounded up. */
export function bound(alpha) {
  return written(alpha, places(alpha, 4), "ceil");
}

/** Return a number or, if it is outside its confidence interval, the nearer end: no count is below 0. */
export function cutToInterval(value, low, high) {
  return typeof low === "number" && typeof high === "number" ? Math.min(Math.max(value, low), high) : value;
}

/** Format a number with as many decimal places as its error bound; with six digits if it has none, and with 15 if it has no error. */
export function estimate(value, alpha) {
  const shown = alpha ? places(alpha, 4) : places(value, alpha === 0 ? 15 : 6);
  return written(value, shown, "halfEven");
}

/** Format a number and its error bound, if it has one. */
export function within(value, alpha) {
  return `${estimate(value, alpha)}${alpha === null || alpha === undefined ? "" : ` ± ${bound(alpha)}`}`;
}

/** Format the confidence interval of `value`, if there is one; an interval entirely out of the range would look exact. */
export function interval(value, low, high) {
  if (typeof low === "string" && typeof high === "string") {
    return `${low} to ${high}`; // of dates or categories
  }
  if (typeof low !== "number" || typeof high !== "number") {
    return "–";
  }
  if (low === high && value !== low) {
    return `${value < low ? "below" : "above"} ${estimate(low)}, by noise`;
  }
  const half = halfLength(low, high);
  return `${estimate(low, half)} to ${estimate(high, half)}`;
}

/** Half of an interval, as the error bound that decides a number's digits; null without an interval. */
export function halfLength(low, high) {
  return typeof low === "number" && typeof high === "number" ? (high - low) / 2 : null;
}

function superscript(power) {
  return String(power).replaceAll("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(digit)]);
}

/** Format a rate per second. */
export function rate(value) {
  if (value === 0) {
    return "0";
  }
  return value >= 100 ? count(value) : number(Number(value.toPrecision(2)));
}

/** Format a share from 0 to 1 in percent; only an exact 0 is shown as 0 %, and only an exact 1 as 100 %. */
export function percent(share) {
  if (share > 0 && share < 0.1) {
    return share < 0.001 ? "< 0.1%" : fine.format(share);
  }
  if (share >= 0.99 && share < 1) {
    return share > 0.999 ? "> 99.9%" : fine.format(share);
  }
  return percents.format(share);
}

/** The unit of a source's budget: ε, or ρ if a larger share of it is left: a grant has to fit only one of them. */
export function unitOf({ left, total }) {
  const rhoAlone = left.delta > 0; // ρ and δ imply this ε, which is no sum
  return total.rho > 0 && (rhoAlone || left.rho / total.rho >= left.epsilon / total.epsilon) ? "rho" : "epsilon";
}

/** Describe a budget's share that is left, and of what: of ε or δ, whichever is scarcer, or of ε or ρ, of which more is left. */
export function shareLeft(row) {
  const { left, total } = row;
  const isDelta = !total.rho && total.delta > 0 && left.delta / total.delta < left.epsilon / total.epsilon;
  return `${percent(row.left_share)} left of ${isDelta ? `δ ${number(total.delta)}` : mainAmount(total, unitOf(row))}`;
}

/** Format an amount of budget in one unit; what is `left` is rounded down, so that a request for it fits. */
export function mainAmount(value, unit, left = false) {
  return `${unit === "rho" ? "ρ" : "ε"} ${number(value[unit], left)}`;
}

/** Format an amount of budget with all its parts; what is `left` is rounded down, so that a request for it fits. */
export function amount(value, left = false) {
  const epsilon = mainAmount(value, "epsilon", left);
  if (value.rho === undefined || value.rho === null) {
    return value.delta ? `${epsilon}, δ ${number(value.delta, left)}` : epsilon;
  }
  // With δ, or beside ρ alone, ε is no sum.
  const rho = mainAmount(value, "rho", left);
  return value.delta || !value.epsilon ? rho : `${rho} (${epsilon} added up)`;
}

/** Format a time with date and time zone. */
export function time(seconds) {
  return dateAndTime.format(new Date(seconds * 1000));
}

/** Format a window in UTC; an end on the same day has no date: 2013-01-01 05:00–06:00. */
export function windowText(window) {
  if (!window) {
    return "";
  }
  const texts = [window.start, window.end];
  const moments = texts.some((text) => text.includes(".")) ? texts.map((text) => text.replace(/(:\d\d)Z$/, "$1.000Z")) : texts;
  const ending = moments.every((text) => text.endsWith(":00Z")) ? ":00Z" : "Z";
  const [start, end] = moments.map((text) => text.replace("T", " ").replace(ending, ""));
  return `${start}–${end.slice(0, 10) === start.slice(0, 10) ? end.slice(11) : end}`;
}

/** Format a period's start in UTC without a time of 00:00: 2013-01-01, or 2013-01-01 05:00. */
export function periodText(starts) {
  return starts.replace(/(:00)?Z$/, "").replace(/T00:00$/, "").replace("T", " ");
}

/** The name of the displayed time zone at a given time. */
export function zone(seconds) {
  return zones.formatToParts(new Date(seconds * 1000)).find((part) => part.type === "timeZoneName").value;
}

/** Return a text with a capital first letter. */
export function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Format a duration in its two largest units. */
export function duration(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  let left = Math.round(seconds);
  if (seconds < 10) {
    return `${number(Number(seconds.toPrecision(2)))} s`;
  }
  const parts = [];
  for (const [name, width] of units) {
    const value = Math.floor(left / width);
    if (value || parts.length) {
      parts.push(value ? `${whole.format(value)} ${name}` : "");
      left -= value * width;
    }
    if (parts.length === 2) {
      break;
    }
  }
  return parts.filter(Boolean).join(" ");
}

/** Format the time that has passed since `seconds`. */
export function ago(seconds, now = Date.now() / 1000) {
  const passed = now - seconds;
  return passed < 1.5 ? "just now" : `${duration(passed)} ago`;
}

/** Format a number of bytes in B to TB. */
export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(Math.floor(Math.log10(Math.max(value, 1)) / 3), units.length - 1);
  return `${number(Number((value / 1000 ** power).toPrecision(3)))} ${units[power]}`;
}

/** Return the rates over a window of `seconds`; 0 if there is no such window. */
export function rateOver(rates, seconds) {
  return rates.find((one) => one.window_seconds === seconds) ?? { window_seconds: seconds, above: 0, below: 0 };
}

export function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}
