"""`power-lever check FILE...`: check config files and profiles before Ray starts anything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click
from pydantic import ValidationError
from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema

from cluster.catalogue.problems import profile_problems
from cluster.profiles.reading import read_yaml, validate_profile
from router.agent.settings import AgentSettings, never_asked
from router.difficulty.gain_model import load_gain_model
from router.errors import ConfigError, unknown_keys
from router.registry import TIER_NAMES, Profile
from serve_app.auth.key_file import load_keys
from serve_app.auth.keys import utc_now
from serve_app.auth.listening import raise_if_open
from serve_app.auth.settings import DEFAULT_CAP, AuthSettings
from serve_app.config import load_config
from serve_app.engine.vllm.known_arguments import argument_problems

IMPORT_PATH: Final = "serve_app.app:build"
"""How a config file names our application."""
DEPLOYMENTS: Final = ("ingress", "pool", *TIER_NAMES)
"""Its deployments (`app.py`)."""


def read_serve_config(path: Path) -> ServeDeploySchema:
    """Return a config file of Serve's. Serve itself would ignore unknown keys.

    Raises:
        ConfigError: it cannot be read, or is not valid; the message names the file and every wrong key.
    """
    raw = read_yaml(path)
    try:
        config = ServeDeploySchema.model_validate(raw)
    except ValidationError as error:
        raise ConfigError.of(error, ServeDeploySchema, str(path)) from error
    if problems := unknown_keys(raw, ServeDeploySchema):
        raise ConfigError(f"{path}: " + "; ".join(problems))
    return config


def check(path: Path) -> list[str]:
    """Return a line for each of our applications in the file, its name and profile, and its warnings.

    A profile's own file is one too, as `power-lever profile` writes it.

    Raises:
        ConfigError: the file or the args of an application are wrong, or the gain model that they name is none.
    """
    raw = read_yaml(path)
    if "tiers" in raw and "applications" not in raw:
        profile = validate_profile(Profile, raw, where=str(path))
        _check_gain_model(profile, str(path))
        return [f"{path}: a valid profile", *_warnings(profile)]
    lines = []
    served = read_serve_config(path)
    for application in served.applications:
        if application.import_path == IMPORT_PATH:
            _check_names(path, application)
            # With `auto` the cluster decides later, so the args must fit both profiles.
            named = application.args.get("profile", "auto")
            for name in ("local", "gpu") if named == "auto" else (named,):
                args = {**application.args, "profile": name}
                config = load_config(args, os.environ, lambda: ("local", ""), where=f"{path}: args")
                raise_if_open(config.auth, served.http_options.host, f"{path}: http_options.host")
                _check_gain_model(config, f"{path}: args")
                lines.append(f"{path}: {application.name}: valid with profile {name}")
                lines += _warnings(config)
            lines += application_warnings(application)
    if not lines:
        raise ConfigError(f"{path}: applications: none has import_path {IMPORT_PATH}")
    return lines


def _check_gain_model(profile: Profile, where: str) -> None:
    """Read the file that `auto.gain_model` names, as the ingress will.

    Raises:
        ConfigError: it is missing or no gain model.
    """
    if profile.auto.gain_model is not None:
        try:
            load_gain_model(profile.auto.gain_model)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error


def _warnings(profile: Profile) -> list[str]:
    # No errors: a card, a model or the vLLM of a replica may differ from what is known here.
    return [f"warning: {problem}" for problem in (*profile_problems(profile), *argument_problems(profile))]


def application_warnings(application: ServeApplicationSchema) -> list[str]:
    """Return what is wrong with the keys file that an application names, as seen from this machine, and with the
    agent's daily caps.

    Args:
        application: of ours, with valid args.
    """
    auth = AuthSettings.model_validate(application.args.get("auth", {}))
    agent = AgentSettings.model_validate(application.args.get("agent", {}))
    caps, problems = {DEFAULT_CAP: auth.default_limits.agent_usd_per_day}, []
    if auth.mode == "keys":
        # No error: the file may be on other machines than this one.
        try:
            valid = [key for key in load_keys(auth.keys_path).keys if key.valid(utc_now())]
        except ConfigError as error:
            problems.append(f"auth.keys_file: {error}")
        else:
            if not valid:
                problems.append(f"auth.keys_file: {auth.keys_path} has no valid key: nobody would be let in")
            own = [(key, key.limits.agent_usd_per_day) for key in valid if key.limits is not None]
            caps |= {f"agent_usd_per_day of key {key.id} ({key.name})": usd for key, usd in own}
    return [f"warning: {problem}" for problem in (*problems, *never_asked(agent, caps))]


def _check_names(path: Path, application: ServeApplicationSchema) -> None:
    """Check that `deployments` names deployments that there are; Serve finds that out when it deploys."""
    for place, deployment in enumerate(application.deployments):
        if deployment.name not in DEPLOYMENTS:
            raise ConfigError(
                f"{path}: application {application.name}: deployments.{place}.name: got {deployment.name!r}, allowed "
                f"are {', '.join(DEPLOYMENTS)}"
            )


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
def command(files: tuple[Path, ...]) -> None:
    """Check config files and profiles before Ray starts anything."""
    for path in files:
        print("\n".join(check(path)))
