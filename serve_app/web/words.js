// What the page says about states, errors and ends.

import { counted, duration, figure } from "./format.js";

/** @import {Answer, Trouble} from "./state.js" */
/** @import {Status, Tier, Tiers} from "./types.js" */

/** @type {Record<string, string>} */
const WAITS = {
  queued: "Queued: another request is ahead",
  provisioning: "Provisioning: a machine is being found",
  loading: "Loading the model",
  resumed: "Resumed: another replica goes on",
};

/** @param {Status} status */
export function waitWords(status) {
  const left = status.estimate_s > 0 ? `about ${duration(status.estimate_s * 1000)} left` : "";
  // A request that resumes waits anew: `waited_s` counts from its arrival.
  const waited = status.state === "resumed" ? "" : `waited ${duration(status.waited_s * 1000)}`;
  const reason = status.reason ? ` (${status.reason})` : "";
  return `${[WAITS[status.state] ?? status.state, waited, left].filter(Boolean).join(", ")}${reason}`;
}

/** @param {NonNullable<Tiers["leaves_cluster"]>} leaving */
export function leavesWords({ to, what }) {
  return `To explain the choice, this server sends to ${to}: ${what}. Untick “Explain the choice” in the options, and nothing leaves its cluster.`;
}

/** @type {Record<string, string>} */
const TROUBLES = {
  connection_lost: "No connection",
  stream_cut: "The answer was cut off",
  broken_event: "The page cannot read the answer",
  bad_gateway: "The server did not answer",
  overloaded: "Too many requests at once",
  stopping: "The server is stopping",
  tier_unavailable: "This tier cannot start",
  pool_unavailable: "A part of the server is being replaced",
  engine_dead: "The engine died",
  engine_failed: "The engine failed",
  replica_lost: "The machine that answered is gone",
  channel_failed: "The engine cannot reach the server",
  timeout: "It took too long",
  prompt_too_long: "The prompt or the answer is too long",
  invalid_request: "The server does not take this request",
  bad_request: "The server does not take this request",
  not_json: "The server does not take this request",
  internal_error: "The server failed",
  unauthorized: "The server asks for a key",
  rate_limit_exceeded: "Your key has reached its limit",
};

/** @param {Trouble} trouble */
export function troubleTitle(trouble) {
  return TROUBLES[trouble.code] ?? "It failed";
}

/** @param {Answer} answer in one line, for the head of the answer and for screen readers */
export function phaseWords(answer) {
  const tier = answer.tier ?? "The server";
  switch (answer.phase) {
    case "waiting": {
      const wait = answer.waits.at(-1);
      if (wait) return waitWords(wait.status);
      return answer.config ? `${tier} was asked` : "Asking";
    }
    case "streaming":
      return `${tier} answers`;
    case "done":
      return `Done: ${counted(answer.metrics?.completion_tokens ?? answer.tokens, "token")}${took(answer)}${ending(answer)}`;
    case "stopped":
      return `You stopped it after ${counted(answer.tokens, "token")}`;
    case "failed":
      return answer.trouble ? troubleTitle(answer.trouble) : "It failed";
  }
}

/** @param {Answer} answer */
function took(answer) {
  return answer.metrics ? ` in ${duration(answer.metrics.total_ms)}` : "";
}

/** @param {Answer} answer */
function ending(answer) {
  return answer.metrics?.finish_reason === "length" ? ", stopped at the token limit" : "";
}

/** @param {Pick<Tier, "gpu" | "gpus">} tier */
export function gpuWords(tier) {
  if (tier.gpu === "cpu") return "CPU";
  return tier.gpus === 1 ? tier.gpu : `${figure(tier.gpus)} × ${tier.gpu}`;
}
