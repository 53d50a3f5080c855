"""Return types of `Farm`'s methods."""

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
    """A measured run. Latencies are milliseconds per inference by the device's own clock.

    Latencies are available for a STABLE run only. For any other verdict, and for a percentile that
    the number of samples does not support, reading them raises UntrustedNumber: a comparison with a
    limit must not pass or fail by chance.
    """

    run: Run

    @property
    def verdict(self) -> Verdict:
        """Return the verdict on the run."""
        return self.run.verdict

    @property
    def reason(self) -> str:
        """Return the reason of the verdict, as text."""
        return self.run.reason

    @property
    def right(self) -> bool:
        """Return whether the answer agrees with the reference."""
        return self.run.samples is not None and self.run.samples.agreement.right

    @property
    def accuracy(self) -> float | None:
        """Return the share of labelled samples classified correctly, 0 to 1.

        None if the model has no labelled samples.
        """
        samples = self.run.samples
        return (
            samples.correct / samples.total
            if samples and samples.total and samples.correct is not None
            else None
        )

    @property
    def p50_ms(self) -> float:
        """Return the median latency in milliseconds."""
        return self._figure("p50_ms")

    @property
    def p90_ms(self) -> float:
        """Return the 90th percentile of the latency in milliseconds."""
        return self._figure("p90_ms")

    @property
    def p95_ms(self) -> float:
        """Return the 95th percentile of the latency in milliseconds."""
        return self._figure("p95_ms")

    @property
    def p99_ms(self) -> float:
        """Return the 99th percentile of the latency in milliseconds."""
        return self._figure("p99_ms")

    def _figure(self, name: str) -> float:
        whose, latency = f"{self.run.title} on {self.run.device}", self.run.latency
        if self.verdict is not Verdict.STABLE or latency is None:
            what = f"{whose} is {self.verdict.value}: no {name} to rely on"
            raise UntrustedNumber(
                what,
                self.reason,
                _ADVICE.get(self.verdict, ""),
                wrong=self.verdict is Verdict.WRONG,
            )
        value: float | None = getattr(latency, name)
        if value is None:
            why = f"{latency.count} samples" + (
                f", each the mean of {latency.block} inferences" if latency.block > 1 else ""
            )
            raise UntrustedNumber(
                f"{whose}: no {name}, which so few samples do not support",
                why,
                'measure longer: preset="standard"',
            )
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
    """The outputs of a model for an input.

    `release` is the deployed release that ran; None if the model was built for this call.
    `converted` describes how the input file was converted to the model's input.
    """

    model: str
    specs: tuple[TensorSpec, ...]
    outputs: tuple[np.ndarray[Any, Any], ...]
    labels: tuple[str, ...]
    release: Release | None = None
    converted: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        """Return an output by its name."""
        return {spec.name: value for spec, value in self.named}[name]

    @property
    def named(self) -> list[tuple[TensorSpec, np.ndarray[Any, Any]]]:
        """Return each output with its specification.

        The specification's shape is that of batch 1 if the batch size is dynamic.
        """
        return list(zip(self.specs, self.outputs, strict=True))
