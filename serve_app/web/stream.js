// Reads the events of `POST /api/inference` from a response's bytes.

import { readEvent } from "./events.js";

/** @import {BrokenEvent, StreamEvent} from "./events.js" */

/**
 * Cuts server-sent events out of pieces of text, wherever a piece ends. Comments (pings) and blank blocks give nothing.
 * A proxy may end lines with CRLF.
 */
export class EventCutter {
  #rest = "";

  /**
   * @param {string} piece
   * @returns {StreamEvent[]} the events that are complete now
   * @throws {BrokenEvent}
   */
  push(piece) {
    const blocks = (this.#rest + piece).split(/\r?\n\r?\n/);
    this.#rest = blocks.pop() ?? "";
    return blocks.flatMap((block) => {
      const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      return lines.length ? [readEvent(lines.map((line) => line.slice(5)).join("\n"))] : [];
    });
  }
}

/**
 * Gives the events of a response, all that came in one piece at once. It ends with the response; a cut connection, and
 * a stop by the reader, are thrown.
 *
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<StreamEvent[], void, void>}
 */
export async function* readEvents(body) {
  const cutter = new EventCutter();
  const decoder = new TextDecoder(); // a character may be cut between two pieces
  const reader = body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = cutter.push(decoder.decode(value, { stream: true }));
    if (events.length) yield events;
  }
}
