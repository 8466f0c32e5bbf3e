"""What leaves the lake for people and other tools: reports and exports."""
