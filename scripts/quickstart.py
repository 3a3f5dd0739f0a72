"""Train, evaluate, save and reload a translator of interface strings: the whole life of a model in a few minutes.

    bash scripts/quickstart.sh                                  English to French
    bash scripts/quickstart.sh --language de                    or to another language
    bash scripts/quickstart.sh --sentence "Delete this page"    a sentence of your own at the end

The data are the strings that Django, Wagtail and django CMS show to their users (interface_strings.py). The model is
the 2017 architecture, smaller and with pre-norm, which learns faster from so little text.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import torch
from datasets import Dataset
from huggingface_hub import EvalResult
from interface_strings import Pair, languages, load
from matplotlib.figure import Figure
from sacrebleu.metrics import BLEU, CHRF
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)
from translate import translate

from hf_transformer import (
    TransformerEncoderDecoderConfig,
    TransformerEncoderDecoderForConditionalGeneration,
    write_model_card,
)


VOCAB_SIZE = 1200
MAX_TOKENS = 48
MAX_STEPS = 400
DESCRIPTION = """A small encoder-decoder that translates the interface strings of web applications from English to
{language}. It was trained from scratch for {steps} steps on {pairs} pairs from the
translation files of Django, Wagtail and django CMS, and knows no other text: use it as an example, not as a
translator. The test strings share no normal form (without placeholders, case and punctuation) with the training
strings."""


def build_tokenizer(pairs: list[Pair], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level byte-pair encoding of both languages, learned from the training strings; it can spell any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for pair in pairs for text in pair), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def encode(tokenizer, pairs: list[Pair]) -> Dataset:
    """Token ids of the pairs. The few texts of more than MAX_TOKENS tokens are left out: one of them would make
    padding of most of its batch."""
    rows = [
        {"input_ids": tokenizer(pair.source).input_ids, "labels": tokenizer(pair.target).input_ids} for pair in pairs
    ]
    rows = [row | {"length": len(row["input_ids"]) + len(row["labels"])} for row in rows]
    return Dataset.from_list([row for row in rows if max(len(row["input_ids"]), len(row["labels"])) <= MAX_TOKENS])


def build_model(tokenizer) -> TransformerEncoderDecoderForConditionalGeneration:
    """A small encoder-decoder with pre-norm; every knob not named here has its default, that of 2017."""
    config = TransformerEncoderDecoderConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        encoder_layers=2,
        decoder_layers=2,
        num_attention_heads=4,
        intermediate_size=768,
        norm_position="pre",
        max_position_embeddings=256,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = TransformerEncoderDecoderForConditionalGeneration(config)
    model.generation_config.update(num_beams=4, max_length=128)
    return model


def train(model, tokenizer, splits, output_dir, seed, **changes) -> Seq2SeqTrainer:
    arguments = {
        "output_dir": output_dir,
        "max_steps": MAX_STEPS,
        "per_device_train_batch_size": 128,
        "per_device_eval_batch_size": 128,
        "train_sampling_strategy": "group_by_length",
        "length_column_name": "length",
        "learning_rate": 3e-3,
        "adam_beta2": 0.98,
        "warmup_steps": 60,
        "lr_scheduler_type": "linear",
        "label_smoothing_factor": 0.1,
        "eval_strategy": "steps",
        "eval_steps": 100,
        "logging_steps": 20,
        "save_strategy": "no",
        "report_to": "none",
        "dataloader_pin_memory": torch.cuda.is_available(),
        "seed": seed,
    }
    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(**arguments | changes),
        train_dataset=encode(tokenizer, splits["train"]),
        eval_dataset=encode(tokenizer, splits["validation"]),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
    )
    trainer.train()
    return trainer


def score(translations: list[str], pairs: list[Pair], language: str) -> list[tuple[str, float, float, str]]:
    """-> (metric, score, half-width of its 95 % bootstrap interval, signature) for BLEU and chrF."""
    # BLEU counts words, which these languages do not write apart
    tokenize = {"zh": "zh", "ja": "char", "ko": "char", "th": "char"}.get(language.split("_")[0], "13a")
    references = [[pair.target for pair in pairs]]
    scores = []
    for name, metric in (("BLEU", BLEU(tokenize=tokenize)), ("chrF", CHRF())):
        result = metric.corpus_score(translations, references, n_bootstrap=1000)
        scores.append((name, float(result.score), float(result._ci), str(metric.get_signature())))
    return scores


def plot_losses(history: list[dict], path: Path) -> None:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for key, label in (("loss", "training"), ("eval_loss", "validation")):
        points = [(entry["step"], float(entry[key])) for entry in history if key in entry]
        axes.plot(*zip(*points, strict=True), label=label)
    axes.set(xlabel="step", ylabel="label-smoothed cross-entropy (nats per token)", title="Loss")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def new_folder(wanted: Path) -> Path:
    """`wanted`, or the first of wanted-2, wanted-3, … that does not exist: an earlier run is never overwritten."""
    folder, number = wanted, 2
    while folder.exists():
        folder, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    folder.mkdir(parents=True)
    return folder


def run_elsewhere(folder: Path, sentence: str) -> None:
    """Translate in a new process that has the installed packages on its path, but not this one.

    Python's -S leaves out the .pth files, by which an editable installation is found.
    """
    environment = os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")}
    script = Path(__file__).with_name("translate.py")
    subprocess.run([sys.executable, "-S", str(script), str(folder), sentence], env=environment, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--language", default="fr", help=f"translate to this language: {', '.join(languages())}")
    parser.add_argument("--sentence", default="Delete the selected pages", help="what to translate at the end")
    parser.add_argument("--output", type=Path, help="folder for everything (default: runs/quickstart-LANGUAGE)")
    parser.add_argument("--max-steps", type=int, default=MAX_STEPS, help=f"training steps (default: {MAX_STEPS})")
    parser.add_argument("--seed", type=int, default=0, help="for the weights and the order of the data (default: 0)")
    arguments = parser.parse_args()
    language, started = arguments.language, time.monotonic()

    print(f"1. Data: interface strings, English to {language}")
    splits = load(language)
    print("   " + ", ".join(f"{name} {len(pairs)}" for name, pairs in splits.items()) + " pairs. For example:")
    for pair in splits["validation"][:3]:
        print(f"   {pair.source}  =>  {pair.target}")

    set_seed(arguments.seed)
    tokenizer = build_tokenizer(splits["train"], VOCAB_SIZE)
    model = build_model(tokenizer)
    folder = new_folder(arguments.output or Path("runs") / f"quickstart-{language}")
    print(f"2. Training {model.num_parameters():,} parameters for {arguments.max_steps} steps")
    trainer = train(model, tokenizer, splits, folder / "trainer", arguments.seed, max_steps=arguments.max_steps)
    plot_losses(trainer.state.log_history, folder / "loss.png")
    print(f"   The loss curve is {folder / 'loss.png'}")

    print(f"3. Evaluation on {len(splits['test'])} strings that training has not seen in any form")
    model.eval()
    translations = translate(model, tokenizer, [pair.source for pair in splits["test"]])
    scores = score(translations, splits["test"], language)
    for name, value, interval, signature in scores:
        print(f"   {name} {value:.1f} ± {interval:.1f}  ({signature})")
    for pair, translation in list(zip(splits["test"], translations, strict=True))[:8]:
        print(f"   {pair.source}\n      model:     {translation}\n      reference: {pair.target}")

    print("4. Saving a folder that is ready for the Hub")
    target = folder / "model"
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    write_model_card(
        target,
        model,
        title=f"Interface strings, English to {language}",
        description=DESCRIPTION.format(language=language, pairs=len(splits["train"]), steps=arguments.max_steps),
        language=["en", language.split("_")[0]],
        pipeline_tag="translation",
        results=[
            EvalResult(
                task_type="translation",
                dataset_type="interface-strings",
                dataset_name=f"{len(splits['test'])} held-out interface strings",
                metric_type=name.lower(),
                metric_name=f"{name} ({signature})",
                metric_value=round(value, 1),
            )
            for name, value, _, signature in scores
        ],
    )
    print(f"   {target}: {', '.join(sorted(path.name for path in target.iterdir()))}")

    print("5. Loading it in a new process that does not have hf_transformer")
    run_elsewhere(target, arguments.sentence)
    print(f"Done in {time.monotonic() - started:.0f} seconds.")


if __name__ == "__main__":
    main()
