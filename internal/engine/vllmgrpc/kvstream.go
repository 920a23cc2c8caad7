package vllmgrpc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	commonpb "github.com/sluice-router/sluice/internal/enginepb/common"
	"github.com/sluice-router/sluice/internal/kv/events"
	"github.com/sluice-router/sluice/internal/upstream"
)

const methodEvents = service + "SubscribeKvEvents"

// Bounds of what is believed of events. They are far above what engines send.
const (
	maxBatch   = 16 << 20 // bytes
	maxHashes  = 1 << 18  // of one event
	maxTokens  = 1 << 21
	maxBlock   = 1 << 16 // tokens
	maxGroup   = 1 << 16
	maxEvents  = 1 << 16 // of one batch
	maxKeyName = 1 << 10 // bytes of an adapter, a salt, a tag or a part of a block's key
	maxKeys    = 64      // of a block
)

// PushesKVEvents implements engine.Prober.
func (Dialect) PushesKVEvents() bool { return true }

// SubscribeKVEvents implements engine.Prober. It begins with what happens from now on: engines
// refuse to go on from a number, since they keep nothing, or begin with a snapshot. Batches of
// load are asked for too, as they tell that the subscription was accepted.
func (Dialect) SubscribeKVEvents(ctx context.Context, to *upstream.Endpoint) (events.Subscription, error) {
	ch := to.Channel()
	if ch == nil {
		return nil, errNoChannel
	}
	ask, err := proto.Marshal(&commonpb.SubscribeKvEventsRequest{LoadRecordsBeforeFirstBatch: true})
	if err != nil {
		return nil, err
	}
	s, err := ch.Stream(ctx, methodEvents, ask, upstream.CallOptions{})
	if err != nil {
		return nil, err
	}
	return &subscription{s: s}, nil
}

// subscription reads batches.
type subscription struct {
	s     upstream.MessageStream
	batch events.Batch
}

// Close implements events.Subscription.
func (s *subscription) Close() { s.s.Close() }

// Next implements events.Subscription.
func (s *subscription) Next() (*events.Batch, error) {
	raw, err := s.s.Next()
	var st *upstream.StatusError
	switch {
	case errors.As(err, &st) && st.Code == unimplemented:
		return nil, fmt.Errorf("%w: %.200s", events.ErrNoSources, messageOf(st))
	case err != nil:
		return nil, fmt.Errorf("the engine ended the stream of events: %w", err)
	}
	return &s.batch, readBatch(&s.batch, raw)
}

// readBatch reads a KvEventBatch. The error is for what is none at all.
func readBatch(b *events.Batch, raw []byte) error {
	*b = events.Batch{Raw: raw, Events: b.Events[:0]}
	if len(raw) > maxBatch {
		b.Seq, b.Broken = batchNumber(raw), true
		return nil
	}
	var m commonpb.KvEventBatch
	if err := proto.Unmarshal(raw, &m); err != nil {
		return fmt.Errorf("a batch of events cannot be read: %w", err)
	}
	b.Seq, b.Rank = m.SequenceNumber, int(m.GetDpRank())
	if b.Time = m.Timestamp; !(b.Time > 0 && b.Time < 1e11) {
		b.Time = 0
	}
	b.Load = readLoad(m.Load)
	if b.LoadOnly = m.Load.GetLoadOnly(); b.LoadOnly {
		return nil
	}
	if p := m.Snapshot; p != nil {
		b.Snapshot = &events.SnapshotPart{Index: p.Index, Count: p.Count, Partial: p.UnknownBefore > 0}
	}
	if b.Broken = len(m.Events) > maxEvents; b.Broken {
		m.Events = m.Events[:maxEvents]
	}
	for _, e := range m.Events {
		switch d := e.GetData().(type) {
		case *commonpb.KvCacheEvent_Stored:
			readStored(b, d.Stored)
		case *commonpb.KvCacheEvent_Removed:
			readRemoved(b, d.Removed)
		case *commonpb.KvCacheEvent_Cleared:
			b.Events = append(b.Events, events.Event{})
		default:
			b.Skipped++
		}
	}
	return nil
}

// readLoad is nil for nothing.
func readLoad(m *commonpb.EngineLoad) *events.Load {
	if m == nil {
		return nil
	}
	l := &events.Load{
		Running: int64(m.RunningRequests), Waiting: int64(m.WaitingRequests), WaitingTokens: -1, UsedTokens: -1,
		Usage: min(max(m.TokenUsage, 0), 1), Age: time.Duration(m.AgeMs) * time.Millisecond,
	}
	if m.WaitingUncachedTokens != nil {
		l.WaitingTokens = int64(*m.WaitingUncachedTokens)
	}
	if m.NumUsedTokens != nil {
		l.UsedTokens = amount(int64(*m.NumUsedTokens))
	}
	return l
}

// batchNumber is the sequence number of a batch that is not read.
func batchNumber(b []byte) (seq uint64) {
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return seq
		}
		if b = rest; f.number == 1 && f.typ == protowire.VarintType {
			seq = f.value
		}
	}
	return seq
}

// readStored reads consecutive blocks. Blocks whose contents cannot be told keep their hashes
// alone.
func readStored(b *events.Batch, m *commonpb.KvBlocksStored) {
	if m.GetLocality() == commonpb.KvCacheLocality_KV_CACHE_LOCALITY_REMOTE || len(m.GetBlocks()) == 0 {
		b.Skipped++
		return
	}
	if len(m.Blocks) > maxHashes || m.GetGroupIdx() >= maxGroup {
		b.Bad++
		return
	}
	first := m.Blocks[0]
	size := int(first.GetBlockSize())
	s := &events.Stored{
		Parent: uint64(m.GetParentBlockHash()), HasParent: m.ParentBlockHash != nil, BlockSize: size,
		Adapter: m.GetLoraName(), Salt: m.GetCacheSalt(), Group: int(m.GetGroupIdx()), Kind: m.GetKvCacheSpecKind(),
		Session: m.GetSessionId(), Medium: medium(m.Tier, first.CacheLevel, m.GetMedium()), Hashes: make([]uint64, 0, len(m.Blocks)),
	}
	if s.Adapter == "" && first.LoraId != nil {
		s.Adapter = "#" + strconv.FormatInt(first.GetLoraId(), 10)
	}
	usable := size > 0 && size <= maxBlock && size*len(m.Blocks) <= maxTokens &&
		max(len(s.Adapter), len(s.Salt), len(s.Session), len(s.Kind)) <= maxKeyName
	extra := false
	for _, block := range m.Blocks {
		s.Hashes = append(s.Hashes, uint64(block.GetBlockHash()))
		usable = usable && int(block.GetBlockSize()) == size && len(block.TokenIds) == size && len(block.ExtraKeys) <= maxKeys
		extra = extra || len(block.GetExtraKeys()) > 0
	}
	if usable {
		s.Tokens = make([]uint32, 0, size*len(m.Blocks))
		for _, block := range m.Blocks {
			s.Tokens = append(s.Tokens, block.TokenIds...)
			if extra {
				keys, ok := extraKeys(block)
				s.Extra, usable = append(s.Extra, keys), usable && ok
			}
		}
	}
	if !usable {
		s.Tokens, s.Extra = nil, nil
		b.Bad++
	}
	b.Events = append(b.Events, events.Event{Stored: s})
}

// extraKeys are what else than tokens a block's hash is made of, one string each; ok is false if
// they are too long.
func extraKeys(block *commonpb.KvBlock) (keys []string, ok bool) {
	for _, k := range block.ExtraKeys {
		key := ""
		switch v := k.GetKey().(type) {
		case *commonpb.KvBlockExtraKey_Text:
			key = v.Text
		case *commonpb.KvBlockExtraKey_Blob:
			key = string(v.Blob)
		case *commonpb.KvBlockExtraKey_Number:
			key = "\x00number " + strconv.FormatInt(v.Number, 10)
		case *commonpb.KvBlockExtraKey_Multimodal:
			key = "\x00media " + v.Multimodal.GetIdentifier() + " " + strconv.FormatInt(v.Multimodal.GetOffset(), 10)
		}
		if len(key) > maxKeyName {
			return nil, false
		}
		keys = append(keys, key)
	}
	return keys, true
}

func readRemoved(b *events.Batch, m *commonpb.KvBlocksRemoved) {
	if m.GetLocality() == commonpb.KvCacheLocality_KV_CACHE_LOCALITY_REMOTE || len(m.GetBlockHashes()) == 0 {
		b.Skipped++
		return
	}
	r := &events.Removed{Group: int(min(m.GetGroupIdx(), math.MaxInt32)), Medium: medium(m.Tier, m.CacheLevel, m.GetMedium())}
	for _, h := range m.BlockHashes {
		r.Hashes = append(r.Hashes, uint64(h))
	}
	b.Events = append(b.Events, events.Event{Removed: r})
}

// medium is where blocks are: "GPU" for the cache that prefill uses. Older engines tell a level
// instead of the tier.
func medium(tier *commonpb.KvCacheTier, level *int32, told string) string {
	t := commonpb.KvCacheTier_KV_CACHE_TIER_UNSPECIFIED
	if tier != nil {
		t = *tier
	}
	if t == commonpb.KvCacheTier_KV_CACHE_TIER_UNSPECIFIED && level != nil && *level > 0 {
		t = commonpb.KvCacheTier(*level + 1)
	}
	switch t {
	case commonpb.KvCacheTier_KV_CACHE_TIER_UNSPECIFIED, commonpb.KvCacheTier_KV_CACHE_TIER_DEVICE:
		return "GPU"
	case commonpb.KvCacheTier_KV_CACHE_TIER_HOST:
		return "CPU"
	case commonpb.KvCacheTier_KV_CACHE_TIER_DISK:
		return "DISK"
	}
	if told == "" || len(told) > maxKeyName || events.InGPU(told) {
		return "EXTERNAL"
	}
	return told
}
