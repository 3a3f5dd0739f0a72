"""Translate sentences with a folder that a translation model was saved to. It needs transformers, and nothing else:

python scripts/translate.py runs/quickstart-fr/model "Delete the selected page" "Save"
"""

import argparse
import importlib.util

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer


def translate(model, tokenizer, sentences, batch_size=64):
    """Sentences -> translations, with the generation settings saved beside the model."""
    translations = []
    for start in range(0, len(sentences), batch_size):
        batch = tokenizer(sentences[start : start + batch_size], padding=True, return_tensors="pt").to(model.device)
        tokens = model.generate(**batch)
        translations += tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return translations


def main():
    parser = argparse.ArgumentParser(description="Translate sentences with a saved model.")
    parser.add_argument("folder", help="a folder (or a repository on the Hub) with model and tokenizer")
    parser.add_argument("sentences", nargs="+", help="what to translate, each sentence in quotes")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.folder, trust_remote_code=True)
    model = AutoModelForSeq2SeqLM.from_pretrained(arguments.folder, trust_remote_code=True).eval()
    found = "is" if importlib.util.find_spec("hf_transformer") else "is not"
    print(f"(hf_transformer {found} installed here; the model is a {type(model).__module__.partition('.')[0]} class)")
    for sentence, translation in zip(
        arguments.sentences, translate(model, tokenizer, arguments.sentences), strict=True
    ):
        print(f"{sentence}\n  -> {translation}")


if __name__ == "__main__":
    main()
