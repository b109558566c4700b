"""``reinet compare`` writes a page that a real browser shows: what two models did, over each other, link by link.

With REINET_SCREENSHOT=docs/compare.png the browser's picture goes there.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from helpers.places import ROOT
from helpers.waiting import wait_for

MODELS = ("checkpoints/default", "checkpoints/per-rtt")
LINKS = {"walking.trace": "lte-walking", "driving.trace": "lte-driving"}
"""Trace -> the preset that it is generated from."""
RUNS = {*MODELS, "none", "rule:1.5", "clairvoyant:30", "link"}
FOLDER = "runs/compare"
SECONDS = 20
PATIENCE_S = 60
WIDTH, HEIGHT = 1600, 1040
URL_FRAGMENT = "custom_scalars&_smoothingWeight=0"

CARDS = """
function* all(root) {
    for (const one of root.querySelectorAll("*")) { yield one; if (one.shadowRoot) yield* all(one.shadowRoot); }
}
const found = [];
for (const card of all(document)) {
    if (!/^TF-CUSTOM-SCALAR-.*-CARD$/.test(card.tagName)) continue;
    const place = card.getBoundingClientRect();
    const text = [...all(card.shadowRoot)].filter(e => !["STYLE", "SCRIPT"].includes(e.tagName))
        .map(e => [...e.childNodes].filter(n => n.nodeType == 3).map(n => n.textContent).join(" ")).join(" ");
    found.push({title: card.title, text: text.replace(/\\s+/g, " "), left: place.left, top: place.top});
}
return found;
"""
"""The page's panels, wherever they are in its tree of components."""


def reinet(*words: str | Path) -> str:
    done = subprocess.run(
        [Path(sys.executable).parent / "reinet", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a comparison of two models over two links in its ``runs/compare``."""
    path = tmp_path_factory.mktemp("compare")
    traces = []
    for name, preset in LINKS.items():
        traces += ["--traces", path / name]
        reinet("traces", "generate", preset, "--seconds", str(SECONDS), "--seed", "7", "--out", path / name)
    rows = json.loads(
        reinet("compare", *MODELS, *traces, "--seconds", str(SECONDS), "--out", path / FOLDER, "--json", "-")
    )["rows"]
    assert [row["agent"] for row in rows[::2]] == [*MODELS, "none", "rule:1.5", "clairvoyant:30"]
    assert {row["valid"] for row in rows} == {True}
    return path


@pytest.fixture
def address(folder: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a TensorBoard that shows the folder, on a free port of the loopback."""
    said = tmp_path / "tensorboard.log"
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", FOLDER, "--host", "127.0.0.1", "--port", "0"]
    with said.open("wb") as file:
        process = subprocess.Popen([*command, "--load_fast=false"], cwd=folder, stdout=file, stderr=file)
    try:

        def found() -> str | None:
            assert process.poll() is None, said.read_text()
            match = re.search(r"http://127\.0\.0\.1:\d+", said.read_text())
            return match and match[0]

        address = wait_for(found)
        wait_for(lambda: len(loaded := get(address, "scalars/tags")) == len(RUNS) and all(loaded.values()))
        yield address
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.fixture
def browser() -> Iterator[Any]:
    """A browser without a window that reaches this machine alone."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in (
        "--headless=new",
        "--no-sandbox",  # root has no other way
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
        f"--window-size={WIDTH},{HEIGHT}",
    ):
        options.add_argument(argument)
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_script_timeout(PATIENCE_S)
    driver.set_page_load_timeout(PATIENCE_S)
    try:
        yield driver
    finally:
        driver.quit()


def get(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"{address}/data/plugin/{path}", timeout=PATIENCE_S) as reply:
        return json.load(reply)


def test_tensorboard_reads_panels_pictures_and_hyper_parameters(address: str) -> None:
    layout = get(address, "custom_scalars/layout")
    charts = {chart["title"]: chart for category in layout["category"] for chart in category["chart"]}
    assert [category["title"] for category in layout["category"]] == list(LINKS)
    (pattern,) = charts["driving.trace: window (packets)"]["multiline"]["tag"]
    tags = get(address, "scalars/tags")
    drawn = {(run, tag) for run, own in tags.items() for tag in own if re.match(pattern, tag)}
    capped = {*MODELS, "rule:1.5", "clairvoyant:30"}
    assert drawn == {(run, f"driving.trace/{curve}") for run in capped for curve in ("cap_pkts", "cwnd_pkts")} | {
        ("none", "driving.trace/cwnd_pkts")
    }
    assert set(tags["link"]) == {
        f"{link}/{curve}" for link in LINKS for curve in ("capacity_mbps", "target_ms", "min_rtt_ms")
    }
    pictures = {"throughput against delay", *(f"time series/{link}" for link in LINKS)}
    assert set(get(address, "images/tags")["link"]) == pictures
    experiment = get(address, "hparams/experiment?request=%7B%7D")
    assert {"agent", "period.min_ms"} <= {info["name"] for info in experiment["hparamInfos"]}
    assert {"figures/qdelay_mean_ms", "manifest/score"} <= {
        "/".join(filter(None, (info["name"].get("group"), info["name"]["tag"]))) for info in experiment["metricInfos"]
    }


@pytest.mark.browser
def test_a_browser_shows_what_the_models_did_over_each_other(address: str, browser: Any, tmp_path: Path) -> None:
    browser.get(f"{address}/#{URL_FRAGMENT}")
    lines = {
        "window (packets)": 9,
        "delay (ms)": 7,
        "rate (Mbit/s)": 6,
    }  # caps and windows of four, plain's window, ...
    panels = {f"{link}: {title}": count for link in LINKS for title, count in lines.items()}

    def drawn() -> list[Any] | None:
        cards = browser.execute_script(CARDS)
        return (
            cards
            if len(cards) == len(panels)
            and all(f"Matches ({panels.get(card['title'])})" in card["text"] for card in cards)
            else None
        )

    cards = wait_for(drawn)
    assert [card["title"] for card in cards] == list(panels)
    for place in range(0, len(cards), len(lines)):
        row = cards[place : place + len(lines)]
        assert len({card["top"] for card in row}) == 1, "a link's panels stand side by side"
        assert [card["left"] for card in row] == sorted({card["left"] for card in row})
    picture = tmp_path / "page.png"
    assert browser.save_screenshot(str(picture))
    assert picture.stat().st_size > 50_000, "an empty page is smaller"
    if destination := os.environ.get("REINET_SCREENSHOT"):
        with Image.open(picture) as shot:  # few colours: a fifth of the size
            shot.convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(ROOT / destination, optimize=True)
