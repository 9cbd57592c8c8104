"""The OpenAI routes: what their bodies may hold, which tier answers, and how its response is passed on."""
