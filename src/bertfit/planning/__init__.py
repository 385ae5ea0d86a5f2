"""What a job will need, and the settings that fit."""
