"""The process beside a job: one per host, it exports and watches, and is gone when the job is."""
