"""scripts/job-scripts: the job scripts of a folder, put through `hpc-elastic submit`."""
