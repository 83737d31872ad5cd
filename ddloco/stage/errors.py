"""Looking into the groups in which trio's nurseries raise."""


def first_of(error: BaseException) -> BaseException:
    """The first plain exception in a group, groups within it included."""
    found = error
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
