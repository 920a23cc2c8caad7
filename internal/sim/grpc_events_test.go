package sim

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	commonpb "github.com/sluice-router/sluice/internal/enginepb/common"
	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
)

func subscribed(t *testing.T, c vllmpb.VllmEngineClient, m *commonpb.SubscribeKvEventsRequest) grpc.ServerStreamingClient[commonpb.KvEventBatch] {
	t.Helper()
	s, err := c.SubscribeKvEvents(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// nextBatch reads to the next batch of events, and reports the records of load before it.
func nextBatch(t *testing.T, s grpc.ServerStreamingClient[commonpb.KvEventBatch]) (b *commonpb.KvEventBatch, records []*commonpb.KvEventBatch) {
	t.Helper()
	for {
		b, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Events) > 0 {
			return b, records
		}
		records = append(records, b)
	}
}

func TestGRPCEventsAreThePromptsBlocks(t *testing.T) {
	w := grpcFleet(t, Options{Regular: 1, Worker: WorkerOptions{PageSize: 4}}).Regular(0)
	c := grpcClient(t, w)
	s := subscribed(t, c, &commonpb.SubscribeKvEventsRequest{LoadRecordsBeforeFirstBatch: true})
	if err := w.Wait(t.Context(), func(s Stats) bool { return s.Subscribers == 1 }); err != nil {
		t.Fatal(err)
	}
	first, err := s.Recv()
	if err != nil || !first.GetLoad().GetLoadOnly() || first.SequenceNumber != 0 {
		t.Fatalf("before the first batch %v %v, want a record numbered 0", first, err)
	}
	one := func(m *vllmpb.GenerateRequest) { m.SamplingParams.MaxTokens = proto.Uint32(1) }
	sent := generation("a prompt of some blocks, and of a few tokens more", one)
	ids := sent.GetTokenized().InputIds
	if _, err := generated(t, c, sent); err != nil {
		t.Fatal(err)
	}
	b, records := nextBatch(t, s)
	for _, r := range records {
		if !r.GetLoad().GetLoadOnly() || r.SequenceNumber != 0 {
			t.Errorf("record %v", r)
		}
	}
	var told []uint32
	blocks := b.Events[0].GetStored().GetBlocks()
	for _, x := range blocks {
		if x.BlockSize != 4 {
			t.Errorf("a block of %d tokens", x.BlockSize)
		}
		told = append(told, x.TokenIds...)
	}
	if b.SequenceNumber != 0 || b.Load == nil || b.Load.LoadOnly || !slices.Equal(told, ids[:len(ids)/4*4]) || b.Events[0].GetStored().ParentBlockHash != nil {
		t.Errorf("batch %v, want the blocks of %d", b, ids)
	}
	longer := generation("a prompt of some blocks, and of a few tokens more, and then the next turn of it", one)
	if _, err := generated(t, c, longer); err != nil {
		t.Fatal(err)
	}
	b, records = nextBatch(t, s)
	for _, r := range records {
		if r.SequenceNumber != 0 {
			t.Errorf("a record after batch 0 has the number %d", r.SequenceNumber)
		}
	}
	if stored := b.Events[0].GetStored(); b.SequenceNumber != 1 || stored.GetParentBlockHash() != blocks[len(blocks)-1].BlockHash {
		t.Errorf("batch %v, want number 1 behind block %d", b, blocks[len(blocks)-1].BlockHash)
	}
	// Whoever comes later is told nothing until the next batch.
	quiet, leave := context.WithTimeout(t.Context(), 3*loadEvery)
	defer leave()
	silent, err := c.SubscribeKvEvents(quiet, &commonpb.SubscribeKvEventsRequest{LoadRecordsBeforeFirstBatch: true})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := silent.Recv(); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a subscription after two batches began with %v %v", b, err)
	}
	// What was missed can be asked for.
	late := subscribed(t, c, &commonpb.SubscribeKvEventsRequest{StartSequenceNumber: 1})
	if b, _ = nextBatch(t, late); b.SequenceNumber != 1 {
		t.Errorf("from 1 on came %d", b.SequenceNumber)
	}
}

// What is generated is cached as the tokens that it was told as, so that the next turn finds it.
func TestGRPCOutputIsCachedForTheNextTurn(t *testing.T) {
	w := grpcFleet(t, Options{Regular: 1, Worker: WorkerOptions{PageSize: 4}}).Regular(0)
	c := grpcClient(t, w)
	all, err := generated(t, c, generation("hello", nil))
	if err != nil {
		t.Fatal(err)
	}
	next := generation("hello", nil)
	tokens := next.GetTokenized()
	tokens.InputIds = append(append(tokens.InputIds, all[0].ids...), theVocabulary().encode(nil, " and on")...)
	again, err := generated(t, c, next)
	if err != nil || again[0].first.CachedTokens < 20 {
		t.Errorf("%d tokens cached of %d, %v", again[0].first.CachedTokens, len(tokens.InputIds), err)
	}
}

func TestGRPCLoadIsTold(t *testing.T) {
	w := grpcFleet(t, Options{Regular: 1, Worker: WorkerOptions{MaxRunning: 1, Timing: Timing{PrefillTime: time.Hour}}}).Regular(0)
	c := grpcClient(t, w)
	s := subscribed(t, c, &commonpb.SubscribeKvEventsRequest{LoadRecordsBeforeFirstBatch: true})
	for range 3 {
		if _, err := c.Generate(t.Context(), generation("load", nil)); err != nil {
			t.Fatal(err)
		}
	}
	for {
		b, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if l := b.GetLoad(); l.GetRunningRequests() == 1 && l.GetWaitingRequests() == 2 {
			if l.MaxRunningRequests != 1 || l.GetWaitingUncachedTokens() == 0 || b.SequenceNumber != 0 {
				t.Errorf("record %v", b)
			}
			break
		}
	}
	loads, err := c.GetLoads(t.Context(), &vllmpb.GetLoadsRequest{})
	if err != nil || loads.Loads[0].NumRunningReqs != 1 || loads.Loads[0].NumWaitingReqs != 2 {
		t.Errorf("%v %v", loads, err)
	}
}

// A lie that would have no effect is refused.
func TestGRPCEventsHaveNoLies(t *testing.T) {
	w := grpcFleet(t, Options{Regular: 1}).Regular(0)
	lie, err := ParseKVLie("kind=drop,count=2")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.AddKVLie(lie); err == nil {
		t.Error("it is taken")
	}
}
