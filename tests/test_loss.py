"""The training loss: which labels count, what they are aligned with, and that micro-batches add up to a batch."""

import math

import pytest
import torch
from helpers import (
    IGNORED,
    PAD,
    VOCAB,
    assert_close,
    assert_gradients_close,
    gradients,
    random_ids,
    tiny_model,
    training_batch,
)
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
)
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

from hf_transformer.losses import cross_entropy_loss


# Rows with 9, 2, 5, 1, 7, 3, 4 and 6 labels: a mean of means of micro-batches is then not the mean.
BATCH = training_batch(6, 3, 7, 5, 4, 8, 2, 6, target_lengths=(9, 2, 5, 1, 7, 3, 4, 6), seed=3)
ITEMS = 37


def by_hand(logits, labels):
    """-log softmax of the label, one label at a time, for all that count."""
    losses = []
    for row in range(labels.shape[0]):
        for column in range(labels.shape[1]):
            label = labels[row, column].item()
            if label != IGNORED:
                numbers = logits[row, column].double()
                losses.append(numbers.exp().sum().log() - numbers[label])
    return torch.stack(losses)


def micro_batches(count):
    return [
        dict(zip(BATCH, parts, strict=True)) for parts in zip(*(t.chunk(count) for t in BATCH.values()), strict=True)
    ]


@torch.no_grad()
def test_the_loss_is_the_mean_over_the_labels_that_count():
    output = tiny_model()(**BATCH)
    losses = by_hand(output.logits, BATCH["labels"])
    assert len(losses) == ITEMS
    assert_close(output.loss, losses.mean(), 1e-6)


@torch.no_grad()
def test_the_padding_token_counts_as_a_label_like_any_other():
    """What does not count is -100, and only that."""
    labels = BATCH["labels"].masked_fill(BATCH["labels"] == IGNORED, PAD)
    output = tiny_model()(**BATCH | {"labels": labels})
    assert_close(output.loss, by_hand(output.logits, labels).mean(), 1e-6)


@pytest.mark.parametrize(
    "items", (ITEMS, torch.tensor(ITEMS), torch.tensor([ITEMS]), torch.tensor([[ITEMS]])), ids=str
)
@torch.no_grad()
def test_with_the_number_of_items_of_the_batch_the_loss_is_their_sum_over_it(items):
    """A scalar, also where Trainer hands each of several devices a tensor with dimensions of its own."""
    model = tiny_model()
    part = micro_batches(4)[1]
    output = model(**part, num_items_in_batch=items)
    assert_close(output.loss, by_hand(output.logits, part["labels"]).sum() / ITEMS, 1e-6)


@pytest.mark.parametrize("count", (2, 4, 8))
def test_gradients_of_micro_batches_add_up_to_those_of_the_batch(count):
    model = tiny_model().train()
    expected, output = gradients(model, **BATCH)
    model.zero_grad()
    total = 0.0
    for part in micro_batches(count):
        loss = model(**part, num_items_in_batch=torch.tensor(ITEMS)).loss
        loss.backward()
        total += loss.detach()
    assert_close(total, output.loss)
    assert_gradients_close({name: parameter.grad for name, parameter in model.named_parameters()}, expected)


@pytest.mark.parametrize("items", (None, 0, 5, torch.tensor(0), torch.tensor(5)), ids=str)
def test_without_a_label_that_counts_the_loss_and_all_gradients_are_zero(items):
    """Not NaN, which would spoil the weights, and not None, for which data-parallel training would wait."""
    model = tiny_model(tie_word_embeddings=False, lm_head_bias=True).train()
    batch = BATCH | {"labels": torch.full_like(BATCH["labels"], IGNORED), "decoder_input_ids": random_ids(8, 9)}
    found, output = gradients(model, **batch, **({} if items is None else {"num_items_in_batch": items}))
    assert output.loss.item() == 0
    assert output.logits.isfinite().all()
    assert all((gradient == 0).all() for gradient in found.values())


# Alignment


@torch.no_grad()
def test_decoder_inputs_are_the_labels_behind_the_start_token():
    model = tiny_model(decoder_start_token_id=7, pad_token_id=9)
    labels = torch.tensor([[11, 12, 13, 2], [21, 2, IGNORED, IGNORED]])
    expected = torch.tensor([[7, 11, 12, 13], [7, 21, 2, 9]])
    kept = labels.clone()
    assert torch.equal(model.prepare_decoder_input_ids_from_labels(labels), expected)
    assert torch.equal(model.prepare_decoder_input_ids_from_labels(labels=labels), expected)
    assert torch.equal(labels, kept), "the caller's labels are left as they were"
    source = random_ids(2, 5)
    derived, given = model(source, labels=labels), model(source, labels=labels, decoder_input_ids=expected)
    assert torch.equal(derived.logits, given.logits) and torch.equal(derived.loss, given.loss)
    assert torch.equal(derived.logits, model(source, decoder_input_ids=expected).logits)


@torch.no_grad()
def test_a_label_is_what_the_logits_of_its_own_column_should_predict():
    """The labels are shifted once, into the decoder's inputs, and not a second time in the loss."""
    model = tiny_model()
    source, inputs = random_ids(1, 5), random_ids(1, 4)
    logits = model(source, decoder_input_ids=inputs).logits
    for column in range(4):
        labels = torch.full((1, 4), IGNORED)
        labels[0, column] = 23
        loss = model(source, decoder_input_ids=inputs, labels=labels).loss
        assert_close(loss, -logits[0, column].log_softmax(-1)[23], 1e-6)


@torch.no_grad()
def test_given_decoder_embeddings_are_used_and_not_the_labels():
    model = tiny_model()
    source, inputs, labels = random_ids(2, 5), random_ids(2, 4), random_ids(2, 4, seed=9)
    embeddings = model.get_decoder().embed_tokens(inputs)
    actual = model(source, decoder_inputs_embeds=embeddings, labels=labels)
    expected = model(source, decoder_input_ids=inputs, labels=labels)
    assert_close(actual.logits, expected.logits, 1e-6)
    assert_close(actual.loss, expected.loss, 1e-6)


# Numbers


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_in_half_precision_the_loss_is_computed_in_float32(dtype):
    model = tiny_model().to(dtype)
    output = model(**BATCH)
    assert output.logits.dtype == dtype and output.loss.dtype == torch.float32
    assert_close(output.loss, by_hand(output.logits.float(), BATCH["labels"]).mean(), 1e-6)
    output.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_a_sum_that_half_precision_could_not_hold_is_right():
    """10000 labels at a loss of log(vocabulary) each: float16 ends at 65504, bfloat16 has 8 bits."""
    for dtype in (torch.float16, torch.bfloat16):
        logits = torch.zeros(100, 100, 1000, dtype=dtype)
        labels = torch.zeros(100, 100, dtype=torch.long)
        assert_close(cross_entropy_loss(logits, labels), torch.tensor(math.log(1000)), 1e-5)


@torch.no_grad()
def test_labels_may_be_of_any_integer_type():
    model = tiny_model()
    expected = model(**BATCH).loss
    assert torch.equal(model(**BATCH | {"labels": BATCH["labels"].int()}).loss, expected)


def test_a_loss_function_of_the_users_own_is_called():
    calls = []

    def mine(logits, labels, vocab_size, **kwargs):
        calls.append((logits.shape, labels.shape, vocab_size, kwargs.get("num_items_in_batch")))
        return logits.sum() * 0 + 42

    model = tiny_model()
    model.loss_function = mine
    assert model(**BATCH, num_items_in_batch=5).loss == 42
    assert calls == [((8, 9, VOCAB), (8, 9), VOCAB, 5)]


# With transformers' Trainer


class Rows(torch.utils.data.Dataset):
    """The rows of the batch as a data set has them: without padding."""

    def __len__(self):
        return len(BATCH["labels"])

    def __getitem__(self, row):
        source = BATCH["input_ids"][row][BATCH["attention_mask"][row] == 1]
        labels = BATCH["labels"][row][BATCH["labels"][row] != IGNORED]
        return {"input_ids": source.tolist(), "labels": labels.tolist()}


def collator(model=None):
    """The usual one; a model that it is given is asked for decoder inputs. Only the tokenizer's padding counts."""
    vocabulary = {"<pad>": PAD} | {f"word{index}": index for index in range(1, VOCAB)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocabulary)), pad_token="<pad>")
    return DataCollatorForSeq2Seq(tokenizer, model=model)


def all_rows(model=None):
    return collator(model)([Rows()[row] for row in range(8)])


def arguments(folder, arguments_class=TrainingArguments, **changes):
    settings = {
        "output_dir": str(folder),
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_steps": 1,
        "optim": "sgd",
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "dataloader_pin_memory": False,
    }
    return arguments_class(**settings | changes)


def test_in_trainer_eight_rows_train_the_same_at_once_and_in_micro_batches(tmp_path):
    weights, losses = [], []
    for size, steps in ((8, 1), (4, 2), (2, 4)):
        model = tiny_model().train()
        trainer = Trainer(
            model=model,
            args=arguments(
                tmp_path,
                per_device_train_batch_size=size,
                gradient_accumulation_steps=steps,
                max_steps=2,
                train_sampling_strategy="sequential",
            ),
            train_dataset=Rows(),
            data_collator=collator(),
        )
        losses.append(torch.tensor(trainer.train().training_loss))
        weights.append({name: parameter.detach().clone() for name, parameter in model.named_parameters()})
    start = dict(tiny_model().named_parameters())
    assert all((weights[0][name] != start[name]).any() for name in start if name.endswith(".weight"))
    for other in (1, 2):
        assert_close(losses[other], losses[0])
        for name, weight in weights[0].items():
            assert_close(weights[other][name], weight, 1e-5, name)


def test_the_usual_collator_adds_the_decoder_inputs_of_the_model():
    model = tiny_model(decoder_start_token_id=7)
    batch = all_rows(model)
    for name in BATCH:
        assert torch.equal(batch[name], BATCH[name])
    assert torch.equal(batch["decoder_input_ids"], model.prepare_decoder_input_ids_from_labels(BATCH["labels"]))


@pytest.mark.parametrize(
    "trainer_class, arguments_class",
    ((Trainer, TrainingArguments), (Seq2SeqTrainer, Seq2SeqTrainingArguments)),
    ids=("Trainer", "Seq2SeqTrainer"),
)
def test_label_smoothing_of_trainer_uses_the_alignment_of_the_loss(trainer_class, arguments_class, tmp_path):
    """(1 - ε) times the loss and ε times the mean over the vocabulary, of the same columns."""
    epsilon, model = 0.1, tiny_model()
    batch = all_rows(model)
    trainer = trainer_class(model=model, args=arguments(tmp_path, arguments_class, label_smoothing_factor=epsilon))
    with torch.no_grad():
        smoothed = trainer.compute_loss(model, dict(batch))
        logits = model(**BATCH).logits
    everything = -logits.log_softmax(-1).mean(-1)[BATCH["labels"] != IGNORED].mean()
    assert_close(smoothed, (1 - epsilon) * by_hand(logits, BATCH["labels"]).mean() + epsilon * everything)


def test_trainer_is_told_that_the_loss_counts_items_itself_and_does_not_shift(tmp_path):
    """It then passes the number of all labels of a step, the first column included, and does not divide again."""
    trainer = Trainer(model=tiny_model(), args=arguments(tmp_path), train_dataset=Rows(), data_collator=collator())
    assert trainer.model_accepts_loss_kwargs
    _, items = trainer.get_batch_samples(iter([all_rows()]), 1, torch.device("cpu"))
    assert items == ITEMS
    assert LOSS_MAPPING[trainer.model.loss_type] is not ForCausalLMLoss


def test_evaluation_in_trainer_gives_logits_and_no_cache(tmp_path):
    """What is not a number of the batch must not be gathered: the cache is on the list of what to leave out."""
    trainer = Trainer(
        model=tiny_model(), args=arguments(tmp_path, per_device_eval_batch_size=8), data_collator=collator()
    )
    result = trainer.predict(Rows())
    expected = tiny_model()(**all_rows())
    assert_close(torch.from_numpy(result.predictions), expected.logits)
    assert_close(torch.tensor(result.metrics["test_loss"]), expected.loss)


def test_seq2seq_trainer_predicts_what_generate_gives(tmp_path):
    model = tiny_model()
    model.generation_config.update(max_new_tokens=5, do_sample=False, no_repeat_ngram_size=1)
    trainer = Seq2SeqTrainer(
        model=model,
        args=arguments(tmp_path, Seq2SeqTrainingArguments, predict_with_generate=True, per_device_eval_batch_size=8),
        data_collator=collator(),
    )
    batch = all_rows()
    expected = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"])
    predicted = torch.from_numpy(trainer.predict(Rows()).predictions)
    assert torch.equal(predicted[:, : expected.shape[1]], expected)
