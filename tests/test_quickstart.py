"""The quickstart on a handful of strings: every step of it, to the process that does not have the package."""

import json
import sys
from pathlib import Path

import pytest
from PIL import Image


SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import quickstart  # noqa: E402  it is found only now
from interface_strings import Pair, load  # noqa: E402


@pytest.fixture
def few(monkeypatch):
    """The real strings, but few of them, and short answers from a model that has learned nothing."""
    splits = {name: pairs[:24] for name, pairs in load("fr").items()}
    monkeypatch.setattr(quickstart, "load", lambda language: splits)
    build = quickstart.build_model

    def build_small(tokenizer):
        model = build(tokenizer)
        model.generation_config.max_length = 8
        return model

    monkeypatch.setattr(quickstart, "build_model", build_small)
    return splits


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["quickstart.py", "--max-steps", "4", *map(str, arguments)])
    quickstart.main()


def test_it_goes_from_strings_to_a_folder_that_loads_elsewhere(few, monkeypatch, tmp_path, capfd):
    run(monkeypatch, "--output", tmp_path / "run", "--sentence", "Save the page")
    printed = capfd.readouterr().out
    assert "BLEU" in printed and "chrF" in printed and "version:" in printed, "scores with their signature"
    assert "hf_transformer is not installed here; the model is a transformers_modules class" in printed
    assert "Save the page\n  -> " in printed
    assert Image.open(tmp_path / "run" / "loss.png").size[0] > 400
    folder = tmp_path / "run" / "model"
    written = {path.name for path in folder.iterdir()}
    assert {"model.safetensors", "tokenizer.json", "generation_config.json", "README.md", "attention.py"} <= written
    assert json.loads((folder / "generation_config.json").read_text())["num_beams"] == 4
    assert str(tmp_path) not in "".join(path.read_text() for path in folder.glob("*") if path.suffix != ".safetensors")


def test_a_second_run_leaves_the_first_alone(tmp_path):
    for name in ("run", "run-2", "run-3"):
        folder = quickstart.new_folder(tmp_path / "run")
        assert folder == tmp_path / name and folder.is_dir() and not any(folder.iterdir())


def test_the_tokenizer_spells_any_text():
    tokenizer = quickstart.build_tokenizer([Pair("Save the page", "Enregistrer la page")], 300)
    for text in ("Save the page", "Ünïcode %(name)s <b>…</b>", "保存页面 🙂"):
        ids = tokenizer(text).input_ids
        assert ids[-1] == tokenizer.eos_token_id and tokenizer.decode(ids, skip_special_tokens=True) == text


def test_perfect_translations_score_100_and_wrong_ones_do_not():
    pairs = [Pair("a", "le chat est sur la table"), Pair("b", "les chiens dorment dans le jardin")] * 4
    perfect = quickstart.score([pair.target for pair in pairs], pairs, "fr")
    assert [round(value, 3) for _, value, _, _ in perfect] == [100, 100]
    wrong = quickstart.score(["un oiseau"] * len(pairs), pairs, "fr")
    assert all(value < 15 for _, value, _, _ in wrong)


def test_a_text_too_long_for_its_batch_is_left_out():
    tokenizer = quickstart.build_tokenizer([Pair("a", "b")], 300)
    assert len(quickstart.encode(tokenizer, [Pair("short", "court"), Pair("x" * 500, "y")])) == 1
