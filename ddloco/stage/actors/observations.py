"""Names of log events that every actor may have; observers read them, too."""

BEGUN, TAKEN, DISCARDED = "snapshot begun", "snapshot taken", "snapshot discarded"

FAILED = "snapshot part failed"
"""Log event of a participant that could not write its own part."""

RESULT = "result"
"""Log event of a job's lead: the final model's held-out loss and the job's numbers."""

UNUSED = "unused"
"""The field of a result with the learners whose work was never used, by name."""

NOT_EVALUATED = "not_evaluated"
"""The field of a result that says why the model could not be evaluated."""

SNAPSHOTS_FAILED = "snapshots_failed"
"""The field of a result that says how many snapshots have failed, and why the last one."""

APART, CODE_DIFFERS, TASK_DIFFERS = "apart", "code differs", "task differs"
"""Log events of an actor that differs from all others in what nobody meant to differ, or from the
lead in its packages or its source."""

BLOCKED = "blocked"
"""Log event of an actor that was in one event for seconds, and heard and said nothing meanwhile:
its machine waited or computed, or its process was stopped."""

DISREGARDED = "disregarded"
"""Log event of a learner whose contributions are refused again and again."""

DISMISSED, NOT_DISMISSED = "dismissed", "not dismissed"
"""Log events of an actor that was told to leave for good, or that there is not."""
