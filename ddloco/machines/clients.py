"""Which learners take part in a round, with ``sync.blocking``. Those of federated averaging
(FedAvg, arXiv 1602.05629) are drawn."""

import hashlib

from ddloco.job.config import Job, clients_of


def clients(job: Job, t: int) -> tuple[str, ...]:
    """Return the learners that train for the round that ends at global step ``t``. Syncer and
    learners choose the same ones without a message: by SHA-256 over seed, global step and name."""
    names, share = job.learner_names(), job.sync.clients
    if share == 1.0:
        return names
    seed = job.job.seed

    def drawn(name: str) -> bytes:
        return hashlib.sha256(f"{seed} {t} {name}".encode()).digest()

    return tuple(sorted(sorted(names, key=drawn)[: clients_of(len(names), share)]))


def after_step(job: Job, name: str, position: int) -> int:
    """Return the global step to which a learner has come by a step that begins at ``position``:
    with the last of its ``local_steps`` it has come to the end of the round."""
    local, interval = job.learner_table(name).local_steps, job.sync.interval
    begun = position - position % interval
    if local is None or position + 1 < begun + local:
        return position + 1
    return min(begun + interval, job.job.last_step)


def not_in_round(job: Job, t: int, name: str, position: int) -> str | None:
    """Return in words why a learner is not in the round of global step ``t``, or None where it
    is."""
    if name not in clients(job, t):
        return f"was not drawn for the round that ends at global step {t}"
    if position < t:
        return f"has come to global step {position} of {t}"
    return None
