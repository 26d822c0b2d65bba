"""The page in a real browser: what it shows on a phone's screen."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import matplotlib.image
import pytest

from tacit.report.facts import gather
from tacit.report.page import Target
from tacit.runs.run import Run
from tests.report import audits

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
PHONE = 390  # pixels across

pytestmark = pytest.mark.skipif(
    not BROWSER, reason="no browser is installed (chromium), so the page is not looked at"
)

# Browsers have no windows as narrow as a phone; a frame can be.  What it holds is read from within.
PHONE_PAGE = """<!doctype html><body style="margin:0"><pre id="found" hidden></pre>
<iframe id="phone" src="report.html" style="border:0;width:390px;height:1600px"></iframe>
<script>
const phone = document.getElementById("phone");
phone.onload = () => {
  const page = phone.contentDocument, root = page.documentElement;
  const rows = table => [...table.rows].map(row => [...row.cells].map(cell => cell.innerText));
  const isIn = (one, kind) => one.closest(kind) !== null;
  document.getElementById("found").textContent = JSON.stringify({
    width: root.scrollWidth,
    height: root.scrollHeight,
    claim: page.getElementById("claim").innerText,
    warnings: [...page.querySelectorAll(".warnings li")].map(item => item.innerText),
    tables: Object.fromEntries([...page.querySelectorAll("table")].map(t => [t.id, rows(t)])),
    charts: [...page.querySelectorAll("svg")].map(chart => chart.getBoundingClientRect().width),
    too_wide: [...page.body.querySelectorAll("*")]
      .filter(one => !isIn(one, ".scroll *") && !isIn(one, "svg *"))
      .filter(one => one.getBoundingClientRect().right > root.clientWidth + 0.5)
      .map(one => one.outerHTML.slice(0, 80)),
  });
};
</script></body>
"""


def browse(folder: Path, *options: str, page: str = "phone.html") -> str:
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder / 'profile'}", "--allow-file-access-from-files"]
    command += [*options, (folder / page).as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder_with_page(run_of, tmp_path_factory):
    """report.html of an audited run, and the phone that shows it."""
    folder = tmp_path_factory.mktemp("browser")
    shutil.copytree(run_of("private"), folder / "run")
    audits.put(folder / "run")
    Target(folder / "report.html").write(gather(Run.open(folder / "run")))
    (folder / "phone.html").write_text(PHONE_PAGE)
    return folder


@pytest.fixture(scope="module")
def seen(folder_with_page):
    """What the browser says is on the page."""
    document = browse(folder_with_page, "--virtual-time-budget=10000", "--dump-dom")
    [found] = re.findall(r'<pre id="found" hidden="">(.*?)</pre>', document, re.DOTALL)
    assert found, "the page did not load"
    return json.loads(found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


@pytest.fixture(scope="module")
def facts(folder_with_page):
    return json.loads((folder_with_page / "report.json").read_text())


def test_the_claim_can_be_read(seen, facts):
    assert seen["claim"] == facts["claim"]["sentence"]
    assert len(seen["warnings"]) == len(facts["warnings"])
    assert all(
        row["text"] in shown for row, shown in zip(facts["warnings"], seen["warnings"], strict=True)
    )


def test_the_tables_can_be_read(seen, facts):
    tables = seen["tables"]
    assert ["clip norm, S", "0.3"] in tables["claim-facts"]
    assert tables["epsilon-table"][0] == ["rounds", "pld", "rdp", "moments"]
    assert [row[0] for row in tables["epsilon-table"][1:]] == ["1", "2", "3", "4", "5", "6"]
    assert len(tables["metrics-table"]) == 1 + len(facts["metrics"])
    cells = tables["canary-cells"]
    assert cells[0][:3] == ["expected sharers", "p_e", "canaries"]
    assert cells[-1] == ["16", "1", "4", "16.0", "160.0", "4", "1", "23.2"]
    assert len(cells) == 1 + len(facts["audit"]["cells"])
    assert [row[0] for row in tables["phrases"][1:]] == ["phrase 1"]


def test_nothing_is_wider_than_a_phone(seen):
    assert seen["width"] == PHONE
    assert seen["too_wide"] == []
    assert len(seen["charts"]) == 8
    assert all(300 < width < PHONE for width in seen["charts"])


def test_a_screenshot_shows_a_page(folder_with_page):
    file = folder_with_page / "phone.png"
    browse(folder_with_page, "--window-size=500,1600", f"--screenshot={file}")
    pixels = matplotlib.image.imread(file)[:, :, :3]
    assert pixels.shape[:2] == (1600, 500)
    phone, beside = pixels[:, :PHONE], pixels[:, PHONE:]
    dark = (phone.max(axis=2) < 0.5).mean()
    assert 0.01 < dark < 0.2  # letters on a light page
    assert phone.mean() > 0.85
    assert beside.min() == 1.0  # nothing hangs out


@pytest.mark.slow
def test_the_page_can_be_printed_with_what_is_folded_on_the_screen(folder_with_page):
    file = folder_with_page / "report.pdf"
    browse(folder_with_page, f"--print-to-pdf={file}", page="report.html")
    data = file.read_bytes()
    assert data.startswith(b"%PDF")
    pages = len(re.findall(rb"/Type\s*/Page\b", data))
    folded = folder_with_page / "folded.html"
    unfolding = "details::details-content { content-visibility: visible; display: block; }"
    text = (folder_with_page / "report.html").read_text()
    assert unfolding in text
    folded.write_text(text.replace(unfolding, ""))
    browse(folder_with_page, f"--print-to-pdf={file}", page="folded.html")
    assert pages > len(re.findall(rb"/Type\s*/Page\b", file.read_bytes()))
