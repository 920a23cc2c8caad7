package vllmgrpc

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	commonpb "github.com/sluice-router/sluice/internal/enginepb/common"
	"github.com/sluice-router/sluice/internal/kv/events"
)

func storedEvent(m *commonpb.KvBlocksStored) *commonpb.KvCacheEvent {
	return &commonpb.KvCacheEvent{Data: &commonpb.KvCacheEvent_Stored{Stored: m}}
}

func removedEvent(m *commonpb.KvBlocksRemoved) *commonpb.KvCacheEvent {
	return &commonpb.KvCacheEvent{Data: &commonpb.KvCacheEvent_Removed{Removed: m}}
}

func block(hash int64, ids ...uint32) *commonpb.KvBlock {
	return &commonpb.KvBlock{BlockHash: hash, TokenIds: ids, BlockSize: int32(len(ids))}
}

func TestBatchOfEvents(t *testing.T) {
	salted := block(-1, 1, 2)
	salted.ExtraKeys = []*commonpb.KvBlockExtraKey{{Key: &commonpb.KvBlockExtraKey_Text{Text: "salt"}}}
	old := block(5, 7, 8)
	old.CacheLevel, old.LoraId = proto.Int32(1), proto.Int64(9)
	raw := encoded(t, &commonpb.KvEventBatch{
		SequenceNumber: 4, Timestamp: 1.5, DpRank: proto.Int32(3), Load: &commonpb.EngineLoad{RunningRequests: 1, NumUsedTokens: proto.Int32(5), AgeMs: 20},
		Events: []*commonpb.KvCacheEvent{
			storedEvent(&commonpb.KvBlocksStored{
				Blocks: []*commonpb.KvBlock{salted, block(2, 3, 4)}, ParentBlockHash: proto.Int64(-7), LoraName: proto.String("lora"),
				CacheSalt: proto.String("salt"), SessionId: proto.String("s"), GroupIdx: proto.Uint32(1), KvCacheSpecKind: proto.String("full_attention"),
				Tier: commonpb.KvCacheTier_KV_CACHE_TIER_DEVICE.Enum(), Medium: proto.String("GPU"),
			}),
			storedEvent(&commonpb.KvBlocksStored{Blocks: []*commonpb.KvBlock{old}}),
			removedEvent(&commonpb.KvBlocksRemoved{BlockHashes: []int64{-1, 2}, GroupIdx: proto.Uint32(1)}),
			{Data: &commonpb.KvCacheEvent_Cleared{Cleared: &commonpb.KvCacheCleared{}}},
			{}, // of a type that is not known
			storedEvent(&commonpb.KvBlocksStored{Blocks: []*commonpb.KvBlock{block(1, 1)}, Locality: commonpb.KvCacheLocality_KV_CACHE_LOCALITY_REMOTE.Enum()}),
			storedEvent(&commonpb.KvBlocksStored{Blocks: []*commonpb.KvBlock{block(1, 1, 2), block(2, 3)}}), // of different sizes
		},
	})
	var b events.Batch
	if err := readBatch(&b, raw); err != nil {
		t.Fatal(err)
	}
	want := events.Batch{Seq: 4, Time: 1.5, Rank: 3, Raw: raw, Skipped: 2, Bad: 1,
		Load: &events.Load{Running: 1, WaitingTokens: -1, UsedTokens: 5, Age: 20 * time.Millisecond}, Events: []events.Event{
			{Stored: &events.Stored{
				Hashes: []uint64{1<<64 - 1, 2}, Parent: 1<<64 - 7, HasParent: true, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2, Adapter: "lora", Salt: "salt",
				Extra: [][]string{{"salt"}, nil}, Medium: "GPU", Group: 1, Kind: "full_attention", Session: "s",
			}},
			{Stored: &events.Stored{Hashes: []uint64{5}, Tokens: []uint32{7, 8}, BlockSize: 2, Adapter: "#9", Medium: "CPU"}},
			{Removed: &events.Removed{Hashes: []uint64{1<<64 - 1, 2}, Medium: "GPU", Group: 1}},
			{},
			{Stored: &events.Stored{Hashes: []uint64{1, 2}, BlockSize: 2, Medium: "GPU"}},
		}}
	if !reflect.DeepEqual(b, want) {
		t.Errorf("got  %+v\nwant %+v", b, want)
	}
}

func TestBatchesBeyondBounds(t *testing.T) {
	many := make([]*commonpb.KvCacheEvent, maxEvents+1)
	for i := range many {
		many[i] = removedEvent(&commonpb.KvBlocksRemoved{BlockHashes: []int64{1}})
	}
	wide := make([]*commonpb.KvBlock, 40)
	for i := range wide {
		wide[i] = &commonpb.KvBlock{BlockHash: int64(i), BlockSize: maxBlock, TokenIds: make([]uint32, maxBlock)}
	}
	for name, m := range map[string]*commonpb.KvEventBatch{
		"events": {SequenceNumber: 7, Events: many},
		"bytes":  {SequenceNumber: 7, Events: []*commonpb.KvCacheEvent{storedEvent(&commonpb.KvBlocksStored{CacheSalt: proto.String(strings.Repeat("x", maxBatch))})}},
	} {
		var b events.Batch
		if err := readBatch(&b, encoded(t, m)); err != nil || !b.Broken || b.Seq != 7 || len(b.Events) > maxEvents {
			t.Errorf("%s: number %d, broken %t, %d events, %v", name, b.Seq, b.Broken, len(b.Events), err)
		}
	}
	for name, m := range map[string]*commonpb.KvBlocksStored{
		"tokens": {Blocks: wide}, "adapter": {Blocks: []*commonpb.KvBlock{block(1, 1)}, LoraName: proto.String(strings.Repeat("x", maxKeyName+1))},
		"size": {Blocks: []*commonpb.KvBlock{{BlockHash: 1, BlockSize: -1}}},
	} {
		var b events.Batch
		if err := readBatch(&b, encoded(t, &commonpb.KvEventBatch{Events: []*commonpb.KvCacheEvent{storedEvent(m)}})); err != nil || b.Bad != 1 || len(b.Events[0].Stored.Tokens) != 0 {
			t.Errorf("%s: %+v, %v", name, b, err)
		}
	}
	var b events.Batch
	if err := readBatch(&b, []byte{0xff}); err == nil {
		t.Error("what is no batch was taken for one")
	}
}

func TestSubscriptionToEvents(t *testing.T) {
	m := &mock{events: func(s grpc.ServerStreamingServer[commonpb.KvEventBatch]) error {
		for i := range uint64(2) {
			if err := s.Send(&commonpb.KvEventBatch{SequenceNumber: i, Load: &commonpb.EngineLoad{LoadOnly: i == 1}}); err != nil {
				return err
			}
		}
		return status.Error(codes.DataLoss, "a gap")
	}}
	s, err := Dialect{}.SubscribeKVEvents(t.Context(), m.start(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range uint64(2) {
		if b, err := s.Next(); err != nil || b.Seq != i || b.LoadOnly != (i == 1) {
			t.Errorf("batch %d: %+v, %v", i, b, err)
		}
	}
	if _, err := s.Next(); err == nil || errors.Is(err, events.ErrNoSources) || !strings.Contains(err.Error(), "a gap") {
		t.Errorf("the end is %v", err)
	}
	none, err := Dialect{}.SubscribeKVEvents(t.Context(), (&mock{}).start(t))
	if err == nil {
		defer none.Close()
		_, err = none.Next()
	}
	if !errors.Is(err, events.ErrNoSources) {
		t.Errorf("an engine without events: %v", err)
	}
}

func FuzzBatch(f *testing.F) {
	f.Add(encoded(f, &commonpb.KvEventBatch{SequenceNumber: 4, Events: []*commonpb.KvCacheEvent{
		storedEvent(&commonpb.KvBlocksStored{Blocks: []*commonpb.KvBlock{block(1, 1, 2)}}), removedEvent(&commonpb.KvBlocksRemoved{BlockHashes: []int64{1}}),
	}}))
	var b events.Batch
	f.Fuzz(func(t *testing.T, raw []byte) {
		if readBatch(&b, raw) != nil {
			return
		}
		for _, e := range b.Events {
			if s := e.Stored; s != nil && len(s.Tokens) != 0 && len(s.Tokens) != len(s.Hashes)*s.BlockSize {
				t.Fatalf("%d tokens of %d blocks of %d", len(s.Tokens), len(s.Hashes), s.BlockSize)
			}
		}
	})
}
