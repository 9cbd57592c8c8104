// Who answered and why: the reason in words, what each other tier would have taken, and what happened when.

import { element, setText } from "./dom.js";
import { UNKNOWN, amount, counted, duration, money } from "./format.js";
import { phaseWords, waitWords } from "./words.js";

/** @import {Answer} from "./state.js" */
/** @import {Decision, Expected, Trace} from "./types.js" */

/** @typedef {{atMs: number, what: string, detail?: string}} Happening */

/** @type {Record<string, string>} */
const SOURCES = { heuristic: "the router", claude: "Claude", agent: "the router's agent" };

export class Why {
  #section;
  #title;
  #reason;
  #table;
  #timeline;
  #drawn = "";

  /** @param {{section: HTMLElement, title: HTMLElement, reason: HTMLElement, table: HTMLTableElement, timeline: HTMLElement}} where */
  constructor({ section, title, reason, table, timeline }) {
    this.#section = section;
    this.#title = title;
    this.#reason = reason;
    this.#table = table.tBodies[0];
    this.#timeline = timeline;
  }

  /** @param {Answer} answer */
  draw(answer) {
    this.#section.hidden = !answer.config;
    const happenings = timeline(answer);
    // Tokens change nothing here, and come often.
    const drawing = JSON.stringify([happenings, answer.decision, answer.metrics, answer.reasonings]);
    if (drawing === this.#drawn) return;
    this.#drawn = drawing;
    setText(this.#title, title(answer));
    const told = answer.reasonings.at(-1)?.reasoning;
    setText(this.#reason, told ? `${told.text} (${SOURCES[told.source] ?? told.source})` : "");
    this.#reason.hidden = !told;
    this.#table.replaceChildren(...(answer.decision?.tiers.flatMap((tier) => rows(tier, answer)) ?? []));
    this.#timeline.replaceChildren(...happenings.map(drawn));
  }
}

/** The reasons and the table are about the tier that was chosen at first. @param {Answer} answer */
function title(answer) {
  const chosen = answer.config ? `Why ${answer.config.tier}` : "Why";
  const last = answer.seams.at(-1)?.seam;
  return last ? `${chosen}; ${last.to_tier} ${last.rewrite ? "begins anew" : "goes on"}` : chosen;
}

/** @param {Decision["tiers"][number]} tier @param {Answer} answer */
function rows(tier, { metrics, seams }) {
  const last = seams.at(-1)?.seam;
  const made = [
    element(
      "tr",
      { class: tier.taken ? "taken" : "other" },
      element("th", { scope: "row" }, tier.taken ? `${tier.tier} ✓` : tier.tier),
      cell(tier.ttft_ms, duration),
      cell(tier.total_ms, duration),
      cell(tier.cost_usd, money),
      cell(tier.energy_wh, energy),
    ),
  ];
  if (tier.taken && metrics) {
    made.push(
      element(
        "tr",
        { class: "taken" },
        element("th", { scope: "row" }, last ? `actual, with ${last.to_tier}` : "actual"),
        element("td", {}, duration(metrics.ttft_ms)),
        element("td", {}, duration(metrics.total_ms)),
        element("td", {}, money(metrics.cost_usd)),
        element("td", {}, energy(metrics.energy.wh)),
      ),
    );
  }
  const runs = tier.past_runs >= 1 ? `from ${counted(Math.round(tier.past_runs), "past run")}` : "from the profile's figures";
  const seam = last?.to_tier === tier.tier ? `${last.rewrite ? "begins anew" : "goes on"} at token ${last.at_token}; at first: ` : "";
  const note = tier.taken ? `${last ? "began" : "answers"}; expected ${runs}` : `${seam}${tier.warm ? "" : "cold; "}${tier.why_not ?? ""}`;
  made.push(element("tr", { class: "because" }, element("td", { colspan: 5 }, note)));
  return made;
}

/** @param {number} wh */
function energy(wh) {
  return amount(wh, "Wh");
}

/** @param {Expected} range @param {(value: number) => string} words */
function cell({ expected, low, high }, words) {
  const title = low === null || high === null ? "it cannot start" : `${words(low)} to ${words(high)} in eight of ten`;
  return element("td", { title }, expected === null ? UNKNOWN : words(expected));
}

/** @param {Happening} happening */
function drawn({ atMs, what, detail }) {
  const item = element("li", {}, element("span", { class: "at muted" }, duration(atMs)), element("span", { class: "what" }, what));
  if (detail) item.append(element("span", { class: "detail muted" }, detail));
  return item;
}

/**
 * What happened in an answer, in order. `atMs` counts from the request, in the browser.
 *
 * @param {Answer} answer
 * @returns {Happening[]}
 */
export function timeline(answer) {
  const { mode, power, speed } = answer.request;
  /** @type {Happening[]} */
  const found = [{ atMs: 0, what: mode === "auto" ? `Asked, AUTO, speed ${speed}` : `Asked, power ${power}, speed ${speed}` }];
  for (const { atMs, trace } of answer.trace) found.push({ atMs, ...stepWords(trace) });
  for (const { atMs, status } of answer.waits) found.push({ atMs, what: waitWords(status) });
  for (const { atMs, seam } of answer.seams) {
    found.push({ atMs, what: `${seam.to_tier} takes over from ${seam.from_tier} at token ${seam.at_token}`, detail: seam.reason });
  }
  if (answer.firstTokenMs !== null) found.push({ atMs: answer.firstTokenMs, what: "First token" });
  for (const [type, count] of answer.unknown) found.push({ atMs: answer.endedMs ?? 0, what: `${counted(count, "event")} of an unknown type: ${type}` });
  if (answer.endedMs !== null) found.push({ atMs: answer.endedMs, what: phaseWords(answer), detail: answer.trouble?.message });
  return found.sort((one, other) => one.atMs - other.atMs);
}

/** @param {Trace} trace @returns {{what: string, detail?: string}} */
function stepWords({ step, result, duration_ms }) {
  const took = duration(duration_ms);
  switch (step) {
    case "classify_prompt":
      return { what: `Rated: ${result.category.replaceAll("_", " ")}, difficulty ${result.difficulty} of 10`, detail: `${result.reasons.join("; ")} (${took})` };
    case "goal":
      return { what: `Goal: ${result.goal}`, detail: result.reason };
    case "availability":
      return { what: `${result.tier} instead of ${result.wanted_tier}`, detail: result.reason };
    case "constraints":
      return { what: result.kept ? "Limits will be kept" : "A limit will be broken", detail: result.reason };
    case "check_gpu_pool":
      return { what: result.warm ? `${result.tier} is warm` : `${result.tier} is cold, ${duration(result.cold_start_s * 1000)} to start`, detail: result.reason ?? undefined };
    case "build_config":
      return {
        what: `Power ${result.power}, at most ${counted(result.max_tokens, "token")}, temperature ${result.temperature}`,
        detail: `entry ${result.entry}: ${result.spec_k ? `up to ${result.spec_k} drafts a step by ${result.spec_method}` : "no drafts"}`,
      };
    case "escalate":
      return {
        what: typeof result.at_token === "number" ? `Advice at token ${result.at_token}: ${result.to_tier} should go on` : `Advice: ${result.to_tier} instead of ${result.from_tier}`,
        detail: result.reason,
      };
    case "agent":
      return { what: `Claude was asked (${result.model})`, detail: result.detail ?? `took ${took}` };
    default:
      return { what: step.replaceAll("_", " "), detail: typeof result.reason === "string" ? result.reason : undefined };
  }
}
