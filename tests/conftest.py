"""What every test file may ask for."""

import pytest
from tiny_decoder import make_decoder

from lantern.decode import Decoder


@pytest.fixture
def decoder() -> Decoder:
    return make_decoder()
