"""English interface strings and their translations, split without leakage, for the quickstart.

Django, Wagtail and django CMS ship their interface in many languages as gettext files: a small, real parallel corpus
that pip can install. django-oscar, a web shop, is kept apart as a second domain that training never sees.

    pip install polib
    pip install --no-deps django wagtail django-cms django-oscar
    python scripts/interface_strings.py --language fr

The split is made over groups of source strings, never over single strings: sources with one `normal_form`, sources
that differ in plural endings or articles, and the singular and plural of one gettext entry stay on one side. Groups
are ranked by a hash of the seed and their text, so the split depends on neither file order, machine nor Python's hash
seed; only other versions of the packages change it. It does not part strings made on one pattern ("Page deleted",
"Image deleted"): about a tenth of the test sources share 90 % of their characters with a training source.

Left out everywhere: untranslated, fuzzy and obsolete entries; strings without a word in them, on either side; strings
above `MAX_WORDS`; and pairs whose sides hold different placeholders, most of them singulars such as "1 page" that
languages without a plural translate as "%(count)s pages".
"""

import argparse
import functools
import gettext
import hashlib
import html
import importlib.metadata
import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


PACKAGES = ("django", "wagtail", "django-cms")
SHOP = "django-oscar"
INSTALL = f"pip install polib && pip install --no-deps {' '.join(PACKAGES)} {SHOP}"

try:
    import polib
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"polib, which reads gettext files, is not installed; run: {INSTALL}") from error

TEST, VALIDATION = 400, 200
MAX_WORDS = 60  # longer ones are whole e-mails of the shop; the other packages have no source above 50 words

_PLACEHOLDER = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{[^{}]*\}|%\([^)]*\)[#0-9.+-]*[a-zA-Z]?|%[0-9.]*[sdifr]", re.DOTALL)
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>|<!--.*?-->", re.DOTALL)

# Folder names that no rule maps: Chinese by script, and countries whose code is not that of their language.
_ALIASES = {"zh": "zh_Hans", "cmn": "zh_Hans", "zh_CN": "zh_Hans", "zh_TW": "zh_Hant", "no": "nb"}
_HOMES = {"cs_CZ", "da_DK", "el_GR", "fa_IR", "he_IL", "hi_IN", "ja_JP", "ko_KR", "sl_SI", "sv_SE", "uk_UA", "vi_VN"}


class Pair(NamedTuple):
    """An English string and its translation."""

    source: str
    target: str


Entry = tuple[set[str], list[Pair]]  # forms that belong together, and the pairs fit for use
Groups = dict[str, Counter[Pair]]  # a group's smallest form, and how often the packages hold each of its pairs


def normal_form(text: str) -> str:
    """Reduce `text` to its letters, without placeholders, tags, entities, accents, case, digits or spaces.

    No normal form of a source stands in two splits.
    """
    return "".join(_words(text))


def languages() -> list[str]:
    """Return the languages that all four packages ship; some are too sparsely translated to `load`."""
    return _shared(_files())


def load(language: str = "fr", seed: int = 0) -> dict[str, list[Pair]]:
    """Return the splits train, validation, test, shop_train and shop_test, each in a random but fixed order.

    The training splits keep every variant and every translation of a source. The others have one row for each group:
    its commonest pair, ties broken by hash. They leave out groups in which a translation equals its source (URL,
    Image), since copying would get them right; training keeps those. Shop strings whose group also occurs in another
    package are dropped. In some languages so few are left that `shop_test`, at most half of them, is small or empty.
    """
    name = _canonical(language)
    files = _files()
    if name not in _shared(files):
        raise ValueError(f"no interface strings in language {language!r}; available: {', '.join(_shared(files))}")
    main = [entry for package in PACKAGES for path in files[package][name] for entry in _entries(path)]
    shop = [entry for path in files[SHOP][name] for entry in _entries(path)]

    group_of = _connect(forms for forms, _ in main + shop)
    main_groups, shop_groups = _gather(main, group_of), _gather(shop, group_of)
    shop_groups = {group: pairs for group, pairs in shop_groups.items() if group not in main_groups}
    needed = 2 * (TEST + VALIDATION)  # half of them are left to train on
    if len(main_groups) < needed:
        raise ValueError(f"language {language!r} has {len(main_groups)} distinct strings, not the {needed} needed")

    test, rest = _hold_out(main_groups, TEST, seed)
    validation, rest = _hold_out(rest, VALIDATION, seed)
    shop_test, shop_rest = _hold_out(shop_groups, min(TEST, len(shop_groups) // 2), seed)
    train, shop_train = (_by_hash(set().union(*part.values()), seed) for part in (rest, shop_rest))
    return {"train": train, "validation": validation, "test": test, "shop_train": shop_train, "shop_test": shop_test}


@functools.cache  # most strings are looked at several times
def _words(text: str) -> tuple[str, ...]:
    text = _TAG.sub(" ", _PLACEHOLDER.sub(" ", html.unescape(text)))
    text = unicodedata.normalize("NFKD", text).casefold()
    # Don't, e-mail and page(s) are one word each.
    text = re.sub(r"['`\u2019\u02bc\u2010\xad-]|(?<=\w)\((?=e?s\))", "", text)
    return tuple(re.findall(r"[^\W\d_]+", "".join(char for char in text if not unicodedata.combining(char))))


def _forms(text: str) -> set[str]:
    """Return the normal form and a coarser one, for strings that differ in plural endings or articles only.

    The coarse form lacks any run of e, i, s and y at the end of a word, after its second letter: that makes page and
    pages, address and addresses, category and categories equal, and some that differ (not, note), which does no harm.
    """
    words = _words(text)
    kept = [word for word in words if word not in ("a", "an", "the")]
    return {"".join(words), "".join(word[:2] + word[2:].rstrip("eisy") for word in kept)} - {""}


def _canonical(language: str) -> str:
    """Spell a language or a locale folder one way: zh-hans and zh_CN give zh_Hans, he_IL gives he, pt-br pt_BR."""
    code, *rest = language.replace("-", "_").split("_")
    rest = [part.title() if len(part) == 4 else part.upper() for part in rest]
    name = "_".join([code.lower(), *rest])
    at_home = name in _HOMES or rest == [code.upper()]
    return code.lower() if at_home else _ALIASES.get(name, name)


def _files() -> dict[str, dict[str, list[Path]]]:
    """Find the gettext files of each package and language, without importing the package."""
    found = {package: defaultdict(list) for package in (*PACKAGES, SHOP)}
    for package, paths_of in found.items():
        try:
            listed = importlib.metadata.files(package)
        except importlib.metadata.PackageNotFoundError:
            listed = None
        if listed is None:
            raise ModuleNotFoundError(f"{package}, whose translations are the data, is not installed; run: {INSTALL}")
        for file in listed:
            if match := re.search(r"locale/([\w-]+)/LC_MESSAGES/django(js)?\.po$", file.as_posix()):
                paths_of[_canonical(match[1])].append(Path(str(file.locate())))
    return found


def _shared(files: dict[str, dict[str, list[Path]]]) -> list[str]:
    shared = set.intersection(*map(set, files.values()))
    return sorted(language for language in shared if language.split("_")[0] != "en")


def _entries(path: Path) -> Iterator[Entry]:
    catalogue = polib.pofile(str(path))
    # Which of up to six plural forms belongs to 1 and to 5 differs by language; the header has the rule.
    rule = re.search(r"plural=([^;]+)", catalogue.metadata.get("Plural-Forms", ""))
    index = gettext.c2py(rule[1].strip()) if rule else lambda n: int(n != 1)
    for entry in catalogue:
        if entry.obsolete or entry.fuzzy:
            continue
        pairs = [(entry.msgid, entry.msgstr)]
        if entry.msgid_plural:
            forms = entry.msgstr_plural
            pairs = [(entry.msgid, forms.get(index(1), "")), (entry.msgid_plural, forms.get(index(5), ""))]
        # Line breaks are layout, and packages differ in using the no-break spaces of French: all become plain spaces.
        clean = [Pair(" ".join(source.split()), " ".join(target.split())) for source, target in pairs]
        yield set().union(*(_forms(pair.source) for pair in clean)), [pair for pair in clean if _usable(pair)]


def _usable(pair: Pair) -> bool:
    same_placeholders = set(_PLACEHOLDER.findall(pair.source)) == set(_PLACEHOLDER.findall(pair.target))
    return same_placeholders and all(normal_form(text) and len(text.split()) <= MAX_WORDS for text in pair)


def _connect(linked: Iterable[set[str]]) -> dict[str, str]:
    """Map each form to the smallest one of its connected component (union-find)."""
    parent: dict[str, str] = {}

    def find(form: str) -> str:
        while parent.setdefault(form, form) != form:
            form = parent[form]
        return form

    for forms in linked:
        roots = {find(form) for form in forms}
        parent.update((root, min(roots)) for root in roots)
    return {form: find(form) for form in parent}


def _gather(entries: Iterable[Entry], group_of: dict[str, str]) -> Groups:
    groups: Groups = defaultdict(Counter)
    for _, pairs in entries:
        for pair in pairs:
            groups[group_of[normal_form(pair.source)]][pair] += 1
    return groups


def _by_hash(texts: Iterable, seed: int) -> list:
    """Sort strings or pairs of them into an order that is random but the same everywhere."""
    return sorted(texts, key=lambda text: hashlib.sha256("\0".join((str(seed), *text)).encode()).digest())


def _hold_out(groups: Groups, count: int, seed: int) -> tuple[list[Pair], Groups]:
    """Return one pair for each of `count` groups in which no translation equals its source, and the other groups."""

    def copied(pair: Pair) -> bool:
        return normal_form(pair.source) == normal_form(pair.target)

    eligible = [group for group, pairs in groups.items() if not any(map(copied, pairs))]
    held = set(_by_hash(eligible, seed)[:count])
    rows = [max(_by_hash(groups[group], seed), key=groups[group].__getitem__) for group in held]
    return _by_hash(rows, seed), {group: pairs for group, pairs in groups.items() if group not in held}


def main() -> None:
    """Print the size of each split, and some of its pairs."""
    parser = argparse.ArgumentParser(description="Print the size of each split and some examples.")
    parser.add_argument("--language", default="fr", help="for example fr, de, es, pt_BR or zh_Hans (default: fr)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    splits = load(arguments.language, arguments.seed)
    print(", ".join(f"{package} {importlib.metadata.version(package)}" for package in (*PACKAGES, SHOP)))
    for name, pairs in splits.items():
        lengths = sorted(len(pair.source.split()) for pair in pairs) or [0]
        mean, p95 = sum(lengths) / len(lengths), lengths[int(0.95 * len(lengths))]
        print(f"\n{name}: {len(pairs)} pairs; words in a source: {mean:.1f} on average, 95 % have up to {p95}")
        for pair in random.Random(arguments.seed).sample(pairs, min(5, len(pairs))):
            print(f"    {pair.source}  =>  {pair.target}")


if __name__ == "__main__":
    main()
