"""The categories of prompts."""

from __future__ import annotations

from typing import Literal, get_args

Category = Literal["safety_critical", "code", "math", "creative", "simple_question", "general_reasoning"]
CATEGORIES: tuple[Category, ...] = get_args(Category)
