"""The work of sending a learner's whole state, and of installing a peer's."""

from collections.abc import Awaitable, Sequence

import trio
import xxhash

from ddloco.job.protocol.state_layout import PIECE_BYTES, TENSOR, piece_slice, pieces_of
from ddloco.job.protocol.work import (
    CopyState,
    EncodePiece,
    InstallState,
    PieceEncoded,
    StateCopied,
    StateInstalled,
)
from ddloco.stage.actors.work_table import Doer, does
from ddloco.stage.arrays.array_table import ArrayTable, HostCopy
from ddloco.stage.arrays.shared_memory import Region
from ddloco.workers import rpc
from ddloco.workers.process import WorkerProcess, WorkerRequestError
from transport import Bytes, Payload, Pieces, aligned, describe


class StateTransfer(Doer):
    """Transfers the state of one actor.

    Attributes:
        nbytes: size of a learner's whole state, a multiple of the alignment; 0 if it cannot be
            copied or is not known yet.
    """

    def __init__(self, arrays: ArrayTable, process: WorkerProcess) -> None:
        self.nbytes = 0
        self.piece_bytes = PIECE_BYTES
        self._arrays = arrays
        self._process = process
        self._installed: list[Bytes] = []
        """What the worker has installed, and reads again if it runs its next step twice."""

    @does(CopyState)
    def copy(self, work: CopyState) -> Awaitable[StateCopied]:
        """Copy the state in the worker; requested before this returns, so before the next step."""
        out = self._arrays.shared.allocate(max(self.nbytes, 1))
        request = rpc.CopyOut(rpc.span_of(out))
        copied = self._process.expect(request, rpc.Copied) if self.nbytes else None

        async def finish() -> StateCopied:
            digest = b""
            if copied is not None:
                await copied
                digest = await trio.to_thread.run_sync(xxhash.xxh3_128_digest, out.data.data)
            self._arrays.put(work.out, HostCopy(out))
            return StateCopied(work.work, pieces_of(self.nbytes, self.piece_bytes), digest)

        return finish()

    def cut_into(self, pieces: int) -> None:
        """Divide a state into this many pieces, as its sender did."""
        self.piece_bytes = aligned(-(-self.nbytes // pieces))

    @does(EncodePiece)
    async def encode(self, work: EncodePiece) -> PieceEncoded:
        """Make a payload of a piece of a copy, whose bytes are borrowed, or of a received piece."""
        source: HostCopy | Payload = self._arrays.get(work.source)
        if isinstance(source, Payload):
            pieces = source.pieces
        else:
            part = piece_slice(work.piece, len(source.region.data), self.piece_bytes)
            pieces = Pieces([source.borrowed(self._arrays.shared, part.start, part.stop)])
        payload = await trio.to_thread.run_sync(_piece_payload, pieces)
        self._arrays.put(work.out, payload)
        return PieceEncoded(work.work, payload.digest)

    @does(InstallState)
    async def install(self, work: InstallState) -> StateInstalled:
        pieces = [self._arrays.get(handle) for handle in work.pieces]
        whole = [each.region if isinstance(each, HostCopy) else each for each in pieces]
        lent: list[Region] = []
        regions = [self._arrays.share(each.data, lent) for each in whole]
        kept = self._borrowed(regions)
        spans = tuple(map(rpc.span_of, regions))
        installed = await self._process.expect(rpc.Install(spans), rpc.Installed)
        if installed.sound:
            self._installed = kept
        for region in lent:
            self._arrays.shared.free(region)
        return StateInstalled(work.work, installed.sound)

    def _borrowed(self, regions: Sequence[Region]) -> list[Bytes]:
        shared = self._arrays.shared
        return [shared.borrow(each, 0, len(each.data)) for each in regions]

    def release(self) -> None:
        """Let the memory of an installed state be used again: a step is finished."""
        self._installed.clear()

    async def restore(self, state: Bytes, own: rpc.RestoredState) -> None:
        """Have a new worker continue from its own state in a snapshot; ``WorkerRequestError`` if it
        cannot."""
        if len(state) != self.nbytes:
            said = (
                f"its worker's state, of optimizer() and init_state, has {len(state):,} bytes in "
                f"the snapshot and {self.nbytes:,} here; a run goes on only with the same ones"
            )
            raise WorkerRequestError(rpc.Failed("task", said))
        region = self._arrays.lend(state)
        self._installed = self._borrowed([region])
        request = rpc.Install((rpc.span_of(region),), own)
        await self._process.expect(request, rpc.Installed)
        self._arrays.shared.free(region)


def _piece_payload(pieces: Pieces) -> Payload:
    data = pieces[0 : pieces.size]
    return Payload(describe(data, ((TENSOR, (len(data),), "uint8"),)), data)
