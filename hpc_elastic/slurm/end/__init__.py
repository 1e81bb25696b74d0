"""The end of a job, or of a task of an array, once its srun has returned."""
