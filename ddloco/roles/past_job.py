"""A job whose number of steps was lowered below the newest merge: it is done.

Settings identify a job, so the lead cannot continue the old job under the new settings. It reports
this to the user, and to every actor that requests a number.
"""

from pathlib import Path

from msgspec.structs import replace

from ddloco.job.config import Job, load_job
from ddloco.stage.files.run_folder import JOB_FILE, KEPT
from ddloco.stage.files.toml import ConfigError
from ddloco.workers.fragment_store import FragmentFolder, FragmentStoreError


def past_end(job: Job, folder: Path, name: str) -> str:
    """Why a job is done although it has not run with these settings; empty if it is not. The run
    folder is of a job that differs in nothing but its number of steps."""
    try:
        former = load_job(folder / JOB_FILE)
        same = replace(former, job=replace(former.job, steps=job.job.steps))
        if former.id == job.id or same.id != job.id:
            return ""
        found = FragmentFolder(folder / KEPT / name, former.id).find()
    except (ConfigError, FragmentStoreError):
        return ""  # The code that needs these files reports what is wrong with them.
    newest = max((each.kept.version for each in found), default=0)
    if newest < job.job.last_step:
        return ""
    return (
        f"job.steps is {job.job.steps}, and {folder} holds the merge of global step {newest}; "
        f"it ran with {former.job.steps} steps"
    )
