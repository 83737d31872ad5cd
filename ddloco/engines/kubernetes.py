"""A job on Kubernetes: manifests with a Job per syncer and one Indexed Job of learners."""

import json
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

from clocks import read_text
from ddloco.engines.orders import EngineJob, require_keys
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.process.terminal import quoted

SUBMIT = ("kubectl", "apply", "--filename=-")

RESCALE = ("bash", "-s")

PORT = 5555
CRASHES_MAX = 100
"""Crashes after which Kubernetes starts an actor no more. It waits longer after each, up to five
minutes, so this is most of a day of nothing but crashes. Code 75 and evictions do not count."""

NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
"""A name of Kubernetes, with room for what is added to it."""

OWN = {
    "pod": {"containers", "volumes", "restartPolicy", "terminationGracePeriodSeconds"},
    "container": {"name", "image", "command", "args", "volumeMounts", "ports"},
}
"""Fields that are written here, so the job file cannot have them."""

HEAD = """\
# The job {name} on Kubernetes:  kubectl apply --filename THIS_FILE
# Each actor is a pod that is started again alone.
{secret}apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}-job
data:
  job.toml: |2
{file}
"""

KEYS = """\
# The keys that `ddloco keys FOLDER` made are in a Secret, which this command makes:
#   kubectl create secret generic {secret} --from-file=FOLDER
"""

SYNCER = """\
---
# A name that leads to the syncer's pod, wherever that runs.
apiVersion: v1
kind: Service
metadata:
  name: {full}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{app: ddloco, job: {name}, actor: {actor}}}
  ports: [{{name: zmq, port: {port}}}]
---
# The run folder stays when the pod moves to another node.
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {full}
spec:
  accessModes: [ReadWriteOnce]
  resources: {{requests: {{storage: {storage}}}}}
---
# A drain of its node waits for this syncer; delete the budget, or the pod, to let it move.
# minAvailable, since Kubernetes cannot count what may be unavailable of a Job.
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {full}
spec:
  minAvailable: 1
  selector: {{matchLabels: {{app: ddloco, job: {name}, actor: {actor}}}}}
---
# Not a StatefulSet, which would start it again for ever, after the end of the job, too.
apiVersion: batch/v1
kind: Job
metadata:
  name: {full}
spec:
  backoffLimit: {crashes}
{policy}
      - action: FailJob          # 1: failed. 2: bad input. 0 is always final.
        onExitCodes: {{containerName: {role}, operator: In, values: [1, 2]}}
{template}
        - name: run
          persistentVolumeClaim: {{claimName: {full}}}
"""

LEARNERS = """\
---
# completions and parallelism may change together while the job runs: ddloco launch --scale.
apiVersion: batch/v1
kind: Job
metadata:
  name: {full}
spec:
  completionMode: Indexed        # JOB_COMPLETION_INDEX is the learner's number, and stays so.
  completions: {count}
  parallelism: {count}
  backoffLimitPerIndex: {crashes}
{policy}
      - action: FailIndex        # 1: failed. 2: bad input. The other learners go on.
        onExitCodes: {{containerName: {role}, operator: In, values: [1, 2]}}
{template}
        - {{name: run, emptyDir: {{}}}}   # Tapes travel to the syncer.
"""

POLICY = """\
  podReplacementPolicy: Failed   # No second pod while the first is ending.
  podFailurePolicy:
    rules:                       # What no rule names is a crash: started again, and counted.
      - action: Ignore           # Evicted, preempted, or its node is gone: started again.
        onPodConditions: [{{type: DisruptionTarget, status: "True"}}]
      - action: Ignore           # 75: it left in good order, to be started again.
        onExitCodes: {{containerName: {role}, operator: In, values: [75]}}"""

TEMPLATE = """\
  template:
    metadata:
      labels: {{app: ddloco, job: {name}, actor: {actor}}}
    spec:
      restartPolicy: Never       # The policy above decides.
      terminationGracePeriodSeconds: 30   # An actor leaves within five.
{pod}      containers:
        - name: {role}
          image: {image}
          command: [sh, -c]
          args:
            - |
{script}
{container}          volumeMounts:
            - {{name: run, mountPath: /run/ddloco}}
            - {{name: job, mountPath: /job}}
            - {{name: shm, mountPath: /dev/shm}}
{mounts}      volumes:
        # Fragments pass between processes here; of a pod's own 64 MiB most would go to /tmp.
        - {{name: shm, emptyDir: {{medium: Memory}}}}
        - {{name: job, configMap: {{name: {name}-job}}}}
{volumes}"""


def launch(order: EngineJob) -> str:
    _check(order)
    table, name = order.settings.kubernetes, order.job.job.name
    try:
        lines = read_text(order.file).splitlines()
    except OSError as error:
        raise ConfigError(f"{order.file}: cannot be read: {error.strerror}") from None
    head = HEAD.format(
        name=name,
        secret=KEYS.format(secret=table.secret) if table.secret else "",
        file="\n".join(f"    {line}".rstrip() for line in lines),
    )
    syncers = [_syncer(order, each) for each in order.job.syncer_names()]
    return "".join([head, *syncers, _learners(order)])


def scale(order: EngineJob, count: int) -> str:
    _check(order)
    patch = json.dumps({"spec": {"completions": count, "parallelism": count}})
    return (
        quoted(["kubectl", "patch", "job", f"{order.job.job.name}-learner", "--patch", patch])
        + "\n"
    )


def _check(order: EngineJob) -> None:
    table, name = order.settings.kubernetes, order.job.job.name
    if not NAME.fullmatch(name):
        said = "is no name for Kubernetes; want at most 40 lower-case letters, digits and hyphens"
        raise ConfigError(f"job.name: {name} {said}, first a letter")
    image = "want a container image with ddloco and the task, such as registry.example/me/first:1"
    storage = "want the size of a volume, such as 100Gi"
    for key, form, want in (
        ("image", r"[\w./:@-]+", image),
        ("storage", r"[0-9.]+[A-Za-z]*", storage),
    ):
        if not re.fullmatch(form, getattr(table, key)):
            raise ConfigError(f"launch.kubernetes.{key}: {getattr(table, key)[:80]!a}: {want}")
    if table.secret and not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", table.secret):
        raise ConfigError(f"launch.kubernetes.secret: {table.secret[:80]!a} is no name of a Secret")
    for part, own in OWN.items():
        for role in ("syncer", "learner"):
            for field in getattr(table, f"{role}_{part}"):
                if field in own or not re.fullmatch(r"[A-Za-z]+", field):
                    said = "is written by ddloco" if field in own else "is no field"
                    raise ConfigError(f"launch.kubernetes.{role}_{part}: {field[:80]!a} {said}")
    require_keys(order, "launch.kubernetes.secret", table.secret)


def _syncer(order: EngineJob, actor: str) -> str:
    own = ["--bind", f"tcp://*:{PORT}", "--name", actor, "--advertise", _address(order, actor)]
    return SYNCER.format(
        **_common(order, "syncer", actor, _words(order, "syncer", actor, own), "syncer.key"),
        port=PORT,
        storage=order.settings.kubernetes.storage,
    )


def _learners(order: EngineJob) -> str:
    words = f'{_words(order, "learner", "learner", [])} --name "learner-$JOB_COMPLETION_INDEX"'
    key = "learner-$JOB_COMPLETION_INDEX.key"
    return LEARNERS.format(**_common(order, "learner", "learner", words, key), count=order.learners)


def _address(order: EngineJob, syncer: str) -> str:
    return f"tcp://{order.job.job.name}-{syncer}:{PORT}"


def _words(order: EngineJob, role: str, actor: str, own: list[str]) -> str:
    """A command as a shell reads it, once Kubernetes has put variables in the place of ``$(NAME)``
    and one ``$`` in that of two."""
    command = [*order.command(role, "/job/job.toml"), "--dir", "/run/ddloco/run", *own]
    command += order.connection(actor, partial(_address, order))
    return quoted(command).replace("$", "$$")


def _common(order: EngineJob, role: str, actor: str, command: str, key: str) -> dict[str, Any]:
    table, name = order.settings.kubernetes, order.job.job.name
    lines = ["exec " + command]
    mounts, volumes = [], []
    if table.secret:
        # A pod sees its own key only. ddloco reads keys that nobody else may read.
        own = key.replace("$JOB_COMPLETION_INDEX", "$(JOB_COMPLETION_INDEX)")
        lines = ["umask 077", "mkdir -p /tmp/keys", "cp /secret/public.toml /tmp/keys/"]
        lines += [f'cp /secret/own.key "/tmp/keys/{key}"', f"exec {command} --keys /tmp/keys"]
        for path, field in (("public.toml", "public.toml"), ("own.key", own)):
            mount = f"mountPath: /secret/{path}, subPathExpr: {field}, readOnly: true"
            mounts.append(f"            - {{name: keys, {mount}}}\n")
        volumes = [f"        - {{name: keys, secret: {{secretName: {table.secret}}}}}\n"]
    template = TEMPLATE.format(
        name=name,
        actor=actor,
        role=role,
        image=json.dumps(table.image),
        pod=_fields(getattr(table, f"{role}_pod"), 6),
        container=_fields(getattr(table, f"{role}_container"), 10),
        script="\n".join(" " * 14 + each for each in lines),
        mounts="".join(mounts),
        volumes="".join(volumes),
    ).rstrip("\n")
    return {
        "name": name,
        "actor": actor,
        "role": role,
        "full": f"{name}-{actor}",
        "crashes": CRASHES_MAX,
        "policy": POLICY.format(role=role),
        "template": template,
    }


def _fields(fields: dict[str, Any], indent: int) -> str:
    """Fields of the job file as YAML, of which JSON is a part."""
    return _lines(f"{' ' * indent}{key}: {json.dumps(each)}" for key, each in fields.items())


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
