"""What ``--help`` teaches beside the options."""

OVERVIEW = """\
Decoupled DiLoCo training that you can rewind.

Independent learners train with JAX and exchange parameter fragments with a syncer over ZeroMQ;
nobody waits for a learner that is slow or dead; and every job leaves tapes from which the run
is executed again, bit for bit, on one machine of the same kind."""

EXAMPLES = """\
a first run, of an example:
  ddloco init
  ddloco run examples/quickstart.toml --dir runs/first
  ddloco replay runs/first

the same job over tcp, every actor a process of its own:
  ddloco run examples/quickstart.toml --processes --dir runs/second

on several hosts (syncer first or last, in any order):
  ddloco syncer  job.toml --bind tcp://127.0.0.1:5555 --dir runs/host-a
  ddloco learner job.toml --connect tcp://127.0.0.1:5555 --name learner-0 --dir runs/host-b

a look at a job that runs:
  ddloco status  tcp://127.0.0.1:5555
  ddloco observe tcp://127.0.0.1:5555 --prometheus 9000 --evaluate runs/host-a/job.toml

a snapshot of it, and the run from there on, executed again:
  ddloco snapshot take tcp://127.0.0.1:5555
  ddloco replay runs/host-a --from latest

the end of a job on several hosts:
  ddloco stop tcp://127.0.0.1:5555

exit codes: 0 it held, 1 it found a difference, a gap or a failure, 2 the input was bad,
75 it left in good order (SIGTERM, patience) and wants to be started again"""

RUN_MORE = """\
Ctrl-C ends the job in good order: the model is saved and the tapes replay.
A second Ctrl-C ends it at once; the tapes replay all the same.

--chaos breaks things on purpose, at times in seconds from when all learners are ready:

  [[fault]]             # crash, stall, slow, leave, join; cut, reset, delay, bandwidth of a link
  what = "crash"
  who = "learner-1"
  at_s = 20
  for_s = 5             # it is back as the next incarnation after this; for ever without it

  [[storm]]             # or at random: the same seed draws the same faults
  what = ["stall", "cut"]
  every_s = 10
  for_s = 2

examples/chaos.toml teaches the rest."""

PERFORM_MORE = """\
The function returns who takes part, what they say, and what they have computed; transport,
clocks, tapes, replay and snapshots come with it. examples/parameter_server.py is one, and
the documentation (docs/own-actors.md) explains it:

  ddloco perform examples.parameter_server:program --dir runs/ps --set trainers=4
  ddloco replay  runs/ps
  ddloco perform examples.parameter_server:program --from runs/ps --dir runs/more

on several hosts:
  ddloco perform ... --only server    --at server=tcp://10.0.0.1:5555 --keys keys --dir runs/a
  ddloco perform ... --only trainer-0 --at server=tcp://10.0.0.1:5555 --keys keys --dir runs/b"""

SNAPSHOTS = """\
PLACE is a folder of snapshots, a run folder that has one, or a URL: s3://bucket/run.

a picture of a job that runs, now; then what the run has, a check of every byte, a model:
  ddloco snapshot take   tcp://127.0.0.1:5555
  ddloco snapshot list   runs/first
  ddloco snapshot verify runs/first
  ddloco snapshot export runs/first latest --to model.safetensors

what came after one, executed again:
  ddloco replay runs/first --from latest

A job takes them by itself with every_s or every_steps in [snapshot] of its job file; with
keep = "2 snapshots" in [tape], and ship = false, its tapes hold what came since them."""

SIMULATIONS = """\
the scenarios that come with ddloco:
  ddloco simulate goodput            Table 1: 150k to 1.2M chips, data-parallel and decoupled
  ddloco simulate heterogeneous      two speeds of hardware, with and without a grace window
  ddloco simulate scavenging         a job that is lent more learners for a while
  ddloco simulate bandwidth          Gbit/s that each method needs; see its options
  ddloco simulate hostile --seeds 2000   small worlds where everything goes wrong, checked

a run, with its own speeds and delays, under another schedule:
  ddloco simulate runs/first --set sync.quorum=2

your own: copy one from ddloco/simulation/scenarios, and
  ddloco simulate mine.toml --seeds 20 --set sync.quorum=2

Exit code 1: an invariant did not hold. The seed and the command that shows it again are printed,
and the tapes of that world are left behind, to be looked at with tape show and replay."""
