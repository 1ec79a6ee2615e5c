// Figures for people. All numbers are shown in one locale, so that a screenshot means the same everywhere.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
const significant = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const percents = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 1 });
const dateAndTime = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" });
const zones = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" });

const MECHANISMS = {
  above_threshold: "AboveThreshold",
  numeric_sparse: "NumericSparse",
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
};

/** All kinds of mechanism, with their names. */
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
  running_count: { charged: "counts so far", free: "free answers", used: "counts" },
  sparse_project: RELEASE,
  pmw: { charged: "measured answers", free: "estimated answers", used: "measurements" },
  sparse_pmw: { charged: "updates", free: "answers from the hypothesis", used: "updates" },
};
const ANY = { charged: "charged answers", free: "free answers", used: "charged answers" };

/** What a mechanism's `charged` and `free` answers are called, and what is `used` of a grant. */
export function words(kind) {
  return Object.hasOwn(WORDS, kind) ? WORDS[kind] : ANY;
}

export function mechanism(kind) {
  return Object.hasOwn(MECHANISMS, kind) ? MECHANISMS[kind] : kind;
}

export function count(value) {
  return Math.abs(value) < 1e7 ? whole.format(value) : short.format(value);
}

/** Four significant digits; very small and very large numbers in powers of ten. */
export function number(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e9)) {
    const [digits, power] = value.toExponential(2).split("e");
    return `${Number(digits)}·10${superscript(Number(power))}`;
  }
  return significant.format(value);
}

/** The digits behind the point of a number of so many digits, all whole ones among them. */
function places(value, digits) {
  const power = value ? Number(value.toExponential().split("e")[1]) : -Infinity;
  return Math.min(Math.max(digits - 1 - power, 0), 20);
}

function written(value, maximumFractionDigits, roundingMode) {
  return new Intl.NumberFormat("en", { maximumFractionDigits, roundingMode }).format(value).replace(/^-0$/, "0");
}

/** What a number is off by at most, in four digits or all whole ones, and never less than it is. */
export function bound(alpha) {
  return written(alpha, places(alpha, 4), "ceil");
}

/** A number to the last digit that its bound is written with; six digits where it comes without. */
export function estimate(value, alpha) {
  return written(value, alpha === null || alpha === undefined ? places(value, 6) : places(alpha, 4), "halfEven");
}

/** A number and its bound, if it has one. */
export function within(value, alpha) {
  return `${estimate(value, alpha)}${alpha === null || alpha === undefined ? "" : ` ± ${bound(alpha)}`}`;
}

function superscript(power) {
  return String(power).replaceAll("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(digit)]);
}

/** Events per second. */
export function rate(value) {
  if (value === 0) {
    return "0";
  }
  return value >= 100 ? count(value) : number(Number(value.toPrecision(2)));
}

/** A share of 0 to 1; only what is nothing is shown as 0 %. */
export function percent(share) {
  if (share > 0 && share < 0.1) {
    return share < 0.001 ? "< 0.1%" : fine.format(share);
  }
  return percents.format(share);
}

/** The unit that shows a source's budget: ε, or ρ where more is left of that; one of the two need do. */
export function unitOf({ left, total }) {
  const rhoAlone = left.delta > 0; // its ε says what ρ implies, which does not add up
  return total.rho > 0 && (rhoAlone || left.rho / total.rho >= left.epsilon / total.epsilon) ? "rho" : "epsilon";
}

/** An amount of budget in one unit. */
export function mainAmount(value, unit) {
  return `${unit === "rho" ? "ρ" : "ε"} ${number(value[unit])}`;
}

/** An amount of budget with all its parts. */
export function amount(value) {
  const epsilon = `ε ${number(value.epsilon)}`;
  if (value.rho === undefined || value.rho === null) {
    return value.delta ? `${epsilon}, δ ${number(value.delta)}` : epsilon;
  }
  return value.delta ? `ρ ${number(value.rho)}` : `ρ ${number(value.rho)} (${epsilon} added up)`;
}

/** A time with its date and zone. */
export function time(seconds) {
  return dateAndTime.format(new Date(seconds * 1000));
}

/** A window in UTC, with no digit that both of its ends share: 2013-01-01 05:00–06:00. */
export function windowText(window) {
  if (!window) {
    return "";
  }
  const [start, end] = [window.start, window.end].map((text) => text.replace("T", " ").replace(/(:00)?Z$/, ""));
  return `${start}–${end.slice(0, 10) === start.slice(0, 10) ? end.slice(11) : end}`;
}

/** When a period begins, in UTC and with no digit that all its likes share: 2013-01-01, or 2013-01-01 05:00. */
export function periodText(starts) {
  return starts.replace(/(:00)?Z$/, "").replace(/T00:00$/, "").replace("T", " ");
}

/** The display time zone, at a given time. */
export function zone(seconds) {
  return zones.formatToParts(new Date(seconds * 1000)).find((part) => part.type === "timeZoneName").value;
}

/** A length of time in its two largest units. */
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

/** How long ago a time was. */
export function ago(seconds, now = Date.now() / 1000) {
  const passed = now - seconds;
  return passed < 1.5 ? "just now" : `${duration(passed)} ago`;
}

/** Bytes, as people say them. */
export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(Math.floor(Math.log10(Math.max(value, 1)) / 3), units.length - 1);
  return `${number(Number((value / 1000 ** power).toPrecision(3)))} ${units[power]}`;
}

/** The rate over a window, 0 if there is none of that length. */
export function rateOver(rates, seconds) {
  return rates.find((one) => one.window_seconds === seconds) ?? { window_seconds: seconds, above: 0, below: 0 };
}

export function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}
