"""The weights of a profile's models: download or make them, check them, and find them for the engines.

`power-lever weights` is the command line. The rest of the code needs only the names below.
"""

from cluster.weights.errors import WeightsError
from cluster.weights.folder import is_complete, missing_reason, model_path, models_dir

__all__ = ["WeightsError", "is_complete", "missing_reason", "model_path", "models_dir"]
