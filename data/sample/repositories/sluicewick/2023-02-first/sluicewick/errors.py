"""Everything that sluicewick raises on its own account."""


class SluicewickError(Exception):
    """Base class. Catch this to catch all of the library's own errors."""


class FlowClosed(SluicewickError):
    """A record was offered to a flow that has drained already. A flow object is used once."""


class WeirOverflow(SluicewickError):
    """A weir with the policy ``raise`` was full when a record arrived."""


class SiltFull(SluicewickError):
    """The silt box reached its limit. Something is wrong with more than a few records."""


class MooringMismatch(SluicewickError):
    """The checkpoint was written by a flow with other reaches than this one."""


class ShapeError(SluicewickError):
    """A record does not have the declared shape."""

    def __init__(self, field, expected, got):
        super().__init__(f"field {field!r}: expected {expected}, got {got}")
        self.field, self.expected, self.got = field, expected, got
