"""Which learner has which data shard: a pure function."""

from collections.abc import Collection, Sequence


def home_of(shard: int, learners: Sequence[str]) -> str:
    """The learner that has a shard at the beginning, while nobody is gone."""
    return learners[shard % len(learners)]


def assign(
    owners: Sequence[str], sharing: Sequence[str], present: Collection[str], learners: Sequence[str]
) -> list[str]:
    """Give each data shard an owner: balanced within one shard, with as few moves as possible.
    Shards of owners that do not share go to those who have the fewest; then shards move one by one
    from who has the most to who has the fewest. A learner gets the shards that it had at the
    beginning before others. If nobody that shares is present, nothing changes."""
    found, receivers = list(owners), [each for each in sharing if each in present]
    if not receivers:
        return found
    order = {name: index for index, name in enumerate(learners)}
    held: dict[str, list[int]] = {name: [] for name in sharing}
    free: list[int] = []
    for shard, owner in enumerate(owners):
        held[owner].append(shard) if owner in held else free.append(shard)

    def home(shard: int) -> str:
        return home_of(shard, learners)

    for shard in free:
        taker = min(receivers, key=lambda who: (len(held[who]), who != home(shard), order[who]))
        held[taker].append(shard)
        found[shard] = taker
    while True:
        taker = min(receivers, key=lambda who: (len(held[who]), order[who]))

        def gives(who: str, taker: str = taker) -> tuple[int, bool, bool, int]:
            of_taker = any(home(shard) == taker for shard in held[who])
            return len(held[who]), of_taker, who in present, -order[who]

        giver = max(sharing, key=gives)
        if len(held[giver]) - len(held[taker]) <= 1:
            return found
        shard = max(held[giver], key=lambda each: (home(each) == taker, home(each) != giver, each))
        held[giver].remove(shard)
        held[taker].append(shard)
        found[shard] = taker
