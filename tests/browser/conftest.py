"""One app and one Chromium for all browser tests; a fresh page for each."""

import pytest
from app_process import serve
from driving import FLAGS, chromium_path
from playwright.sync_api import expect, sync_playwright
from tiny_models import write_class_model, write_light

# Two cores serve app, browser and test: what takes a moment on an idle machine may take minutes.
expect.set_options(timeout=180_000)


@pytest.fixture(scope="session")
def address(tmp_path_factory):
    models = tmp_path_factory.mktemp("models")
    write_class_model(models, "llamagen-b-256")
    write_light(models)
    with serve(LANTERN_MODELS=str(models)) as (address, _):
        yield address


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=chromium_path(), args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser, address):
    """The page at 1440 x 900, ready; fails a test on script errors and on foreign requests."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.errors, page.foreign = [], []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on(
        "request",
        lambda r: page.foreign.append(r.url)
        if not r.url.startswith((address, "data:", "blob:"))
        else None,
    )
    page.goto(address)
    expect(page.locator("#lt-status")).to_contain_text("Ready")
    yield page
    assert not page.foreign, f"requests left the machine: {page.foreign}"
    assert not page.errors
    page.close()
