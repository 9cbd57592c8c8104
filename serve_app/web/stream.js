// Reads the events of `POST /api/inference` from a response's bytes.

/**
 * An event as it came: one of `KnownEvent`, or one of a type that this page does not know.
 *
 * @typedef {{type: string, data: any}} StreamEvent
 */

/**
 * Cuts server-sent events out of pieces of text, wherever a piece ends. Comments (pings) and blank blocks give nothing.
 */
export class EventCutter {
  #rest = "";

  /**
   * @param {string} piece
   * @returns {StreamEvent[]} the events that are complete now
   */
  push(piece) {
    const blocks = (this.#rest + piece).split("\n\n");
    this.#rest = blocks.pop() ?? "";
    return blocks.flatMap((block) => {
      const lines = block.split("\n").filter((line) => line.startsWith("data:"));
      return lines.length ? [JSON.parse(lines.map((line) => line.slice(5)).join("\n"))] : [];
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
