"""Take the README's picture: the first screen of a run's report, by headless Chromium.

python docs/generate/report_picture.py .gauntlet/runs/RUN docs/report.png
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from flows.record.report_files import read_report
from gauntlet.reporting.html_report import render_html

WIDTH_PX, HEIGHT_PX = 1280, 980
COLORS = 64


def take_picture(run: Path, picture: Path) -> None:
    """Write the first screen of a run's page as a .png file; paths in it are those in the store."""
    html = render_html(read_report(run / "report.json"))
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH_PX, "height": HEIGHT_PX}, color_scheme="light")
        page.set_content(html)
        content = page.screenshot()
        browser.close()
    Image.open(io.BytesIO(content)).convert("RGB").quantize(COLORS).save(picture, optimize=True)


if __name__ == "__main__":
    take_picture(Path(sys.argv[1]), Path(sys.argv[2]))
