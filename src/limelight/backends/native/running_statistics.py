"""Statistics of rows whose keys come in parts: the kernels keep a record of every row between calls."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from limelight.backends.gradients import Normalisers
from limelight.backends.native.description import WHOLE, Operands, Place
from limelight.backends.native.extension import kernels
from limelight.backends.native.memory import readable
from limelight.backends.native.statistic_requests import request
from limelight.backends.statistic import Statistic
from limelight.core.masks import lower_mask
from limelight.core.problem import LoweredSpec, Sizes, compute_dtype


class RunningStatistics:
    """Statistics of the rows of ``q (B, Hq, N, D)`` over the keys that have come so far, and the rows' normalisers.

    ``lowered`` is the specification of whole rows, of which the sink and the temperature count.
    """

    def __init__(self, q: Tensor, kv_heads: int, lowered: LoweredSpec, asked: Sequence[Statistic]) -> None:
        self._q, self._asked, self._dtype = readable("q", q), asked, compute_dtype(q)
        B, Hq, N, D = q.shape
        self._sizes = Sizes(B, Hq, kv_heads, N, 0, D)
        whole = lowered._replace(spans=None, mask=None, slopes=None, offsets=None, bias=None)
        self._operands = Operands(whole, self._q, self._sizes)
        self._unwritten = self._outputs(self._sizes._replace(N=0))
        size = kernels.record_bytes(self._problem(), self._requests(self._unwritten)) if 0 not in q.shape[:3] else 0
        self._records = torch.zeros(B, Hq, N, size, dtype=torch.uint8)  # all zeros: rows that have seen no key

    def _problem(self, normalisers: Normalisers | None = None) -> kernels.Problem:
        lse, scaled = normalisers or (None, None)
        q = self._q
        no_keys = q[:, : self._sizes.Hkv, :0]
        return self._operands.problem(q, no_keys, no_keys[..., :0], q[..., :0], lse=lse, scaled=scaled)

    def _outputs(self, sizes: Sizes) -> list[list[Tensor]]:
        return [x.outputs(sizes, self._dtype) for x in self._asked]

    def _requests(self, outputs: list[list[Tensor]]) -> list[kernels.Request]:
        return [request(x, out, None, None, self._sizes) for x, out in zip(self._asked, outputs, strict=True)]

    def add(
        self, rows: slice, k: Tensor, lowered: LoweredSpec, asked: Sequence[Statistic], place: Place = WHOLE
    ) -> None:
        """Add keys to some of the rows; ``asked`` are the statistics, with masks for these rows and keys."""
        self._accumulate(self._q[:, :, rows], k, lowered, asked, self._records[:, :, rows], place)

    def add_at(self, places: Tensor | None, q: Tensor, k: Tensor, lowered: LoweredSpec) -> None:
        """Add keys to the rows at some places, whose queries are ``q``, or to all of them; no statistic has a mask."""
        words = self._records.view(torch.int64)
        chosen = words if places is None else words[:, :, places]
        self._accumulate(readable("q", q), k, lowered, self._asked, chosen.view(torch.uint8), WHOLE)
        if places is not None:
            words[:, :, places] = chosen

    def _accumulate(
        self,
        q: Tensor,
        k: Tensor,
        lowered: LoweredSpec,
        asked: Sequence[Statistic],
        records: Tensor,
        place: Place,
    ) -> None:
        k = readable("k", k)
        sizes = self._sizes._replace(N=q.shape[2], M=k.shape[2])
        operands = Operands(lowered, q, sizes)
        problem = operands.problem(q, k, k[..., :0], q[..., :0], place=place)
        masks = [None if x.mask is None else lower_mask(x.mask, sizes.N, sizes.M) for x in asked]
        requests = [
            request(x, out, mask, None, sizes) for x, out, mask in zip(asked, self._unwritten, masks, strict=True)
        ]
        kernels.accumulate_statistics(
            problem,
            requests,
            records=records,
            threads=torch.get_num_threads(),
        )

    def outputs(self) -> tuple[list[list[Tensor]], Normalisers]:
        """Return the tensors that the kernels write for each statistic, and the normalisers."""
        normalisers = Normalisers.empty(self._sizes, self._dtype)
        outputs = self._outputs(self._sizes)
        if 0 not in self._q.shape[:3]:
            kernels.finish_statistics(
                self._problem(normalisers),
                self._requests(outputs),
                records=self._records,
            )
        return outputs, normalisers
