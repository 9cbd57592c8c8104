"""Kill what writes the streams of `/api/inference`, and count what their readers lose.

32 streams (16 with `--quick`) run all the time for ten minutes (two), and longer until each kind of fault has happened,
against the eco tier, which has three replicas on two nodes of a local Ray cluster; with drafts, emoji, and stop strings
that do occur; greedy, so that each answer has a known text: the one of an undisturbed run before. One in eight streams
is one of `/v1`. All kinds of faults happen in turns, in random order and at random moments in which another replica can
go on and no stream is hit a third time:

engine       SIGKILL of an engine core: its replica ends with it
replica      SIGKILL of a replica: its engine core ends by itself
sigterm      SIGTERM of a replica
silence      SIGSTOP of a replica for 8 s: it is lost after 5 s, and goes on writing to nobody
socket       the connections of a replica's streams to the ingress are shut down
node         SIGSTOP of everything on a node without an ingress replica for 8 s, then SIGKILL; another node comes
controller   SIGKILL of Serve's controller, which Ray starts again
redeploy     another version is deployed: the replicas are replaced, the ingress's too
scale_in     a replica is taken away by another `autoscaling_config`, and brought back
build        another version is deployed, and Serve's controller gets a SIGKILL while it builds that

lost         streams that did not end with `done`; of `/v1`, those too whose error came before any text or is final
refused      of these, the ones that had not begun
doubled      streams with more or fewer tokens than the server counts, or with more than one end
differing    streams with other tokens, another text or another finish reason than the undisturbed run
ties         of these, the ones whose first other token was as likely as the undisturbed one, by less than 0.001 of
             its log-probability: there a prompt that is read gives another last bit than one that was decoded
max_gap_s    longest time between two tokens of a stream
v1_cut       streams of `/v1` that had begun and ended with an error after which the client may retry

    python -m bench.soak [--quick] [--stub] [--seed N] [--json FILE]
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Sequence

from bench.load.nodes import cluster
from bench.reporting.options import parser
from bench.reporting.report import print_report, provenance, write_json
from bench.soak.faults import CPUS, WORKERS, Faults
from bench.soak.run import figures, soaked


def main(arguments: Sequence[str], print_line: Callable[[str], None] = print) -> None:
    """Run the benchmark and print its table."""
    options = parser("bench.soak", __doc__, quick="two minutes with 16 streams")
    options.add_argument("--stub", action="store_true", help="stub engines instead of real ones")
    options.add_argument("--seed", type=int, default=1, metavar="N", help="of the faults (default: 1)")
    given = options.parse_args(arguments)
    made_by, draw = provenance(), random.Random(given.seed)
    streams, seconds, pause_s = (16, 120.0, 5.0) if given.quick else (32, 600.0, 10.0)
    with cluster(WORKERS, 2 * CPUS) as nodes:
        faults = Faults(nodes, given.stub, draw)
        soak = asyncio.run(soaked(faults, streams, pause_s, seconds))
        logs = nodes.keep_logs() if soak.tally.lost or soak.hung else None
    shown = figures(soak)
    print_report("Streams and faults", [shown], made_by)
    print_line("\n".join(soak.log))
    for kind, reason in faults.missing.items():
        print_line(f"without the fault {kind}: {reason}")
    asked = {"stopped": soak.exercises.stopped, "parts": soak.exercises.parts, "accepted": soak.exercises.accepted}
    more = {"largest_tie": soak.tally.largest_tie, "hung": soak.hung, "faults": dict(soak.kills), "asked": asked}
    print_line(f"{more}")
    for error, count in soak.tally.errors.most_common():
        print_line(f"{count} x {error}")
    if logs is not None:
        print_line(f"Ray's logs: {logs}")
    if given.json is not None:
        write_json(given.json, {**shown, **more, "log": soak.log, "seed": given.seed, "stub": given.stub}, made_by)


if __name__ == "__main__":
    main(sys.argv[1:])
