"""The kinds of datasets that a loader reads: one, a mix, a growing one."""
