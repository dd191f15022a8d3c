"""Ctrl-C during a long call: the kernels stop between two tasks, and nothing that is half-written is ever read."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import os, signal, threading, time, torch, limelight as ll
from limelight.core.problem import LoweredSpec

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

def interrupted(call):
    "Seconds from a SIGINT to the KeyboardInterrupt that it raises in a call."
    sent = []
    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    timer = threading.Timer(0.2, send)
    timer.start()
    try:
        call()
    except KeyboardInterrupt:
        return time.monotonic() - sent[0]
    raise SystemExit("the call ended before the signal came")

# Without the signal, each of these calls takes far longer than the waiting time that is allowed below.
n = 100_000
q, k, v = (torch.randn(1, 4, n, 32) for _ in range(3))
terms = LoweredSpec(None, None, None, None, None, None, torch.tensor(1.0), 1.0, 0.0, 0.0, None)
lse, scaled = torch.zeros(1, 4, n), torch.ones(2, 1, 4, n)
calls = {
    "forward": lambda: ll.attention(q, k, v),
    "backward": lambda: torch.ops.limelight.attention_backward(v, lse, q, k, v, v, lse, scaled, *terms, [False] * 5),
    "rows": lambda: ll.weights(q, k).entropy(),
    "columns": lambda: ll.weights(q, k).similarity(),
}
torch.set_num_threads(1)
print("alone", interrupted(calls["forward"]))
torch.set_num_threads(2)
for name, call in calls.items():
    print(name, interrupted(call))

# What was interrupted computes the same afterwards, in full.
small, keys, values = q[:, :2, :5003], k[:, :2, :5003], v[:, :2, :5003]
A = ll.weights(small, keys)
try:
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    A.entropy()
    time.sleep(1)
except KeyboardInterrupt:
    pass
some = [0, 1, 2500, 5002]
torch.testing.assert_close(A.entropy()[:, :, some], ll.weights(small[:, :, some], keys).entropy())

# A handler that does not raise lets the call go on, and may call the kernels itself.
handled = []
signal.signal(signal.SIGUSR1, lambda *_: handled.append(ll.attention(q[:, :, :99], k, v)))
want = ll.attention(small, keys, values)
threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
got = ll.attention(small, keys, values)
while not handled:
    got = ll.attention(small, keys, values)
assert torch.equal(got, want)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_calls_are_interrupted() -> None:
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    waits = {name: float(seconds) for name, seconds in (line.split() for line in run.stdout.splitlines())}
    assert len(waits) == 5
    assert max(waits.values()) < 15, waits  # one task of the gradient takes seconds; all of it, minutes
