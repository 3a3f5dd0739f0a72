"""The card says what the config says, and nobody's README.md is lost."""

import pytest
from helpers import tiny_model
from huggingface_hub import EvalResult, ModelCard

from hf_transformer import write_model_card


RESULT = EvalResult(
    task_type="translation",
    dataset_type="strings",
    dataset_name="400 strings",
    metric_type="bleu",
    metric_name="BLEU",
    metric_value=12.5,
)


@pytest.fixture
def model():
    return tiny_model(norm_position="pre", gated_mlp=True)


def write(folder, model, **changes):
    return write_model_card(folder, model, **{"title": "A model", "description": "It does something.", **changes})


def test_the_card_holds_description_size_and_the_knobs_that_differ(tmp_path, model):
    assert write(tmp_path, model)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "# A model\n" in text and "It does something." in text
    assert f"{model.num_parameters():,} parameters" in text
    assert "| norm_position | pre | post |" in text and "| gated_mlp | True | False |" in text
    assert "sinusoidal_layout" not in text and "auto_map" not in text and "Results" not in text
    assert "trust_remote_code=True" in text and "AutoModelForSeq2SeqLM" in text


def test_its_metadata_is_what_the_hub_reads(tmp_path, model):
    write(tmp_path, model, results=[RESULT], language=["en", "fr"], license="mit")
    data = ModelCard.load(tmp_path / "README.md").data
    assert data.library_name == "transformers" and "hf_transformer" in data.tags
    assert data.language == ["en", "fr"] and data.license == "mit" and data.model_name == "A model"
    assert data.eval_results[0].metric_value == 12.5
    assert "| 400 strings | BLEU | 12.5 |" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_an_existing_readme_stays_as_it_is(tmp_path, model):
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    assert not write(tmp_path, model)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "mine"


def test_nothing_of_this_machine_is_in_it(tmp_path, model):
    folder = tmp_path / "secret" / "model"
    folder.mkdir(parents=True)
    write(folder, model)
    assert "secret" not in (folder / "README.md").read_text(encoding="utf-8")
