"""What the page says, in English and Chinese: one JSON file a language, keys with a prefix for the
part of the page. ``{name}`` stands for a value."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

LANGUAGES = ("en", "zh")
HERE = Path(__file__).parent


@lru_cache
def catalogue(language: str) -> dict[str, str]:
    """All texts of a language; English where it has none."""
    texts = json.loads((HERE / f"{language}.json").read_text(encoding="utf-8"))
    return texts if language == "en" else catalogue("en") | texts


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
