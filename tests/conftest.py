"""Set before anything imports transformers or starts torch's threads."""

import os


os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test needs the network

import torch  # noqa: E402


torch.set_num_threads(1)  # the models are so small that handing work to threads only costs time
