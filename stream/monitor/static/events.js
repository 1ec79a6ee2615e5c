// Live views: server-sent events over fetch, because an EventSource cannot send the token in a header.

import { ApiError, open, parameters } from "./api.js";

const SILENCE_MS = 25_000; // the monitor sends something at least every 10 s
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;

/**
 * A connection that receives live views; it reconnects whenever it is lost.
 *
 * `onEvent(name, data)` gets each view and the monitor's readiness; `onState({ open, live, heard, retryAt })` gets the
 * connection's state: if it is open, if it has received every view, when it last was live, and when it will reconnect.
 * `onDenied()` is called if the token is no longer valid.
 */
export class LiveConnection {
  constructor({ token, views, query = {}, onEvent, onState, onDenied }) {
    this.path = `/api/events?${parameters({ views: views.join(","), ...query })}`;
    this.views = views;
    this.token = token;
    this.onEvent = onEvent;
    this.onState = onState;
    this.onDenied = onDenied;
    this.heard = null;
    this.closed = false;
    this.wait = FIRST_WAIT_MS;
    this.run();
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    clearTimeout(this.watchdog);
    this.controller?.abort();
  }

  /** Reconnect now instead of at the planned time. */
  reconnectNow() {
    if (!this.closed && this.timer) {
      clearTimeout(this.timer);
      this.run();
    }
  }

  async run() {
    this.timer = null;
    this.controller = new AbortController();
    this.missing = new Set(this.views); // views that this connection has not received yet
    this.restartWatchdog();
    try {
      const response = await open(this.path, this.token, { signal: this.controller.signal });
      await this.read(response.body.getReader());
    } catch (error) {
      if (!this.closed && error instanceof ApiError && !error.retriable) {
        this.close();
        if (error.problem.status === 401) {
          this.onDenied();
        } else {
          this.onEvent("problem", error.problem);
        }
      }
    }
    clearTimeout(this.watchdog);
    if (!this.closed) {
      const wait = this.wait * (0.75 + Math.random() / 2);
      this.wait = Math.min(this.wait * 2, LONGEST_WAIT_MS);
      this.onState({ open: false, live: false, heard: this.heard, retryAt: Date.now() + wait });
      this.timer = setTimeout(() => this.run(), wait);
    }
  }

  async read(reader) {
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done || this.closed) {
        return;
      }
      this.restartWatchdog();
      this.wait = FIRST_WAIT_MS;
      const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = blocks.pop();
      blocks.forEach((block) => this.dispatch(block));
      if (this.closed) {
        return;
      }
      const live = this.missing.size === 0;
      if (live) {
        this.heard = Date.now();
      }
      this.onState({ open: true, live, heard: this.heard, retryAt: null });
    }
  }

  dispatch(block) {
    const fields = new Map();
    for (const line of block.split("\n")) {
      const colon = line.indexOf(": ");
      if (colon > 0) {
        fields.set(line.slice(0, colon), line.slice(colon + 2));
      }
    }
    if (fields.has("data") && !this.closed) {
      const name = fields.get("event") ?? "message";
      // A problem replaces a view, but does not name it.
      this.missing.delete(name === "problem" ? this.missing.values().next().value : name);
      try {
        this.onEvent(name, JSON.parse(fields.get("data")));
      } catch (error) {
        reportError(error); // an error in a view must not end the connection
      }
    }
  }

  restartWatchdog() {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => this.controller.abort(), SILENCE_MS);
  }
}
