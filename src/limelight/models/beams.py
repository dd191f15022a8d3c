"""The bookkeeping of beam search: which hypotheses go on, which have ended, and when no better one can come."""

from __future__ import annotations

import torch
from torch import Tensor


class Beams:
    """The hypotheses of beam search for ``B`` sequences, ``beams`` for each.

    Attributes:
        ids: the tokens of the hypotheses that go on, ``(B · beams, length)``.
        real: False where a token of ``ids`` is padding; None where none is.
        ended: for each sequence the hypotheses that have ended, best first, with their scores: the log-probability
            divided by ``length ** length_penalty``, where the length is that of the new tokens.

    """

    def __init__(
        self, ids: Tensor, real: Tensor | None, *, beams: int, stops: Tensor, length_penalty: float, longest: int
    ) -> None:
        B = len(ids) // beams
        self.ids, self.real = ids, real
        self.ended: list[list[tuple[float, Tensor]]] = [[] for _ in range(B)]
        self._stops, self._length_penalty, self._longest = stops, length_penalty, longest
        # Log-probabilities (B, beams). The beams start equal, so only the first counts.
        self._total = torch.zeros(B, beams).masked_fill(torch.arange(beams) > 0, -torch.inf)
        self._length = 0  # of the new tokens

    def extend(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Append the best tokens by their log-probabilities ``(B · beams, V)``, and set aside what stops.

        Returns, for each hypothesis that goes on, the row that it extends ``(B · beams,)`` and its token
        ``(B · beams, 1)``.
        """
        B, beams = self._total.shape
        V = scores.shape[-1]
        self._length += 1
        every = (self._total[:, :, None] + scores.reshape(B, beams, V)).flatten(1)
        # Enough candidates that ``beams`` remain even if all stop tokens are among them.
        best = every.topk(min((1 + len(self._stops)) * beams, every.shape[1]), sorted=True)
        beam, token = best.indices // V, best.indices % V
        impossible, stops = best.values == -torch.inf, torch.isin(token, self._stops)
        self._set_aside(best.values, beam, token, stops & ~impossible)
        stopping = stops | impossible
        keep = stopping.int().sort(dim=-1, stable=True).indices[:, :beams]  # the best candidates that do not stop
        self._total = best.values.gather(1, keep).masked_fill(stopping.gather(1, keep), -torch.inf)
        rows = (torch.arange(B)[:, None] * beams + beam.gather(1, keep)).flatten()
        new = token.gather(1, keep).reshape(-1, 1)
        self.ids = torch.cat([self.ids[rows], new], 1)
        if self.real is not None:
            self.real = torch.cat([self.real[rows], torch.ones_like(new, dtype=torch.bool)], 1)
        return rows, new

    def _set_aside(self, total: Tensor, beam: Tensor, token: Tensor, stopped: Tensor) -> None:
        """Add the candidates that stopped, among the best ``beams``, to those that have ended."""
        beams = self._total.shape[1]
        for b, n in stopped[:, :beams].nonzero().tolist():
            whole = torch.cat([self.ids[b * beams + int(beam[b, n])], token[b, n : n + 1]])
            self.ended[b].append((self._score(float(total[b, n])), whole))
        self.ended = [sorted(found, key=lambda x: -x[0])[:beams] for found in self.ended]

    def _score(self, total: float) -> float:
        return float(total / self._length**self._length_penalty)

    def settled(self) -> bool:
        """Return True if no hypothesis that goes on can become better than those that have ended."""
        if self._length == self._longest:
            return True
        reached = self._longest if self._length_penalty > 0 else self._length
        reachable = (self._total.amax(1) / reached**self._length_penalty).tolist()
        beams = self._total.shape[1]
        return all(
            len(found) >= beams and found[-1][0] >= most for found, most in zip(self.ended, reachable, strict=True)
        )

    def finish(self) -> list[list[tuple[float, Tensor]]]:
        """Return ``ended``, with those that still go on where too few have ended or the length was reached."""
        beams = self._total.shape[1]
        for found, totals, ids in zip(self.ended, self._total.tolist(), self.ids.split(beams), strict=True):
            if len(found) < beams or self._length == self._longest:
                found += [(self._score(x), whole) for x, whole in zip(totals, ids, strict=True) if x > -torch.inf]
        return self.ended


def best_hypotheses(ended: list[list[tuple[float, Tensor]]], fill: int) -> Tensor:
    """Return the best hypothesis of each sequence, ``(B, length)``, padded with ``fill``."""
    chosen = [max(found, key=lambda x: x[0])[1] for found in ended]
    longest = max(map(len, chosen))
    return torch.stack([torch.nn.functional.pad(x, (0, longest - len(x)), value=fill) for x in chosen])
