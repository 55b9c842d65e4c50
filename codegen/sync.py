"""Sync insertion: events between pipes and barriers on the vector pipe, on virtual instructions whose tiles have addresses.

Each loop body is handled by itself; to the body around it, a loop is one item that touches what its instructions touch. A body is walked
with one clock a pipe: the last item of every pipe that it knows to be complete. An item that touches bytes of an earlier item of another
pipe (one of them writing) needs that item to be complete. What its pipe's clock does not cover takes an event; the wait raises the
clock by all that the setting pipe knew. Vector instructions overlap each other, so that one that depends on another needs a barrier.

A loop's body is then walked a second time behind the first: what depends on the iteration before takes a loop-carried ("back") event. Such
an event also orders the last iteration before the first one of the next run of the loop, so loops around it need nothing for it.

A tile of several places is not ordered by such edges but by tokens (``_tokens``), so that loads run ahead of what uses them.

A pair of pipes has eight events. Loop-carried ones hold theirs throughout the kernel. The others may share one if each waits before the
next one sets. Where they run out, events of a body that overlap are merged, and at last the wait is moved to right behind its set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from codegen.local_memory import tile_bytes
from codegen.tileir import VInsn, VLoop, VTile
from graph_kernel.fusion.layout import LoopAxis
from vm import isa
from vm.isa import Pipe

BACK_EVENTS = 4  # of a pair; the rest stay free for forward ones
LAST_RESORT = isa.EVENTS - 1  # the event of pairs whose wait directly follows its set

Item = VInsn | VLoop
Pair = tuple[Pipe, Pipe]
Clock = list[int]


@dataclass(eq=False)
class Edge:
    """Pipe ``source`` sets after item ``producer``, pipe ``target`` waits before item ``consumer`` of the same body."""

    source: Pipe
    target: Pipe
    producer: int
    consumer: int
    back: bool
    event: int = -1
    tight: bool = False  # the wait directly follows the set
    ahead: int = 0  # of a tile of so many places: each wait takes the set of so many steps before, the first ones what the kernel set
    dropped: bool = False  # merged into another one


@dataclass(eq=False)
class Body:
    """One body: its items, what they touch, and the edges between them."""

    items: list[Item]
    loop: VLoop | None
    touched: list[dict[VTile, dict[Pipe, bool]]] = field(
        default_factory=list
    )  # per item: tile -> pipe -> whether it is written
    pipes: list[tuple[Pipe, ...]] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    barriers: set[int] = field(default_factory=set)  # items; before a loop it takes an instruction
    inner: dict[int, Body] = field(default_factory=dict)
    after: dict[tuple[int, Pipe], Clock] = field(
        default_factory=dict
    )  # a pipe's clock after an item; from n on, in the second walk
    exit: dict[Pipe, Clock] = field(default_factory=dict)  # what every pipe knows of the last iteration when it is over
    begin: list[int] = field(default_factory=list)  # places in the whole kernel
    end: list[int] = field(default_factory=list)


def insert(body: list[Item], loops: list[LoopAxis]) -> list[Item]:
    """``body`` with sync fields in its instructions' heads and sync instructions where heads do not suffice."""
    root = _bodies(body, None)
    overlaps = _overlaps(root, loops)
    for one in _all(root):
        _Walk(one, overlaps).run()
        one.edges += _tokens(one)
    _number(root, 0)
    _allocate(root)
    tokens = {(e.source, e.target): e for one in _all(root) for e in one.edges if e.ahead}
    sets, waits = ([_sync(name, e) for e in tokens.values() for _ in range(e.ahead)] for name in ("set", "wait"))
    return [*sets, *_emit(root), *waits]


# --- structure -------------------------------------------------------------------------------------------------------------------
def pipe_of(insn: VInsn) -> Pipe:
    """The pipe that an instruction issues to."""
    dst, x = (insn.fields.get(name) for name in ("dst", "x"))
    spaces = [tile.space if isinstance(tile, VTile) else None for tile in (dst, x)]
    return isa.issue_pipe(isa.TABLE[insn.name], *spaces)


def _bodies(items: list[Item], loop: VLoop | None) -> Body:
    out = Body(list(items), loop)
    for i, item in enumerate(items):
        if isinstance(item, VLoop):
            inner = out.inner[i] = _bodies(item.body, item)
            touched: dict[VTile, dict[Pipe, bool]] = {}
            for one in inner.touched:
                for tile, pipes in one.items():
                    known = touched.setdefault(tile, {})
                    for pipe, written in pipes.items():
                        known[pipe] = known.get(pipe, False) or written
            out.touched.append(touched)
            out.pipes.append(tuple(sorted({p for pipes in inner.pipes for p in pipes})))
        else:
            pipe, insn = pipe_of(item), isa.TABLE[item.name]
            used = {tile: {pipe: False} for tile in isa.tiles_read(insn, item.fields, item.tail)}
            used |= {tile: {pipe: True} for tile in isa.tiles_written(insn, item.fields)}
            out.touched.append(used)
            out.pipes.append((pipe,))
    return out


def _all(body: Body) -> Iterator[Body]:
    """All bodies, inner ones first."""
    for inner in body.inner.values():
        yield from _all(inner)
    yield body


def _overlaps(root: Body, loops: list[LoopAxis]) -> dict[VTile, list[VTile]]:
    """For every tile the tiles that share bytes with it, itself included."""
    tiles = list(dict.fromkeys(tile for one in root.touched for tile in one))
    tiles.sort(key=lambda t: (t.space, t.address))
    found: dict[VTile, list[VTile]] = {t: [t] for t in tiles}
    active: list[tuple[VTile, int]] = []
    for tile in tiles:
        active = [(t, end) for t, end in active if t.space == tile.space and end > tile.address]
        for other, _ in active:
            found[tile].append(other)
            found[other].append(tile)
        active.append((tile, tile.address + tile_bytes(tile, loops) * tile.places))
    return found


# --- dependencies ----------------------------------------------------------------------------------------------------------------
class _Walk:
    """Finds the edges and barriers of one body."""

    def __init__(self, body: Body, overlaps: dict[VTile, list[VTile]]) -> None:
        self.body, self.overlaps, self.n = body, overlaps, len(body.items)
        self.clocks: dict[Pipe, Clock] = {p: [-1] * len(Pipe) for p in Pipe}
        self.after = body.after
        self.reads: dict[VTile, dict[Pipe, list[int]]] = {}  # items that read or wrote a tile, by pipe
        self.writes: dict[VTile, dict[Pipe, list[int]]] = {}
        self.into: dict[int, list[Edge]] = {}

    def run(self) -> None:
        for second in (False, True) if self.body.loop is not None else (False,):
            for j in range(self.n):
                self.visit(j, self.n if second else 0)
        shift = self.n if self.body.loop is not None else 0
        self.body.exit = {pipe: [at - shift for at in clock] for pipe, clock in self.clocks.items()}

    def visit(self, j: int, shift: int) -> None:
        """Item ``j`` in the first (``shift`` 0) or second walk."""
        body, at = self.body, shift + j
        for edge in self.into.get(j, ()):
            if shift or not edge.back:
                self.wait(edge, shift)
        for pipe in body.pipes[j]:
            if pipe == Pipe.V and j in body.barriers:
                self.clocks[pipe][pipe] = at - 1
            self.order(j, pipe, shift)
        for pipe in body.pipes[j]:
            if pipe != Pipe.V:
                self.clocks[pipe][pipe] = at
            self.after[at, pipe] = list(self.clocks[pipe])
        for tile, pipes in body.touched[j].items():
            for pipe, written in pipes.items():
                (self.writes if written else self.reads).setdefault(tile, {}).setdefault(pipe, []).append(at)

    def order(self, j: int, pipe: Pipe, shift: int) -> None:
        """Makes ``pipe`` know all that item ``j`` depends on."""
        for source, producer in sorted(self.needed(j, pipe).items(), key=lambda found: -found[1]):
            clock = self.clocks[pipe]
            if clock[source] >= producer or producer == shift - self.n + j and isinstance(self.body.items[j], VLoop):
                continue  # known, or a loop's own business
            if source != pipe:
                edge = Edge(source, pipe, producer % self.n, j, producer < shift)
                self.body.edges.append(edge)
                self.into.setdefault(j, []).append(edge)
                self.wait(edge, shift)
            elif pipe == Pipe.V:
                self.body.barriers.add(j)
                clock[pipe] = shift + j - 1

    def needed(self, j: int, pipe: Pipe) -> dict[Pipe, int]:
        """The last item of every pipe on which item ``j`` depends in what it does on ``pipe``."""
        out: dict[Pipe, int] = {}
        inner = self.body.inner.get(j)
        for tile, pipes in self.body.touched[j].items():
            if pipe not in pipes or (tile.places > 1 and pipes[pipe]):
                continue  # what is written into one of several places waits for a token
            for other in self.overlaps[tile]:
                for history in (self.writes, self.reads) if pipes[pipe] else (self.writes,):
                    for source, producers in history.get(other, {}).items():
                        if inner is not None and _orders_itself(inner, source, pipe, tile):
                            continue
                        open_ones = (
                            i for i in reversed(producers) if not _settled(self.body, i % self.n, other, source, pipe)
                        )
                        out[source] = max(out.get(source, -1), next(open_ones, -1))
        return out

    def wait(self, edge: Edge, shift: int) -> None:
        at = edge.producer + (shift - self.n if edge.back else shift)
        message = list(self.after[at, edge.source])
        message[edge.source] = at
        clock = self.clocks[edge.target]
        clock[:] = map(max, clock, message)


def _tokens(body: Body) -> list[Edge]:
    """For tiles of n places that the body loads: a place may be loaded again when what read it n loads ago is done. The reading pipe sets
    an event after every step; n sets at the kernel's beginning let the first loads go, n waits at its end take what is left. The tiles of
    a kernel share one such event a pair of pipes: pipes work in order, so that it stands for all that was done before."""
    found: dict[Pair, Edge] = {}
    for j, item in enumerate(body.items):
        for tile in item.tiles() if isinstance(item, VInsn) and item.name == "load" else ():
            if tile.places == 1:
                continue
            assert isinstance(item, VInsn)
            target = pipe_of(item)
            for i in range(j + 1, len(body.items)):
                for source in body.touched[i].get(tile, ()):
                    edge = found.setdefault((source, target), Edge(source, target, i, j, False, ahead=tile.places))
                    edge.producer = max(edge.producer, i)
    return list(found.values())


def _settled(body: Body, i: int, tile: VTile, source: Pipe, pipe: Pipe) -> bool:
    """Whether item ``i`` is a loop after which ``pipe`` knows all that ``source`` did to ``tile`` in it, however often it ran."""
    inner = body.inner.get(i)
    if inner is None:
        return False
    touching = [k for k, touched in enumerate(inner.touched) if source in touched.get(tile, {})]
    return all(inner.exit[pipe][source] >= k or _settled(inner, k, tile, source, pipe) for k in touching)


def _orders_itself(body: Body, source: Pipe, pipe: Pipe, tile: VTile) -> bool:
    """Whether ``pipe`` touches ``tile`` in a loop's body only when it knows of something that ``source`` did in the body, and with it of
    all that ``source`` did before (on the vector pipe: after a barrier)."""
    for k, touched in enumerate(body.touched):
        if source == pipe and k in body.barriers:
            return True
        if pipe not in touched.get(tile, {}):
            continue
        if source != pipe and body.after[k, pipe][source] >= 0:
            return True
        if not (k in body.inner and _orders_itself(body.inner[k], source, pipe, tile)):
            return False
    return True


# --- events ----------------------------------------------------------------------------------------------------------------------
def _number(body: Body, place: int) -> int:
    """Gives every item its place in the kernel; a loop has one for its begin and one for its end."""
    body.begin, body.end = [], []
    for i in range(len(body.items)):
        body.begin.append(place)
        if i in body.inner:
            place = _number(body.inner[i], place + 1)
        body.end.append(place)
        place += 1
    return place


def _allocate(root: Body) -> None:
    """Gives every edge an event."""
    bodies = list(_all(root))
    pairs = sorted({(e.source, e.target) for body in bodies for e in body.edges})
    for pair in pairs:
        free = _allocate_back(bodies, pair)
        tokens = [e for body in bodies for e in body.edges if (e.source, e.target) == pair and e.ahead]
        for edge in tokens:
            edge.event = free
        _allocate_forward(bodies, pair, list(range(free + bool(tokens), isa.EVENTS - 1)))


def _edges(body: Body, pair: Pair, back: bool) -> list[Edge]:
    return [e for e in body.edges if (e.source, e.target) == pair and e.back == back and not (e.dropped or e.ahead)]


def _allocate_back(bodies: list[Body], pair: Pair) -> int:
    """Events of loop-carried edges, each its own; returns how many. Where there are too many, those of a body become one, and what is
    then still too much is waited for at the end of its body."""
    groups = [(body, _edges(body, pair, True)) for body in bodies]
    groups = [(body, edges) for body, edges in groups if edges]
    if sum(len(edges) for _, edges in groups) > BACK_EVENTS:
        for _, edges in groups:
            _merge(edges)
    number = 0
    for body, edges in groups:
        for edge in edges:
            if edge.dropped:
                continue
            if number < BACK_EVENTS:
                edge.event = number
                number += 1
            else:
                edge.back, edge.tight = False, True
                edge.producer = edge.consumer = len(body.items) - 1
    return number


def _merge(edges: list[Edge]) -> None:
    """One edge instead of several of a pair and body: it sets after the last and waits before the first of them."""
    first = edges[0]
    first.producer = max(e.producer for e in edges)
    first.consumer = min(e.consumer for e in edges)
    for other in edges[1:]:
        other.dropped = True


def _allocate_forward(bodies: list[Body], pair: Pair, events: list[int]) -> None:
    """Events of the other edges: an event is free again behind the wait of the edge that had it."""
    found = [(body, edge) for body in bodies for edge in _edges(body, pair, False)]
    found.sort(key=lambda one: (one[0].end[one[1].producer], one[0].begin[one[1].consumer]))
    held: dict[int, tuple[Body, Edge]] = {}
    order = list(events)  # least recently used first
    for body, edge in found:
        place = body.end[edge.producer]
        for event, (other_body, other) in list(held.items()):
            if other_body.begin[other.consumer] <= place:
                del held[event]
                order.append(event)
        if edge.tight:
            edge.event = LAST_RESORT
        elif order:
            edge.event = order.pop(0)
            held[edge.event] = (body, edge)
        elif not _join(body, edge, held):
            edge.event, edge.tight = LAST_RESORT, True


def _join(body: Body, edge: Edge, held: dict[int, tuple[Body, Edge]]) -> bool:
    """Merges ``edge`` with one of the same body that holds an event; the latest set and the earliest wait remain."""
    for other_body, other in held.values():
        if other_body is body:
            other.producer = max(other.producer, edge.producer)
            other.consumer = min(other.consumer, edge.consumer)
            edge.dropped = True
            return True
    return False


# --- instructions ----------------------------------------------------------------------------------------------------------------
def _emit(body: Body) -> list[Item]:
    out: list[Item] = []
    live = [e for e in body.edges if not e.dropped]
    for i, item in enumerate(body.items):
        waits = [e for e in live if e.consumer == i and not e.tight]
        sets = [e for e in live if e.producer == i]
        if isinstance(item, VLoop):
            if i in body.barriers:
                out.append(VInsn("barrier", {"pipe": int(Pipe.V)}))
            out += [_sync("wait", e) for e in waits]
            out.append(VLoop(item.axis, item.kind, _emit(body.inner[i])))
        else:
            late_waits, early_sets = _heads(item, waits, [e for e in sets if e.source == pipe_of(item)])
            if i in body.barriers:
                item.sync["barrier"] = 1
            out += [_sync("wait", e) for e in late_waits]
            out.append(item)
            sets = [e for e in sets if e not in early_sets]
        for e in sets:
            out.append(_sync("set", e))
            if e.tight:
                out.append(_sync("wait", e))
    return out


def _heads(item: VInsn, waits: list[Edge], sets: list[Edge]) -> tuple[list[Edge], list[Edge]]:
    """Puts edges into an instruction's head; returns the waits that found no room and the sets that did."""
    left: list[Edge] = []
    for e in waits:
        prefix = "back_wait" if e.back else "wait"
        if f"{prefix}_pipe" in item.sync:
            left.append(e)
        else:
            item.sync[f"{prefix}_pipe"], item.sync[f"{prefix}_event"] = int(e.source), e.event
    done: list[Edge] = []
    for e in sets:
        prefix = "back_set" if e.back else "set"
        if f"{prefix}_pipe" not in item.sync and not e.tight:
            item.sync[f"{prefix}_pipe"], item.sync[f"{prefix}_event"] = int(e.target), e.event
            done.append(e)
    return left, done


def _sync(name: str, e: Edge) -> VInsn:
    pipe, other = (e.source, e.target) if name == "set" else (e.target, e.source)
    return VInsn(name, {"pipe": int(pipe), "other": int(other), "event": e.event, "back": int(e.back)})
