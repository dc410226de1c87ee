"""The page in Chinese, as browsers in the mainland, in Taiwan and with a bare "zh" ask for it."""

import re

import pytest
from driving import fits, run, serious
from playwright.sync_api import expect

from lantern.pipeline import model_info

pytestmark = pytest.mark.browser
EXAMPLE = model_info("emoji-128").examples[0]

# Terms of the field, names and units; everything else on the page must be Chinese.
TERMS = re.compile(
    r"\b(AR|EAGLE-?2?|LANTERN|coupled|CFG|MAL|VQ|tokens?|top|logits|TVD|JSD|PNG|CSV|JSON|WebP|GIF|"
    r"delta|cfg|tvd|dynamic|static|multiplicative|first|nearest|CPU|cpu|CUDA|float32|fp32|bf16|AMD|"
    r"Intel|EPYC|Xeon|Processor|Core|Gold|Platinum|R|TM|px|ms|nats|arXiv|emoji|LlamaGen|Stage|"
    r"ImageNet|Jensen|Shannon|Enter|Esc|AI|API|Gradio|jsd|Anole|k|x|s|p|with|CPU)\b"
)
PROMPTS = ("a red apple on the grass", EXAMPLE)


@pytest.fixture(params=["zh-CN", "zh-TW", "zh"])
def chinese(browser, address, request):
    page = browser.new_page(locale=request.param, viewport={"width": 1440, "height": 900})
    page.goto(address)
    expect(page.locator("#lt-status")).to_contain_text("就绪")
    yield page
    page.close()


def english_left(page, *, ignore: tuple[str, ...] = ()) -> list[str]:
    """Visible words that are neither Chinese nor terms, outside pictures, values and prompts."""
    text = page.evaluate(
        """() => [...document.querySelectorAll('.gradio-container *')]
          .filter((e) => e.offsetParent && !e.closest('footer, #lt-examples, code, .options'))
          .flatMap((e) => [...e.childNodes])
          .filter((n) => n.nodeType === 3).map((n) => n.data.trim())
          .filter(Boolean)"""
    )
    left = []
    for line in text:
        words = TERMS.sub(" ", line)
        for prompt in ignore:
            words = words.replace(prompt, " ")
        if re.search(r"[A-Za-z]{2,}", words):
            left.append(line)
    return left


def test_the_first_page(chinese):
    page = chinese
    expect(page.locator("#lt-run")).to_have_text("运行")
    expect(page.get_by_label("提示词")).to_have_value(EXAMPLE)
    expect(page.locator("#lt-sentence")).to_contain_text("EAGLE-2 用")
    expect(page.locator("#lt-card-lantern")).to_contain_text("倍于 AR 的速度")
    page.get_by_role("button", name="更多").click()
    expect(page.get_by_label("按此设备调树")).to_be_visible()
    assert english_left(page, ignore=PROMPTS) == []


def test_every_tab(chinese):
    page = chinese
    for tab, words in (
        ("扫描", "LANTERN"),
        ("模糊性", "很少有把握"),
        ("码本", "一个 token"),
        ("原理", "先猜"),
    ):
        page.get_by_role("tab", name=tab).click()
        expect(page.get_by_role("tabpanel").filter(visible=True)).to_contain_text(words)
        assert english_left(page, ignore=PROMPTS) == [], tab


def test_a_run_and_a_refusal(browser, address):
    page = browser.new_page(locale="zh-CN", viewport={"width": 1440, "height": 900})
    page.goto(address)
    expect(page.locator("#lt-status")).to_contain_text("就绪")
    run(page)
    expect(page.locator("#lt-status")).to_contain_text("三个通道种子相同")
    expect(page.locator("#lt-histogram svg")).to_have_attribute("aria-label", "接受长度的直方图")
    page.get_by_label("提示词").fill("")
    page.locator("#lt-run").click()
    expect(page.locator("#lt-prompt div.validation-error")).to_contain_text("请写要画什么")
    assert not serious(page)
    page.set_viewport_size({"width": 390, "height": 844})
    fits(page, 390)
    page.close()
