"""One thread of mathematics: what CI has, and what makes numbers repeat."""

import torch

torch.set_num_threads(1)
