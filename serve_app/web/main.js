// The page: asks, draws the answer as it comes, and shows the tiers.

import { Announcer } from "./announcer.js";
import { AnswerText } from "./answer.js";
import { RequestError, UNAUTHORIZED, ask, getTiers } from "./api.js";
import { Dial } from "./dial.js";
import { byId, setText } from "./dom.js";
import { Figures } from "./figures.js";
import { History } from "./history.js";
import { KeyPrompt } from "./key.js";
import { Plot } from "./plot.js";
import { RequestForm } from "./request.js";
import { Answer } from "./state.js";
import { TierBoard } from "./tiers.js";
import { Why } from "./timeline.js";
import { leavesWords, phaseWords, troubleTitle } from "./words.js";

/** @import {InferenceRequest, Tiers} from "./types.js" */

const TIERS_EVERY_MS = 2000;
const LIVE_EVERY_MS = 250;
/** How much of an answer's box is seen at least when it begins. */
const SEEN_PX = 200;

const prompt = byId("prompt", HTMLTextAreaElement);
const send = byId("send", HTMLButtonElement);
const stop = byId("stop", HTMLButtonElement);
const phase = byId("phase", HTMLElement);
const asked = byId("asked", HTMLElement);
const empty = byId("empty", HTMLElement);
const answerBox = byId("answer", HTMLElement);
const answerPanel = byId("answer-panel", HTMLElement);
const trouble = byId("trouble", HTMLElement);
const retry = byId("retry", HTMLButtonElement);
const marks = byId("marks", HTMLInputElement);
const legend = byId("legend", HTMLElement);
const figuresBox = byId("figures", HTMLElement);
const server = byId("server", HTMLElement);
const leaves = byId("leaves", HTMLElement);

/** @type {Tiers | null} */
let tiers = null;
/** The answer that is shown. @type {Answer | null} */
let shown = null;
/** The answer under way. @type {{answer: Answer, began: number, abort: AbortController} | null} */
let running = null;
/** The answer that was drawn last. @type {Answer | null} */
let drawn = null;
let drawAsked = false;
/** The shown answer was asked just now, and is not yet drawn. */
let askedNow = false;

const board = new TierBoard(byId("tiers", HTMLElement));
const drawBoard = () => tiers && board.draw(tiers.tiers, (running?.answer.tier ?? null) || dial.tier);
const dial = new Dial(() => {
  drawBoard();
  form?.draw();
});
const form = new RequestForm(dial);
const text = new AnswerText(answerBox);
const announcer = new Announcer(byId("announcer", HTMLElement));
const figures = new Figures(figuresBox, byId("savings", HTMLElement));
const plot = new Plot(byId("plot", HTMLElement));
const why = new Why({
  section: byId("why", HTMLElement),
  title: byId("why-title", HTMLElement),
  reason: byId("reason", HTMLElement),
  table: byId("tiers-table", HTMLTableElement),
  timeline: byId("timeline", HTMLElement),
});
const keyPrompt = new KeyPrompt(() => void refreshTiers());
const history = new History(
  { list: byId("history", HTMLElement), sum: byId("history-sum", HTMLElement), empty: byId("history-empty", HTMLElement) },
  show,
);

/** Draws at the next frame, however many events came until then. */
function drawSoon() {
  if (drawAsked) return;
  drawAsked = true;
  requestAnimationFrame(() => {
    drawAsked = false;
    draw();
  });
}

function draw() {
  if (!shown) return;
  const answer = shown;
  const nowMs = running?.answer === answer ? performance.now() - running.began : (answer.endedMs ?? 0);
  // Whoever reads at the end stays there; whoever has scrolled up stays too.
  const follows = drawn === answer && answerBox.scrollHeight - answerBox.scrollTop - answerBox.clientHeight < 24;
  empty.hidden = true;
  asked.hidden = answerBox.hidden = figuresBox.hidden = false;
  setText(asked, answer.request.prompt);
  text.draw(answer);
  if (follows) answerBox.scrollTop = answerBox.scrollHeight;
  drawn = answer;
  setText(phase, phaseWords(answer));
  phase.dataset.phase = answer.phase;
  legend.hidden = !marks.checked || !answer.draftedTokens;
  figures.draw(answer, nowMs);
  plot.draw(answer, nowMs);
  why.draw(answer);
  drawTrouble(answer);
  if (askedNow) bringIntoView();
}

/** Scrolls to the answer that was asked just now where little of it would be seen, as on a phone. The focus stays. */
function bringIntoView() {
  askedNow = false;
  if (answerBox.getBoundingClientRect().top < window.innerHeight - SEEN_PX) return;
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  answerPanel.scrollIntoView({ block: "start", behavior: still ? "instant" : "smooth" });
}

/** @param {Answer} answer */
function drawTrouble(answer) {
  trouble.hidden = !answer.trouble;
  if (!answer.trouble) return;
  setText(byId("trouble-title", HTMLElement), `${troubleTitle(answer.trouble)}.`);
  setText(byId("trouble-message", HTMLElement), answer.trouble.message);
  retry.hidden = !answer.trouble.retryable;
}

/** @param {Answer} answer that is shown again */
function show(answer) {
  shown = answer;
  history.draw(answer);
  draw();
}

/** @param {InferenceRequest} request */
async function run(request) {
  const answer = new Answer(request);
  const abort = new AbortController();
  const began = performance.now();
  const now = () => performance.now() - began;
  running = { answer, began, abort };
  shown = answer;
  askedNow = true;
  announcer.begin();
  announcer.say("Asking");
  const live = setInterval(drawSoon, LIVE_EVERY_MS);
  let said = "";
  try {
    setRunning(true);
    history.add(answer);
    draw(); // nothing of the last answer is seen any more
    for await (const events of ask(request, abort.signal)) {
      for (const event of events) {
        answer.take(event, now());
        if (event.type === "config") dial.show(event.data);
      }
      const state = answer.phase === "waiting" ? (answer.waits.at(-1)?.status.state ?? "") : answer.phase;
      if (state !== said && !answer.ended) announcer.say(phaseWords(answer));
      said = state;
      announcer.follow(answer, now());
      drawSoon();
    }
    answer.close(now());
  } catch (error) {
    if (abort.signal.aborted) answer.stop(now());
    else if (error instanceof RequestError) {
      answer.fail(error, now());
      if (error.code === UNAUTHORIZED) keyPrompt.refused();
    }
    else {
      answer.fail({ code: "page_failed", message: "The page itself failed; its console says why.", retryable: true }, now());
      throw error;
    }
  } finally {
    abort.abort(); // an answer that nobody reads any more must not keep the engine
    clearInterval(live);
    announcer.follow(answer, now());
    announcer.say([phaseWords(answer), answer.trouble?.message].filter(Boolean).join(". "));
    running = null;
    setRunning(false);
    if (shown) history.draw(shown);
    drawSoon();
    void refreshTiers();
  }
}

/** @param {boolean} under an answer is under way */
function setRunning(under) {
  const focused = document.activeElement === (under ? send : stop);
  send.hidden = under;
  stop.hidden = !under;
  if (focused) (under ? stop : send).focus();
  drawSoon();
}

function submit() {
  if (running) return;
  if (keyPrompt.needed) {
    keyPrompt.ask();
    return;
  }
  const request = form.read();
  if (request) void run(request);
}

byId("form", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
byId("reasoning", HTMLInputElement).addEventListener("change", drawLeaves);
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  // In the question for a key it closes that one.
  if (event.key === "Escape" && !(event.target instanceof Element && event.target.closest("dialog"))) running?.abort.abort();
});
stop.addEventListener("click", () => running?.abort.abort());
retry.addEventListener("click", () => {
  if (shown && !running) void run(shown.request);
  prompt.focus({ preventScroll: true });
});
marks.addEventListener("change", () => {
  answerBox.classList.toggle("unmarked", !marks.checked);
  drawSoon();
});
byId("examples", HTMLElement).addEventListener("click", (event) => {
  if (!(event.target instanceof HTMLButtonElement)) return;
  prompt.value = event.target.textContent ?? "";
  prompt.focus();
});

/** Says what of the next request leaves the cluster, if anything does. */
function drawLeaves() {
  const leaving = form.explains ? tiers?.leaves_cluster : null;
  leaves.hidden = !leaving;
  if (leaving) setText(leaves, leavesWords(leaving));
}

async function refreshTiers() {
  try {
    tiers = await getTiers();
    drawLeaves();
    const warm = tiers.tiers.filter((tier) => ["warm", "busy"].includes(tier.state)).length;
    const stub = tiers.inference_mode === "mock" ? ", stub engines: no model answers" : "";
    setText(server, `profile ${tiers.profile}, ${warm} of ${tiers.tiers.length} tiers warm${stub}`);
    dial.setTiers(tiers.tiers);
    drawBoard();
    server.classList.remove("bad");
    keyPrompt.taken();
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    server.classList.add("bad");
    if (error.code === UNAUTHORIZED) {
      setText(server, "This server asks for a key.");
      keyPrompt.refused();
    } else setText(server, `${error.message} Trying again.`);
  }
}

async function followTiers() {
  for (;;) {
    if (!document.hidden && !keyPrompt.needed) await refreshTiers();
    await new Promise((resolve) => setTimeout(resolve, TIERS_EVERY_MS));
  }
}

void followTiers();
