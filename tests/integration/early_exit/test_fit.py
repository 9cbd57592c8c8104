"""The projection: ridge least squares, pulled to the identity."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cluster.weights.early_exit.fit import agreement, first_choices, fit_projection


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_without_a_ridge_it_is_the_least_squares_solution() -> None:
    x, y = normal(200, 8, seed=1), normal(200, 8, seed=2)
    solution = np.linalg.lstsq(x.double().numpy(), y.double().numpy(), rcond=None)[0]
    np.testing.assert_allclose(fit_projection(x, y, ridge=0.0).numpy(), solution.T, atol=1e-6)


def test_a_ridge_equals_additional_rows_of_the_identity() -> None:
    x, y, ridge = normal(50, 8, seed=1), normal(50, 8, seed=2), 0.1
    strength = ridge * float((x.double() ** 2).sum()) / 8
    rows = np.sqrt(strength) * np.eye(8)
    solution = np.linalg.lstsq(np.vstack([x.numpy(), rows]), np.vstack([y.numpy(), rows]), rcond=None)[0]
    np.testing.assert_allclose(fit_projection(x, y, ridge).numpy(), solution.T, atol=1e-6)


def test_it_recovers_an_exact_projection() -> None:
    x, expected = normal(500, 8, seed=1), normal(8, 8, seed=2)
    found = fit_projection(x, x @ expected.T, ridge=1e-9)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_equal_states_give_the_identity() -> None:
    x = normal(20, 8, seed=1)  # 20 rows
    torch.testing.assert_close(fit_projection(x, x), torch.eye(8))


def test_directions_without_data_keep_the_early_state() -> None:
    x = normal(20, 8, seed=1)
    x[:, 5:] = 0
    projection = fit_projection(x, -x)
    torch.testing.assert_close(projection[5:, 5:], torch.eye(3))
    assert (projection[:5, :5].diagonal() < 0).all()


@pytest.mark.parametrize("rows", [1, 511, 512, 1300])
def test_choices_and_agreement_are_of_every_row(rows: int) -> None:
    states, head = normal(rows, 8, seed=1), normal(30, 8, seed=2)
    choices = (states @ head.T).argmax(-1)
    assert torch.equal(first_choices(states, head), choices)
    assert agreement(states, head, choices) == 1.0
    choices[0] = (choices[0] + 1) % 30
    assert agreement(states, head, choices) == pytest.approx(1 - 1 / rows)
