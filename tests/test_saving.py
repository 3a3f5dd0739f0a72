"""Saving, loading and the start of the weights: what comes back is what went, also where this package is missing.

Fresh processes stand for other people's machines: nothing of this one is left in them.
"""

import copy
import importlib
import io
import json
import os
import pickle
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import torch
from helpers import (
    PAD,
    VOCAB,
    assert_close,
    name_of,
    pairwise,
    random_ids,
    tiny_config,
    tiny_model,
    training_batch,
)
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

import hf_transformer
from hf_transformer import (
    TransformerEncoderDecoderConfig,
    TransformerEncoderDecoderForConditionalGeneration,
    TransformerEncoderDecoderModel,
)


WHERE_THE_PACKAGE_IS = Path(hf_transformer.__file__).parents[1]
PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
SOURCE, TARGET = random_ids(2, 6, seed=1), random_ids(2, 5, seed=2)
TIED = {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"}
AUTO_MAP = {
    "AutoConfig": "configuration_transformer.TransformerEncoderDecoderConfig",
    "AutoModel": "modeling_encoder_decoder.TransformerEncoderDecoderModel",
    "AutoModelForSeq2SeqLM": "modeling_encoder_decoder.TransformerEncoderDecoderForConditionalGeneration",
}
tied_and_untied = pytest.mark.parametrize("tied", (True, False), ids=("tied", "untied"))


@torch.no_grad()
def logits(model):
    return model(SOURCE, decoder_input_ids=TARGET).logits


def load(folder, **settings):
    """With the attention of `tiny_model`, so that equal means equal to the bit."""
    return TransformerEncoderDecoderForConditionalGeneration.from_pretrained(
        folder, attn_implementation="eager", **settings
    )


def assert_same_state(actual, expected):
    actual, expected = actual.state_dict(), expected.state_dict()
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor) and actual[name].dtype == tensor.dtype, name


def stored(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())


def is_tied(model):
    tensors = {id(dict(model.named_parameters(remove_duplicate=False))[name]) for name in TIED}
    return len(tensors) == 1


# There and back


@pytest.mark.parametrize("case", pairwise(), ids=name_of)
def test_a_model_comes_back_to_the_bit(case, tmp_path):
    model = tiny_model(**case)
    model.save_pretrained(tmp_path)
    again, info = load(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert not again.training
    assert_same_state(again, model)
    assert torch.equal(logits(again), logits(model))


@tied_and_untied
def test_tied_weights_are_stored_once_and_untied_ones_each(tied, tmp_path):
    model = tiny_model(tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    assert stored(tmp_path) & TIED == ({"model.encoder.embed_tokens.weight"} if tied else TIED)
    again = load(tmp_path)
    assert is_tied(model) == is_tied(again) == tied
    assert_same_state(again, model)
    if not tied:
        tensors = [again.state_dict()[name] for name in sorted(TIED)]
        assert not torch.equal(tensors[0], tensors[1]) and not torch.equal(tensors[0], tensors[2])


@tied_and_untied
def test_the_model_without_a_head_and_the_one_with_it_load_each_other(tied, tmp_path):
    model = tiny_model(tie_word_embeddings=tied, norm_position="pre")
    model.save_pretrained(tmp_path / "whole")
    base, info = TransformerEncoderDecoderModel.from_pretrained(tmp_path / "whole", output_loading_info=True)
    assert set(info["unexpected_keys"]) == (set() if tied else {"lm_head.weight"}) and not info["missing_keys"]
    assert_same_state(base, model.model)
    base.save_pretrained(tmp_path / "base")
    whole, info = load(tmp_path / "base", output_loading_info=True)
    assert set(info["missing_keys"]) == (set() if tied else {"lm_head.weight"}) and not info["unexpected_keys"]
    assert_same_state(whole.model, model.model)
    assert is_tied(whole) == tied


def test_a_checkpoint_in_many_files_comes_back(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    again, info = load(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert_same_state(again, model)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_a_checkpoint_in_half_precision_comes_back_in_it(dtype, tmp_path):
    model = tiny_model().to(dtype)
    model.save_pretrained(tmp_path)
    again = load(tmp_path, dtype="auto")
    assert {parameter.dtype for parameter in again.parameters()} == {dtype}
    assert_same_state(again, model)
    assert torch.equal(logits(again), logits(model)) and logits(again).dtype == dtype
    wide = load(tmp_path, dtype=torch.float32)
    assert {parameter.dtype for parameter in wide.parameters()} == {torch.float32}
    assert_close(logits(model).float(), logits(wide), 0.05)


@pytest.mark.parametrize("way", ("deepcopy", "pickle", "torch.save"))
@tied_and_untied
def test_a_model_can_be_copied_and_pickled(way, tied):
    model = tiny_model(tie_word_embeddings=tied, norm_position="pre", gated_mlp=True)
    if way == "deepcopy":
        again = copy.deepcopy(model)
    elif way == "pickle":
        again = pickle.loads(pickle.dumps(model))
    else:
        buffer = io.BytesIO()
        torch.save(model, buffer)
        again = torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    assert is_tied(again) == tied
    assert torch.equal(logits(again), logits(model))
    with torch.no_grad():
        next(again.parameters()).zero_()
    assert not torch.equal(logits(again), logits(model)), "it is a copy"


# New tokens


@tied_and_untied
@pytest.mark.parametrize("bias", (False, True), ids=("no bias", "bias"))
def test_new_tokens_change_nothing_for_the_old_ones(tied, bias, tmp_path):
    model = tiny_model(tie_word_embeddings=tied, lm_head_bias=bias)
    before, tables = logits(model), {name: model.state_dict()[name].clone() for name in TIED}
    model.resize_token_embeddings(VOCAB + 7)
    assert model.config.vocab_size == VOCAB + 7 and is_tied(model) == tied
    assert torch.equal(logits(model)[..., :VOCAB], before)
    for name, table in tables.items():
        assert model.state_dict()[name].shape == (VOCAB + 7, 16)
        assert torch.equal(model.state_dict()[name][:VOCAB], table), f"with the row of padding: {name}"
    for stack in (model.get_encoder(), model.get_decoder()):
        assert stack.embed_tokens.num_embeddings == VOCAB + 7 and stack.embed_tokens.padding_idx == PAD
    new = torch.full((2, 3), VOCAB + 6)
    assert model(new, labels=new).loss.isfinite()
    assert model.generate(new, max_new_tokens=3).shape[0] == 2
    model.save_pretrained(tmp_path)
    again, info = load(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert_same_state(again, model)
    assert is_tied(again) == tied and torch.equal(logits(again), logits(model))


@tied_and_untied
def test_tokens_can_be_taken_away_and_the_number_rounded_up(tied):
    model = tiny_model(tie_word_embeddings=tied)
    before = logits(model)
    model.resize_token_embeddings(VOCAB, pad_to_multiple_of=8)
    assert model.config.vocab_size == 56 and model.get_decoder().embed_tokens.num_embeddings == 56
    assert torch.equal(logits(model)[..., :VOCAB], before)
    model.resize_token_embeddings(VOCAB)
    assert torch.equal(logits(model), before)
    with pytest.raises(ValueError, match="`decoder_input_ids`.*49"):
        model(SOURCE, decoder_input_ids=torch.full((2, 2), VOCAB))


def test_a_model_without_a_head_can_get_new_tokens_too():
    for tied in (True, False):
        model = tiny_model(model_class=TransformerEncoderDecoderModel, tie_word_embeddings=tied)
        before = model(SOURCE, decoder_input_ids=TARGET).last_hidden_state
        model.resize_token_embeddings(VOCAB + 3)
        new = torch.full((2, 3), VOCAB + 2)
        assert model(new, decoder_input_ids=new).last_hidden_state.isfinite().all()
        assert torch.equal(model(SOURCE, decoder_input_ids=TARGET).last_hidden_state, before)


@tied_and_untied
def test_embeddings_can_be_replaced(tied):
    model = tiny_model(tie_word_embeddings=tied)
    table = torch.nn.Embedding(VOCAB, 16, padding_idx=PAD)
    model.set_input_embeddings(table)
    model.tie_weights()
    assert model.get_input_embeddings() is table and model.get_encoder().embed_tokens is table
    assert (model.get_decoder().embed_tokens.weight is table.weight) == tied
    assert (model.get_output_embeddings().weight is table.weight) == tied


# The start


def assert_started(name, tensor, config):
    """The values that a fresh weight of this name has."""
    if name.endswith("bias"):
        assert (tensor == 0).all(), name
    elif "norm" in name:
        assert (tensor == 1).all(), name
    elif config.initializer == "normal":
        rows = tensor[1:] if "embed_tokens" in name else tensor
        assert rows.std().item() == pytest.approx(config.initializer_range, rel=0.2), name
    elif "embed_tokens" in name:
        assert tensor[1:].std().item() == pytest.approx(config.hidden_size**-0.5, rel=0.1), name
    else:
        bound = (6 / sum(tensor.shape)) ** 0.5
        assert 0.9 * bound < tensor.abs().max().item() <= bound, name
        assert tensor.std().item() == pytest.approx(bound / 3**0.5, rel=0.15), name
    if "embed_tokens" in name:
        assert (tensor[PAD] == 0).all(), name


@tied_and_untied
@pytest.mark.parametrize("initializer", ("xavier", "normal"))
def test_a_fresh_model_has_the_start_of_its_config(tied, initializer):
    """Xavier's with embeddings N(0, 1/width) is what lets a post-norm model learn at the rates of the paper."""
    torch.manual_seed(0)
    config = tiny_config(
        hidden_size=32,
        initializer=initializer,
        initializer_range=0.05,
        tie_word_embeddings=tied,
        norm_position="pre",
        gated_mlp=True,
        lm_head_bias=True,
    )
    model = TransformerEncoderDecoderForConditionalGeneration(config)
    assert is_tied(model) == tied
    for name, parameter in model.named_parameters():
        assert_started(name, parameter, config)


def test_another_padding_token_has_the_row_of_zeros():
    model = TransformerEncoderDecoderForConditionalGeneration(tiny_config(pad_token_id=9))
    table = model.get_input_embeddings().weight
    assert (table[9] == 0).all() and (table[PAD] != 0).all()
    model = TransformerEncoderDecoderForConditionalGeneration(tiny_config(pad_token_id=None))
    assert (model.get_input_embeddings().weight != 0).any(-1).all()


def test_seeds_give_models():
    models = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        models.append(TransformerEncoderDecoderForConditionalGeneration(tiny_config()))
    assert_same_state(models[1], models[0])
    assert not torch.equal(models[2].lm_head.weight, models[0].lm_head.weight)


@pytest.mark.parametrize(
    "missing",
    (
        "model.decoder.layers.1.cross_attn.o_proj.weight",
        "model.encoder.layers.0.mlp.up_proj.bias",
        "model.encoder.layers.1.self_attn_norm.weight",
        "model.decoder.norm.weight",
        "model.decoder.embed_tokens.weight",
        "lm_head.weight",
    ),
)
def test_a_weight_that_a_checkpoint_lacks_gets_its_start_and_no_other_does(missing, tmp_path):
    model = tiny_model(tie_word_embeddings=False, norm_position="pre")
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop(missing)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    torch.manual_seed(0)
    again, info = load(tmp_path, output_loading_info=True)
    assert set(info["missing_keys"]) == {missing}
    for name, tensor in again.state_dict().items():
        if name == missing:
            assert_started(name, tensor, model.config)
        else:
            assert torch.equal(tensor, model.state_dict()[name]), name


def test_a_padding_row_that_was_trained_is_not_zeroed_by_loading(tmp_path):
    model = tiny_model()
    assert (model.get_input_embeddings().weight[PAD] != 0).all()
    model.save_pretrained(tmp_path)
    assert torch.equal(load(tmp_path).get_input_embeddings().weight[PAD], model.get_input_embeddings().weight[PAD])


@tied_and_untied
def test_a_model_built_without_memory_can_be_given_some(tied):
    """As FSDP and accelerate do for models that fit into no one memory."""
    config = tiny_config(tie_word_embeddings=tied, hidden_size=32)
    with torch.device("meta"):
        model = TransformerEncoderDecoderForConditionalGeneration(config)
    assert all(parameter.is_meta for parameter in model.parameters())
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    torch.manual_seed(0)
    model.init_weights()
    assert is_tied(model) == tied
    for name, parameter in model.named_parameters():
        assert_started(name, parameter, config)
    assert logits(model).isfinite().all()


# The folder that travels


def run_fresh(code, folder, *, package=False):
    """Run code in a new process, in which this package can be imported only if `package`."""
    blocker = """
        import sys
        class Blocker:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "hf_transformer":
                    raise ModuleNotFoundError(name)
        sys.meta_path.insert(0, Blocker())
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(folder / "modules"), "OMP_NUM_THREADS": "1"}
    if package:
        environment["PYTHONPATH"] = str(WHERE_THE_PACKAGE_IS)
    lines = textwrap.dedent(code) if package else textwrap.dedent(blocker) + textwrap.dedent(code)
    result = subprocess.run(
        [sys.executable, "-c", lines], cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def test_plain_save_pretrained_writes_the_code_and_where_each_class_is(tmp_path):
    for model_class in (TransformerEncoderDecoderForConditionalGeneration, TransformerEncoderDecoderModel):
        folder = tmp_path / model_class.__name__
        model_class(tiny_config()).save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        assert config["auto_map"] == AUTO_MAP
        assert config["architectures"] == [model_class.__name__]
        for reference in AUTO_MAP.values():
            module, name = reference.split(".")
            assert f"class {name}(" in (folder / f"{module}.py").read_text()
    tiny_config().save_pretrained(tmp_path / "config")
    assert json.loads((tmp_path / "config" / "config.json").read_text())["auto_map"] == AUTO_MAP


def test_the_folder_loads_where_the_package_is_not_installed_and_so_does_a_copy_saved_there(tmp_path):
    model = tiny_model(norm_position="pre", gated_mlp=True, hidden_act="silu", num_key_value_heads=2)
    model.save_pretrained(tmp_path / "whole")
    model.model.save_pretrained(tmp_path / "base")
    batch = training_batch(6, 4, target_lengths=(5, 3))
    with torch.no_grad():
        output = model(**batch)
    torch.save((batch, output.loss, output.logits), tmp_path / "expected.pt")
    load_and_check = """
        import sys
        import torch
        from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

        batch, loss, logits = torch.load("expected.pt")
        settings = {"trust_remote_code": True, "attn_implementation": "eager"}
        for folder in FOLDERS:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
            assert type(config).__name__ == "TransformerEncoderDecoderConfig"
            base = AutoModel.from_pretrained(folder, **settings)
            assert type(base).__name__ == "TransformerEncoderDecoderModel"
            model, info = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True, **settings)
            assert type(model).__name__ == "TransformerEncoderDecoderForConditionalGeneration"
            assert not any(info.values()), info
            with torch.no_grad():
                output = model(**batch)
            assert torch.equal(output.logits, logits) and torch.equal(output.loss, loss)
            ids = model.prepare_decoder_input_ids_from_labels(batch["labels"])
            states = base(batch["input_ids"], batch["attention_mask"], decoder_input_ids=ids).last_hidden_state
            assert torch.equal(model.lm_head(states), logits)
            assert model.generate(batch["input_ids"], max_new_tokens=3, eos_token_id=None).shape == (2, 4)
        assert "hf_transformer" not in sys.modules
    """
    save_again = """
        model.save_pretrained("again")
        base.save_pretrained("again_base")
    """
    first = textwrap.dedent(load_and_check).replace("FOLDERS", '("base", "whole")') + textwrap.dedent(save_again)
    run_fresh(first, tmp_path)
    again = sorted(path.name for path in (tmp_path / "again").glob("*.py"))
    assert again == sorted(path.name for path in (tmp_path / "whole").glob("*.py"))
    assert json.loads((tmp_path / "again" / "config.json").read_text())["auto_map"] == AUTO_MAP
    for folder in ("whole", "base"):
        (tmp_path / folder).rename(tmp_path / f"{folder}_gone")
    run_fresh(textwrap.dedent(load_and_check).replace("FOLDERS", '("again", "again_base")'), tmp_path)


def test_where_the_package_is_installed_its_own_classes_are_used(tmp_path):
    """Whatever trust_remote_code says; and the import brings in nothing that only some users have."""
    tiny_model().save_pretrained(tmp_path / "model")
    run_fresh(
        """
        import importlib
        import sys
        import hf_transformer
        assert "peft" not in sys.modules and "datasets" not in sys.modules
        importlib.reload(hf_transformer)
        from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM
        for trust in (True, False, True):
            config = AutoConfig.from_pretrained("model", trust_remote_code=trust)
            assert type(config) is hf_transformer.TransformerEncoderDecoderConfig
            for auto_class, name in ((AutoModel, "Model"), (AutoModelForSeq2SeqLM, "ForConditionalGeneration")):
                expected = getattr(hf_transformer, f"TransformerEncoderDecoder{name}")
                assert type(auto_class.from_pretrained("model", trust_remote_code=trust)) is expected
                assert type(auto_class.from_config(config, trust_remote_code=trust)) is expected
        """,
        tmp_path,
        package=True,
    )


def test_the_auto_classes_know_the_architecture_and_importing_twice_is_harmless(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    for _ in range(2):
        importlib.reload(hf_transformer)
        assert type(AutoConfig.from_pretrained(tmp_path)) is TransformerEncoderDecoderConfig
        assert type(AutoConfig.for_model("hf_transformer_encoder_decoder")) is TransformerEncoderDecoderConfig
        assert type(AutoModel.from_pretrained(tmp_path)) is TransformerEncoderDecoderModel
        model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
        assert type(model) is TransformerEncoderDecoderForConditionalGeneration
        assert type(AutoModelForSeq2SeqLM.from_config(model.config)) is type(model)


def test_another_version_of_transformers_is_refused_in_one_sentence(tmp_path):
    printed = run_fresh(
        """
        import transformers
        transformers.__version__ = "4.57.0"
        try:
            import hf_transformer
        except ImportError as error:
            print(error)
        """,
        tmp_path,
        package=True,
    )
    assert printed.count("\n") == 1
    for part in ("hf_transformer needs transformers", ">=5.24", "4.57.0", "pip install"):
        assert part in printed


def test_the_range_of_transformers_is_the_one_in_pyproject():
    from hf_transformer.requirements import TRANSFORMERS

    dependencies = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    assert [entry for entry in dependencies if entry.startswith("transformers")] == [f"transformers{TRANSFORMERS}"]
