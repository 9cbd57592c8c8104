"""Weights of the models that a profile names: fetched or made, checked, and found again by the engines.

`python -m cluster.weights seed|list|verify` is the command line; the names below are for the rest of the code.
"""

from cluster.weights.errors import WeightsError
from cluster.weights.folder import is_complete, missing_reason, model_path, models_dir

__all__ = ["WeightsError", "is_complete", "missing_reason", "model_path", "models_dir"]
