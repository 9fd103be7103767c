"""Random networks build, verify, run, and equal the plain numpy model, on every configuration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from support.build_checks import TARGETS, build_and_run, samples
from support.random_networks import networks

SETTINGS = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize(("config", "precision", "per_channel"), TARGETS)
@SETTINGS
@given(net=networks())
def test_random_network_equals_plain_numpy(config, precision, per_channel, net):
    build_and_run(net, config, precision, per_channel, samples(net, np.random.default_rng(1), 1))
