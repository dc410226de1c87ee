"""Every text in both languages: the same keys and values, none unused, none left in English."""

import re
import string
from pathlib import Path

import pytest

from app import i18n
from app.i18n import catalogue, language, language_of, say, speaking, spoken

APP = Path(i18n.__file__).parent.parent
KEYS = sorted(catalogue("en"))
# Names and units that are the same in Chinese.
SAME = {"said.join"}
CHINESE = re.compile(r"[\u4e00-\u9fff\u3000-\u303f\uff00-\uffef]")


def values(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_both_languages_have_the_same_keys():
    assert sorted(catalogue("zh")) == KEYS


@pytest.mark.parametrize("key", KEYS)
def test_every_text(key):
    english, chinese = catalogue("en")[key], catalogue("zh")[key]
    assert values(english) == values(chinese)
    assert english.strip() and chinese.strip()
    assert english.count("<b>") == chinese.count("<b>")
    assert not CHINESE.search(english)
    assert CHINESE.search(chinese) or key in SAME
    # Whole sentences of English are left over from a template.
    words = re.sub(r"“[^”]*”|\{[^}]*\}|<[^>]*>", " ", chinese)
    assert not re.search(r"[a-z]{3,} [a-z]{3,}", words), chinese


def test_every_key_is_used():
    """Its last word stands somewhere in the code: quoted, a property, the end of a longer key.
    What is put together from a value (a mode, a part, a metric) stands there as that."""
    code = "".join(f.read_text() for kind in ("py", "js") for f in APP.rglob(f"*.{kind}"))
    code += "".join(f.read_text() for f in (APP.parent / "lantern").rglob("*.py"))
    for key in KEYS:
        last = re.escape(key.rpartition(".")[2])
        assert re.search(rf"\b{last}\b", code), key


@pytest.mark.parametrize(("header", "expected"), [
    ("zh-CN,zh;q=0.9,en;q=0.8", "zh"), ("zh", "zh"), ("zh-TW", "zh"), ("ZH-hk", "zh"),
    ("en-US,en;q=0.9,zh;q=0.8", "en"), ("de", "en"), ("", "en"), (None, "en"),
])  # fmt: skip
def test_language_of_a_request(header, expected):
    class Request:
        headers = {"accept-language": header} if header is not None else {}

    assert language_of(Request()) == expected


def test_every_step_of_a_handler_speaks_the_visitors_language():
    def steps():
        try:
            yield say("run.starting")
            yield say("run.drawing")
        finally:
            ended.append(language.get())

    ended = []
    assert list(spoken("zh", steps())) == ["正在开始……", "正在绘制……"]
    assert language.get() == "en"
    handler = spoken("zh", steps())
    next(handler)
    assert say("run.starting") == "Starting …"  # between steps others speak theirs
    handler.close()
    assert len(ended) == 2


def test_a_job_remembers_the_language_of_whoever_asked():
    from test_app import finish, load_small

    from app.studio import Studio

    def load(name, progress):
        if name != "emoji-128":
            raise ValueError("no such file.")
        return load_small(name, progress)

    studio = Studio(load=load)
    with speaking("zh"):
        job = studio.submit_work("emoji-128", "me", broken)
    assert finish(job).message.startswith("这次运行失败：")
    assert finish(studio.submit_work("emoji-128", "me", broken)).message.startswith("This run")


def broken(pipeline, job):
    raise RuntimeError("a layer broke")


def test_browsers_find_their_chinese():
    texts = i18n.browser_texts().translations_dict
    assert texts["zh"] == texts["zh-CN"] == texts["zh-TW"] != texts["en"]
    assert texts["zh-CN"]["lt_page_run"] == "运行"
