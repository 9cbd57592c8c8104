"""`router.plan.plan` for the routes: what no tier can serve is an error that the client must mend."""

from __future__ import annotations

from router.needs import NOTHING_MORE, Needs, NoTierError
from router.observation import Observation
from router.plan import Plan, plan
from router.registry import Profile
from router.request import InferenceRequest
from serve_app.api.errors import bad_request


def planned(request: InferenceRequest, observation: Observation, profile: Profile, needs: Needs = NOTHING_MORE) -> Plan:
    """Plan a request.

    Raises:
        ApiError: 400, no tier can ever serve it.
    """
    try:
        return plan(request, observation, profile, needs=needs)
    except NoTierError as error:
        raise bad_request(error.message, code=error.code) from error
