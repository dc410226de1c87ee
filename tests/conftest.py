"""What every test file may ask for."""

import pytest
import torch
from tiny_decoder import make_decoder

from lantern.decode import Decoder

# Tiny matrices gain nothing from a second core, which the browser tests need meanwhile.
torch.set_num_threads(1)


def pytest_collection_modifyitems(config, items):
    """Tests of CUDA graphs are for machines with a GPU; their logic is tested without one."""
    if not torch.cuda.is_available():
        here = [item for item in items if not item.get_closest_marker("cuda")]
        config.hook.pytest_deselected(items=[item for item in items if item not in here])
        items[:] = here


@pytest.fixture
def decoder() -> Decoder:
    return make_decoder()
