// Sends requests to the monitor's API.

/** A failed request; `problem` is the API's Problem, or a substitute if there was no answer. */
export class ApiError extends Error {
  constructor(problem) {
    super(problem.message);
    this.problem = problem;
  }

  /** True if the same request may succeed when it is sent again. */
  get retriable() {
    return this.problem.status === 0 || this.problem.status === 429 || this.problem.status >= 500;
  }
}

/** Stands for a token if the browser's session of single sign-on, a cookie, is used; no token has spaces. */
export const BY_COOKIE = "single sign-on";

const UNREACHABLE = { status: 0, code: "unavailable", message: "The monitor does not answer." };

/** Send a request and return the answer's JSON, or throw an ApiError. */
export async function send(path, token, { method = "GET", body = null } = {}) {
  const response = await open(path, token, { method, body });
  return response.json();
}

/** Send a request and return the response once its headers have arrived, or throw an ApiError. */
export async function open(path, token, { method = "GET", body = null, signal = null } = {}) {
  const headers = token === BY_COOKIE ? {} : { Authorization: `Bearer ${token}` };
  if (body !== null) {
    headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: body === null ? null : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: token === BY_COOKIE ? "same-origin" : "omit",
    });
  } catch (error) {
    if (signal?.aborted) {
      throw error;
    }
    throw new ApiError(UNREACHABLE);
  }
  if (!response.ok) {
    throw new ApiError(await problemOf(response));
  }
  return response;
}

async function problemOf(response) {
  try {
    const problem = await response.json();
    return typeof problem.message === "string" ? problem : unexpected(response);
  } catch {
    return unexpected(response);
  }
}

function unexpected(response) {
  return { status: response.status, code: "internal", message: `The monitor answered with status ${response.status}.` };
}

/** Return a message without the quotes that a value has in JSON, but not in a form. */
function unquoted(message) {
  return message.replace("give one, without quotes", "give one with a decimal point, as 0.05").replace(/ in quotes, as '(.+)'/, ", as $1");
}

/** Return a problem's message with its invalid fields and the requested and remaining budget. */
export function explain(problem, formatAmount) {
  const fields = problem.fields ?? [];
  const lines = fields.length ? fields.map(({ field, message }) => `${field}: ${unquoted(message)}`) : [problem.message];
  if (problem.asked && problem.left) {
    lines.push(`${formatAmount(problem.asked)} asked, ${formatAmount(problem.left, true)} left`);
  }
  return lines.join("\n");
}

/** Return parameters as a query string; empty ones are left out. */
export function parameters(values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  return new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
}
