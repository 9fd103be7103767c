"""Locks around the start of processes."""

from __future__ import annotations

import os
import time

import pytest

from nvdla.kernels.threads import interrupts_kept


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_a_fork_can_start_processes_of_its_own():
    with interrupts_kept():
        child = os.fork()
        if not child:
            with interrupts_kept():
                os._exit(0)
    for _ in range(200):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.05)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert (done, status) == (child, 0)
