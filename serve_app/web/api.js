// The page's requests to its own server. Paths are relative, so that the application may have a route prefix.

import { BrokenEvent } from "./events.js";
import { readEvents } from "./stream.js";

/** @import {InferenceRequest, Tiers} from "./types.js" */
/** @import {StreamEvent} from "./events.js" */

const TIERS_WITHIN_MS = 5000;
/** The code of a refusal for want of a key. */
export const UNAUTHORIZED = "unauthorized";

/** Sent with every request; in memory only, so that a reload forgets it. */
let key = "";

/** @param {string} given printable ASCII; empty: none is sent any more */
export function setKey(given) {
  key = given;
}

/** @returns {Record<string, string>} */
function keyHeader() {
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** The request has no answer: the server refused it, or the connection failed. */
export class RequestError extends Error {
  /**
   * @param {string} code the server's, `connection_lost` or `broken_event`
   * @param {string} message
   * @param {boolean} retryable
   */
  constructor(code, message, retryable) {
    super(message);
    this.code = code;
    this.retryable = retryable;
  }
}

/**
 * Asks, and gives the events of the answer in batches. Aborting the signal closes the connection, and so frees the engine.
 *
 * @param {InferenceRequest} request
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<StreamEvent[], void, void>}
 * @throws {RequestError} the server refused, an event cannot be read, or the connection failed; `AbortError` if the signal was aborted
 */
export async function* ask(request, signal) {
  try {
    const response = await fetch("api/inference", {
      method: "POST",
      headers: { "content-type": "application/json", ...keyHeader() },
      body: JSON.stringify(request),
      signal,
    });
    if (!response.ok || !response.body) throw await refusal(response);
    yield* readEvents(response.body);
  } catch (error) {
    if (signal.aborted || error instanceof RequestError) throw error;
    if (error instanceof BrokenEvent) throw new RequestError("broken_event", error.message, true);
    throw new RequestError("connection_lost", "The connection to the server was lost.", true);
  }
}

/**
 * @returns {Promise<Tiers>}
 * @throws {RequestError} also where no answer comes within five seconds
 */
export async function getTiers() {
  try {
    const response = await fetch("api/tiers", { cache: "no-store", headers: keyHeader(), signal: AbortSignal.timeout(TIERS_WITHIN_MS) });
    if (!response.ok) throw await refusal(response);
    return await response.json();
  } catch (error) {
    if (error instanceof RequestError) throw error;
    throw new RequestError("connection_lost", "The server does not answer.", true);
  }
}

/** @param {Response} response */
async function refusal(response) {
  try {
    const { code, message, retryable } = (await response.json()).error;
    return new RequestError(code, message, retryable);
  } catch {
    // Not this server's JSON: a proxy's own page.
    return new RequestError("bad_gateway", `The server answered with status ${response.status}.`, response.status >= 500);
  }
}
