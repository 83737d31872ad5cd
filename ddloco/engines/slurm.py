"""A job on Slurm: a bash script that submits one Slurm job per syncer, and an array of learners."""

import secrets
from collections.abc import Sequence

from ddloco.engines.orders import EngineJob, check_keys
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.process.terminal import quoted

SUBMIT = ("bash", "-s")

RESCALE = SUBMIT

END = "END_OF_SCRIPT"

NOTICE_S = 120
"""Seconds between SIGTERM and the end of the time limit. An actor leaves within five; the rest is
for Slurm, which looks at time limits once in a minute."""

INTRODUCTION = """\
#!/bin/bash
# Submits the job {name} to Slurm:  bash THIS_FILE
# Each actor is a Slurm job of its own, so a lost node restarts only the actors that it had.
set -eu
mkdir -p {folder}/slurm
"""

SCRIPT = """\
sbatch <<'{end}'
#!/bin/bash
{directives}
# --requeue: Slurm itself starts this again after a lost node or a preemption.
# --open-mode=append: then its output continues in the same file.
# --signal: before the time limit ends, this shell gets SIGTERM; without B: ddloco would not leave
#   in good order but this shell would end first.
{setup}{before}
# srun no longer takes the number of CPUs from sbatch.
export SRUN_CPUS_PER_TASK="${{SLURM_CPUS_PER_TASK:-1}}"

# A shell passes no signal on, and a signal ends `wait`, so wait again after one.
child=
asked=
trap 'asked=yes; if [ -n "$child" ]; then kill -TERM "$child"; fi' TERM
srun --kill-on-bad-exit={together} {command} &
child=$!
while :; do
  asked=
  code=0
  wait "$child" || code=$?
  if [ -z "$asked" ]; then break; fi
done
trap '' TERM

# 0: done. 1: failed. 2: bad input. These are final.
case $code in
  0 | 1 | 2) exit "$code" ;;
esac
# 75: it left in good order, to be started again. Others, such as 137: it crashed.
# Slurm restarts no job because of its exit code, so this one asks for it.
echo "ended with exit code $code, to be started again"
scontrol requeue "{me}" || exit "$code"
{end}
"""

LESS = """\
#!/bin/bash
# Ends the learners of {name} from learner-{first} on, for good:  bash THIS_FILE
# requeue=0 comes first: a learner that leaves would otherwise ask to be started again.
set -eu
squeue --noheader --array --me --name={name}-learner --format='%K %F_%K' |
  while read -r number id; do
    if [ "$number" -ge {first} ]; then
      scontrol update JobId="$id" Requeue=0
      scancel "$id"
    fi
  done
"""


def launch(order: EngineJob) -> str:
    _check(order)
    name, folder = order.job.job.name, quoted([str(order.folder)])
    parts = [INTRODUCTION.format(name=name, folder=folder)]
    parts += [_syncer(order, each) for each in order.job.syncer_names()]
    parts.append(_learners(order, 0, order.learners))
    return "\n".join(parts)


def scale(order: EngineJob, count: int) -> str:
    _check(order)
    name, folder = order.job.job.name, quoted([str(order.folder)])
    if count < order.learners:
        return LESS.format(name=name, first=count)
    introduction = INTRODUCTION.format(name=name, folder=folder)
    return "\n".join([introduction, _learners(order, order.learners, count)])


def _check(order: EngineJob) -> None:
    table = order.settings.slurm
    check_keys(order)
    for path in (order.folder, order.here):
        # Slurm replaces % in the name of an output, and has quotes of its own.
        if set(str(path)) & set("%'\"\\"):
            raise ConfigError(f"{path}: Slurm needs a path without quotes, backslashes and %")
    lines = table.setup.splitlines()
    if END in lines:
        raise ConfigError(f"launch.slurm.setup: no line may be {END}, which ends the script")
    for key in ("sbatch", "syncer", "learner"):
        for each in getattr(table, key):
            if not each.startswith("-") or not each.isprintable():
                said = f"launch.slurm.{key}: {each[:80]!a} is no option"
                raise ConfigError(f"{said}; want one in one line, such as --partition=gpu")


def _processes(order: EngineJob) -> int:
    """How many nodes a learner has, which is the same for all, since they are one array."""
    job = order.job
    counts = {name: job.worker_of(name).processes for name in job.learner_names()}
    first = counts[job.learner_names()[0]]
    for name, count in counts.items():
        if count != first:
            said = f"learner.{name}.processes: {count}, others have {first}"
            raise ConfigError(f"{said}; on Slurm all learners have equally many")
    return first


def _syncer(order: EngineJob, name: str) -> str:
    command = [*order.command("syncer"), "--dir", str(order.folder)]
    command += ["--bind", "tcp://*:*", "--name", name]
    command += order.connection(name, order.address)
    # The name of the host is known where the script runs only.
    about = f"# {name} writes this host's name and its port where learners look for them."
    return _script(
        order,
        name,
        order.settings.slurm.syncer,
        before=f"ddloco_host=$(hostname -f)\n{about}",
        command=f'{quoted(command)} --advertise "tcp://$ddloco_host:*"',
        me="$SLURM_JOB_ID",
    )


def _learners(order: EngineJob, first: int, count: int) -> str:
    command = [*order.command("learner"), *order.connection("learner", order.address)]
    if order.job.tape.ship:
        # A disk of the node is fast, and empty on another node; tapes travel to the syncer. Nobody
        # else can foretell the name.
        own = secrets.token_hex(8)
        where = f'"${{TMPDIR:-/tmp}}/ddloco-$SLURM_ARRAY_JOB_ID-{own}/$name"'
    else:
        where = quoted([str(order.folder)])
    return _script(
        order,
        "learner",
        (f"--array={first}-{count - 1}", *order.settings.slurm.learner),
        before="# The number in the array is the learner's number, and stays so.\n"
        "name=learner-$SLURM_ARRAY_TASK_ID",
        command=f'{quoted(command)} --name "$name" --dir {where}',
        me="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID",
        nodes=_processes(order),
    )


def _script(
    order: EngineJob,
    part: str,
    more: Sequence[str],
    *,
    before: str,
    command: str,
    me: str,
    nodes: int = 1,
) -> str:
    table = order.settings.slurm
    output = "%x-%a.out" if part == "learner" else "%x.out"
    options = [
        f"--job-name={order.job.job.name}-{part}",
        "--output=" + quoted([f"{order.folder}/slurm/{output}"]),
        "--chdir=" + quoted([str(order.here)]),
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        *(("--ntasks-per-node=1",) if nodes > 1 else ()),
        "--requeue",
        "--open-mode=append",
        f"--signal=B:TERM@{NOTICE_S}",
        *table.sbatch,
        *more,
    ]
    return SCRIPT.format(
        end=END,
        directives="\n".join(f"#SBATCH {each}" for each in options),
        setup=f"\n{table.setup.strip()}\n" if table.setup.strip() else "",
        before=f"\n{before}\n",
        command=command,
        me=me,
        # One of several processes waits for the next incarnation of the others, which starts here.
        together=int(nodes > 1),
    )
