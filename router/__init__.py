"""The deterministic router: tier registry types, dials, prompt classifier and `plan()`. No Ray, no vLLM."""
