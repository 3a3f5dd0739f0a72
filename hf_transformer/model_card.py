"""The model card: the README.md of a model's folder, from its config, its size and its measured scores."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData
from transformers import PreTrainedConfig, PreTrainedModel


CARD = """---
{metadata}
---

# {title}

{description}

## Use

The code of the model lies beside its weights, so transformers alone loads it:

```python
from transformers import {auto_class}, AutoTokenizer

model = {auto_class}.from_pretrained("{name}", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("{name}", trust_remote_code=True)
```

## Architecture

`{model_class}` with {parameters:,} parameters. What differs from the defaults, the base model of
[Attention Is All You Need](https://arxiv.org/abs/1706.03762):

{knobs}
"""


def write_model_card(
    folder: str | Path,
    model: PreTrainedModel,
    *,
    title: str,
    description: str,
    results: Sequence[EvalResult] = (),
    **metadata,
) -> bool:
    """Write `README.md` into the folder of a saved model, unless there is one.

    Args:
        folder: where `save_pretrained` has written the model.
        model: the model.
        title: its name, for people and as the name of its results.
        description: Markdown; what it was trained on and for, and what it should not be used for.
        results: measured scores, shown as a table and as the model index that the Hub reads.
        metadata: more fields of `huggingface_hub.ModelCardData`: `language`, `license`, `datasets`, …

    Returns:
        whether it was written; an existing README.md is somebody's and stays as it is.
    """
    path = Path(folder) / "README.md"
    if path.exists():
        return False
    results = list(results)
    tags = ["hf_transformer", model.config.model_type, *metadata.pop("tags", ())]
    data = ModelCardData(
        **{"library_name": "transformers", **metadata}, tags=tags, model_name=title, eval_results=results or None
    )
    text = CARD.format(
        metadata=data.to_yaml(),
        title=title,
        description=description.strip(),
        auto_class=type(model)._auto_class or "AutoModel",
        name=Path(folder).resolve().name,
        model_class=type(model).__name__,
        parameters=model.num_parameters(),
        knobs=_table(("knob", "here", "default"), _changed_knobs(model.config)),
    )
    if results:
        rows = [(r.dataset_name, r.metric_name or r.metric_type, r.metric_value) for r in results]
        text += f"\n## Results\n\n{_table(('data', 'metric', 'score'), rows)}\n"
    path.write_text(text, encoding="utf-8")
    return True


def _changed_knobs(config):
    """-> (knob, value, default) of every knob of ours that has not its default value."""
    default = type(config)()
    names = [field.name for field in fields(config) if field.name not in PreTrainedConfig.__dataclass_fields__]
    pairs = [(name, getattr(config, name), getattr(default, name)) for name in names]
    return [pair for pair in pairs if pair[1] != pair[2]]


def _table(header, rows):
    lines = [header, ["---"] * len(header), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
