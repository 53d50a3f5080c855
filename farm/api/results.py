"""What the functions of a `Farm` give back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farm.errors import UntrustedNumber
from farm.types import Run, TensorSpec, Verdict

if TYPE_CHECKING:
    import numpy as np

    from farm.types import Release


@dataclass(frozen=True, slots=True)
class Result:
    """A run that was measured. Latencies are milliseconds per inference by the device's own clock.

    They can be had of a STABLE run. Of any other, and where the number of samples does not support a percentile, asking for them raises
    UntrustedNumber: a comparison with a limit shall not pass, or fail, by chance.
    """

    run: Run

    @property
    def verdict(self) -> Verdict:
        return self.run.verdict

    @property
    def reason(self) -> str:
        """The verdict's, in words."""
        return self.run.reason

    @property
    def right(self) -> bool:
        """Whether the answer is the reference's."""
        return self.run.samples is not None and self.run.samples.agreement.right

    @property
    def accuracy(self) -> float | None:
        """The share of the labelled samples that the device gets right, 0 to 1; None for a model without any."""
        samples = self.run.samples
        return samples.correct / samples.total if samples and samples.total and samples.correct is not None else None

    @property
    def p50_ms(self) -> float:
        return self._figure("p50_ms")

    @property
    def p90_ms(self) -> float:
        return self._figure("p90_ms")

    @property
    def p95_ms(self) -> float:
        return self._figure("p95_ms")

    @property
    def p99_ms(self) -> float:
        return self._figure("p99_ms")

    def _figure(self, name: str) -> float:
        whose, latency = f"{self.run.title} on {self.run.device}", self.run.latency
        if self.verdict is not Verdict.STABLE or latency is None:
            what = f"{whose} is {self.verdict.value}: no {name} to rely on"
            raise UntrustedNumber(what, self.reason, _ADVICE.get(self.verdict, ""), wrong=self.verdict is Verdict.WRONG)
        value: float | None = getattr(latency, name)
        if value is None:
            why = f"{latency.count} samples" + (f", each the mean of {latency.block} inferences" if latency.block > 1 else "")
            raise UntrustedNumber(f"{whose}: no {name}, which so few samples do not support", why, 'measure longer: preset="standard"')
        return value


_ADVICE = {
    Verdict.NOISY: 'measure longer or more quietly: preset="standard", or tries=3',
    Verdict.THROTTLED: "cool the device, or mend its power supply; then measure again",
    Verdict.EMULATED: "measure on a real board",
    Verdict.WRONG: "see where it goes wrong: farm check MODEL",
    Verdict.RIGHT: "time it: farm.bench",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said to an input. `release` is the deployed one that was run; None where the model was built for it.
    `converted` says in words what had to be done to the input's file to make it an input."""

    model: str
    specs: tuple[TensorSpec, ...]
    outputs: tuple[np.ndarray[Any, Any], ...]
    labels: tuple[str, ...]
    release: Release | None = None
    converted: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        """An output by its name."""
        return {spec.name: value for spec, value in self.named}[name]

    @property
    def named(self) -> list[tuple[TensorSpec, np.ndarray[Any, Any]]]:
        """Each output with its specification, whose shape is that of a batch of one where the batch is open."""
        return list(zip(self.specs, self.outputs, strict=True))
