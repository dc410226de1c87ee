"""What the page says, in English and Chinese: one JSON file a language, keys with a prefix for the
part of the page. ``{name}`` stands for a value.

Three ways lead to the visitor. Keys ``page.*`` are labels that Gradio translates in the browser
(``label``, ``browser_texts``). The parts of our own take theirs along (``script``). Everything else
is said by Python (``say``) in the language of the request: handlers set it (``speaking``,
``spoken``), a job of the studio remembers it.

What the library reports of files, formats and downloads names keys, paths and commands and is
English everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path

import gradio as gr
from gradio.blocks import Block
from gradio.i18n import I18nData

LANGUAGES = ("en", "zh")
HERE = Path(__file__).parent
LABELS = "page."

language: ContextVar[str] = ContextVar("language", default="en")


@lru_cache
def catalogue(language: str) -> dict[str, str]:
    """All texts of a language."""
    return json.loads((HERE / f"{language}.json").read_text(encoding="utf-8"))


def say(key: str, **values) -> str:
    """The text ``key`` in the language being spoken, with ``values`` filled in."""
    return catalogue(language.get())[key].format(**values)


def language_of(request: gr.Request | None) -> str:
    """The language a visitor's browser asks for first."""
    first = (request.headers.get("accept-language") or "") if request else ""
    return "zh" if first.strip().lower().startswith("zh") else "en"


@contextmanager
def speaking(chosen: str):
    """Inside, ``say`` speaks this language."""
    token = language.set(chosen)
    try:
        yield
    finally:
        language.reset(token)


def spoken(chosen: str, steps: Iterator) -> Iterator:
    """A generator whose every step speaks this language. Gradio runs steps in contexts of their
    own, so one ``speaking`` around the whole would be forgotten after the first."""
    try:
        while True:
            with speaking(chosen):
                try:
                    value = next(steps)
                except StopIteration:
                    return
            yield value
    finally:
        steps.close()


def label(key: str) -> I18nData:
    """A label, ``page.<key>``, that the browser translates."""
    return I18nData(_browser_key(LABELS + key))


def needs_labels(request: gr.Request) -> bool:
    """Whether Gradio will not translate the labels: it knows zh-CN and zh-TW, and shows English to
    a browser that asks for plain zh."""
    first = request.headers.get("accept-language") or ""
    return first.split(",")[0].split(";")[0].strip().lower() == "zh"


def labels_of(block: Block) -> dict[str, str]:
    """Properties of a part of the page that are labels, in the language being spoken."""
    keys = {_browser_key(key): key for key in catalogue("en") if key.startswith(LABELS)}
    found = {name: getattr(block, name, None) for name in ("label", "info", "value")}
    texts = {str(I18nData(name)): key for name, key in keys.items()}  # buttons keep it as text
    return {
        name: say(texts[str(text)])
        for name, text in found.items()
        if isinstance(text, str | I18nData) and str(text) in texts
    }


def browser_texts() -> gr.I18n:
    """What ``label`` stands for, for ``launch``. A browser that asks for zh-CN, zh-TW or zh matches
    only the very key."""
    texts = {
        language: {
            _browser_key(key): text
            for key, text in catalogue(language).items()
            if key.startswith(LABELS)
        }
        for language in LANGUAGES
    }
    return gr.I18n(**texts, **{tag: texts["zh"] for tag in ("zh-CN", "zh-TW", "zh-HK")})


def _browser_key(key: str) -> str:
    # Dots would mean nesting to Gradio; a prefix keeps clear of its own keys.
    return "lt_" + key.replace(".", "_")


def script(prefix: str) -> str:
    """JavaScript that defines ``T``, the texts whose key begins with ``prefix`` (left out) in the
    browser's language, and ``say(text, values)``, which fills in values."""
    texts = {
        language: {
            key.removeprefix(prefix): text
            for key, text in catalogue(language).items()
            if key.startswith(prefix)
        }
        for language in LANGUAGES
    }
    return (
        f"const T = ({json.dumps(texts, ensure_ascii=False)})"
        "[navigator.language.toLowerCase().startsWith('zh') ? 'zh' : 'en'];\n"
        "const say = (text, values = {}) => text.replace(/\\{(\\w+)\\}/g, (_, n) => values[n]);\n"
    )
