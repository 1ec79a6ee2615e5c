// Cells of date and timestamp attributes, as predicates name them.

const PARTS = { weekday: [1, 7], "hour-of-day": [0, 23], "month-of-year": [1, 12] };
const DAY = 86_400_000;

export function isDate(domain) {
  return domain.kind === "date" || domain.kind === "timestamp";
}

/** The first and last whole number of a part of a date, or undefined for other granularities. */
export function partOf(domain) {
  return isDate(domain) ? PARTS[domain.granularity] : undefined;
}

/** All cells in order; none for hours, whose number depends on the changes of the clock. */
export function cellsOf(domain) {
  const part = partOf(domain);
  if (part) {
    return Array.from({ length: part[1] - part[0] + 1 }, (_, index) => part[0] + index);
  }
  if (domain.granularity === "hour") {
    return [];
  }
  const cells = [];
  const last = Date.parse(`${domain.maximum}T00:00:00Z`);
  for (let at = new Date(`${domain.minimum}T00:00:00Z`); at <= last; at = next(at, domain.granularity)) {
    cells.push(labelOf(at, domain.granularity));
  }
  return cells;
}

function next(at, granularity) {
  const months = { month: 1, quarter: 3, year: 12 }[granularity];
  return months ? new Date(Date.UTC(at.getUTCFullYear(), at.getUTCMonth() + months, 1)) : new Date(at.getTime() + (granularity === "week" ? 7 : 1) * DAY);
}

function labelOf(at, granularity) {
  const day = at.toISOString().slice(0, 10);
  switch (granularity) {
    case "year":
      return day.slice(0, 4);
    case "quarter":
      return `${day.slice(0, 4)}-Q${Math.floor(at.getUTCMonth() / 3) + 1}`;
    case "month":
      return day.slice(0, 7);
    case "week": {
      // The week belongs to the year of its Thursday.
      const thursday = new Date(at.getTime() + 3 * DAY);
      const first = Date.UTC(thursday.getUTCFullYear(), 0, 1);
      const number = Math.floor((thursday.getTime() - first) / (7 * DAY)) + 1;
      return `${thursday.getUTCFullYear()}-W${String(number).padStart(2, "0")}`;
    }
    default:
      return day;
  }
}
