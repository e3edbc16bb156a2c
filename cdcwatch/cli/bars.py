"""Progress bars on stderr, where that is a terminal; the log has a line now and then otherwise."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from cdcwatch.headway import Stage

_FRAME_S: Final = 0.2


class _Bars:
    """As of `Teller`."""

    every_s = _FRAME_S

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._tasks: dict[Stage, TaskID] = {}

    def tell(self, stage: "Stage") -> None:
        """As of `Teller`."""
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage.what, total=None, figures="")
        self._progress.update(self._tasks[stage], total=stage.total, completed=stage.at, figures=stage.figures())

    def end(self, stage: "Stage") -> None:
        """The last of it stays."""
        self.tell(stage)
        self._progress.stop_task(self._tasks[stage])


@contextmanager
def bars() -> Iterator[None]:
    """What takes long inside shows its rate and remaining time. Configure the log inside: its lines go above them."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    from cdcwatch.headway import shown_by

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield
        return
    columns = (
        *(SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=10)),
        *(TextColumn("{task.fields[figures]}"), TimeRemainingColumn(compact=True)),
    )
    # READY and the like go where stdout goes.
    progress = Progress(*columns, console=console, redirect_stdout=sys.stdout is not None and sys.stdout.isatty())
    with progress, shown_by(_Bars(progress)):
        yield
