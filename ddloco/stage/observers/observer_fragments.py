"""The bytes of fragments between a syncer's observer server and its observers."""

from collections.abc import Iterator

import numpy as np

from ddloco.stage.observers.observer_protocol import PIECE_BYTES, Fragment, FragmentPiece
from ddloco.stage.process.side_protocol import SideProtocolError, encode
from transport import DTYPES, Bytes, Payload
from transport.endpoint import Buffer
from transport.payload import PAYLOAD_BYTES_MAX, broken_tensor, payload_bytes


def cut(said: Fragment, data: Bytes) -> Iterator[list[Buffer]]:
    """Yield the messages of a fragment; ``data`` (uint8) is sent without copying."""
    yield [encode(said), data[:PIECE_BYTES].data]
    for index, start in enumerate(range(PIECE_BYTES, len(data), PIECE_BYTES), start=1):
        yield [encode(FragmentPiece(said.seq, index)), data[start : start + PIECE_BYTES].data]


class FragmentReader:
    """Assembles fragments from their pieces; an incomplete one is forgotten."""

    def __init__(self) -> None:
        self._begun: Fragment | None = None
        self._data: Bytes = np.empty(0, np.uint8)
        self._filled = 0
        self._index = 0

    def feed(
        self, said: Fragment | FragmentPiece, piece: Buffer
    ) -> tuple[Fragment, Payload] | None:
        if isinstance(said, Fragment):
            self._begin(said)
            return self._fill(piece)
        begun = self._begun
        if begun is None or (said.seq, said.index) != (begun.seq, self._index):
            self._begun = None
            raise SideProtocolError(f"piece {said.index} of a fragment that was not begun")
        return self._fill(piece)

    def _begin(self, said: Fragment) -> None:
        self._begun = None
        for meta in said.tensors:
            if meta.dtype not in DTYPES:
                raise SideProtocolError(
                    f"$.tensors: {meta.dtype!r} is not one of {', '.join(DTYPES)}"
                )
        total = payload_bytes(said.tensors)
        if total > PAYLOAD_BYTES_MAX:
            raise SideProtocolError(f"$.tensors: {total} bytes, at most {PAYLOAD_BYTES_MAX}")
        self._begun, self._data = said, np.empty(total, np.uint8)
        self._filled = self._index = 0

    def _fill(self, piece: Buffer) -> tuple[Fragment, Payload] | None:
        said, due = self._begun, min(PIECE_BYTES, len(self._data) - self._filled)
        assert said is not None, "a piece is filled in only where a fragment was begun"
        if len(piece) != due:
            self._begun = None
            raise SideProtocolError(f"tensor bytes: received {len(piece)}, expected {due}")
        self._data[self._filled : self._filled + due] = np.frombuffer(piece, np.uint8)
        self._filled += due
        self._index += 1
        if self._filled < len(self._data):
            return None
        self._begun = None
        payload = Payload(said.tensors, self._data)
        broken = broken_tensor(payload)
        if broken is not None:
            raise SideProtocolError(f"tensor {broken}: bytes do not match their digest")
        return said, payload
