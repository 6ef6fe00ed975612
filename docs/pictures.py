"""Takes the pictures of the pages that the documentation shows: `make pictures` writes docs/pictures/.

A month of made-up traffic of a company (`gateway.bench.traffic`, from a seed), then questions really asked of
`nearhit serve` with the bundled model and encoder, among them two wordings of one question. Needs Chromium and the
development set. Knows: which pages. Does not know: how they are made.
"""

# ruff: noqa: INP001 - a script beside the pages it pictures, not a package

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from playwright.sync_api import Page, sync_playwright

from gateway.bench.pages import fill
from gateway.bench.traffic import Shape
from gateway.db.session import Database
from gateway.ledger import sums
from gateway.settings import environment

HERE = Path(__file__).parent
WIDE, HIGH = 1280, 900
KEY = "sk-a-key-for-pictures-alone"
REQUESTS, PATIENCE = 40_000, 120.0
ASKED = (
    "What is time to first token?",
    "Please tell me: what is time to first token?",
    "What is time to second token?",
    "What is a KV block?",
    "What is continuous batching?",
    "Can you explain continuous batching?",
    "What is a KV block?",
    "What is goodput?",
    "What is not goodput?",
)
SHOTS = {"overview": "/ui?period=30d", "savings": "/ui/savings"}


async def seeded(home: Path) -> None:
    """A database with a month of traffic that ends now."""
    database = Database(f"sqlite:///{home / 'nearhit.db'}")
    await database.start()
    await fill(database, Shape(requests=REQUESTS, end=time.time()))
    await sums.make_days(database, time.time())
    await database.close()


def ready(api: httpx.Client, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        try:
            if api.get("/health/ready").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise SystemExit("nearhit did not become ready")


def ask(api: httpx.Client) -> str:
    """Everything in `ASKED`; the id of the first request that was a hit by meaning."""
    key = api.post("/api/v1/keys", json={"name": "pictures", "team": "support", "project": "help"}).json()["key"]
    found = ""
    for text in ASKED:
        body = {"model": "local/demo", "messages": [{"role": "user", "content": text}]}
        told = api.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
        if told.headers["x-nearhit-cache"] == "hit-semantic":
            found = found or told.headers["x-request-id"]
    return found


def shoot(page: Page, name: str, address: str) -> None:
    page.goto(address)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(1_500)  # charts have drawn themselves
    page.screenshot(path=HERE / "pictures" / f"{name}.png")
    sys.stderr.write(f"{name}\n")


def pictures(url: str, hit: str) -> None:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page(base_url=url, viewport={"width": WIDE, "height": HIGH})
        page.goto("/ui/login")
        page.get_by_label("Key").fill(KEY)
        page.get_by_role("button", name="Sign in").click()
        for name, address in {**SHOTS, "hit": f"/ui/requests/{hit}"}.items():
            shoot(page, name, address)
        chromium.close()


def main() -> int:
    (HERE / "pictures").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as spare:
        home, port = Path(folder), spare.getsockname()[1]
        spare.close()
        asyncio.run(seeded(home))
        env = {**environment(), "NEARHIT_HOME": folder, "NEARHIT_SERVER__PORT": str(port), "NEARHIT_ADMIN_KEY": KEY}
        command = [sys.executable, "-m", "gateway", "serve"]
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.DEVNULL)  # noqa: S603 - our own
        try:
            url = f"http://127.0.0.1:{port}"
            headers = {"authorization": f"Bearer {KEY}"}
            with httpx.Client(base_url=url, headers=headers, timeout=PATIENCE, trust_env=False) as api:
                ready(api, process)
                pictures(url, ask(api))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
