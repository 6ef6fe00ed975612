"""What the compose file and the image promise about safety, checked without a container engine.

`deploy/prove_containers.sh` proves the same by running them; this notices a slip within a second.
"""

import re
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.serve import AFTER_DRAIN, OTHERS
from gateway.settings import WELL_KNOWN, Server, load

ROOT = Path(__file__).parents[2]
OURS = ("gateway", "gateway-gpu", "migrate", "mock")


def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))


def drawn_secrets() -> dict[str, str]:
    done = subprocess.run([ROOT / "deploy" / "secrets.sh"], check=True, capture_output=True, text=True, timeout=10)
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def test_every_port_is_on_loopback() -> None:
    """A port published on every interface puts the admin key's door on the network."""
    ports = [port for service in compose()["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_no_secret_has_a_default() -> None:
    """A default password is a published password."""
    text = (ROOT / "docker-compose.yml").read_text("utf-8")
    required = set(re.findall(r"\$\{(\w+):\?", text))
    optional = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", text))
    assert {
        "NEARHIT_ADMIN_KEY",
        "NEARHIT_SECRET",
        "POSTGRES_PASSWORD",
        "REDIS_PASSWORD",
        "GRAFANA_PASSWORD",
    } == required
    given = {name: value for name, value in optional.items() if value and re.search("KEY|SECRET|PASSWORD|TOKEN", name)}
    assert not given


def test_the_secrets_are_drawn_afresh_and_complete() -> None:
    """What the compose file demands is what the script prints, and never twice the same."""
    first, second = drawn_secrets(), drawn_secrets()
    required = set(re.findall(r"\$\{(\w+):\?", (ROOT / "docker-compose.yml").read_text("utf-8")))
    assert set(first) == required
    assert not set(first.values()) & set(second.values())
    assert all(re.fullmatch(r"[\w-]{16,}", value) for value in first.values()), "they also stand in URLs"


def test_the_file_of_secrets_is_its_owners_alone(tmp_path: Path) -> None:
    """The shell that is told `> .env` makes the file: under its usual umask everybody on the machine could read it."""
    command = f"umask 022; '{ROOT}/deploy/secrets.sh' > .env"
    subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, check=True, timeout=10)
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["gateway", "gateway-gpu"])
def test_a_gateway_may_finish_before_it_is_killed(name: str) -> None:
    """The supervisor waits for a worker's books; ten seconds after the drain its container was killed instead."""
    longest = Server().drain_timeout + AFTER_DRAIN + OTHERS
    assert int(compose()["services"][name]["stop_grace_period"].removesuffix("s")) > longest


@pytest.mark.parametrize("name", OURS)
def test_our_containers_can_write_next_to_nothing(name: str) -> None:
    """A break-in must not be able to change the program or gain rights."""
    service = compose()["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_images_are_pinned_and_profiles_are_there() -> None:
    """`latest` is another program tomorrow."""
    services = compose()["services"]
    assert all(":" in service["image"] and not service["image"].endswith(":latest") for service in services.values())
    assert {profile for service in services.values() for profile in service.get("profiles", [])} == {
        "gpu",
        "mock",
        "observability",
    }


def test_every_usual_key_reaches_the_gateway() -> None:
    """Whoever puts a key into .env is promised that its provider is on; a name left out here was silently off."""
    names = {name for name, _ in WELL_KNOWN.values()}
    names |= {name for _, address in WELL_KNOWN.values() for name in re.findall(r"\$\{(\w+)\}", address)}
    given = compose()["services"]["gateway"]["environment"]
    assert {name: given.get(name) for name in names} == {name: f"${{{name}:-}}" for name in names}


def test_the_gateway_waits_for_its_schema() -> None:
    """Two gateways that both migrate would race; one that does not wait would serve on an old schema."""
    services = compose()["services"]
    assert services["gateway"]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert services["migrate"]["command"] == ["db", "upgrade"]


@pytest.mark.parametrize("name", OURS)
def test_no_container_leaves_a_volume_without_a_name(name: str) -> None:
    """The image declares /data: whoever mounts nothing there leaves a nameless volume behind with every container."""
    assert [mount for mount in compose()["services"][name]["volumes"] if mount.split(":")[1] == "/data"]


def test_the_image_holds_what_the_wheel_holds() -> None:
    """A package that is forgotten in the Dockerfile is missed only when the container starts."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
    dockerfile, ignored = (ROOT / "Dockerfile").read_text(), (ROOT / ".dockerignore").read_text().splitlines()
    assert set(re.findall(r"^COPY (\w+) \1$", dockerfile, re.MULTILINE)) == set(packages)
    assert {f"!{package}" for package in packages} <= set(ignored)
    assert re.search(r"^USER 10001:10001$", dockerfile, re.MULTILINE)


def test_the_settings_of_the_stack_load() -> None:
    """An unknown key in this file would keep the container from starting."""
    settings = load(ROOT / "deploy" / "nearhit.yaml")
    assert settings.models["mock"].free
    assert settings.providers["mock"].base_url == "http://mock:9000/v1"


@pytest.mark.parametrize("name", ["gateway", "gateway-gpu"])
def test_commands_in_the_container_read_the_file_of_the_gateway(name: str) -> None:
    """`exec gateway nearhit doctor` looks for ./nearhit.yaml; where there was none it called no upstream well."""
    service = compose()["services"][name]
    command = service["command"]
    assert command[command.index("--config") + 1] == f"{service['working_dir']}/nearhit.yaml"


def test_what_the_start_suggests_answers_without_a_profile() -> None:
    """The example that the start prints asks the first model: `mock` is a 502 where its profile is off."""
    settings = load(ROOT / "deploy" / "nearhit.yaml")
    assert [entry.to for entry in next(iter(settings.models.values())).route] == ["local/demo"]


@pytest.mark.parametrize(("given", "flags"), [((), ""), (("PORT=8090",), "--port 8090")])
def test_make_serve_names_a_port_only_where_one_is_given(given: tuple[str, ...], flags: str) -> None:
    """A default port on make's side won over `server.port` of nearhit.yaml, which `nearhit init --port` had written."""
    command = ["env", "--unset=PORT", "--unset=NEARHIT_SERVER__PORT", "--unset=MAKEFLAGS", "make"]
    command += ["--dry-run", "--assume-old=install", "--no-print-directory", "serve", *given]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=10)
    assert done.stdout.rstrip("\n").endswith(f"/nearhit serve {flags}")
