// Asks for a key where the server needs one. The key is handed on, and stays nowhere here.

import { setKey } from "./api.js";
import { byId, setText } from "./dom.js";

/** What a header may carry, and every key has. */
const KEY = /^[\x21-\x7e]+$/;

export class KeyPrompt {
  #dialog = byId("key-dialog", HTMLDialogElement);
  #field = byId("key", HTMLInputElement);
  #note = byId("key-note", HTMLElement);
  #button = byId("key-button", HTMLButtonElement);
  /** A key was given, and the server has not yet answered to it. */
  #tried = false;
  /** The server has taken a key. */
  #had = false;
  /** The server asks for a key, and has none that it takes: requests are useless. */
  needed = false;

  /** @param {() => void} tryIt asks the server with the key that was given */
  constructor(tryIt) {
    byId("key-form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      const key = this.#field.value.trim();
      this.#field.value = "";
      if (!KEY.test(key)) {
        setText(this.#note, "This is no key: it has no spaces, and only letters, digits and signs.");
        return;
      }
      this.#tried = true;
      setKey(key);
      tryIt();
    });
    byId("key-later", HTMLButtonElement).addEventListener("click", () => this.#dialog.close());
    this.#dialog.addEventListener("close", () => {
      this.#field.value = "";
      this.#button.hidden = !this.needed;
    });
    this.#button.addEventListener("click", () => this.ask());
  }

  /** Shows the question. */
  ask() {
    if (!this.#dialog.open) this.#dialog.showModal();
    this.#field.focus();
  }

  /** The server has answered. */
  taken() {
    this.#had ||= this.#tried;
    this.#tried = false;
    if (!this.needed) return;
    this.needed = false;
    setText(this.#note, "");
    this.#button.hidden = true;
    this.#dialog.close();
  }

  /** The server has refused for want of a key. */
  refused() {
    const reason = this.#tried ? "The server does not take this key." : this.#had ? "The server no longer takes the key that you gave." : "";
    this.#tried = this.#had = false;
    // One request may be refused after another: what was said stays.
    if (!this.needed || reason) setText(this.#note, reason);
    this.needed = true;
    setKey("");
    this.ask();
  }
}
