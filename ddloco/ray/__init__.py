"""Jobs on a Ray cluster, from Python: each syncer and learner under a Ray actor of its own."""

from ddloco.ray.cluster_job import ClusterJob, attach, run

__all__ = ["ClusterJob", "attach", "run"]
