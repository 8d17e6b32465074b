"""Pictures, how they are split and augmented, the tasks drawn from them, and their cached features."""
