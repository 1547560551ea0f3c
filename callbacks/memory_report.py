"""What a measured training step says about memory, and about that of other batch sizes."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

__all__ = [
    "CATEGORIES",
    "Category",
    "Maximum",
    "MemoryLine",
    "MemoryReport",
    "Peak",
    "fit_memory_lines",
    "format_report",
    "predict_peak_bytes",
]

Category = Literal["parameters", "gradients", "optimizer", "activations", "temporary"]
CATEGORIES: tuple[Category, ...] = (
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "temporary",
)


class Peak(NamedTuple):
    """Hold the moment with most memory in use.

    Attributes:
        num_bytes: Bytes in use.
        by_category: The same by what they are for.
    """

    num_bytes: int
    by_category: dict[Category, int]


class Maximum(NamedTuple):
    """Hold a moment from which on memory fell.

    Attributes:
        num_bytes: Bytes in use.
        fixed_bytes: Those that, by their kind, do not grow with the batch.
    """

    num_bytes: int
    fixed_bytes: int


class MemoryLine(NamedTuple):
    """Describe the memory of one moment of a step as a line over the batch size.

    Attributes:
        fixed_bytes: Bytes without a sample.
        bytes_per_sample: Bytes that each sample adds.
    """

    fixed_bytes: float
    bytes_per_sample: float


class MemoryReport(NamedTuple):
    """Hold what was measured at one batch size.

    Attributes:
        batch_size: Samples in the batch of this device.
        pass_peak: Peak of the forward and the backward.
        optimizer_peak: Peak of the optimizer step.
        activation_bytes: Activations by the innermost module that made them, the largest first.
        maxima: Each moment from which on memory fell, in order.
    """

    batch_size: int
    pass_peak: Peak
    optimizer_peak: Peak
    activation_bytes: dict[str, int]
    maxima: tuple[Maximum, ...]

    @property
    def step_peak(self) -> Peak:
        """The larger one of the two peaks."""
        return max(self.pass_peak, self.optimizer_peak, key=lambda peak: peak.num_bytes)


def fit_memory_lines(reports: Sequence[MemoryReport]) -> list[MemoryLine]:
    """Fit the memory of a model to what was measured.

    A step does the same at each batch size, so the memory of each moment is a line over the batch
    size, and the peak is the highest of them. Two sizes or more give these lines exactly. With one
    size, activations and temporaries are taken to grow with the batch, temporaries as large as a
    parameter aside. Where steps of two sizes differ, one line goes through their peaks.

    Args:
        reports: At least one, of samples of the same shape.

    Returns:
        The lines, for :func:`predict_peak_bytes`.

    Example:
        >>> def report(size):
        ...     maxima = (Maximum(100 + 20 * size, 100), Maximum(500 + size, 500))
        ...     return MemoryReport(size, Peak(0, {}), Peak(0, {}), {}, maxima)
        >>> lines = fit_memory_lines([report(2), report(4)])
        >>> predict_peak_bytes(lines, 8), predict_peak_bytes(lines, 64)
        (508, 1380)
    """
    last = reports[-1]
    if len({report.batch_size for report in reports}) == 1:
        return [
            MemoryLine(fixed, (total - fixed) / last.batch_size) for total, fixed in last.maxima
        ]
    alike = [report for report in reports if len(report.maxima) == len(last.maxima)]
    if len({report.batch_size for report in alike}) == 1:
        points = [(report.batch_size, report.step_peak.num_bytes) for report in reports]
        return [_fit_line(points)]
    sizes = [report.batch_size for report in alike]
    moments = zip(*(report.maxima for report in alike), strict=True)
    return [
        _fit_line([(size, found.num_bytes) for size, found in zip(sizes, moment, strict=True)])
        for moment in moments
    ]


def predict_peak_bytes(lines: Sequence[MemoryLine], batch_size: int) -> int:
    """Return the peak memory of a step at a batch size, in bytes.

    Args:
        lines: What :func:`fit_memory_lines` returned.
        batch_size: Samples in the batch of a device.
    """
    return round(max(line.fixed_bytes + line.bytes_per_sample * batch_size for line in lines))


def format_report(
    report: MemoryReport,
    lines: Sequence[MemoryLine],
    other_sizes: Sequence[int],
    num_modules: int,
) -> str:
    """Write a report as a table.

    Args:
        report: The report.
        lines: What other batch sizes are predicted from.
        other_sizes: Batch sizes of a device to predict.
        num_modules: Number of modules to name.

    Returns:
        Several lines.
    """
    peak = report.step_peak
    rows = [(f"peak at batch size {report.batch_size}", peak.num_bytes)]
    rows += [(f"  {name}", peak.by_category.get(name, 0)) for name in CATEGORIES]
    modules = list(report.activation_bytes.items())[:num_modules]
    rows += [(f"activations of {name or 'no module'}", size) for name, size in modules]
    rows += [
        (f"predicted at batch size {size}", predict_peak_bytes(lines, size)) for size in other_sizes
    ]
    width = max(len(name) for name, _ in rows)
    table = [f"  {name:<{width}}  {size / 2**20:10.2f} MiB" for name, size in rows]
    return "\n".join(["Memory of a step", *table])


def _fit_line(points: Sequence[tuple[int, int]]) -> MemoryLine:
    mean_size = sum(size for size, _ in points) / len(points)
    mean_bytes = sum(found for _, found in points) / len(points)
    products = ((size - mean_size) * (found - mean_bytes) for size, found in points)
    slope = sum(products) / sum((size - mean_size) ** 2 for size, _ in points)
    return MemoryLine(mean_bytes - slope * mean_size, slope)
