"""The routes of OpenAI's and Anthropic's APIs: what their bodies may hold, what the router sees of them, and how the
engine's response is passed on."""
