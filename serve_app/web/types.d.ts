/*
 * What the page reads of `GET /api/tiers` and of the events of `POST /api/inference`; docs/api.md says what each field
 * means. tests/unit/test_web_types.py holds these types against docs/api.md, so the page can read no field that is not
 * there. One field a line; an object of an array or of a name is `Array<{...}>` or `Record<string, ...>`.
 */

export type TierName = "eco" | "balanced" | "performance" | "ultra";

/** A predicted value. Null: the tier cannot start. */
export interface Expected {
  expected: number | null;
  low: number | null;
  high: number | null;
}

export interface Config {
  request_id: string;
  mode: "auto" | "manual";
  power: number;
  speed: number;
  tier: TierName;
  gpu: string;
  engine: "vllm" | "stub";
  target_model: string;
  draft_model: string | null;
  fallback_step: string;
  spec_decoding: {
    enabled: boolean;
    method: string | null;
    reason: string | null;
    K: number;
    k_mode: "auto" | "fixed";
  };
  sampling: {
    max_tokens: number;
    temperature: number;
  };
  warm: boolean;
  cold_start_s: number;
}

/** One step of the router. `result` depends on the step; the page reads `reason`, and what timeline.js names. */
export interface Trace {
  step: string;
  result: Record<string, any>;
  duration_ms: number;
}

/** The result of the trace step `decision`. */
export interface Decision {
  by: "router" | "user" | "agent";
  tier: TierName;
  power: number;
  deserved_tier: TierName;
  category: string;
  difficulty: number;
  tiers: Array<{
    tier: TierName;
    target_model: string;
    warm: boolean;
    taken: boolean;
    why_not: string | null;
    past_runs: number;
    ttft_ms: Expected;
    total_ms: Expected;
    cost_usd: Expected;
    energy_wh: Expected;
  }>;
}

/** `state` is `queued`, `provisioning`, `loading`, or one that this page does not know yet. */
export interface Status {
  state: string;
  waited_s: number;
  estimate_s: number;
  reason: string | null;
}

export interface Reasoning {
  text: string;
  source: string;
}

export interface Token {
  text: string;
  token_id: number;
  logprob: number | null;
  spec_accepted: boolean;
  spec_k: number;
}

/** A seam: another tier goes on with the answer, or with `rewrite` begins it anew. */
export interface Escalation {
  from_tier: string;
  to_tier: string;
  reason: string;
  at_token: number;
  rewrite: boolean;
}

export interface Metrics {
  ttft_ms: number;
  queue_ms: number;
  total_ms: number;
  tokens_per_sec: number;
  prompt_tokens: number;
  completion_tokens: number;
  finish_reason: string;
  spec: {
    method: string | null;
    draft_tokens: number;
    accepted_tokens: number;
    acceptance_rate: number | null;
    why_stopped: string | null;
  };
  mean_batch: number;
  energy: {
    wh: number;
    source: string;
  };
  water_l: number;
  co2_g: number;
  cost_usd: number;
  place: {
    site: string;
    grid: string;
  };
  savings: {
    wh: number;
    water_l: number;
    co2_g: number;
    cost_usd: number;
    percent: number;
    counterfactual: {
      gpu: string;
    };
  };
}

export interface Failure {
  code: string;
  message: string;
  retryable: boolean;
  request_id: string;
}

export interface Tier {
  name: TierName;
  power: [number, number];
  gpu: string;
  gpus: number;
  price_usd_per_hour: number;
  active_watts: number;
  replicas: {
    running: number;
    starting: number;
    pending: number;
    max: number;
  };
  state: "cold" | "provisioning" | "loading" | "warm" | "busy" | "failed";
  reason: string | null;
  active_entry: string | null;
  chain: Array<{
    name: string;
    target: string;
    method: string | null;
    failure: string | null;
  }>;
  requests: {
    running: number;
    waiting: number;
  };
  queue_wait_ms: number;
  cold_start_s: number;
}

export interface Tiers {
  profile: string;
  profile_reason: string;
  inference_mode: "real" | "mock";
  /** What of a request leaves the cluster, unless the request refuses it. Null: nothing does. */
  leaves_cluster: {
    to: string;
    what: string;
  } | null;
  baseline: {
    gpu: string;
  };
  tiers: Tier[];
}

/** The body of `POST /api/inference`, as far as the page sets it. */
export interface InferenceRequest {
  prompt: string;
  mode: "auto" | "manual";
  power?: number;
  speed: number;
  goal?: string;
  max_tokens?: number;
  constraints?: Record<string, number>;
  spec?: { k: number | "auto" };
  escalate?: string;
  rewrite?: boolean;
  reasoning?: boolean;
}

/** Every event of which the page knows what it means. */
export interface EventData {
  config: Config;
  trace: Trace;
  status: Status;
  reasoning: Reasoning;
  token: Token;
  escalation: Escalation;
  metrics: Metrics;
  done: { request_id: string };
  error: Failure;
}

/** An event of a type that the page knows. Others come too: their `type` is any other string. */
export type KnownEvent = { [T in keyof EventData]: { type: T; data: EventData[T] } }[keyof EventData];
