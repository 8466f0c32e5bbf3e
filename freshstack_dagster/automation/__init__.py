"""What starts work: jobs, schedules and sensors for Dagster, and builds in process for the console."""
