// Reads one event from its JSON, and checks that it has what the page counts on: nothing drawn later meets a hole.

/**
 * An event as it came: one of `KnownEvent`, or one of a type that this page does not know.
 *
 * @typedef {{type: string, data: any}} StreamEvent
 */

/** What a value must be: of a `typeof`, an array of a shape, or an object with fields of shapes. @typedef {string | [Shape] | {[field: string]: Shape}} Shape */

/** The server, or what is between, sent an event that cannot be read. */
export class BrokenEvent extends Error {}

/** @type {Record<string, Shape>} of the data of each type of event */
const EVENTS = {
  config: { tier: "string", mode: "string", power: "number", spec_decoding: {} },
  trace: { step: "string", result: {} },
  status: { state: "string", waited_s: "number", estimate_s: "number" },
  reasoning: { text: "string", source: "string" },
  token: { text: "string", spec_accepted: "boolean" },
  escalation: { from_tier: "string", to_tier: "string", reason: "string" },
  metrics: {
    tokens_per_sec: "number",
    prompt_tokens: "number",
    completion_tokens: "number",
    spec: {},
    mean_batch: "number",
    energy: { wh: "number" },
    water_l: "number",
    co2_g: "number",
    cost_usd: "number",
    place: {},
    savings: { wh: "number", water_l: "number", co2_g: "number", cost_usd: "number", percent: "number", counterfactual: {} },
  },
  error: { code: "string", message: "string" },
};

/** @type {Record<string, Shape>} of the result of each step of `trace` whose parts are read */
const STEPS = {
  classify_prompt: { category: "string", reasons: ["string"] },
  build_config: { max_tokens: "number" },
  escalate: { from_tier: "string", to_tier: "string", reason: "string" },
  decision: { tiers: [{ tier: "string", past_runs: "number", ttft_ms: {}, total_ms: {}, cost_usd: {}, energy_wh: {} }] },
};

/**
 * @param {string} json the `data` of a server-sent event
 * @returns {StreamEvent}
 * @throws {BrokenEvent}
 */
export function readEvent(json) {
  const event = parsed(json);
  if (!fits(event, { type: "string" })) throw new BrokenEvent("An event of the answer has no type.");
  const { type, data } = event;
  const whole = fits(data, EVENTS[type]) && (type !== "trace" || fits(data.result, STEPS[data.step]));
  if (!whole) throw new BrokenEvent(`An event of the answer, “${type}”, lacks what it must have.`);
  return event;
}

/** @param {string} json */
function parsed(json) {
  try {
    return JSON.parse(json);
  } catch {
    throw new BrokenEvent("An event of the answer is not JSON.");
  }
}

/** @param {any} value @param {Shape | undefined} shape @returns {boolean} */
function fits(value, shape) {
  if (shape === undefined) return true;
  if (typeof shape === "string") return typeof value === shape;
  if (Array.isArray(shape)) return Array.isArray(value) && value.every((one) => fits(one, shape[0]));
  return typeof value === "object" && value !== null && Object.entries(shape).every(([field, of]) => fits(value[field], of));
}
