"""Rules of the code itself: what travels to the Hub with a model stays short, and can travel."""

import ast
import sys
from pathlib import Path

import pytest
from transformers.dynamic_module_utils import get_relative_import_files

import hf_transformer


PACKAGE = Path(hf_transformer.__file__).parent
FILES = sorted(PACKAGE.glob("*.py"))


def travelling():
    """The files that save_pretrained copies: those of the classes and what they import, as transformers finds it."""
    found = set()
    for public in (getattr(hf_transformer, name) for name in hf_transformer.__all__):
        for reference in getattr(public, "auto_classes", {}).values():
            start = PACKAGE / f"{reference.partition('.')[0]}.py"
            found |= {start} | {Path(path) for path in get_relative_import_files(start)}
    return sorted(found)


def tree(file):
    return ast.parse(file.read_text(encoding="utf-8"))


def imports(file):
    return [node for node in ast.walk(tree(file)) if isinstance(node, ast.Import | ast.ImportFrom)]


every_travelling_file = pytest.mark.parametrize("file", travelling(), ids=lambda file: file.name)
every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)


def test_what_travels_reads_in_one_sitting():
    lengths = {file.name: len(file.read_text(encoding="utf-8").splitlines()) for file in travelling()}
    assert "modeling_encoder_decoder.py" in lengths and "configuration_transformer.py" in lengths
    assert max(lengths.values()) <= 400, lengths
    assert sum(lengths.values()) <= 2200, lengths


@every_travelling_file
def test_what_travels_imports_its_neighbours_in_the_one_form_that_is_followed(file):
    """transformers copies the files that it finds by a regular expression, into one flat folder: `from .x import y` is
    found; `from . import x`, a backslash, a sub-package and the package's own name are not, and fail at loading."""
    assert file.parent == PACKAGE
    neighbours = set()
    for node in imports(file):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert node.level == 1 and node.module and "." not in node.module, f"line {node.lineno}"
            neighbours.add(PACKAGE / f"{node.module}.py")
        else:
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            assert not any(name.partition(".")[0] == "hf_transformer" for name in names), f"line {node.lineno}"
    assert neighbours <= set(travelling())
    assert neighbours <= {Path(path) for path in get_relative_import_files(file)}


@every_travelling_file
def test_what_travels_needs_nothing_that_the_package_does_not_install(file):
    """Whoever loads a model from the Hub has transformers and what that brings."""
    allowed = {"torch", "transformers", "huggingface_hub", "safetensors", "packaging"}
    for node in imports(file):
        if isinstance(node, ast.ImportFrom) and node.level:
            continue
        names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        for name in names:
            root = name.partition(".")[0]
            assert root in allowed or root in sys.stdlib_module_names, f"line {node.lineno}"


def test_nothing_that_travels_stands_in_the_file_that_does_not():
    """`__init__.py` is not copied: an empty one is made, so nothing may be imported from it."""
    assert PACKAGE / "__init__.py" not in travelling()


@every_file
def test_no_knob_has_a_default_beside_the_one_in_the_config(file):
    """`getattr(config, "hiden_size", 512)` would never tell that it reads nothing."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            owner = node.args[0]
            name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            assert not (name.endswith("config") and len(node.args) == 3), f"line {node.lineno}"


@every_file
def test_every_class_and_module_says_what_it_is(file):
    module = tree(file)
    if module.body:
        assert ast.get_docstring(module)
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            assert ast.get_docstring(node), node.name


def test_the_public_names_are_those_that_are_listed():
    for name in hf_transformer.__all__:
        assert getattr(hf_transformer, name).__name__ == name
    assert {
        "TransformerConfig",
        "TransformerEncoderDecoderConfig",
        "TransformerEncoderDecoderForConditionalGeneration",
        "TransformerEncoderDecoderModel",
    } <= set(hf_transformer.__all__)
