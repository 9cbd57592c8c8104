// What is known of one answer, from its events. No DOM and no clock.

/** @import {Config, Decision, Escalation, InferenceRequest, KnownEvent, Metrics, Reasoning, Status, Trace} from "./types.js" */
/** @import {StreamEvent} from "./events.js" */

/**
 * A stretch of the answer: text whose tokens are all drafted or all not, or a seam where another tier went on.
 *
 * @typedef {{text: string, drafted: boolean} | {seam: Escalation}} Run
 */

/**
 * One engine step: when its last token came (ms since the request), how many tokens it gave, how many drafts it verified
 * (`k`) and how many of these are tokens of the answer.
 *
 * @typedef {{atMs: number, tokens: number, k: number, accepted: number}} Step
 */

/** @typedef {"waiting" | "streaming" | "done" | "stopped" | "failed"} Phase */

/**
 * The last of several `status` events of one state.
 *
 * @typedef {{atMs: number, status: Status}} Wait
 */

/** Why an answer failed, whether as an event, as an HTTP error or as a cut connection. @typedef {{code: string, message: string, retryable: boolean}} Trouble */

export class Answer {
  /** @type {Phase} */
  phase = "waiting";
  /** @type {Config | null} */
  config = null;
  /** @type {{atMs: number, trace: Trace}[]} all but `decision` */
  trace = [];
  /** @type {Decision | null} */
  decision = null;
  /** @type {{atMs: number, reasoning: Reasoning}[]} */
  reasonings = [];
  /** @type {Wait[]} */
  waits = [];
  /** @type {Run[]} */
  runs = [];
  /** @type {{atMs: number, seam: Escalation}[]} */
  seams = [];
  /** @type {Step[]} */
  steps = [];
  tokens = 0;
  draftedTokens = 0;
  /** Counts texts that were withdrawn: what was drawn of `runs` before no longer holds. */
  rewrites = 0;
  /** @type {number | null} ms since the request */
  firstTokenMs = null;
  /** @type {number | null} */
  endedMs = null;
  /** @type {Metrics | null} */
  metrics = null;
  /** @type {Trouble | null} */
  trouble = null;
  /** @type {Map<string, number>} events of types that this page does not know */
  unknown = new Map();

  #inStep = 0;
  #acceptedInStep = 0;

  /** @param {InferenceRequest} request */
  constructor(request) {
    this.request = request;
  }

  get ended() {
    return this.phase === "done" || this.phase === "stopped" || this.phase === "failed";
  }

  /** Which tier answers now. */
  get tier() {
    return this.seams.at(-1)?.seam.to_tier ?? this.config?.tier ?? null;
  }

  /** The answer's text so far. */
  get text() {
    return this.runs.map((run) => ("text" in run ? run.text : "")).join("");
  }

  /**
   * Takes an event.
   *
   * @param {StreamEvent} event
   * @param {number} atMs since the request
   */
  take(event, atMs) {
    if (this.ended) return;
    const known = /** @type {KnownEvent} */ (event);
    switch (known.type) {
      case "config":
        this.config = known.data;
        break;
      case "trace":
        if (known.data.step === "decision") this.decision = /** @type {Decision} */ (known.data.result);
        else this.trace.push({ atMs, trace: known.data });
        break;
      case "reasoning":
        this.reasonings.push({ atMs, reasoning: known.data });
        break;
      case "status":
        this.#wait(known.data, atMs);
        break;
      case "token":
        this.#token(known.data.text, known.data.spec_accepted, known.data.spec_k ?? 0, atMs);
        break;
      case "escalation":
        this.#seam(known.data, atMs);
        break;
      case "metrics":
        this.metrics = known.data;
        break;
      case "done":
        this.#end("done", atMs);
        break;
      case "error":
        this.fail(known.data, atMs);
        break;
      default:
        this.unknown.set(event.type, (this.unknown.get(event.type) ?? 0) + 1);
    }
  }

  /** The user stopped it. @param {number} atMs */
  stop(atMs) {
    if (!this.ended) this.#end("stopped", atMs);
  }

  /**
   * It failed.
   *
   * @param {Trouble} trouble
   * @param {number} atMs
   */
  fail({ code, message, retryable }, atMs) {
    if (this.ended) return;
    this.trouble = { code, message, retryable };
    this.#end("failed", atMs);
  }

  /** The response is over. Without `done` or `error` before it, it was cut. @param {number} atMs */
  close(atMs) {
    this.fail({ code: "stream_cut", message: "The answer ended before it was complete.", retryable: true }, atMs);
  }

  /** @param {Phase} phase @param {number} atMs */
  #end(phase, atMs) {
    this.#closeStep(atMs, 0);
    this.phase = phase;
    this.endedMs = atMs;
  }

  /** @param {Status} status @param {number} atMs */
  #wait(status, atMs) {
    if (this.waits.at(-1)?.status.state === status.state) this.waits.pop();
    this.waits.push({ atMs, status });
  }

  /** @param {string} text @param {boolean} drafted @param {number} k @param {number} atMs */
  #token(text, drafted, k, atMs) {
    this.phase = "streaming";
    this.firstTokenMs ??= atMs;
    this.tokens += 1;
    this.draftedTokens += drafted ? 1 : 0;
    const last = this.runs.at(-1);
    if (last && "text" in last && last.drafted === drafted) last.text += text;
    else if (text) this.runs.push({ text, drafted });
    // A step's accepted drafts come first, then one token that the target chose: with it the step ends.
    this.#inStep += 1;
    this.#acceptedInStep += drafted ? 1 : 0;
    if (!drafted) this.#closeStep(atMs, k);
    else this.#openK = k;
  }

  #openK = 0;

  /** @param {number} atMs @param {number} k */
  #closeStep(atMs, k) {
    if (!this.#inStep) return;
    this.steps.push({ atMs, tokens: this.#inStep, k: k || this.#openK, accepted: this.#acceptedInStep });
    this.#inStep = this.#acceptedInStep = this.#openK = 0;
  }

  /** @param {Escalation} seam @param {number} atMs */
  #seam(seam, atMs) {
    this.seams.push({ atMs, seam });
    if (seam.rewrite) {
      this.runs = [];
      this.rewrites += 1;
    }
    this.runs.push({ seam });
  }
}

/** Over how long the rate and the acceptance of a moment are taken, ms; in the course of a long answer over this part of it. */
const WINDOW_MS = 1000;
const WINDOW_PART = 1 / 12;
/** Tokens that came within less time have no rate: they came in one piece. */
const LEAST_MS = 100;

/**
 * Tokens per second, the share of drafts that were accepted, and drafts per step, over the answer.
 *
 * @param {readonly Step[]} steps
 * @param {number} everyMs distance of the points
 * @returns {{s: number[], rate: number[], accepted: (number | null)[], k: number[]}} `accepted` is null where nothing was drafted
 */
export function course(steps, everyMs) {
  /** @type {ReturnType<typeof course>} */
  const points = { s: [], rate: [], accepted: [], k: [] };
  if (!steps.length) return points;
  const firstMs = steps[0].atMs;
  const lastMs = steps[steps.length - 1].atMs;
  const windowMs = Math.max(WINDOW_MS, (lastMs - firstMs) * WINDOW_PART);
  let from = 0;
  let to = 0;
  const sum = { tokens: 0, k: 0, accepted: 0 };
  for (let point = 1; ; point += 1) {
    const atMs = Math.min(firstMs + point * everyMs, lastMs);
    for (; to < steps.length && steps[to].atMs <= atMs; to += 1) count(sum, steps[to], 1);
    for (; from < to && steps[from].atMs <= atMs - windowMs; from += 1) count(sum, steps[from], -1);
    // At first the window begins with the first token, which itself took no time since.
    const sinceMs = Math.min(windowMs, atMs - firstMs);
    const begun = from === 0 ? steps[0].tokens : 0;
    if (sinceMs > 0) {
      points.s.push(atMs / 1000);
      points.rate.push(((sum.tokens - begun) * 1000) / sinceMs);
      points.accepted.push(sum.k ? sum.accepted / sum.k : null);
      points.k.push(to > from ? sum.k / (to - from) : 0);
    }
    if (atMs >= lastMs) return points;
  }
}

/** @param {{tokens: number, k: number, accepted: number}} sum @param {Step} step @param {1 | -1} by */
function count(sum, step, by) {
  sum.tokens += by * step.tokens;
  sum.k += by * step.k;
  sum.accepted += by * step.accepted;
}

/**
 * Tokens per second lately.
 *
 * @param {readonly Step[]} steps
 * @param {number} nowMs
 * @returns {number | null} null before it can be told
 */
export function liveRate(steps, nowMs) {
  if (steps.length < 2) return null;
  let tokens = 0;
  let from = steps.length;
  while (from > 0 && steps[from - 1].atMs > nowMs - WINDOW_MS) tokens += steps[--from].tokens;
  if (from > 0) return (tokens * 1000) / WINDOW_MS;
  const sinceMs = nowMs - steps[0].atMs;
  return sinceMs >= LEAST_MS ? ((tokens - steps[0].tokens) * 1000) / sinceMs : null;
}
