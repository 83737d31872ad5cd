"""Texts that ``--help`` prints in addition to the options."""

OVERVIEW = """\
Decoupled DiLoCo training that you can rewind.

Independent learners train with JAX and exchange parameter fragments with a syncer over ZeroMQ;
training does not wait for a learner that is slow or dead. Every job records event tapes, from which
the whole run can be executed again, bit for bit, on one machine of the same kind."""

GROUPS = {
    "init": "begin",
    "run": "run a job, here or on hosts",
    "status": "look at a running job, and end it",
    "replay": "explain what happened",
    "simulate": "try faults and settings",
    "tape": "tapes, snapshots and documentation",
}
"""Titles in the list of commands, by the first command below each."""

EXAMPLES = """\
a first run:
  ddloco init
  ddloco run job.toml --dir runs/first
  ddloco replay runs/first

what this machine and the job's task are like, before a long run:
  ddloco doctor job.toml

the same job over tcp, every actor a process of its own:
  ddloco run job.toml --processes --dir runs/second

on several hosts (syncer first or last, in any order):
  ddloco syncer  job.toml --bind tcp://127.0.0.1:5555 --dir runs/host-a
  ddloco learner job.toml --connect tcp://127.0.0.1:5555 --name learner-0 --dir runs/host-b

look at a running job:
  ddloco status  tcp://127.0.0.1:5555
  ddloco observe tcp://127.0.0.1:5555 --prometheus 9000 --evaluate runs/host-a/job.toml

take a snapshot of it, and replay the run from there:
  ddloco snapshot take tcp://127.0.0.1:5555
  ddloco replay runs/host-a --from latest

end a job on several hosts:
  ddloco stop tcp://127.0.0.1:5555

exit codes: 0 success, 1 a difference, a gap or a failure was found, 2 the input was bad,
75 the process left in good order (SIGTERM, --patience) and should be started again"""

INIT = """\
gpt         a small byte-level GPT on the source of Python's standard library
classifier  a small classifier of points that are drawn with numpy
blank       the smallest task that runs, to be replaced by yours
examples    all examples that the documentation names, into DIR/examples

Existing files are not changed. --learners, --mbit and --parameters choose the settings of the job
file as docs/which-settings.md says; at a terminal ddloco asks for them.

  ddloco init --template classifier first
  ddloco init --learners 8 --mbit 200 --parameters 1e9 mine
  cd first && ddloco run job.toml"""

RUN_MORE = """\
Ctrl-C ends the job in good order: the model is saved and the tapes can be replayed.
A second Ctrl-C ends it at once; the tapes can still be replayed.

--chaos applies faults on purpose, at times in seconds after all learners are ready:

  [[fault]]             # crash, stall, slow, leave, join; cut, reset, delay, bandwidth of a link
  what = "crash"
  who = "learner-1"
  at_s = 20
  for_s = 5             # then it is started again; without for_s it stays away

  [[storm]]             # or at random: the same seed draws the same faults
  what = ["stall", "cut"]
  every_s = 10
  for_s = 2

examples/chaos.toml shows every kind of fault."""

LAUNCH = """\
The output is one file to read, edit, keep and submit. [launch] of the job file has what the
cluster needs, such as partitions, images and GPUs; `ddloco docs clusters` has more.

  ddloco launch job.toml --on slurm --learners 8 --dir /shared/first > first.sh
  bash first.sh
  ddloco launch job.toml --on slurm --learners 8 --scale 12 --dir /shared/first --submit

Exit code 0: printed or submitted. 1: the engine's client failed. 2: the input was bad."""

PERFORM_MORE = """\
The function returns the actors, their messages and their computations; transport, clocks,
tapes, replay and snapshots come with ddloco. examples/parameter_server.py is one, and
`ddloco docs own-actors` explains it:

  ddloco perform examples.parameter_server:program --dir runs/ps --set trainers=4
  ddloco replay  runs/ps
  ddloco perform examples.parameter_server:program --set trainers=4 --from runs/ps --dir runs/more

on several hosts:
  ddloco perform ... --only server    --at server=tcp://10.0.0.1:5555 --keys keys --dir runs/a
  ddloco perform ... --only trainer-0 --at server=tcp://10.0.0.1:5555 --keys keys --dir runs/b"""

SNAPSHOTS = """\
PLACE is a folder of snapshots, a run folder that has one, or a URL: s3://bucket/run.

take a snapshot of a running job, list and verify a run's snapshots, export a model
(the last line: for Hugging Face transformers):
  ddloco snapshot take   tcp://127.0.0.1:5555
  ddloco snapshot list   runs/first
  ddloco snapshot verify runs/first
  ddloco snapshot export runs/first latest --to model.safetensors
  ddloco snapshot export runs/first model --to hf --format hf

replay what came after one:
  ddloco replay runs/first --from latest

A job takes snapshots regularly with every_s or every_steps in [snapshot] of its job file. With
keep = "2 snapshots" and ship = false in [tape], its tapes hold only what came after them."""

SIMULATIONS = """\
the scenarios that come with ddloco:
  ddloco simulate goodput            Table 1: 150k to 1.2M chips, data-parallel and decoupled
  ddloco simulate heterogeneous      two speeds of hardware, with and without a grace window
  ddloco simulate scavenging         a job that has more learners for a while
  ddloco simulate bandwidth          Gbit/s that each method needs; see its options

simulate a run, with its own speeds and delays, under another schedule:
  ddloco simulate runs/first --set sync.quorum=2

your own: copy one from ddloco/simulation/scenarios, and
  ddloco simulate mine.toml --seeds 20 --set sync.quorum=2

Exit code 1: an invariant was violated. The seed and the command that repeats it are printed, and
the tapes of that world are kept, for tape show and replay."""

EXPERIMENTS = """\
An experiment file is a job file with [experiment] and a [[case]] for each row:

  [experiment]
  name = "quorum"
  seeds = [0, 1, 2]
  [work]                    # how long things take in virtual time; see ddloco simulate
  step_s = 1.0
  tensors = 24
  [[case]]
  name = "all learners"
  set = { "sync.quorum" = 3 }

Each cell is simulated and then trained for real along the tapes of that, so that only settings and
seeds decide; with time = "real" it is an ordinary run. With

  [experiment.tune]
  key = "inner.lr"
  values = [1e-3, 2e-3, 4e-3]

each case is first run with each value and with two other seeds, and its own seeds then with the
best of them. Cells that are done are kept, so the same command goes on where it was stopped.
examples/experiments has those of docs/experiments.md."""

WHY = """\
  ddloco why runs/first                       all that stands out, and what does not
  ddloco why runs/first merge 40              what merge 40 waited for, and who was in it
  ddloco why runs/first absent learner-2 40   why learner-2 was not
  ddloco why runs/first absent learner-2      the merges that learner-2 is not in, and why
  ddloco why runs/first event syncer.1:782    the chain of causes of an event
  ddloco why runs/first loss                  whose loss left its band first
  ddloco why runs/first nan                   where a number first was not finite
  ddloco why runs/first step learner-1 120    what an inner step did
  ddloco why runs/first time                  what learners, merges and versions took
  ddloco why runs/first stuck                 what it waits for at the end, finished or not

Each claim names the event that shows it. Only machines are stepped, no task is executed."""
