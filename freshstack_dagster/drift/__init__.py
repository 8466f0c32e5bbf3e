"""What changes between snapshots: support, repositories, lineage, rankings."""
