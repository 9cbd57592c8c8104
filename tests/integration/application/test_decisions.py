"""The decision record of a request, from every ingress replica."""

from __future__ import annotations

from tests.support.api import Api

REQUESTS = 20
"""So many answers in a row come from both ingress replicas, but for one time in 500,000."""


def test_every_ingress_replica_has_the_record_that_the_trace_ended_with(tight: Api) -> None:
    answer = tight.infer(prompt="What is the weather like today? stub:tokens=2", max_tokens=5)
    decision = answer.all("trace")[-1]
    assert decision["step"] == "decision"

    path = f"/api/decisions/{answer.one('config')['decision_id']}"
    records = [tight.get(path) for _ in range(REQUESTS)]
    assert {record.status_code for record in records} == {200}
    for record in records:
        assert record.json().items() >= decision["result"].items()
        assert "weather" not in record.text


def test_an_unknown_decision_is_a_404(tight: Api) -> None:
    response = tight.get("/api/decisions/0123")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
    assert response.json()["error"]["request_id"]
