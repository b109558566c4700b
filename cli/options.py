"""Options that several commands take, each with its one help text; a command's default stands with the command."""

from pathlib import Path
from typing import Annotated

import typer

TracesOption = Annotated[list[Path], typer.Option(help="A trace, a folder or a set file; may be repeated.")]
CcOption = Annotated[str, typer.Option(help="Congestion controls by their kernel names, by commas.")]
TargetOption = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="RTT to stay below: 50ms, or +30ms or 2.5x of the path's minimum RTT."),
]
MrttOption = Annotated[float, typer.Option(help="The path's fixed round trip (DeepCC: 20).")]
BufferOption = Annotated[int, typer.Option(help="Buffer of the bottleneck (DeepCC: 150 KB).")]
LinkOptions = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="More of the link, such as queue=codel or loss=0.01; may be repeated."),
]
