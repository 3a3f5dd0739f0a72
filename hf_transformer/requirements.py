"""The versions of transformers that this code is written for. Imported first, so that any other version gets one
sentence instead of an ImportError from the middle of a model file."""

import transformers
from packaging.specifiers import SpecifierSet


TRANSFORMERS = ">=5.24,<6"

if not SpecifierSet(TRANSFORMERS).contains(transformers.__version__, prereleases=True):
    raise ImportError(
        f"hf_transformer needs transformers {TRANSFORMERS}, but {transformers.__version__} is installed: "
        f"run `pip install 'transformers{TRANSFORMERS}'`."
    )
