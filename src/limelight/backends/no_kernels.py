"""Takes the place of the extension where the package was installed without it: no compiler, or switched off."""

from __future__ import annotations

from typing import Any, NoReturn

MESSAGE = (
    "limelight was installed without its kernels and computes in plain torch; install a C++ compiler (GCC or Clang) "
    "and limelight again"
)


def isa() -> str:
    """The instruction set in use."""
    return "none"


def available_isas() -> list[str]:
    """The instruction sets of the kernels."""
    return []


def shares_threads() -> bool:
    """Return False: there are no kernels that could run on PyTorch's own threads."""
    return False


def _missing(*args: Any, **options: Any) -> NoReturn:
    raise RuntimeError(MESSAGE)


set_isa = peak_flops = multiply_adds = read_bandwidth = read_once = _missing
Problem = ordinary_sizes = plain_problem = attention = quick_attention = attention_int8 = _missing
cut = forward = backward = statistics = _missing
Request = Gradients = AllowedKeys = _missing
linear = rms_norm = rotate = attention_with_cache = take_rows = merge_rows = _missing


def move_to_large_pages(x: Any) -> None:
    """Leave memory where it is."""
