// Ticks and labels of axes: round numbers and round times.

const STEPS_SECONDS = [1, 5, 10, 30, 60, 300, 600, 900, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 2419200];

/** Return about `wanted` round numbers from 0 to at least `most`; with `whole` only whole numbers. */
export function valueTicks(most, wanted = 4, whole = false) {
  const rough = (most || 1) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const round = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough * 0.999);
  const step = whole ? Math.max(round, 1) : round;
  const ticks = [];
  for (let index = 0; index * step < (most || 1) * 0.999 + step; index += 1) {
    ticks.push(index * step);
  }
  return ticks;
}

/** Return powers of ten between two numbers, times 1, 2 and 5; times 1 and 3, or only 1, over many powers. */
export function logTicks(low, high) {
  const decades = Math.log10(high / low);
  const factors = decades > 3.2 ? [1] : decades > 1.6 ? [1, 3] : [1, 2, 5];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    ticks.push(...factors.map((factor) => Number(`${factor}e${power}`)).filter((one) => one >= low * 0.999 && one <= high * 1.001));
  }
  return ticks;
}

/** Return round local times between two times in seconds, about `wanted` of them at most. */
export function timeTicks(from, until, wanted) {
  const span = until - from;
  const last = STEPS_SECONDS[STEPS_SECONDS.length - 1];
  const step = STEPS_SECONDS.find((one) => span / one <= wanted) ?? last * Math.ceil(span / wanted / last);
  const offset = new Date(from * 1000).getTimezoneOffset() * 60;
  const ticks = [];
  for (let at = Math.ceil((from - offset) / step) * step + offset; at <= until; at += step) {
    ticks.push(at);
  }
  return { ticks, step };
}

export const LETTER = 7; // largest width of a label's letter, in pixels
export const GAP = 10; // smallest distance between two labels, in pixels

/** Return the labels, each centered on its place, that lie within bounds and do not touch the one before. */
export function apart(labels, { from, until }) {
  const kept = [];
  let end = from - GAP;
  for (const label of labels) {
    const half = (label.text.length * LETTER) / 2;
    if (label.at - half >= end + GAP && label.at + half <= until) {
      kept.push(label);
      end = label.at + half;
    }
  }
  return kept;
}

const formats = {
  whole: new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" }),
  seconds: new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" }),
  minutes: new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" }),
  days: new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" }),
};

/** Format a tick as precisely as the step needs; with the day if the axis covers several days. */
export function tickLabel(seconds, step, overDays = false) {
  const clock = step >= 60 ? (overDays ? formats.whole : formats.minutes) : formats.seconds;
  return (step >= 86400 ? formats.days : clock).format(new Date(seconds * 1000));
}

/** Format a time's day, which is shown at the end of an axis. */
export function day(seconds) {
  return formats.days.format(new Date(seconds * 1000));
}
