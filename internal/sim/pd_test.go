package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestLegsOfAPairMustAgreeOnTheRank(t *testing.T) {
	f := start(t, Options{Prefill: 1, Decode: 1, Worker: WorkerOptions{DPSize: 2}})
	c, ctx := client(t), testContext(t)
	p, d := f.Prefill(0), f.Decode(0)
	even := room() // all bootstrap rooms of the tests are even numbers

	// The legs differ in their ranks.
	ch := make(chan reply, 1)
	go func() { ch <- post(ctx, c, p.URL()+chatPath, pd(p, even+1, `,"routed_dp_rank":1`)) }()
	if b := post(ctx, c, d.URL()+chatPath, pd(p, even+1, `,"routed_dp_rank":0,"disagg_prefill_dp_rank":1`)); b.status != 200 {
		t.Errorf("decode: %+v", b)
	}
	if a := <-ch; a.status != 200 {
		t.Errorf("prefill: %+v", a)
	}
	if got := p.Requests()[0]; got.Rank != 1 || got.Room() != even+1 {
		t.Errorf("log: %+v", got)
	}
	wantViolations(t, f)

	if a := post(ctx, c, p.URL()+chatPath, pd(p, room(), `,"routed_dp_rank":1`)); a.status != 500 {
		t.Errorf("room and rank disagree: %+v", a)
	}
	wantViolations(t, f, RankMismatch)
	f.ResetViolations()

	a, b := both(ctx, c, p, d, chatPath, pd(p, room(), `,"disagg_prefill_dp_rank":1`))
	if a.status != 500 || b.status != 500 {
		t.Errorf("decode looks at the wrong rank: %+v, %+v", a, b)
	}
	wantViolations(t, f, RankMismatch)

	for _, rank := range []string{"2", "-1", "7", "99999999999"} {
		for _, w := range []*Worker{p, d} {
			if x := post(ctx, c, w.URL()+chatPath, pd(p, room(), `,"routed_dp_rank":`+rank)); x.status != 400 {
				t.Errorf("rank %s on %s: %+v", rank, w.ID(), x)
			}
		}
	}
}

func TestRoomsOfABatch(t *testing.T) {
	f := start(t, Options{Prefill: 1, Decode: 1})
	c, ctx := client(t), testContext(t)
	p, d := f.Prefill(0), f.Decode(0)
	body := func(rooms string) string {
		return fmt.Sprintf(`{"prompt":["a","b","c"],"max_tokens":1,"bootstrap_host":"127.0.0.1","bootstrap_port":%d,"bootstrap_room":%s}`, p.BootstrapPort(), rooms)
	}
	r := room()
	for _, rooms := range []string{fmt.Sprint(r), fmt.Sprintf("[%d,%d,%d]", r+100, r+200, r+300)} {
		a, b := both(ctx, c, p, d, "/v1/completions", body(rooms))
		if a.status != 200 || b.status != 200 || strings.Count(b.body, `"index"`) != 3 {
			t.Errorf("rooms %s: %+v, %+v", rooms, a, b)
		}
	}
	if got := d.Requests()[0].Rooms; !equal(got, []int64{r, r + 1, r + 2}) {
		t.Errorf("a scalar room came out as %v", got)
	}
	if x := post(ctx, c, d.URL()+"/v1/completions", body(fmt.Sprintf("[%d,%d]", r+400, r+500))); x.status != 400 {
		t.Errorf("two rooms for three prompts: %+v", x)
	}
	wantViolations(t, f)
}

// Several samples with one bootstrap room wait for KV that never comes.
func TestSamplesOverOneRoomStall(t *testing.T) {
	f := start(t, Options{Prefill: 1, Decode: 1, Worker: WorkerOptions{BootstrapTimeout: 30 * time.Millisecond}})
	c, ctx := client(t), testContext(t)
	a, b := both(ctx, c, f.Prefill(0), f.Decode(0), chatPath, pd(f.Prefill(0), room(), `,"n":2`))
	if a.status != 500 || b.status != 500 {
		t.Errorf("got %+v, %+v", a, b)
	}
	wantViolations(t, f, RoomShared, RoomShared)

	f = start(t, Options{Prefill: 1, Decode: 1, Worker: WorkerOptions{PerSampleRooms: true}})
	a, b = both(ctx, c, f.Prefill(0), f.Decode(0), chatPath, pd(f.Prefill(0), room(), `,"n":2`))
	if a.status != 200 || b.status != 200 || strings.Count(b.body, `"index"`) != 2 {
		t.Errorf("with a room per sample: %+v, %+v", a, b)
	}
}

func TestNullBootstrapPortMeansTheDefault(t *testing.T) {
	body := func(r int64) string {
		return fmt.Sprintf(`{"messages":[],"max_tokens":1,"bootstrap_host":"localhost","bootstrap_port":null,"bootstrap_room":%d}`, r)
	}
	c, ctx := client(t), testContext(t)
	f := start(t, Options{Prefill: 1, Decode: 1, Worker: WorkerOptions{NoBootstrapServer: true}})
	// Ports without a bootstrap server count up from 8998, the port that null means.
	if a, b := both(ctx, c, f.Prefill(0), f.Decode(0), chatPath, body(room())); a.status != 200 || b.status != 200 {
		t.Errorf("null and 8998: %+v, %+v", a, b)
	}
	f = start(t, Options{Prefill: 2, Decode: 1, Worker: WorkerOptions{NullPortMeets: true}})
	if a, b := both(ctx, c, f.Prefill(1), f.Decode(0), chatPath, body(room())); a.status != 200 || b.status != 200 {
		t.Errorf("null that meets any: %+v, %+v", a, b)
	}
	wantViolations(t, f)
}

// A decode worker admits no request that does not fit its running slots, and prefill
// waits until it does.
func TestDecodeAdmitsOnlyWhatFits(t *testing.T) {
	f := start(t, Options{Prefill: 1, Decode: 1, Each: func(role Role, _ int, o *WorkerOptions) {
		if role == Decode {
			o.MaxRunning = 1
			o.Timing.DecodeStep = time.Hour
		}
	}})
	c, ctx := client(t), testContext(t)
	p, d := f.Prefill(0), f.Decode(0)
	one, leave := context.WithCancel(ctx)
	ch := make(chan reply, 4)
	go func() { _, b := both(one, c, p, d, chatPath, pd(p, room(), "")); ch <- b }()
	if err := d.Wait(ctx, func(s Stats) bool { return s.Decoding == 1 }); err != nil {
		t.Fatal(err)
	}
	two, leave2 := context.WithCancel(ctx)
	go func() { _, b := both(two, c, p, d, chatPath, pd(p, room(), "")); ch <- b }()
	if err := d.Wait(ctx, func(s Stats) bool { return s.Prealloc == 1 && s.Decoding == 1 }); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(ctx, func(s Stats) bool { return s.Bootstrap == 1 }); err != nil {
		t.Fatal(err)
	}
	leave()
	if err := d.Wait(ctx, func(s Stats) bool { return s.Prealloc == 0 && s.Decoding == 1 }); err != nil {
		t.Fatal(err)
	}
	leave2()
	<-ch
	<-ch
	if err := d.WaitIdle(ctx); err != nil {
		t.Fatal(err)
	}
	if s := d.Stats(); s.PeakDecoding != 1 || s.KVTokens != 0 {
		t.Errorf("stats %+v", s)
	}
}

// The abort of one leg is an error event in a stream, a status in another answer.
func TestPeerAbortIsAnErrorEventInAStream(t *testing.T) {
	f := start(t, Options{Prefill: 1, Decode: 1})
	c, ctx := client(t), testContext(t)
	p, d := f.Prefill(0), f.Decode(0)
	p.SetTiming(Timing{PrefillTime: time.Hour})
	gone, leave := context.WithCancel(ctx)
	r, ch := room(), make(chan reply, 2)
	go func() { ch <- post(gone, c, p.URL()+chatPath, pd(p, r, "")) }()
	go func() { ch <- post(ctx, c, d.URL()+chatPath, pd(p, r, `,"stream":true`)) }()
	if err := p.Wait(ctx, func(s Stats) bool { return s.Prefilling == 1 }); err != nil {
		t.Fatal(err)
	}
	leave()
	a, b := <-ch, <-ch
	if a.err == nil && b.err != nil {
		a, b = b, a
	}
	if a.err == nil || b.status != 200 || !strings.HasPrefix(b.body, `data: {"error":{"object":"error"`) {
		t.Errorf("got %+v and %+v", a, b)
	}
}

func TestAbortRequestMatchesByPrefix(t *testing.T) {
	f := start(t, Options{Regular: 1, Worker: WorkerOptions{Timing: Timing{DecodeStep: time.Hour}}})
	c, ctx, w := client(t), testContext(t), f.Regular(0)
	ch := make(chan reply, 1)
	go func() {
		ch <- post(ctx, c, w.URL()+"/generate", `{"text":"a","rid":"abc-1","sampling_params":{"max_new_tokens":3}}`)
	}()
	if err := w.Wait(ctx, func(s Stats) bool { return s.Decoding == 1 }); err != nil {
		t.Fatal(err)
	}
	if r := post(ctx, c, w.URL()+"/generate", `{"text":"a","rid":"abc-1"}`); r.status != 400 {
		t.Errorf("a second request of the same id: %+v", r)
	}
	if r := post(ctx, c, w.URL()+"/abort_request", `{"rid":"abc"}`); r.status != 200 {
		t.Errorf("abort: %+v", r)
	}
	var got struct {
		Meta struct {
			Reason struct{ Type string } `json:"finish_reason"`
		} `json:"meta_info"`
	}
	if r := <-ch; r.status != 200 || json.Unmarshal([]byte(r.body), &got) != nil || got.Meta.Reason.Type != "abort" {
		t.Errorf("aborted: %+v", r)
	}
}

func TestLogprobsTellTheLegsApart(t *testing.T) {
	f := start(t, Options{Prefill: 1, Decode: 1})
	c, ctx := client(t), testContext(t)
	p, d := f.Prefill(0), f.Decode(0)
	body := fmt.Sprintf(`{"text":"0123456789","return_logprob":true,"sampling_params":{"max_new_tokens":2},"bootstrap_host":"127.0.0.1","bootstrap_port":%d,"bootstrap_room":%d}`, p.BootstrapPort(), room())
	a, b := both(ctx, c, p, d, "/generate", body)
	if !strings.Contains(a.body, `"input_token_logprobs":[[-1.0,0,null],`) || !strings.Contains(b.body, `"input_token_logprobs":[[-2.0,0,null]]`) {
		t.Errorf("got %s and %s", a.body, b.body)
	}
}

func TestPrefillRateIsSerial(t *testing.T) {
	w := Timing{PrefillRate: 1000}
	if w.parallel() != 1 || w.prefill(500) != 500*time.Millisecond {
		t.Errorf("rate: %d at once, %s", w.parallel(), w.prefill(500))
	}
	w = Timing{PrefillTime: 3 * time.Second, PrefillRate: 1}
	if w.parallel() != 0 || w.prefill(500) != 3*time.Second {
		t.Errorf("fixed: %d at once, %s", w.parallel(), w.prefill(500))
	}
}

func TestPoolIsFIFOAndGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(2, 10)
		ctx := t.Context()
		if p.acquire(ctx, 8) != nil {
			t.Fatal("no room at first")
		}
		gone, leave := context.WithCancel(ctx)
		var head, small error
		granted := false
		go func() { head = p.acquire(gone, 9) }()
		synctest.Wait()
		go func() { small = p.acquire(ctx, 1); granted = true }()
		synctest.Wait()
		if granted {
			t.Fatal("the small one overtook the head")
		}
		leave()
		synctest.Wait()
		if head == nil || !granted || small != nil {
			t.Fatalf("after the head left: head %v, small %v, granted %v", head, small, granted)
		}
		p.release(8)
		p.release(1)
		if p.slots != 2 || p.tokens != 10 {
			t.Errorf("pool ends with %d slots, %d tokens", p.slots, p.tokens)
		}
	})
}

// Many pairs at once, some of whose clients disconnect, leave nothing held.
func TestManyPairsLeaveNothingHeld(t *testing.T) {
	f := start(t, Options{Prefill: 3, Decode: 3, Worker: WorkerOptions{DPSize: 2, MaxRunning: 8,
		Timing: Timing{PrefillRate: 100000, DecodeStep: 100 * time.Microsecond}}})
	c, ctx := client(t), testContext(t)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			p, d := f.Prefill(i%3), f.Decode(i/3%3)
			body := pd(p, room(), `,"stream":true`)
			if i%4 > 0 {
				if a, b := both(ctx, c, p, d, chatPath, body); a.status != 200 || b.status != 200 || !strings.HasSuffix(b.body, "[DONE]\n\n") {
					t.Errorf("pair %d: %+v, %+v", i, a, b)
				}
				return
			}
			gone, leave := context.WithCancel(ctx)
			ended := make(chan struct{})
			go func() { both(gone, c, p, d, chatPath, body); close(ended) }()
			time.AfterFunc(time.Duration(i)*20*time.Microsecond, leave)
			<-ended
			leave()
		})
	}
	wg.Wait()
	for _, w := range f.Workers() {
		if err := w.WaitIdle(ctx); err != nil {
			t.Fatal(err)
		}
		if s := w.Stats(); s.KVTokens != 0 || s.phases != ([phases]int{}) {
			t.Errorf("%s holds %+v", w.ID(), s)
		}
	}
	if n := f.OpenRooms(); n != 0 {
		t.Errorf("%d rooms left open", n)
	}
	wantViolations(t, f)
}
