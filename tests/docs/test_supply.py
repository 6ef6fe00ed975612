"""What is shipped: the same bytes whoever builds them, pinned parts, a chart that renders to what we mean."""

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gateway.serve import AFTER_DRAIN, OTHERS
from gateway.settings import load
from tests.services import program

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "nearhit"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
DRAIN = 120
_BUILD = "import hatchling.build, sys; print(hatchling.build.build_wheel(sys.argv[1]))"


def _plain(requirement: str) -> str:
    return re.split(r"[\[<>=!; ]", requirement, maxsplit=1)[0].lower().replace("_", "-").replace(".", "-")


def test_every_requirement_is_pinned_with_hashes() -> None:
    """`pip install --require-hashes` refuses a replaced file; what is not listed could be anything."""
    text = (ROOT / "constraints.txt").read_text("utf-8").replace("\\\n", " ")
    pinned: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, rest = line.partition("==")
            assert rest, line
            assert "--hash=sha256:" in rest, name
            pinned[_plain(name)] = rest
    wanted = {_plain(one) for one in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["oidc"]]}
    assert wanted - set(pinned) == set()
    assert len(pinned) > 60


def test_the_wheel_is_the_same_twice(tmp_path: Path) -> None:
    """Whoever doubts a release builds it and compares one number; times and umasks of the builder must not show."""
    wheels: list[Path] = []
    for turn, umask in ((1, "022"), (2, "077")):
        tree, out = tmp_path / f"tree{turn}", tmp_path / f"out{turn}"
        out.mkdir()
        for name in ("gateway", "engine", "cache", "policies", "migrations"):
            shutil.copytree(
                ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copyfile
            )
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copyfile(ROOT / name, tree / name)
        stamp = time.time() - turn * 86_400
        for path in tree.rglob("*"):
            os.utime(path, (stamp, stamp))
        command = f"umask {umask}; exec {sys.executable} -c '{_BUILD}' {out}"
        subprocess.run(["/bin/sh", "-c", command], cwd=tree, check=True, capture_output=True, timeout=60)
        wheels += list(out.glob("*.whl"))
    assert len(wheels) == 2
    assert len({sha256(wheel.read_bytes()).hexdigest() for wheel in wheels}) == 1


@pytest.mark.proof
def test_the_list_of_parts_names_every_pin(tmp_path: Path) -> None:
    """An SBOM that leaves a part out is worse than none. Made by CycloneDX's own tool, where it is installed."""
    made = tmp_path / "sbom.json"
    command = [
        str(program("cyclonedx-py")),
        "requirements",
        str(ROOT / "constraints.txt"),
        "--of",
        "JSON",
        "-o",
        str(made),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    found = yaml.safe_load(made.read_text("utf-8"))
    named = {one["name"].lower() for one in found["components"]}
    assert {"litestar", "torch", "cryptography", "sqlalchemy"} <= named


def test_values_mirror_the_file_of_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`config` of the chart is nearhit.yaml as it is: it must load as one."""
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    config = tmp_path / "nearhit.yaml"
    config.write_text(yaml.safe_dump(values["config"]))
    assert load(config).server.drain_timeout == DRAIN
    assert values["drainSeconds"] is None  # it follows from the settings
    assert f"$seconds := {DRAIN} " in (CHART / "templates" / "_helpers.tpl").read_text("utf-8")


@pytest.fixture(scope="module")
def rendered() -> list[dict[str, Any]]:
    """Everything the chart can make."""
    helm = str(program("helm"))
    subprocess.run([helm, "lint", "--strict", str(CHART)], check=True, capture_output=True, timeout=60)
    given = "serviceMonitor.enabled=true,networkPolicy.enabled=true,providerKeys.OPENAI_API_KEY=openai"
    command = [helm, "template", "shop", str(CHART), "--set", given]
    done = subprocess.run(command, check=True, capture_output=True, timeout=60, text=True)
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def test_the_chart_renders_what_is_needed(rendered: list[dict[str, Any]]) -> None:
    """A migration before the pods, a disk per replica for its journal, disruption and scraping as asked."""
    kinds = sorted(one["kind"] for one in rendered)
    assert kinds == [
        "ConfigMap", "Job", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount", "ServiceMonitor",
        "StatefulSet",
    ]  # fmt: skip
    by_kind = {one["kind"]: one for one in rendered}
    assert by_kind["Job"]["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    pod = by_kind["StatefulSet"]["spec"]["template"]["spec"]
    (gateway,) = pod["containers"]
    assert gateway["args"][-1] == f"{gateway['workingDir']}/nearhit.yaml"  # read by `kubectl exec … nearhit …` too
    before = float(re.findall(r"sleep\((\d+)\)", str(gateway["lifecycle"]["preStop"]))[0])
    # whoever is killed earlier leaves its books to the next start
    assert pod["terminationGracePeriodSeconds"] > before + DRAIN + AFTER_DRAIN + OTHERS
    assert {gateway[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe")} == {"/health/ready"}
    assert gateway["livenessProbe"]["httpGet"]["path"] == "/health/live"
    selector = by_kind["StatefulSet"]["spec"]["selector"]["matchLabels"]
    labels = by_kind["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()
    assert by_kind["Service"]["spec"]["selector"] == by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= by_kind["Job"]["spec"]["template"]["metadata"]["labels"].items()


def test_a_port_of_the_settings_is_the_one_that_is_asked() -> None:
    """`config` is nearhit.yaml as it is: with another port in it no pod ever became ready."""
    command = [str(program("helm")), "template", "shop", str(CHART), "--set", "config.server.port=9000"]
    done = subprocess.run(command, check=True, capture_output=True, timeout=60, text=True)
    (pods,) = [one for one in yaml.safe_load_all(done.stdout) if one and one["kind"] == "StatefulSet"]
    assert pods["spec"]["template"]["spec"]["containers"][0]["ports"] == [{"name": "http", "containerPort": 9000}]


def shop(*given: str) -> subprocess.CompletedProcess[str]:
    command = [
        str(program("helm")),
        "template",
        "shop",
        str(CHART),
        *(part for one in given for part in ("--set", one)),
    ]
    return subprocess.run(command, check=False, capture_output=True, timeout=60, text=True)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ((), DRAIN),
        (("drainSeconds=300",), 300),
        (("config.server.drain_timeout=5m",), 300),
        (("config.server.drain_timeout=45",), 45),
        (("config.server.drain_timeout=300s", "drainSeconds=300"), 300),
    ],
)
def test_pod_and_gateway_wait_equally_long_for_answers(given: tuple[str, ...], seconds: int) -> None:
    """With a longer drain in the settings alone the pod was killed in its midst, answers and books with it."""
    done = shop(*given)
    assert done.returncode == 0, done.stderr
    found = {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one}
    assert found["StatefulSet"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == seconds + 35
    settings = yaml.safe_load(found["ConfigMap"]["data"]["nearhit.yaml"])
    assert settings["server"] == {"workers": 1, "drain_timeout": f"{seconds}s"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("drainSeconds=60", "config.server.drain_timeout=2m"), "say different things"),
        (("config.server.drain_timeout=1500ms",), "cannot be read here"),
    ],
)
def test_two_drains_that_differ_are_refused(given: tuple[str, ...], words: str) -> None:
    """Whichever won in silence, the other half of the operator's wish would be lost at the next rollout."""
    done = shop(*given)
    assert done.returncode != 0
    assert words in done.stderr


def test_one_replica_has_no_budget_of_disruptions() -> None:
    """With `minAvailable: 1` its node could never be drained."""
    assert "PodDisruptionBudget" not in shop("replicas=1").stdout
    assert "PodDisruptionBudget" in shop("replicas=2").stdout


def test_a_service_monitor_has_the_labels_by_which_it_is_chosen() -> None:
    """Prometheus' operator, as its usual chart installs it, looks at those of its own release alone."""
    done = shop("serviceMonitor.enabled=true", "serviceMonitor.labels.release=prom")
    (found,) = [one for one in yaml.safe_load_all(done.stdout) if one and one["kind"] == "ServiceMonitor"]
    assert found["metadata"]["labels"]["release"] == "prom"
    assert found["metadata"]["labels"]["app.kubernetes.io/name"] == "nearhit"


@pytest.mark.parametrize("version", ["1.27", "1.37"])
def test_kubernetes_itself_would_take_what_the_chart_renders(rendered: list[dict[str, Any]], version: str) -> None:
    """A field in the wrong place is dropped in silence by a cluster; the strict schemas of two versions name it."""
    checked: set[str] = set()
    for one in rendered:
        if one["kind"] == "ServiceMonitor":  # Prometheus' operator's, of which no package has the schema
            continue
        kubernetes_validate.validate(one, version, strict=True)
        checked.add(one["kind"])
    assert len(checked) == 7
    pods = next(one for one in rendered if one["kind"] == "StatefulSet")
    broken = {**pods, "spec": {**pods["spec"], "replica": 2}}
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(broken, version, strict=True)


def test_pods_can_do_next_to_nothing_and_hold_no_secret_in_their_text(rendered: list[dict[str, Any]]) -> None:
    """Not root, nothing written but the data and /tmp; secrets come as files of a Secret that somebody else made."""
    for kind in ("StatefulSet", "Job"):
        (found,) = [one for one in rendered if one["kind"] == kind]
        pod = found["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            allowed = container["securityContext"]
            assert allowed["readOnlyRootFilesystem"] is True
            assert allowed["allowPrivilegeEscalation"] is False
            assert allowed["capabilities"] == {"drop": ["ALL"]}
            for variable in container["env"]:
                assert variable["name"].endswith("_FILE")
                assert variable["value"].startswith("/run/secrets/nearhit/")
    assert not [one for one in rendered if one["kind"] == "Secret"]


@pytest.mark.parametrize("given", ["replicas=0", "config.admin_key=x", "imagee.tag=1", "image.digest=sha256:1"])
def test_values_that_are_wrong_are_refused(given: str) -> None:
    """A typing error must not become a default, and a secret does not belong into values."""
    command = [str(program("helm")), "template", "shop", str(CHART), "--set", given]
    assert subprocess.run(command, check=False, capture_output=True, timeout=60).returncode != 0
