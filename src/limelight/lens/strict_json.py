"""JSON without NaN and Infinity, which the standard does not have."""

from __future__ import annotations

import json
import math
from typing import Any


def dumps(data: Any) -> str:
    """Return data as JSON; numbers that are not finite become ``null``.

    >>> dumps({"entropy": float("nan"), "label": "é"})
    '{"entropy": null, "label": "é"}'
    """
    try:
        return json.dumps(data, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(data), ensure_ascii=False, allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _finite(x) for name, x in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(x) for x in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
