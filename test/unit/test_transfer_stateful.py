"""Sender and receiver joined by a world that reorders, doubles, delays and breaks things.

The world has real bytes: a source pool whose pages are freed and overwritten as soon as the host
may do so, and a destination pool. So "landed" and "delivered" are checked against content.
"""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from smartgen.core import Destination, KVGeometry, Mode, Path, RequestKey
from smartgen.transfer import (
    Aborted,
    Acked,
    AuxReady,
    Broken,
    ChunkCommitted,
    DropQueued,
    Enqueue,
    Failed,
    Granted,
    LandedNote,
    LayerWritten,
    LinkQueue,
    Outcome,
    ReceiverMachine,
    Receiving,
    Released,
    ReportDelivered,
    ReportDrained,
    ReportFailed,
    SenderMachine,
    Sending,
    SendLanded,
    Succeeded,
    Write,
    WriteFailed,
)

KEY = RequestKey(1, 1)
LAYERS, ENTRIES, POOL = 2, 4, 40
GARBAGE = 255


def content(entry, position):
    return 1 + entry * 20 + position


class Transfer(RuleBasedStateMachine):
    @initialize(
        total=st.integers(0, 8),
        src_order=st.permutations(range(POOL)),
        dst_order=st.permutations(range(POOL)),
        fate=st.sampled_from(["well", "well", "well", "faulty", "given up"]),
    )
    def begin(self, total, src_order, dst_order, fate):
        self.fate = fate
        self.total = total
        self.src = np.zeros((ENTRIES, POOL), dtype=np.uint8)
        self.dst = np.zeros((ENTRIES, POOL), dtype=np.uint8)
        self.free_pages = list(src_order)
        self.freed = []
        self.dst_pages = np.array(dst_order[:total], dtype=np.int32)
        self.now = 0.0
        self.sender = SenderMachine(
            key=KEY,
            geometry=KVGeometry(layers=LAYERS, page_size=1, page_bytes=(1,) * ENTRIES),
            src_entries=tuple(POOL * entry for entry in range(ENTRIES)),
            destination=Destination(
                session="d",
                endpoint=("d", 1),
                entries=tuple(POOL * entry for entry in range(ENTRIES)),
                pages=self.dst_pages,
            ),
        )
        self.receiver = ReceiverMachine(
            key=KEY, at=0.0, layers=LAYERS, total_pages=total, mode=Mode.LAYERWISE
        )
        self.queue = LinkQueue()
        self.posts = []  # what the host said and the agent has not looked at yet
        self.running = {}  # write id -> (blocks, bytes read early or None)
        self.over = []  # ids of writes that ended
        self.notes = []  # landed notes under way
        self.old_notes = []
        self.wrote = {}  # (layer, position) -> times written
        self.reports = []
        self.told = set()
        self.chunk = None  # (start, pages, next layer to compute)
        self.committed = 0
        self.last_sent = False
        self.aux_sent = False

    def tick(self):
        self.now += 1.0
        return self.now

    @rule()
    def time_passes(self):
        self.tick()

    # -- the host

    @precondition(lambda self: self.chunk is None and self.committed < self.total)
    @rule(data=st.data())
    def start_chunk(self, data):
        length = data.draw(st.integers(1, self.total - self.committed))
        pages = [self.free_pages.pop() for _ in range(length)]
        announced = data.draw(st.integers(0, length))  # the rest only by the commit
        self.chunk = [self.committed, pages, 0, announced]

    @precondition(lambda self: self.chunk is not None and self.chunk[2] < LAYERS)
    @rule(announce=st.booleans())
    def compute_layer(self, announce):
        start, pages, layer, announced = self.chunk
        for entry in (layer, LAYERS + layer):
            for i, page in enumerate(pages):
                self.src[entry, page] = content(entry, start + i)
        self.chunk[2] += 1
        if announce and announced:
            array = np.array(pages[:announced], dtype=np.int32)
            self.posts.append(LayerWritten(self.tick(), layer=layer, start=start, src_pages=array))

    @precondition(lambda self: self.chunk is not None and self.chunk[2] == LAYERS)
    @rule(data=st.data())
    def commit_chunk(self, data):
        count = len(self.chunk[1])
        self.commit(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))

    def commit(self, replaced):
        start, pages, _, _ = self.chunk
        at = self.tick()
        for i, (page, replace) in enumerate(zip(pages, replaced, strict=True)):
            if replace and self.free_pages:
                own = self.free_pages.pop()  # the tree's copy of the same tokens
                for entry in range(ENTRIES):
                    self.src[entry, own] = content(entry, start + i)
                pages[i] = own
                self.freed.append(page)
        self.committed = start + len(pages)
        self.last_sent = self.committed == self.total
        self.posts.append(
            ChunkCommitted(
                at,
                start=start,
                src_pages=np.array(pages, dtype=np.int32),
                last=self.last_sent,
            )
        )
        self.chunk = None

    @precondition(lambda self: self.total == 0 and not self.last_sent)
    @rule()
    def commit_nothing(self):
        self.last_sent = True
        empty = np.zeros(0, dtype=np.int32)
        self.posts.append(ChunkCommitted(self.tick(), start=0, src_pages=empty, last=True))

    @precondition(lambda self: self.last_sent and not self.aux_sent)
    @rule(some=st.booleans())
    def aux(self, some):
        self.aux_sent = True
        writes = ((0, 0, 0),) if some else ()
        self.posts.append(AuxReady(self.tick(), writes=writes))

    @precondition(lambda self: len(self.freed) > 0)
    @rule()
    def reuse_freed_pages(self):
        self.src[:, self.freed] = GARBAGE

    # -- the agent

    @precondition(lambda self: self.posts)
    @rule()
    def take_post(self):
        self.step(self.posts.pop(0))

    @precondition(lambda self: len(self.queue) > 0)
    @rule(pages=st.integers(1, 4), early=st.booleans())
    def grant(self, pages, early):
        self.early = early
        turn = self.queue.pop(max_bytes=100, max_pages=pages)
        for position in range(*turn.span.run):
            cell = (turn.span.layer, position)
            self.wrote[cell] = self.wrote.get(cell, 0) + 1
        self.step(Granted(self.tick(), span=turn.span))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end_a_write(self, data):
        write_id = data.draw(st.sampled_from(sorted(self.running)))
        self.finish(write_id, ok=True)

    @precondition(lambda self: self.running and self.fate == "faulty" and self.now > 12)
    @rule(data=st.data())
    def break_a_write(self, data):
        self.finish(data.draw(st.sampled_from(sorted(self.running))), ok=False)

    @precondition(lambda self: self.over)
    @rule(data=st.data(), ok=st.booleans())
    def double_an_answer(self, data, ok):
        write_id = data.draw(st.sampled_from(self.over))
        before = (self.sender.state, self.sender.resident)
        self.step(
            Acked(self.tick(), write_id=write_id)
            if ok
            else WriteFailed(self.tick(), write_id=write_id, reason="late")
        )
        assert before == (self.sender.state, self.sender.resident)

    @precondition(lambda self: self.fate == "given up" and self.now > 12)
    @rule(kind=st.sampled_from([Aborted, Broken]))
    def give_up(self, kind):
        self.step(kind(self.tick(), reason="enough"))

    # -- the wire to the decode node

    @precondition(lambda self: self.notes)
    @rule(data=st.data())
    def note_arrives(self, data):
        note = self.notes.pop(data.draw(st.integers(0, len(self.notes) - 1)))
        self.old_notes.append(note)
        self.receive(note)

    @precondition(lambda self: self.old_notes)
    @rule(data=st.data())
    def note_arrives_again(self, data):
        self.receive(data.draw(st.sampled_from(self.old_notes)))

    # -- machinery

    def receive(self, note):
        runs = note.runs
        self.receiver.step(LandedNote(self.tick(), layer=note.layer, runs=runs))

    def finish(self, write_id, ok):
        blocks, read = self.running.pop(write_id)
        self.over.append(write_id)
        if ok:
            for (src, dst, nbytes), early in zip(blocks, read, strict=True):
                data = self.src.reshape(-1)[src : src + nbytes] if early is None else early
                self.dst.reshape(-1)[dst : dst + nbytes] = data
            self.step(Acked(self.tick(), write_id=write_id))
        else:
            self.step(WriteFailed(self.tick(), write_id=write_id, reason="fault"))

    def step(self, event):
        was_closed = self.sender.state is Sending.CLOSED
        for command in self.sender.step(event):
            assert not was_closed, "a closed machine gives no commands"
            self.perform(command)

    def perform(self, command):
        match command:
            case Enqueue(spans=spans):
                self.queue.push(KEY, spans)
            case DropQueued():
                self.queue.drop(KEY)
            case Write(write_id=write_id, path=path, blocks=blocks):
                early = self.early and path is not Path.AUX
                flat = self.src.reshape(-1)
                self.running[write_id] = (
                    blocks,
                    [flat[s : s + n].copy() if early else None for s, _, n in blocks],
                )
            case SendLanded(layer=layer, runs=runs):
                for run in runs:
                    self.check_landed(layer, run)
                self.notes.append(command)
            case ReportDelivered() | ReportFailed() | ReportDrained():
                self.reports.append(command)
                if isinstance(command, ReportDrained):
                    assert not self.running, "drained while a write runs"
                    assert len(self.queue) == 0

    def check_landed(self, layer, run):
        for position in range(*run):
            assert (layer, position) not in self.told, "told twice"
            self.told.add((layer, position))
            for entry in (layer, LAYERS + layer):
                there = self.dst[entry, self.dst_pages[position]]
                assert there == content(entry, position), "told before it was there"

    early = False

    @invariant()
    def machines_hold(self):
        if not hasattr(self, "sender"):
            return
        self.sender.check()
        self.receiver.check()
        self.queue.check()
        kinds = [type(report) for report in self.reports]
        assert kinds.count(ReportDrained) <= 1
        assert kinds.count(ReportDelivered) + kinds.count(ReportFailed) <= 1

    def teardown(self):
        if not hasattr(self, "sender"):
            return
        self.end_of_the_host()
        while self.posts or self.running or len(self.queue):
            while len(self.queue):
                self.grant(3, False)
            for write_id in sorted(self.running, reverse=True):
                self.finish(write_id, ok=True)
            if self.posts:
                self.take_post()
        self.machines_hold()
        assert self.sender.state is Sending.CLOSED
        assert [type(r) for r in self.reports].count(ReportDrained) == 1
        assert isinstance(self.reports[-1], ReportDrained)
        self.check_outcome()

    def end_of_the_host(self):
        """Compute and commit what is left, every page replaced and overwritten at once."""
        while self.committed < self.total:
            if self.chunk is None:
                pages = [self.free_pages.pop() for _ in range(self.total - self.committed)]
                self.chunk = [self.committed, pages, 0, len(pages)]
            while self.chunk[2] < LAYERS:
                self.compute_layer(True)
            self.commit([True] * len(self.chunk[1]))
            self.reuse_freed_pages()
        if self.total == 0 and not self.last_sent:
            self.commit_nothing()
        if not self.aux_sent:
            self.aux(True)

    def check_outcome(self):
        for note in self.notes:
            self.receive(note)
        delivered = self.sender.outcome is Outcome.DELIVERED
        self.receiver.step(Succeeded(self.tick()))
        if delivered:
            assert self.receiver.ready
            assert len(self.told) == LAYERS * self.total
            report = self.reports[0].report
            again = sum(count - 1 for count in self.wrote.values())
            assert report.resent_bytes == 2 * again, "a page was sent twice and not counted"
        else:
            assert self.receiver.ready == (len(self.told) == LAYERS * self.total)
            self.receiver.step(Failed(self.tick(), reason="peer"))
            assert not self.receiver.ready
        self.receiver.step(Released(self.tick()))
        assert self.receiver.state is Receiving.CLOSED


Transfer.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestTransfer = Transfer.TestCase
