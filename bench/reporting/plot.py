"""Plots of the benchmarks, as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def grouped_bars(
    path: Path,
    title: str,
    panels: Mapping[str, Mapping[str, Sequence[float | None]]],
    groups: Sequence[str],
    y_label: str,
    line_at: float,
) -> None:
    """Draw panels one above the other, each with a group of bars per group and a dashed line.

    Args:
        path: SVG file to write.
        title: above all panels.
        panels: by title: series by name, each with a value per group; None leaves a gap.
        groups: labels of the groups.
        y_label: label of every y axis.
        line_at: height of the dashed line.
    """
    # This import takes half a second, and most commands draw nothing.
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.6 * len(groups) + 2, 2.8 * len(panels) + 0.8), layout="constrained")
    FigureCanvasSVG(figure)
    figure.suptitle(title)
    for axes, (panel, series) in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels.items(), strict=True):
        width = 0.8 / len(series)
        for number, (name, values) in enumerate(series.items()):
            places = [group + (number - (len(series) - 1) / 2) * width for group in range(len(groups))]
            axes.bar(places, [0.0 if value is None else value for value in values], width, label=name)
        axes.axhline(line_at, color="black", linestyle="--", linewidth=0.8)
        axes.set_xticks(range(len(groups)), groups)
        axes.set_ylabel(y_label)
        axes.set_title(panel)
    figure.axes[0].legend(ncols=len(next(iter(panels.values()))), fontsize="small")
    figure.savefig(path, metadata={"Date": None})


def curves(
    path: Path,
    title: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    strong: int,
    x_label: str,
    y_label: str,
) -> None:
    """Draw lines in one panel.

    Args:
        path: SVG file to write.
        title: above the panel.
        lines: points (x, y) in order, by name.
        strong: this many of the lines are drawn strong, the others faint.
        x_label: label of the x axis.
        y_label: label of the y axis.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4.5), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    for number, (name, points) in enumerate(lines.items()):
        width, alpha = (2.0, 1.0) if number < strong else (1.0, 0.6)
        axes.plot(*zip(*points, strict=True), label=name, linewidth=width, alpha=alpha)
    axes.set_title(title)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})


def fronts(
    path: Path,
    title: str,
    panels: Mapping[tuple[str, str], Mapping[str, Sequence[tuple[float, float]]]],
    x_label: str,
    y_label: str,
) -> None:
    """Draw a table of panels, each with lines through points. The y axes are linear up to 0.1, then logarithmic.

    Args:
        path: SVG file to write.
        title: above all panels.
        panels: by row and column: points (x, y) by name.
        x_label: label of the x axes.
        y_label: label of the y axes.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    rows, columns = (list(dict.fromkeys(key[axis] for key in panels)) for axis in (0, 1))
    figure = Figure(figsize=(4.2 * len(columns), 3.2 * len(rows) + 1.2), layout="constrained")
    FigureCanvasSVG(figure)
    figure.suptitle(title)
    grid = figure.subplots(len(rows), len(columns), squeeze=False)
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    for (row, column), lines in panels.items():
        axes = grid[rows.index(row), columns.index(column)]
        for name, points in lines.items():
            axes.plot(*zip(*sorted(points), strict=True), "o-", color=f"C{names.index(name)}", label=name, markersize=3)
        axes.set_yscale("symlog", linthresh=0.1)
        axes.set_ylim(bottom=0)
        axes.set_title(f"{row}, {column}", fontsize="medium")
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.grid(alpha=0.3)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")
    figure.savefig(path, metadata={"Date": None})
