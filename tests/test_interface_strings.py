"""The quickstart's data: no string leaks between its splits, and they are the same everywhere.

The checks use their own `letters`, written differently from the `normal_form` under test.
"""

import functools
import importlib.metadata
import importlib.util
import itertools
import os
import random
import runpy
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest


polib = pytest.importorskip("polib")
SCRIPT = Path(__file__).parents[1] / "scripts" / "interface_strings.py"
sys.path.insert(0, str(SCRIPT.parent))
import interface_strings  # noqa: E402
from interface_strings import Pair, normal_form  # noqa: E402


for package in (*interface_strings.PACKAGES, interface_strings.SHOP):
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed; run: {interface_strings.INSTALL}", allow_module_level=True)

LANGUAGES = ("fr", "de", "zh_Hans")
HELD_OUT = ("validation", "test", "shop_test")
load = functools.cache(interface_strings.load)  # a second each


def without_placeholders(text: str) -> str:
    kept, at = "", 0
    while at < len(text):
        if text.startswith("%(", at):
            at = text.index(")", at) + 1
            while text[at : at + 1] in tuple(".0123456789"):  # as in %(price).2f
                at += 1
            at += 1
        elif text[at] == "%" and text[at + 1 : at + 2] in tuple("sdifr"):
            at += 2
        elif text[at] == "{":
            at = text.index("}", at) + 1
        else:
            kept += text[at]
            at += 1
    return kept


def letters(text: str, singular: bool = False) -> str:
    """Return the letters of `text` outside placeholders and tags; if `singular`, without the final s of long words."""
    pieces: list[str] = []
    parser = HTMLParser()
    parser.handle_data = pieces.append
    parser.feed(without_placeholders(text))
    parser.close()
    words = " ".join(pieces).lower().split()
    if singular:
        words = [word.rstrip(".,:;!?)\"'”") for word in words]
        words = [word.removesuffix("s") if len(word) > 2 else word for word in words]
    return "".join(char for word in words for char in word if char.isalpha())


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("singular", [False, True])
def test_no_form_stands_in_two_splits(language, singular):
    forms = {name: {letters(pair.source, singular) for pair in pairs} for name, pairs in load(language).items()}
    assert len(forms) == 5
    for one, other in itertools.combinations(forms, 2):
        assert not forms[one] & forms[other], (one, other)


@pytest.mark.parametrize("language", LANGUAGES)
def test_singular_and_plural_of_an_entry_stay_together(language):
    splits_of: dict[str, set[str]] = {}
    for name, pairs in load(language).items():
        for pair in pairs:
            splits_of.setdefault(letters(pair.source), set()).add(name)
    seen = set()
    for module in ("django", "wagtail", "cms", "oscar"):
        folder = Path(importlib.util.find_spec(module).submodule_search_locations[0])
        for path in folder.rglob(f"{language}/LC_MESSAGES/django*.po"):
            for entry in polib.pofile(str(path)):
                if entry.msgid_plural and not entry.obsolete and not entry.fuzzy:
                    one, other = (splits_of.get(letters(text), set()) for text in (entry.msgid, entry.msgid_plural))
                    assert len(one | other) <= 1, (entry.msgid, one, other)
                    seen |= one | other
    assert seen >= {"train", "test"}


@pytest.mark.parametrize("language", LANGUAGES)
def test_sizes_and_rows(language):
    splits = load(language)
    assert len(splits["test"]) >= 400
    assert len(splits["validation"]) == 200
    assert len(splits["train"]) > 2000
    assert len(splits["shop_test"]) >= 400
    assert len(splits["shop_train"]) > 1000
    for name, pairs in splits.items():
        assert len(set(pairs)) == len(pairs)
        for pair in pairs:
            assert letters(pair.source) and letters(pair.target), pair
            assert len(pair.source.split()) <= 60 and pair.source == " ".join(pair.source.split()), pair
            if name in HELD_OUT:
                assert letters(pair.source) != letters(pair.target), f"copying would solve {pair}"
        if name in HELD_OUT:
            assert max(Counter(letters(pair.source, singular=True) for pair in pairs).values()) == 1
    assert any(letters(pair.source) == letters(pair.target) for pair in splits["train"])
    sources = Counter(pair.source for pair in splits["train"])
    assert max(sources.values()) > 1, "training keeps every translation of a source"
    if language == "zh_Hans":
        chinese = [any("\u4e00" <= char <= "\u9fff" for char in pair.target) for pair in splits["test"]]
        assert sum(chinese) > 0.95 * len(chinese)


def test_order_of_files_and_entries_does_not_matter(monkeypatch):
    files, pofile = importlib.metadata.files, polib.pofile

    def shuffled(items):
        random.Random(1).shuffle(items)
        return items

    monkeypatch.setattr(importlib.metadata, "files", lambda package: shuffled(list(files(package))))
    monkeypatch.setattr(polib, "pofile", lambda path: shuffled(pofile(path)))
    assert interface_strings.load("fr-fr") == load("fr"), "and the other spelling names the same language"


def test_hash_seed_does_not_matter_and_seed_does():
    code = "import interface_strings as s; d = s.load(); print(ascii(d))"
    elsewhere = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(SCRIPT.parent)}
    if os.environ.get("PYTHONHASHSEED") == "1":
        elsewhere["PYTHONHASHSEED"] = "2"
    printed = subprocess.check_output([sys.executable, "-c", code], env=elsewhere, text=True)
    here = load("fr")
    assert printed.strip() == ascii(here)
    assert set(interface_strings.load("fr", seed=1)["test"]) != set(load("fr")["test"])


@pytest.mark.parametrize(
    "text",
    [
        "page",
        "Page",
        " PAGE:",
        "page…",
        "page...",
        "Page %(title)s",
        "{count} page",
        "{{ n }} page",
        "%d page",
        "12 page",
        "<b class='x'>page</b>",
        "&quot;page&quot;&nbsp;",
        "p\u00e1ge",
        "\uff50\uff41\uff47\uff45",
    ],
)
def test_normal_form(text):
    assert normal_form(text) == "page"


@pytest.mark.parametrize("text", ["", "…", "%(a)s: %(b)s", "<br>", "&nbsp;", "42 %", "{}"])
def test_normal_form_of_no_words_is_empty(text):
    assert normal_form(text) == ""


PO = r"""
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=3; plural=(n == 1) ? 0 : n % 1000000 == 0 ? 1 : 2;\n"

msgid "\n  Save\n  page "
msgstr "Enregistrer la\u00a0page"

msgctxt "button"
msgid "Save"
msgstr "Sauver"

#, fuzzy
msgid "Fuzzy"
msgstr "Flou"

#~ msgid "Obsolete"
#~ msgstr "Obsolète"

msgid "Untranslated"
msgstr ""

msgid "%(a)s: %(b)s"
msgstr "%(a)s : %(b)s"

msgid "Hello %(name)s"
msgstr "Bonjour %(nom)s"

msgid "Long"
msgstr "LONG"

msgid "One child"
msgid_plural "%(count)s children"
msgstr[0] "Un enfant"
msgstr[1] "%(count)s d'enfants"
msgstr[2] "%(count)s enfants"
""".replace("LONG", "long " * 61).replace(r"\u00a0", "\u00a0")


def test_entries_of_a_file(tmp_path):
    path = tmp_path / "django.po"
    path.write_text(PO, encoding="utf-8")
    assert [pairs for _, pairs in interface_strings._entries(path) if pairs] == [
        [Pair("Save page", "Enregistrer la page")],
        [Pair("Save", "Sauver")],
        [Pair("One child", "Un enfant"), Pair("%(count)s children", "%(count)s enfants")],
    ]


def test_spellings_of_a_language():
    spellings = {
        "zh-cn": "zh_Hans",
        "zh-hans": "zh_Hans",
        "fr_FR": "fr",
        "FR": "fr",
        "pt-br": "pt_BR",
        "pt_PT": "pt",
        "he_IL": "he",
        "zh_TW": "zh_Hant",
    }
    assert {name: interface_strings._canonical(name) for name in spellings} == spellings
    available = interface_strings.languages()
    assert {*LANGUAGES, "es", "ja", "pt_BR"} <= set(available)
    assert "en" not in available and available == sorted(available)


def test_unknown_and_sparse_languages_are_refused():
    with pytest.raises(ValueError, match="'xx'.*available: .*de.*fr"):
        interface_strings.load("xx")
    with pytest.raises(ValueError, match="'bn' has .* not the 1200 needed"):
        interface_strings.load("bn")


def test_missing_packages_are_named(monkeypatch):
    files = importlib.metadata.files

    def without_shop(package):
        if package == "django-oscar":
            raise importlib.metadata.PackageNotFoundError(package)
        return files(package)

    for stand_in in (without_shop, lambda package: None if package == "django-oscar" else files(package)):
        monkeypatch.setattr(importlib.metadata, "files", stand_in)
        with pytest.raises(ModuleNotFoundError, match="^django-oscar.*pip install --no-deps.*django-oscar"):
            interface_strings.load("fr")
    monkeypatch.setitem(sys.modules, "polib", None)
    with pytest.raises(ModuleNotFoundError, match="^polib.*pip install polib"):
        runpy.run_path(str(SCRIPT))


def test_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--language", "fr"])
    monkeypatch.setattr(interface_strings, "load", lambda language, seed: dict(load(language)))
    interface_strings.main()
    printed = capsys.readouterr().out
    assert "\ntest: 400 pairs" in printed and "=>" in printed
