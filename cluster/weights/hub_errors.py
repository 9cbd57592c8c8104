"""What the hub's refusals and the network's failures mean for the user: one line each, with what to do."""

from __future__ import annotations

from json import JSONDecodeError

from router.registry import ModelSource


def explain(error: Exception, source: ModelSource, endpoint: str, *, has_token: bool) -> str | None:
    """The line for an error of `huggingface_hub`, its HTTP client or a socket; None for one of the local disk."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        HTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    page = f"{endpoint}/{source.repo}"
    match error:
        case GatedRepoError():
            token = "your HF_TOKEN's account has no access yet" if has_token else "no HF_TOKEN is set"
            return f"{source.repo} is gated and {token}: accept its licence at {page}, set HF_TOKEN, and seed again"
        case RevisionNotFoundError():
            return f"{source.repo} has no revision {source.revision!r}: correct `revision` in the profile (see {page})"
        case HfHubHTTPError() if _status(error) == 401 and not has_token:  # what it says of unknown names, too
            return (
                f"the hub asks for a token: {source.repo} is private, gated or does not exist; check `repo` in the "
                f"profile, or set HF_TOKEN ({endpoint}/settings/tokens)"
            )
        case RepositoryNotFoundError():
            return f"{source.repo} is not on {endpoint}, or this token may not see it: correct `repo` in the profile"
        case HfHubHTTPError() if _status(error) == 401:
            return f"the hub does not accept HF_TOKEN (401): make a new one at {endpoint}/settings/tokens"
        case HfHubHTTPError() if _status(error) == 403:
            return (
                f"HF_TOKEN has no right to read {source.repo} (403): give it read access at {endpoint}/settings/tokens"
            )
        case HfHubHTTPError() if _status(error) == 429:
            return f"{endpoint} asks for fewer requests (429): wait some minutes and seed again, it continues"
        case HfHubHTTPError():
            return f"{endpoint} answered {_status(error)}: seed again later, it continues"
        case OfflineModeIsEnabled():
            return f"HF_HUB_OFFLINE is set, and {source.repo} is not here yet: unset it and seed again"
        case HTTPError():
            return (
                f"no connection to {endpoint} ({type(error).__name__}: {error}): check the network, the proxy and "
                "HF_ENDPOINT, and seed again, it continues"
            )
        case HFValidationError():
            return f"{source.repo!r} is no repository name (`org/name`): correct `repo` in the profile"
        case JSONDecodeError():
            return f"{endpoint} does not answer as a model hub: check HF_ENDPOINT"
        case _:
            return None


def _status(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    return getattr(response, "status_code", None)
