"""The router: tier registry, prompt classifier, past runs, `plan()` and the agent. No Ray, no vLLM."""
