"""Workers without models that keep every rule of the contract, and note every breach of it by the caller."""

import asyncio
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import grpc

from spearhead import PROTOCOL_VERSION
from spearhead.v1 import draft_pb2, draft_pb2_grpc, types_pb2, verify_pb2, verify_pb2_grpc
from tests.scheduler_service.toy_model import ToyModel, hash_tokens, mix


def pack(token_ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def unpack(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 4}I", data))


class ItemProblem(Exception):
    def __init__(self, reason: int, message: str) -> None:
        self.error = types_pb2.ItemError(reason=reason, message=message)


@dataclass
class HeldSequence:
    epoch: int
    token_ids: list[int] = field(default_factory=list)


class FakeCache:
    """The sequences of one stream in the pages of one worker.

    Pages of a prefix that was verified stay known by the hash of their tokens. They cost nothing until a
    sequence finds them; from then on they are its own, and count.
    """

    def __init__(self, worker: "FakeWorker") -> None:
        self.worker = worker
        self.sequences: dict[int, HeldSequence] = {}

    @property
    def page_count(self) -> int:
        return sum(self.worker.pages(len(s.token_ids)) for s in self.sequences.values())

    def extend(self, item: "verify_pb2.StepItem | draft_pb2.ProposeItem") -> tuple[HeldSequence, int, bool]:
        """Truncates and appends; returns the sequence, the cached count, and whether all tokens fitted."""
        worker, new = self.worker, unpack(item.token_ids)
        worker.expect(bool(new), "an item without tokens")
        worker.expect(max(new, default=0) < worker.vocab_size, "a token id beyond the vocabulary")
        old = self.sequences.get(item.sequence_id)
        if old is not None and item.epoch < old.epoch:
            raise ItemProblem(types_pb2.ITEM_ERROR_REASON_STALE_EPOCH, "the epoch is old")
        held = [] if old is None or item.epoch > old.epoch else old.token_ids
        if item.committed_length > len(held):
            raise ItemProblem(
                types_pb2.ITEM_ERROR_REASON_CACHE_MISS,
                f"{len(held)} tokens held, not {item.committed_length}",
            )
        cached = 0
        if item.committed_length == 0:
            cached = worker.cached_prefix(new)
        count = len(new)
        if item.HasField("max_compute_tokens"):
            count = min(count, cached + min(item.max_compute_tokens, worker.max_compute_tokens))
        tokens = held[: item.committed_length] + new[:count]
        worker.expect(len(tokens) <= worker.context_length, "a sequence beyond the context")
        others = worker.used_pages - (worker.pages(len(old.token_ids)) if old is not None else 0)
        if others + worker.pages(len(tokens)) > worker.page_count:
            worker.out_of_pages_count += 1
            raise ItemProblem(types_pb2.ITEM_ERROR_REASON_OUT_OF_PAGES, "no free page")
        sequence = HeldSequence(epoch=item.epoch, token_ids=tokens)
        self.sequences[item.sequence_id] = sequence
        return sequence, cached, count == len(new)


class FakeWorker:
    """What both workers have: pages, prefixes, faults to inject, and notes about the caller."""

    def __init__(
        self,
        model: ToyModel,
        *,
        tokenizer_hash: str,
        vocab_size: int,
        page_size: int = 4,
        page_count: int = 1000,
        context_length: int = 4096,
        max_compute_tokens: int = 1 << 20,
        eos_token_ids: Sequence[int] = (),
        revision: str = "sha256:1",
    ) -> None:
        self.revision = revision
        self.model = model
        self.tokenizer_hash = tokenizer_hash
        self.vocab_size = vocab_size
        self.page_size = page_size
        self.page_count = page_count
        self.context_length = context_length
        self.max_compute_tokens = max_compute_tokens
        self.eos_token_ids = list(eos_token_ids)
        self.caches: list[FakeCache] = []
        self.connection_count = 0
        self.out_of_pages_count = 0
        self.epoch_offset = 0  # Added to the epoch of every result.
        self.prefixes: set[int] = set()
        self.breaches: list[str] = []
        self.requests: list[verify_pb2.StepRequest | draft_pb2.ProposeRequest] = []
        self.before_step: Callable[[int], None] = lambda count: None  # Raise in it to break the stream.
        self.gate: asyncio.Event = asyncio.Event()  # Steps wait for it.
        self.gate.set()
        self.takes_streams = asyncio.Event()  # New streams wait for it.
        self.takes_streams.set()
        self.arrived = asyncio.Event()
        self.changed = asyncio.Condition()
        self.item_faults: dict[int, int] = {}  # Count of the item to the ItemErrorReason it gets.
        self.item_count = 0
        self.total_ns = 2000  # What it says that a message took.

    @property
    def used_pages(self) -> int:
        return sum(cache.page_count for cache in self.caches)

    @property
    def sequence_count(self) -> int:
        return sum(len(cache.sequences) for cache in self.caches)

    def pages(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def expect(self, holds: bool, breach: str) -> None:
        if not holds:
            self.breaches.append(breach)

    def cached_prefix(self, token_ids: Sequence[int]) -> int:
        state, found = 0, 0
        for length, token_id in enumerate(token_ids[:-1], start=1):
            state = mix(state, token_id + 1)
            if length % self.page_size == 0:
                if state not in self.prefixes:
                    break
                found = length
        return found

    def publish(self, token_ids: Sequence[int]) -> None:
        state = 0
        for length, token_id in enumerate(token_ids, start=1):
            state = mix(state, token_id + 1)
            if length % self.page_size == 0:
                self.prefixes.add(state)

    def info(self) -> types_pb2.ModelInfo:
        return types_pb2.ModelInfo(
            protocol_version=PROTOCOL_VERSION,
            model="toy",
            revision=self.revision,
            tokenizer_hash=self.tokenizer_hash,
            vocab_size=self.vocab_size,
            context_length=self.context_length,
            kv_page_size=self.page_size,
            kv_page_count=self.page_count,
            device="cpu",
            max_compute_tokens=self.max_compute_tokens,
            eos_token_ids=self.eos_token_ids,
            batch_invariant=True,
        )

    async def serve(self, context: grpc.aio.ServicerContext, answer: Callable[..., object]) -> None:
        cache = FakeCache(self)
        self.caches.append(cache)
        self.connection_count += 1
        await self._notify()
        try:
            await self.takes_streams.wait()
            await context.send_initial_metadata(())
            while (request := await context.read()) is not grpc.aio.EOF:
                probing = not request.step_id
                if not probing:
                    self.requests.append(request)
                    self.arrived.set()
                await self.gate.wait()
                if not probing:
                    self.before_step(len(self.requests))
                for release in request.releases:
                    cache.sequences.pop(release.sequence_id, None)
                ids = [item.sequence_id for item in request.items]
                self.expect(len(ids) == len(set(ids)), "two items of one sequence")
                reply = answer(cache, request)
                await self._notify()
                await context.write(reply)
        finally:
            self.caches.remove(cache)
            await self._notify()

    async def wait_for(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Waits until something about this worker holds; checked after every message."""
        async with asyncio.timeout(timeout_s), self.changed:
            await self.changed.wait_for(condition)

    async def wait_empty(self) -> None:
        await self.wait_for(lambda: self.sequence_count == 0)

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def fault(self) -> None:
        self.item_count += 1
        reason = self.item_faults.pop(self.item_count, None)
        if reason is not None:
            raise ItemProblem(reason, f"injected {types_pb2.ItemErrorReason.Name(reason)}")

    def timing(self) -> types_pb2.WorkerTiming:
        return types_pb2.WorkerTiming(compute_ns=1000, total_ns=self.total_ns)


class FakeVerify(FakeWorker, verify_pb2_grpc.VerifyServiceServicer):
    variant = "w4"
    has_full_precision = True

    async def GetModelInfo(self, request, context):  # noqa: N802
        self.expect(request.protocol_version == PROTOCOL_VERSION, "another protocol version")
        return verify_pb2.VerifyServiceGetModelInfoResponse(info=self.info(), variant=self.variant)

    async def Step(self, request_iterator, context):  # noqa: N802
        await self.serve(context, self._answer)

    def _answer(self, cache: FakeCache, request: verify_pb2.StepRequest) -> verify_pb2.StepResponse:
        results = [self._result(cache, item) for item in request.items]
        return verify_pb2.StepResponse(
            step_id=request.step_id,
            results=results,
            timing=self.timing(),
            free_page_count=self.page_count - self.used_pages,
            variant=self.variant,
        )

    def _result(self, cache: FakeCache, item: verify_pb2.StepItem) -> verify_pb2.StepItemResult:
        epoch = item.epoch + self.epoch_offset
        result = verify_pb2.StepItemResult(sequence_id=item.sequence_id, epoch=epoch)
        try:
            self.fault()
            if item.precision == types_pb2.PRECISION_FULL and not self.has_full_precision:
                raise ItemProblem(types_pb2.ITEM_ERROR_REASON_PRECISION_UNAVAILABLE, "no full precision here")
            self.expect(item.sample or not item.draft_token_count, "drafts without sampling")
            self.expect(not item.sample or item.HasField("sampling"), "sampling without parameters")
            sequence, cached, complete = cache.extend(item)
        except ItemProblem as problem:
            result.error.CopyFrom(problem.error)
            return result
        result.cached_token_count = cached
        if item.sample and complete:
            self._accept(sequence, item, result)
        result.computed_length = len(sequence.token_ids)
        self.publish(sequence.token_ids)
        return result

    def _accept(
        self, sequence: HeldSequence, item: verify_pb2.StepItem, result: verify_pb2.StepItemResult
    ) -> None:
        drafts = sequence.token_ids[len(sequence.token_ids) - item.draft_token_count :]
        known = sequence.token_ids[: len(sequence.token_ids) - item.draft_token_count]
        state = hash_tokens(known)
        emitted = [self.model.next_token(state, len(known), item.sampling)]
        for draft in drafts:
            if draft != emitted[-1]:
                break
            state = mix(state, draft + 1)
            known.append(draft)
            emitted.append(self.model.next_token(state, len(known), item.sampling))
        sequence.token_ids = known
        result.accepted_draft_count = len(emitted) - 1
        result.next_token_id = emitted[-1]
        result.top2_margin = 1.0
        if item.HasField("logprob_count"):
            result.logprobs.extend(
                types_pb2.TokenLogprobs(
                    token_id=token_id,
                    logprob=-float(token_id),
                    rank=1,
                    top_token_ids=pack(range(item.logprob_count)),
                    top_logprobs=struct.pack(f"<{item.logprob_count}f", *range(item.logprob_count)),
                )
                for token_id in emitted
            )


Drafts = Callable[[Sequence[int], int, types_pb2.WorkerSampling], list[int]]
"""(tokens so far, how many, sampling) to drafts."""


class FakeDraft(FakeWorker, draft_pb2_grpc.DraftServiceServicer):
    drafter: Drafts | None = None  # None = the target's own law, so that all drafts are accepted.
    max_draft_tokens = 8

    async def GetModelInfo(self, request, context):  # noqa: N802
        return draft_pb2.DraftServiceGetModelInfoResponse(
            info=self.info(), drafter="model", max_draft_tokens=self.max_draft_tokens
        )

    async def Propose(self, request_iterator, context):  # noqa: N802
        await self.serve(context, self._answer)

    @property
    def drafted_count(self) -> int:
        """Drafts that were asked for."""
        return sum(item.max_draft_tokens for request in self.requests for item in request.items)

    def _answer(self, cache: FakeCache, request: draft_pb2.ProposeRequest) -> draft_pb2.ProposeResponse:
        results = [self._result(cache, item) for item in request.items]
        return draft_pb2.ProposeResponse(
            step_id=request.step_id,
            results=results,
            timing=self.timing(),
            free_page_count=self.page_count - self.used_pages,
        )

    def _result(self, cache: FakeCache, item: draft_pb2.ProposeItem) -> draft_pb2.ProposeItemResult:
        result = draft_pb2.ProposeItemResult(sequence_id=item.sequence_id, epoch=item.epoch)
        self.expect(item.max_draft_tokens <= self.max_draft_tokens, "more drafts than the drafter gives")
        try:
            self.fault()
            sequence, cached, complete = cache.extend(item)
        except ItemProblem as problem:
            result.error.CopyFrom(problem.error)
            return result
        result.cached_token_count = cached
        self.publish(sequence.token_ids)
        if complete and item.max_draft_tokens:
            make = self.drafter or self.model.generate
            drafts = make(list(sequence.token_ids), item.max_draft_tokens, item.sampling)
            result.draft_token_ids = pack(drafts)
            result.confidences = struct.pack(f"<{len(drafts)}f", *[0.5] * len(drafts))
            sequence.token_ids = sequence.token_ids + [d for d in drafts if d < self.vocab_size][:-1]
        result.computed_length = len(sequence.token_ids)
        return result
