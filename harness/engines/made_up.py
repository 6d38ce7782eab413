"""Settings under which a server makes up how many drafted tokens were accepted."""

from collections.abc import Mapping

from harness.scenario.model import Scalar

VARIABLES = ("SGLANG_SIMULATE_ACC",)
SETTINGS = ("speculative_config.",)  # of vLLM, where a value or a name says `synthetic`


def made_up_acceptance(environment: Mapping[str, str], config: Mapping[str, Scalar | None]) -> list[str]:
    """Each as `name=value`; none where acceptance is natural. `environment` is what was added for the server,
    `config` what it resolved."""
    found = [
        f"{name}={value}"
        for name, value in environment.items()
        if name.startswith(VARIABLES) and value not in ("", "0", "-1", "false", "False")
    ]
    found += [
        f"{name}={value}"
        for name, value in config.items()
        if name.startswith(SETTINGS) and value not in (None, False, "") and "synthetic" in f"{name}={value}"
    ]
    return sorted(found)
