"""brax.v1, in its own Python environment: `make test-brax-v1`."""

import pytest
from tests.simulators.brax_checks import BraxChecks

pytestmark = [
    pytest.mark.brax_v1,
    pytest.mark.timeout(400),  # compiling takes long on a busy machine
    pytest.mark.filterwarnings("ignore:JAXopt is no longer maintained:DeprecationWarning"),  # imported by Brax
    # brax.v1 warns that it is deprecated and that its physics have a default.
    pytest.mark.filterwarnings("ignore:brax.v1 is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:dynamics_mode either not specified:UserWarning"),
]


class TestBraxV1(BraxChecks):
    old = True
    prefix = "brax::old::"
    pendulum = {}
