"""The classes whose objects the state of an actor may hold: machines, their parts, and what they
send, ask for and are told. Everything else in a state is refused when it is written, and when it
is read, so that nobody who can write to a store names a class that opens, starts or runs anything.
"""

from functools import cache

from snapshot.state_types import ALL_STRUCTS, StateTypes

LISTED = {
    "clocks.actor_clock": ("RunningClock",),
    "clocks.sequence": ("LaneSequence",),
    "ddloco.stage.actors.actor": ("Actor",),
    "ddloco.stage.actors.effects": ALL_STRUCTS,
    "ddloco.stage.actors.events": ALL_STRUCTS,
    "ddloco.stage.actors.messages": ALL_STRUCTS,
    "ddloco.stage.actors.snapshot_adapter": ("Cutting",),
    "ddloco.stage.files.faults": ALL_STRUCTS,
    "ddloco.stage.files.settings": ALL_STRUCTS,
    "ddloco.job.config": ALL_STRUCTS,
    "ddloco.machines.data_parallel.coordinator": ("Averager", "Gradient"),
    "ddloco.machines.data_parallel.replica": ("Computing", "Replica"),
    "ddloco.machines.learner.compression": (
        "Incoming",
        "LearnerCompression",
        "_Decoding",
        "_Encoding",
        "_Lost",
    ),
    "ddloco.machines.learner.host_copies": ("HostCopies", "_Launches"),
    "ddloco.machines.learner.machine": ("Answer", "Learner", "Running"),
    "ddloco.machines.learner.state_donor": ("Copy", "Lending"),
    "ddloco.machines.learner.state_recovery": ("Recovery",),
    "ddloco.machines.syncer.accounts": ("Accounts", "Totals"),
    "ddloco.machines.syncer.estimates": ("Recent",),
    "ddloco.machines.syncer.global_fragments": ("Global", "Globals", "Part", "Sync"),
    "ddloco.machines.syncer.machine": ("Syncer",),
    "ddloco.machines.syncer.members": ("Member",),
    "ddloco.machines.syncer.membership": ("Membership",),
    "ddloco.machines.syncer.outlier_history": ("OutlierHistory", "Usual"),
    "ddloco.machines.syncer.pacing": ("Pacing", "Waiting"),
    "ddloco.machines.syncer.rounds": ("Rounds",),
    "ddloco.machines.syncer.schedule": ("Schedule",),
    "ddloco.machines.syncer.shards": ("Shards",),
    "ddloco.machines.syncer.shutdown": ("JobShutdown",),
    "ddloco.machines.syncer.snapshot_policy": ("SnapshotPolicy",),
    "ddloco.machines.syncer.standstill": ("Standstill",),
    "ddloco.machines.syncer.state_relay": ("Handover", "Relay"),
    "ddloco.machines.work_numbers": ("WorkNumbers",),
    "ddloco.stage.programs.user_actor": ("Array", "Call", "Pending", "Returned"),
    "ddloco.job.protocol.effects": ALL_STRUCTS,
    "ddloco.job.protocol.events": ALL_STRUCTS,
    "ddloco.job.protocol.fragment_plan": ("FragmentPlan", "Leaf"),
    "ddloco.job.protocol.messages": ALL_STRUCTS,
    "ddloco.job.protocol.status": ("Numbers",),
    "ddloco.job.protocol.time_spent": ("TimeSpent",),
    "snapshot.channel_recorder": ("Cut", "Cuts"),
    "snapshot.coordinator": ("Gathering",),
    "snapshot.participant": ("Capture", "Commit", "Own", "Participant"),
    "snapshot.record": ("Part",),
    "transport.effects": ALL_STRUCTS,
    "transport.events": ALL_STRUCTS,
    "transport.flow_control": ("Outbox", "Waiting"),
    "transport.link": ("Links",),
    "transport.link_state": ("AcceptedRuns", "LaneState", "Link"),
    "transport.message": ALL_STRUCTS,
    "transport.refcounts": ("Handles",),
    "transport.sending": ("LinkSender",),
    "transport.token_bucket": ("TokenBucket",),
}

JOB_STATES = StateTypes(LISTED)
"""What the states of a job's actors consist of."""

OURS = frozenset(module.partition(".")[0] for module in LISTED)


def package_of(machine: object) -> str:
    """The top-level package of a program's own machine; empty for the machines of jobs."""
    own = type(machine).__module__.partition(".")[0]
    return "" if own in OURS else own


@cache
def states_of(package: str) -> StateTypes:
    """The classes in the states of a program, whose package ``package_of`` gives."""
    return StateTypes(LISTED, package) if package else JOB_STATES
