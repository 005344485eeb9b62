"""Many independent jobs: here one after the other, on this machine's cores, or on a Ray cluster."""

from calibrl.parallel.jobs import BACKENDS, JobFailed, check_backend, run_jobs
from calibrl.parallel.worker import Job

__all__ = ["BACKENDS", "Job", "JobFailed", "check_backend", "run_jobs"]
