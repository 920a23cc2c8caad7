package sim

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	commonpb "github.com/sluice-router/sluice/internal/enginepb/common"
	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
)

// eventHub sends the KV events of all ranks of a gRPC worker to its subscribers.
type eventHub struct {
	w *Worker

	mu   sync.Mutex // guards the fields below
	next []uint64   // by rank: the sequence number of its next batch
	kept []*commonpb.KvEventBatch
	subs map[*hubSubscriber]struct{}
}

// hubSubscriber is one SubscribeKvEvents call.
type hubSubscriber struct {
	wake  chan struct{} // has room for one signal
	queue []*commonpb.KvEventBatch
}

func newEventHub(w *Worker) *eventHub {
	return &eventHub{w: w, next: make([]uint64, w.opt.DPSize), subs: make(map[*hubSubscriber]struct{})}
}

// hubRank is where one rank's events go.
type hubRank struct {
	hub  *eventHub
	rank int
}

func (r hubRank) publish(events []kvEvent) {
	h := r.hub
	rank := int32(h.w.opt.FirstRank + r.rank)
	b := &commonpb.KvEventBatch{Timestamp: float64(time.Now().UnixNano()) / 1e9, DpRank: &rank}
	for _, e := range events {
		b.Events = append(b.Events, e.message())
	}
	defer h.w.countBatch()
	h.mu.Lock()
	defer h.mu.Unlock()
	b.SequenceNumber = h.next[r.rank]
	h.next[r.rank]++
	h.kept = append(h.kept, b)
	if n := len(h.kept) - h.w.opt.KVEvents.Buffer; n > 0 {
		h.kept = slices.Delete(h.kept, 0, n)
	}
	for s := range h.subs {
		if len(s.queue) < h.w.opt.KVEvents.HWM { // a slow subscriber misses it
			s.queue = append(s.queue, b)
		}
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

func (r hubRank) rewind() {
	h := r.hub
	h.mu.Lock()
	h.next[r.rank] = 0
	h.kept = slices.DeleteFunc(h.kept, func(b *commonpb.KvEventBatch) bool {
		return int(b.GetDpRank()) == h.w.opt.FirstRank+r.rank
	})
	h.mu.Unlock()
}

// message is an event as gRPC has it.
func (e *kvEvent) message() *commonpb.KvCacheEvent {
	medium, tier, local := "GPU", commonpb.KvCacheTier_KV_CACHE_TIER_DEVICE, commonpb.KvCacheLocality_KV_CACHE_LOCALITY_LOCAL
	switch e.kind {
	case blockStored:
		stored := &commonpb.KvBlocksStored{Medium: &medium, Tier: &tier, GroupIdx: proto.Uint32(0), KvCacheSpecKind: proto.String("full_attention"), Locality: &local}
		if e.hasParent {
			parent := int64(e.parent)
			stored.ParentBlockHash = &parent
		}
		if s := e.scope; s != nil {
			if s.session != "" {
				stored.SessionId = &s.session
			}
			if s.adapter != "" {
				stored.LoraName = &s.adapter
			}
			if s.salt != "" {
				stored.CacheSalt = &s.salt
			}
		}
		for i, h := range e.hashes {
			b := &commonpb.KvBlock{BlockHash: int64(h), BlockSize: int32(e.size)}
			if (i+1)*e.size <= len(e.ids) {
				b.TokenIds = e.ids[i*e.size : (i+1)*e.size]
			}
			stored.Blocks = append(stored.Blocks, b)
		}
		return &commonpb.KvCacheEvent{Data: &commonpb.KvCacheEvent_Stored{Stored: stored}}
	case blockRemoved:
		removed := &commonpb.KvBlocksRemoved{Medium: &medium, Tier: &tier, GroupIdx: proto.Uint32(0), Locality: &local}
		for _, h := range e.hashes {
			removed.BlockHashes = append(removed.BlockHashes, int64(h))
		}
		return &commonpb.KvCacheEvent{Data: &commonpb.KvCacheEvent_Removed{Removed: removed}}
	}
	return &commonpb.KvCacheEvent{Data: &commonpb.KvCacheEvent_Cleared{Cleared: &commonpb.KvCacheCleared{}}}
}

// Load records come when the load has changed, at most each loadEvery, and at least each
// loadHeartbeat.
const (
	loadEvery     = 100 * time.Millisecond
	loadHeartbeat = time.Second
)

// SubscribeKvEvents sends batches of events, and the load with them and between them.
func (v *vllmService) SubscribeKvEvents(m *commonpb.SubscribeKvEventsRequest, stream grpc.ServerStreamingServer[commonpb.KvEventBatch]) error {
	return v.w.call(stream.Context(), v.l, vllmpb.VllmEngine_SubscribeKvEvents_FullMethodName, m, false,
		func(m proto.Message) error { return stream.Send(m.(*commonpb.KvEventBatch)) },
		func(c *call) error {
			s := &hubStream{c: c, hub: v.l.hub, sub: &hubSubscriber{wake: make(chan struct{}, 1)}, early: m.GetLoadRecordsBeforeFirstBatch(),
				seq: make(map[int32]uint64), told: make(map[int32]*commonpb.EngineLoad), at: make(map[int32]time.Time)}
			return s.run(m.GetStartSequenceNumber())
		})
}

// hubStream is what one subscriber is sent. It is owned by the call's goroutine.
type hubStream struct {
	c      *call
	hub    *eventHub
	sub    *hubSubscriber
	early  bool             // load records of ranks that have not published yet
	seq    map[int32]uint64 // by rank: the last number that was sent
	told   map[int32]*commonpb.EngineLoad
	at     map[int32]time.Time
	sample uint64
	events uint64 // ids of events count through a subscription

	generated int64 // tokens, at the time of the last record
	counted   time.Time
}

func (s *hubStream) run(start uint64) error {
	h, w := s.hub, s.hub.w
	h.mu.Lock()
	if start > 0 {
		for _, b := range h.kept {
			if b.GetSequenceNumber() >= start {
				s.sub.queue = append(s.sub.queue, b)
			}
		}
	}
	h.subs[s.sub] = struct{}{}
	h.mu.Unlock()
	w.countSubscribers(1)
	defer func() {
		h.mu.Lock()
		delete(h.subs, s.sub)
		h.mu.Unlock()
		w.countSubscribers(-1)
	}()
	ticks := time.NewTicker(loadEvery)
	defer ticks.Stop()
	for {
		h.mu.Lock()
		queue := s.sub.queue
		s.sub.queue = nil
		h.mu.Unlock()
		for _, b := range queue {
			if err := s.batch(b); err != nil {
				return err
			}
		}
		if err := s.records(); err != nil {
			return err
		}
		if len(queue) > 0 {
			continue
		}
		select {
		case <-s.sub.wake:
		case <-ticks.C:
		case <-s.c.ctx.Done():
			return s.c.ctx.Err()
		}
	}
}

// batch sends a batch, with the load.
func (s *hubStream) batch(b *commonpb.KvEventBatch) error {
	rank := b.GetDpRank()
	load := s.load(rank)
	_, before := s.seq[rank]
	s.seq[rank] = b.GetSequenceNumber()
	s.told[rank], s.at[rank] = load, time.Now()
	if before {
		load = proto.CloneOf(load)
		load.CacheHitRate, load.NumUsedTokens, load.MaxTotalNumTokens = nil, nil, nil
	}
	out := &commonpb.KvEventBatch{SequenceNumber: b.GetSequenceNumber(), Timestamp: b.GetTimestamp(), DpRank: b.DpRank, Load: load}
	for _, e := range b.GetEvents() {
		s.events++
		out.Events = append(out.Events, &commonpb.KvCacheEvent{EventId: s.events, Data: e.GetData()})
	}
	return s.c.message(out)
}

// published reports whether a rank has sent a batch to anybody.
func (h *eventHub) published(rank int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.next[rank] > 0
}

// records sends the load of ranks for which it has changed or was not told for a while. A
// dead engine has none.
func (s *hubStream) records() error {
	if s.c.l.engineDead.Load() {
		return nil
	}
	for i := range s.hub.w.opt.DPSize {
		rank := int32(s.hub.w.opt.FirstRank + i)
		seq, begun := s.seq[rank]
		if !begun && (!s.early || s.hub.published(i)) {
			continue
		}
		load, told := s.load(rank), s.told[rank]
		same := told != nil && told.RunningRequests == load.RunningRequests && told.WaitingRequests == load.WaitingRequests && told.TokenUsage == load.TokenUsage
		if since := time.Since(s.at[rank]); told != nil && (same && since < loadHeartbeat || since < loadEvery) {
			continue
		}
		s.told[rank], s.at[rank] = load, time.Now()
		load.LoadOnly = true
		if err := s.c.message(&commonpb.KvEventBatch{SequenceNumber: seq, Timestamp: float64(time.Now().UnixNano()) / 1e9, DpRank: &rank, Load: load}); err != nil {
			return err
		}
	}
	return nil
}

// load is a rank's load now.
func (s *hubStream) load(rank int32) *commonpb.EngineLoad {
	w := s.hub.w
	c := w.scheduled().counts[int(rank)-w.opt.FirstRank]
	running, waiting := c.load()
	s.sample++
	uncached := uint32(c.tokens[queued])
	hits, used, most := c.hitRate(), int32(c.used), int32(w.opt.KVTokens)
	l := &commonpb.EngineLoad{RunningRequests: uint32(running), WaitingRequests: uint32(waiting), WaitingUncachedTokens: &uncached,
		TokenUsage: float64(c.used) / float64(max(1, w.opt.KVTokens)), MaxRunningRequests: uint32(w.opt.MaxRunning), Sample: s.sample,
		CacheHitRate: &hits, NumUsedTokens: &used, MaxTotalNumTokens: &most}
	now, generated := time.Now(), w.generated.Load()
	if d := now.Sub(s.counted); !s.counted.IsZero() && d > 0 {
		l.GenThroughput = float64(generated-s.generated) / d.Seconds()
	}
	s.counted, s.generated = now, generated
	return l
}
