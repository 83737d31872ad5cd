"""Time that tests set."""


class ManualTime:
    """A source of time that stands where it was set."""

    began = None

    def __init__(self):
        self._now = 0.0

    def now(self):
        return self._now

    def advance_to(self, seconds):
        assert seconds >= self._now, "time does not go back"
        self._now = seconds
