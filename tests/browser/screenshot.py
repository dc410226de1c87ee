"""Pictures of the running app after a run: python tests/browser/screenshot.py URL FOLDER [PROMPT].

Writes app.png (1440 x 900, light), app-dark.png and app-phone.png (390 px wide, whole page).
"""

import sys
from pathlib import Path

from driving import FLAGS, chromium_path, run
from playwright.sync_api import sync_playwright

VIEWS = {
    "app": {"viewport": {"width": 1440, "height": 900}},
    "app-dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "app-phone": {"viewport": {"width": 390, "height": 844}},
}


def main(address: str, folder: str, prompt: str | None = None) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=FLAGS)
        for name, options in VIEWS.items():
            page = browser.new_page(**options)
            page.goto(address)
            page.locator("#lt-status").wait_for()
            if prompt:
                page.get_by_label("Prompt").fill(prompt)
            run(page)
            page.wait_for_timeout(800)
            page.screenshot(path=Path(folder) / f"{name}.png", full_page=name == "app-phone")
            page.close()
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
