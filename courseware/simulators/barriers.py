"""Barriers and buffers in a multiprocessor's shared memory, as `gluon_emulator` and `sm_simulator` have them."""


class Barrier:
    """An mbarrier: a phase is complete when `count` arrivals have come and no bytes are missing; then the next begins.

    phase: number of the phase that is not complete yet, from 0; its parity is what groups wait for.
    """

    def __init__(self, count):
        self.count, self.phase, self.arrived, self.missing_bytes = count, 0, 0, 0
        self.waited_for = {}  # group -> the last complete phase that it has waited for

    def arrive(self, times=1):
        """Count arrivals. Returns whether the phase has had more than it expects."""
        self.arrived += times
        return self.arrived > self.count

    @property
    def surplus_bytes(self):
        """What copies have brought and nobody announced; 0 until all arrivals have come."""
        return max(-self.missing_bytes, 0) if self.arrived >= self.count else 0

    def end_phase(self):
        """Begin the next phase if this one is complete. Returns whether it was."""
        if self.arrived < self.count or self.missing_bytes:
            return False
        self.phase, self.arrived = self.phase + 1, 0
        return True

    def blocks(self, parity):
        """Whether a wait for the phase of this parity goes on."""
        return self.phase % 2 == parity

    def notice(self, group):
        """The group's wait has returned."""
        self.waited_for[group] = self.phase - 1

    def noticed(self, phase):
        """The groups that have waited for this phase."""
        return {group for group, last in self.waited_for.items() if last >= phase}

    @property
    def lacks(self):
        """What the phase still needs, in words."""
        parts = [f"{self.count - self.arrived} of {self.count} arrivals"] if self.arrived < self.count else []
        return " and ".join(parts + [f"{self.missing_bytes:,} bytes"] * (self.missing_bytes > 0))


class Buffer:
    """What copies fill. told_by: {barrier: the phase whose end says that the contents are there}."""

    def __init__(self):
        self.told_by = {}

    def told(self):
        """The groups that have waited for the contents, and are not merely lucky if they are there."""
        return set().union(*(barrier.noticed(phase) for barrier, phase in self.told_by.items()))
