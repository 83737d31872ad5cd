"""Every command with its options: the table that the parser is made of.

An option is a line: its name, what it takes, and after two spaces its help; further lines of help
are indented.

    folder DIR:path             a positional argument, which is a path
    --seeds N:int[1]            an integer, 1 by default; float as well
    --name -                    a text that is called NAME in the help
    --dir=folder RUN:path!      must be given; the attribute is ``folder``
    --without LEARNER*          may be given again
    --only NAME+                takes several; ``?`` may be left out
    --format (safetensors|hf)   one of these
    --json                      a switch
    ~--pdb                      excludes others with ``~``; with ``~!`` one of them must be given
    @trust                      the lines of ``SHARED`` with this name
    ~!--otlp=format :const      puts its own name into ``format``
    [options of bandwidth]      begins a group of this title; ``[]`` ends it
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ddloco.cli.help_text import (
    EXPERIMENTS,
    INIT,
    LAUNCH,
    PERFORM_MORE,
    RUN_MORE,
    SIMULATIONS,
    SNAPSHOTS,
    WHY,
)


@dataclass(frozen=True)
class Command:
    """A command; ``options`` are written as the module describes.

    Attributes:
        more: what its help says after the options.
        run: the function that does it; see ``parser.MODULES``.
        question: of a command that has others: attribute and name of the argument that chooses.
    """

    name: str
    what: str
    options: str
    more: str = ""
    run: str = ""
    question: tuple[str, str] | None = None
    commands: Sequence["Command"] = ()


SHARED = {
    "reading": """
@trust
@salvage
--json                            print JSON
""",
    "overrides": """
--set=overrides key=value*        override a key of the job file, such as sync.quorum=2; may be
                                  given again
""",
    "trust": """
--trust                           let a run act that another user recorded: its task, the states
                                  in its snapshots, and the places that its tapes name
""",
    "salvage": """
--salvage                         read a damaged tape up to the damage, and name the rest as a gap
""",
    "track": """
--track TRACKER*                  send metrics to tensorboard:DIR, prometheus:[HOST:]PORT,
                                  wandb:PROJECT, mlflow:URI or trackio:PROJECT; repeatable
""",
    "asking": """
--keys DIR:path                   the job's folder of keys, if it has any
--timeout S:float[5.0]            seconds to wait for an answer
--json                            print JSON objects, one a line
""",
    "continues": """
--from=snapshot SNAPSHOT          continue from a snapshot: RUN/snapshots/ID,
                                  RUN/snapshots/latest, or a URL
--fresh-learners                  with --from: also from a snapshot without learners, which then
                                  begin with step 1
@trust
""",
    "actor": """
--keys DIR:path                   this host's keys, in place of transport.keys; see ddloco keys
--join                            share --dir with other actors
--with-parent                     (hidden)
""",
}
"""Options that several commands have.

A syncer that moves to another host returns within minutes; until then a learner occupies its
host, so it is patient for 600 s. Learners may have to wait for their hosts, and a waiting syncer
costs little, so a syncer is for 3600 s."""

# fmt: off
COMMANDS = (
Command("init", "write a task, a job file and a README that run at once", """
folder DIR:path?[.]               where to (default: the current folder)
--template (gpt|classifier|blank|examples)[gpt]  what to begin with (default: gpt)
--learners N:int                  machines, each a learner
--mbit RATE:float                 the line of each, in Mbit/s
--parameters N:float              of the model, such as 1e9
""", more=INIT, run="init"),
Command("doctor", "look at this machine before a run, and say what is in the way", """
job JOB.toml:path?                the job file, to look at its needs
@overrides
--bind ADDRESS                    an address that a syncer is to listen on
--gbit RATE:float                 what a learner's line carries, in Gbit/s
--syncer-gbit RATE:float          what a syncer's line carries, in Gbit/s (default: 8)
--learners N:int                  say what so many learners need of the syncers (default: the job's)
@trust
--json                            print JSON
""", more="""\
Python and packages, memory, file descriptors, disk, a port, the clock; with a job also
its keys and its task, of which some steps are run: whether a step is deterministic, how
long it takes, what a round costs on the network, and what all learners need of the
syncers: bytes a second, memory, how many shards, and disk for tapes and snapshots.

Exit code 0: no problem was found; warnings do not count. 1: one was.""", run="doctor"),
Command("run", "run a whole job on this machine", """
job JOB.toml:path                 the job file
--dir=folder RUN:path             run folder (default: runs/NAME-NUMBER)
@overrides
@continues
--processes                       one process per actor, over tcp
--chaos CHAOS.toml:path           faults to apply on purpose, with --processes; see below
@track
--schedule RUN:path               train along the tapes of another run, real or simulated: its
                                  learners, steps, merges and failures, in the same order
--without LEARNER*                with --schedule: leave this learner's contributions out of the
                                  merges; repeatable
--since T:int                     with --schedule: apply --without and changed [outer] settings
                                  from the merge of global step T on
--overwrite                       replace the run in --dir
--with-parent                     (hidden)
""", more=RUN_MORE, run="run"),
Command("syncer", "run the syncer of a job, or a shard of it, on this host", """
job JOB.toml:path                 the job file
--dir=folder RUN:path!            run folder
@overrides
@continues
--bind ADDRESS!                   where to listen: tcp://127.0.0.1:5555
--name -                          the shard's name, with job.syncers: syncer-1 (default: the lead)
--connect ADDRESS                 syncer-0, for the other shards
--advertise ADDRESS               where others reach it, for RUN/syncer.address: tcp://host:5555,
                                  or tcp://host:* with the port that --bind got
--lease PLACE                     a folder that hosts share, or a URL such as s3://mine/first, with
                                  the lease of this syncer and a copy of its merges and tape: a
                                  syncer in an empty RUN takes over from there (default: RUN)
--standby                         wait while another process acts as this syncer in RUN, and take
                                  its place ten seconds after its last sign of life
--patience SECONDS:float[3600.0]  leave with exit code 75 after so many seconds with no learner; 0
                                  waits forever (default: 3600)
@actor
""", run="syncer"),
Command("relay", "run the relay of a site on this host", """
job JOB.toml:path                 the job file
--dir=folder RUN:path             run folder (default: runs/NAME)
@overrides
@continues
--bind ADDRESS!                   where to listen for the site's learners: tcp://10.0.0.5:5556
--connect ADDRESS+!               the syncer, tcp://host:5555; or file:PATH, a file with its
                                  address, which is read whenever it changes; with shards all of
                                  them, syncer-0 first; or lease:PLACE, which has all of them
--name -!                         the relay's name: relay-0
--advertise ADDRESS               where others reach it, for RUN/NAME.address: tcp://host:5556, or
                                  tcp://host:* with the port that --bind got
--patience SECONDS:float[600.0]   leave with exit code 75 after so many seconds with neither syncer
                                  nor learner; 0 waits forever (default: 600)
@actor
""", """
The learners in [relay.NAME] of the job file send their contributions to this relay, and the syncer
one sum of them; they are started with the addresses of the syncers and then of the relay after
--connect. If the relay dies, they go on without it, and with the next one that is started in the
same RUN.""", run="relay"),
Command("learner", "run one learner of a job on this host", """
job JOB.toml:path?                the job file; without one the syncer sends it, and the task's
                                  source, which needs --keys or --trust
--dir=folder RUN:path             run folder (default: runs/NAME)
@overrides
@continues
--connect ADDRESS+!               the syncer, tcp://host:5555; or file:PATH, a file with its
                                  address, which is read whenever it changes; with shards all of
                                  them, syncer-0 first; or lease:PLACE, which has all of them; last
                                  its relay, if the job file has one for it
--name -!                         the learner's name: learner-3
--rank R:int                      of a learner of several processes: which one this is; 0 is the
                                  actor, and takes the options above, the others follow it
--coordinator HOST:PORT           of a learner of several processes: a port on the host of rank 0,
                                  by which all meet
--alone                           with --from, in a job that went on without it: take its own
                                  state from the snapshot
--patience SECONDS:float[600.0]   leave with exit code 75 after so many seconds with no syncer; 0
                                  waits forever (default: 600)
@actor
""", """
A learner of several processes (processes in [worker] or [learner.NAME]) runs on several hosts if
the same command is given on each, with its own --rank and the --coordinator of rank 0; Slurm
(srun -N4 --ntasks-per-node=1) and Open MPI say both by themselves. Without either, all processes
run on this host. If one ends or is stuck, all end, and meet again as the next incarnation: rank 0
with exit code 75, to be started again, and the others wait for it.""", run="learner"),
Command("perform", "run actors of your own", """
program MODULE:FUNCTION           what returns a ddloco.stage.Program
--dir=folder RUN:path             default: runs/FUNCTION-NUMBER
--set=overrides key=value*        an argument of the function; may be given again
--from=snapshot SNAPSHOT          RUN/snapshots/ID, a URL
@trust
--place PLACE                     of snapshots (default: RUN/snapshots), a URL
--only NAME+                      the actors that run on this host
--at NAME=ADDRESS+                where an actor listens that others dial:
                                  server=tcp://10.0.0.1:5555
--keys DIR:path                   this host's keys; see ddloco keys --names
--overwrite                       replace the run in --dir
--processes                       run every actor as a process of its own
--chaos FAULTS.toml:path          with --processes: apply these faults; killed actors are started
                                  again
--with-parent                     (hidden)
""", more=PERFORM_MORE, run="perform"),
Command("keys", "make the keys of a job's actors, for encryption and authentication", """
folder DIR:path                   where to; a new folder, or one made by keys
~--learners N:int[3]              how many (default: 3)
~--job JOB.toml:path              as many learners as this job has
--names a,b                       more keys, by name
""", more="""\
Copy public.toml to every host, and each NAME.key only to the host of that actor,
readable by its owner only (chmod 600). Run again, the command adds missing keys.""", run="keys"),
Command("launch", "start a job with an engine that places and restarts its processes", """
job JOB.toml:path                 the job file
--on (local|slurm|kubernetes|ray|skypilot)!  the engine
--dir=folder RUN:path!            run folder; with slurm in a folder that all hosts share
@overrides
--learners N:int                  how many learners (default: job.learners)
--scale N:int                     of a running job with --learners: make them N
~--print                          print what the engine is given (default)
~--submit                         give it to bash, kubectl or Python
""", more=LAUNCH, run="launch"),
Command("status", "show the state of running syncers, and who waits for whom", """
addresses ADDRESS+                a syncer: tcp://127.0.0.1:5555, file:RUN/syncer.address or
                                  lease:PLACE; with --at a run folder
--at EVENT                        of a recorded run: the state of all actors as an event knew it:
                                  syncer.1:540, merge:40 or step:learner-1:120
--watch                           repeat every second until Ctrl-C
@trust
@asking
""", more="""\
Exit code 0: all have answered. 1: one did not, and is named.""", run="status"),
Command("observe", "follow a running job until it ends, without taking part in it", """
address ADDRESS                   the syncer: tcp://127.0.0.1:5555, file:PATH or lease:PLACE
--prometheus PORT:int             serve metrics on 127.0.0.1:PORT
--tensorboard DIR:path            write metrics for TensorBoard
@track
--evaluate JOB.toml:path          score new global models with this job's task; give the job.toml
                                  of the run folder
--best FILE:path                  with --evaluate: keep the model with the lowest held-out loss,
                                  as safetensors
--page                            serve a page that follows the job, until Ctrl-C: the report of the
                                  run folder that file:PATH is in, or what its syncer tells
                                  (ddloco report --live)
@trust
@asking
""", more="""\
Without --prometheus, --tensorboard and --track all news are printed, one a line.
An observer that is slow misses news; it never delays the job.""", run="observe"),
Command("track",
"send the metrics of a run to an experiment tracker, afterwards or while it runs", """
folder RUN:path                   a run folder
--to TRACKER*!                    tensorboard:DIR, prometheus:[HOST:]PORT, wandb:PROJECT,
                                  mlflow:URI or trackio:PROJECT; repeatable
--follow                          continue until the job ends
""", more="""\
Losses and metrics of all learners, held-out loss, goodput, quorum and bytes, by global
step. Each tracker needs its package; Weights & Biases stays offline unless WANDB_MODE
says otherwise.

  ddloco track runs/first --to tensorboard:curves""", run="track"),
Command("stop", "end a running job for all actors, in good order", """
address ADDRESS                   the syncer: tcp://127.0.0.1:5555, file:PATH or lease:PLACE
@asking
""", more="""\
The model is scored and saved, and every actor ends with exit code 0. A signal to one
process does not end the job: that process leaves (code 75) and may be started again.

Exit code 0: the job has ended. 1: it failed, or no syncer answers.""", run="stop"),
Command("leave", "let a learner leave a running job for good", """
address ADDRESS                   the syncer: tcp://127.0.0.1:5555, file:PATH or lease:PLACE
name NAME                         the learner: learner-3
@asking
""", more="""\
The learner finishes its step and ends with exit code 0, so that nothing starts it again.
With job.shards others get its data shards at once, also if it is not there; without this
command they wait elastic.gone_s seconds for it. Started again, it takes part again.

Exit code 0: it leaves. 1: the job has no such learner, or no syncer answers.""", run="leave"),
Command("replay", "execute a run again from its tapes, and compare every event", """
folder RUN:path                   the run folder, or one tape
--from=snapshot ID                begin with this snapshot of the run, or with 'latest'
--task MODULE:FUNCTION            call this task instead of the one that the tapes name; its
                                  source may differ
@trust
--until TARGET                    stop before an event, syncer.1:540, merge:40 or
                                  step:learner-1:120, at the cut of all that it knew of, and show
                                  the job there
--without LEARNER*                with --until merge:T: compute that merge again without the
                                  contribution of this learner, and show the difference of each
                                  tensor; may be given again
--watch CONDITION                 stop after the first inner step after which this holds, such as
                                  'learner-1 second/w norm > 1'; see below
--last                            with --watch: name the step at which it began to hold for the
                                  last time
~--pdb                            a debugger at each breakpoint() of the task, and with --until
                                  also there
~--shell                          with --until: a Python prompt there
@salvage
--verbose                         with a difference: also the whole events and what led to them
--json                            print the findings as JSON
""", more="""\
A condition of --watch is LEARNER [KIND] TENSOR MEASURE OP NUMBER, or LEARNER loss OP NUMBER.
KIND is params, optimizer, state, or update (a parameter's difference to the step before, with
the versions installed since), MEASURE is norm, largest or not-finite (a count), OP is < <= >
>= == or !=. A * in a name stands for any letters: 'learner-0 * not-finite > 0'.
--until shows the names.

Exit code 0: everything was identical, or the condition held. 1: the first difference is
named, with its event; or a tape is missing and the gap is named; or the condition never
held. 2: a tape cannot be read.""", run="replay"),
Command("why",
"explain a recorded run: what stands out, a merge, a step, a loss, why it is stuck", """
folder RUN:path                   the run folder
@reading
""", more=WHY, question=("question", "QUESTION"), run="why", commands=[
Command("merge", "what a merge waited for, who was in it, and who was not", """
t T:int                           the merge's global step
@reading
""", run="why"),
Command("absent", "why a learner was not in a merge, or from which merges it was absent", """
learner LEARNER                   learner-2, or learner-2.1
t T:int?                          the merge's global step (default: all merges)
@reading
""", run="why"),
Command("event", "what led to an event, back to what came from outside", """
event EVENT                       such as syncer.1:782
--depth N:int[16]                 causes to show (default: 16)
@reading
""", run="why"),
Command("loss", "which learner's loss left its band first, and which contributions stand out", """
@reading
""", run="why"),
Command("nan", "where a number first was no finite one, and what shows which tensor", """
@reading
""", run="why"),
Command("step", "an inner step: batch, loss, time, what was installed, where it was merged", """
learner LEARNER                   learner-2, or learner-2.1
step N:int                        the number of its inner step
@reading
""", run="why"),
Command("time", "where the time went: of learners, of merges, and of versions on their way", """
@reading
""", run="why"),
Command("stuck", "what the run waits for where its tapes end, and since when", """
@reading
""", run="why")]),
Command("story", "tell what happened to an actor, a merge, a fragment or a message", """
folder RUN:path                   the run folder
actor WHAT                        learner-1, or one incarnation of it, learner-1.2; merge:40;
                                  fragment:3; message:syncer.1:540, those of an event
--after S:float                   from this second of the run on (default: its start)
--before S:float                  up to this second
@reading
""", more="""\
Steps and merges in which nothing else happens are one line; each line names the event that
shows it. Times are seconds on the one axis of the run.""", run="story"),
Command("diff",
"compare two recorded runs: where they part first, and of what kind the difference is", """
folder RUN_A:path                 a run folder
other RUN_B:path                  another run folder
@reading
""", more="""\
Inner steps, contributions and merges are compared by what they mean; times and event
numbers do not count. A difference is of data, arithmetic, timing, code, environment or
configuration.

Exit code 0: everything is equal. 1: the runs differ.""", run="diff"),
Command("bundle",
"pack a run into one file, for a replay on another machine; or unpack such a file", """
path RUN_OR_FILE:path             what to pack or unpack
--to PATH:path                    the new file, or the new folder
--redact                          leave out the log and the source of the task; the tapes still name
                                  settings and data files
""", more="""\
A run folder is packed, a file is unpacked into a new folder:
  ddloco bundle runs/first                  to first.ddloco.tar.gz
  ddloco bundle first.ddloco.tar.gz         to the folder first

It holds the job file, the tapes, the log, the task's source, and the snapshots that the
tapes begin with. Treat a bundle from elsewhere like a program from elsewhere: a replay
calls its task, and the states in its snapshots decide what its actors do. Commands that
let them ask for --trust.""", run="bundle"),
Command("report", "write one HTML file that explains a recorded run", """
folder RUN:path                   the run folder
--out FILE:path                   the file (default: report.html in the run folder)
--compare RUN_B:path              show another run beside it
--live                            write no file: serve the page on 127.0.0.1, also of a run under
                                  way, which it follows, until Ctrl-C
--port N:int[0]                   with --live: its port (default: a free one)
@trust
@salvage
""", more="""\
The file needs nothing but a browser: lanes of all actors, what each merge waited for
and who was in it, losses, goodput, staleness, bytes per link. Only machines are stepped.
A click on a step, a merge or a message shows the commands that say more of it; on a live
page also its story. The tapes must be in the run folder: follow a job of several hosts on
the syncer's, and over ssh with ssh -L.""",
run="report"),
Command("simulate", "run the same machines in virtual time, with faults", """
scenario SCENARIO                 a scenario file, a run folder, or one of the names below
--seed S:int                      the first seed (default: the scenario's)
--seeds N:int[1]                  how many, from the first one on
--jobs J:int[0]                   processes (default: one per core)
--case TEXT                       only the cases whose names contain it
--set=overrides key=value*        override a key of the scenario, such as chips.total=300000; may
                                  be given again
--without LEARNER*                a learner of a simulated run that never joins; may be given
                                  again
--dir=folder RUN:path             write tapes and a log there
--json                            print JSON
[options of bandwidth]
--parameters N:float              of the model, such as 12e9
--layers L:int                    layers of the model
--step-s S:float                  seconds of a step
--sites M:int                     data centres, or learners
--interval H:int                  steps between two syncs of a fragment
--fragments P:int                 at most the interval
--overlap TAU:int                 steps that hide a sync
--svg FILE:path                   draw utilisation against bandwidth
[]
@trust
""", more=SIMULATIONS, run="simulate"),
Command("experiment", "run a job under several settings, with several seeds, and compare", """
experiments EXPERIMENT.toml:path+  one or more experiment files
--dir=folder DIR:path             where cells are kept, a folder for each (default:
                                  runs/experiments); those that have a result are not run again
--set=overrides key=value*        override a key of all cases, such as job.steps=100; may be given
                                  again
--jobs J:int[0]                   cells side by side (default: one for each two cores)
--json                            print JSON
""", more=EXPERIMENTS, run="experiment"),
Command("tape", "show tapes and check them", """

""", question=("action", "ACTION"), commands=[
Command("show", "print one line per event, in causal order", """
folder RUN_OR_TAPE:path           folder or file
--actor NAME                      of this actor: learner-1, or learner-1.2
--type TYPE                       of this type: StepFinished, Contribution
--merge T:int                     only messages about the merge of global step T
--around EVENT                    ten events before and after syncer.1:540
--full                            do not cut off long values
@salvage
--json                            print JSON
""", run="tape_show"),
Command("verify", "check records, clocks and headers without executing", """
folder RUN_OR_TAPE:path           folder or file
@salvage
--json                            print JSON
""", run="tape_verify"),
Command("export",
"write a run for another tool: Perfetto, ShiViz, OpenTelemetry, or JSON lines", """
folder RUN_OR_TAPE:path           folder or file
~!--perfetto=format :const
~!--shiviz=format :const
~!--otlp=format :const
~!--jsonl=format :const
--to FILE:path                    default: standard output
@salvage
""", more="""\
perfetto opens in ui.perfetto.dev and chrome://tracing; shiviz in ShiViz, with its
default expression; otlp is an export request of OpenTelemetry; jsonl has every event.""",
run="tape_export")]),
Command("snapshot", "take snapshots of a job, list and verify them, export a model", """

""", more=SNAPSHOTS, question=("action", "ACTION"), commands=[
Command("take", "take a snapshot of a running job, and print its id", """
address ADDRESS                   the syncer: tcp://127.0.0.1:5555, file:PATH or lease:PLACE
@asking
""", more="""\
Each actor that is not in it is named, with the reason. The job continues meanwhile.

Exit code 0: it is complete. 1: it was discarded, with the reason; or no syncer answers,
or the job ended before.""", run="snapshot_take"),
Command("list", "print one line per snapshot, the newest first", """
place PLACE                       folder of snapshots, run folder, or URL
--json                            print JSON
""", more=SNAPSHOTS, run="snapshot_list"),
Command("verify", "read every byte of one snapshot or all, and compare clocks and digests", """
place PLACE                       folder of snapshots, run folder, or URL
snapshot ID?                      which one: syncer.1-1042, or latest
--json                            print JSON
""", more=SNAPSHOTS, run="snapshot_verify"),
Command("export", "write a snapshot's or a run's model as one file, or for Hugging Face", """
place PLACE                       folder of snapshots, run folder, or URL
snapshot ID                       which one: syncer.1-1042, or latest; or model, the run's final
                                  one
--to PATH:path!                   a new file or folder
--format (safetensors|hf)[safetensors]  one file (default), or the folder that the task's
                                  hugging_face describes
--job FILE:path                   job file with the task, for hf
""", more=SNAPSHOTS, run="snapshot_export")]),
Command("docs", "show the documentation, which is installed with ddloco", """
page PAGE?                        print this page
--path                            print where it is instead
""", more="""\
Without a page all are listed. They are Markdown:

  ddloco docs tutorial
  ddloco docs configuration      every setting of a job file
  ddloco docs --path             the folder that holds them""", run="docs"),
Command("completion", "print a script with which a shell completes commands, options and paths", """
shell SHELL(bash|zsh|fish|tcsh)   bash, zsh, fish, tcsh
""", more="""\
For bash, in one session, or for all of them:

  eval "$(ddloco completion bash)"
  ddloco completion bash > ~/.local/share/bash-completion/completions/ddloco

It needs shtab: pip install 'ddloco[completion]'.""", run="completion"),
)
