package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/kv"
	"github.com/sluice-router/sluice/internal/kv/events"
)

// fakeStream is an event stream that says what a test has it say.
type fakeStream struct {
	opts events.Options
	says chan func(events.Sink)

	mu      sync.Mutex
	runs    bool
	sink    events.Sink
	expects int
	seen    events.Snapshot
}

// believes tells whether what the index says of k, one of the two ranks of r there, is gone by.
func believes(r *Rank, k *kv.Rank) bool { return k == r.Approx() || k != nil && k == r.Exact() }

func (s *fakeStream) Run(ctx context.Context, sink events.Sink) {
	s.mu.Lock()
	s.runs, s.sink = true, sink
	s.mu.Unlock()
	defer func() {
		sink.State(events.Degraded)
		s.mu.Lock()
		s.runs = false
		s.mu.Unlock()
	}()
	for {
		select {
		case say := <-s.says:
			say(sink)
		case <-ctx.Done():
			return
		}
	}
}

func (s *fakeStream) Expect(time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expects++
}

func (s *fakeStream) Snapshot() events.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

func (s *fakeStream) isRunning() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs
}

// streams are the streams that a test's fleet has opened.
type streams struct {
	mu  sync.Mutex
	all []*fakeStream
}

func (s *streams) open(o events.Options) (eventStream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &fakeStream{opts: o, says: make(chan func(events.Sink))}
	s.all = append(s.all, f)
	return f, nil
}

func (s *streams) last() *fakeStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[len(s.all)-1]
}

func (s *streams) opened() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

// fakeStreams has the fleet open fake streams.
func (b *testbed) fakeStreams() *streams {
	s := &streams{}
	b.streams.open = s.open
	return s
}

// say has a stream tell its sink something.
func (b *testbed) say(s *fakeStream, what func(events.Sink)) {
	s.says <- what
	b.pass(0)
}

func live1(s events.Sink)    { s.State(events.Live) }
func degraded(s events.Sink) { s.State(events.Degraded) }

// publishes has a worker say that it publishes events of so many ranks.
func (p *fakeProber) publishes(url string, ranks ...int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.events == nil {
		p.events = map[string]kvEventSources{}
	}
	k := kvEventSources{told: true}
	for _, n := range ranks {
		k.list = append(k.list, events.Source{Rank: n, Endpoint: fmt.Sprintf("tcp://a:%d", 5557+n)})
	}
	p.events[url] = k
}

// TestStreamsOfEvents shows when a rank is believed by its events: while its worker lives and
// its stream is live.
func TestStreamsOfEvents(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		s := b.fakeStreams()
		b.prober.says(urlA, serves("m"))
		b.prober.publishes(urlA, 0)
		w := b.add(WorkerSpec{URL: urlA})
		b.pass(time.Minute)
		if s.opened() != 0 {
			t.Fatal("a worker that was never healthy has a stream")
		}
		b.prober.set(well, urlA)
		b.pass(time.Minute)
		r, first := w.Ranks()[0], s.last()
		if !first.isRunning() || first.opts.Endpoint != "tcp://a:5557" || first.opts.Rank != events.AnyRank {
			t.Fatalf("the stream of a healthy worker: %+v", first.opts)
		}
		believed := func(want bool, when string) {
			t.Helper()
			k := r.Exact()
			if got := k != nil; got != want || got && (!believes(r, k) || k.Data() != r) {
				t.Errorf("%s: exact %v, want %t", when, k, want)
			}
			if !believes(r, r.Approx()) {
				t.Errorf("%s: what the rank was sent is not believed", when)
			}
		}
		believed(false, "not live yet")
		b.say(first, live1)
		believed(true, "live")
		was := r.Exact()
		b.say(first, degraded)
		believed(false, "degraded")
		if believes(r, was) {
			t.Error("a degraded stream is believed")
		}
		b.say(first, live1)
		believed(true, "live again")
		b.pass(time.Hour)
		if s.opened() != 1 {
			t.Errorf("%d streams were opened for one engine", s.opened())
		}

		b.prober.set(vanished, urlA)
		b.pass(10 * time.Minute)
		if first.isRunning() {
			t.Error("the stream of a dead worker is followed")
		}
		believed(false, "dead")
		b.prober.set(well, urlA)
		b.pass(time.Minute)
		second := s.last()
		if second == first || !second.isRunning() {
			t.Fatal("no stream after the worker came back")
		}
		b.say(second, live1)
		believed(true, "back")
		first.sink.State(events.Live)
		if r.Exact() == was {
			t.Error("a stream that was given up is believed")
		}

		b.prober.loaded(urlA, &loads{Loads: engine.Loads{Started: 7}})
		b.pass(10 * time.Minute)
		if third := s.last(); third == second || second.isRunning() || !third.isRunning() {
			t.Error("another process of the engine, and the same stream")
		}
		b.Remove(w.id)
		b.pass(time.Second)
		if s.last().isRunning() {
			t.Error("the stream of a removed worker is followed")
		}
	})
}

// TestEmptiedByEvent shows that an engine which says that its cache is empty has what it was
// sent forgotten, too, and that one of which events were merely missed has not.
func TestEmptiedByEvent(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		s := b.fakeStreams()
		b.prober.set(well, urlA)
		b.prober.says(urlA, serves("m"))
		b.prober.publishes(urlA, 0)
		w := b.add(WorkerSpec{URL: urlA})
		b.pass(time.Minute)
		b.hold(w)
		b.say(s.last(), func(k events.Sink) { k.Cleared() })
		b.wantHolders(w.role, 1, "after missed events")
		b.say(s.last(), func(k events.Sink) { s.last().opts.Emptied(); k.Cleared() })
		b.wantHolders(w.role, 0, "after a clear")
	})
}

// TestEndpointsOfEventsChange shows that streams follow what engines say after a restart,
// and that an engine is asked until it has answered, but no longer.
func TestEndpointsOfEventsChange(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		s := b.fakeStreams()
		b.prober.set(well, urlA)
		b.prober.says(urlA, serves("m"))
		b.prober.events = map[string]kvEventSources{urlA: {err: errors.New("500")}}
		w := b.add(WorkerSpec{URL: urlA})
		b.pass(10 * time.Minute)
		if s.opened() != 0 || b.prober.askedEvents < 5 {
			t.Fatalf("%d streams, asked %d times", s.opened(), b.prober.askedEvents)
		}
		if n := w.Info().Ranks[0].KVCache.NoEvents; !strings.Contains(n, "500") {
			t.Errorf("no events, because %q", n)
		}
		b.prober.publishes(urlA, 0)
		b.pass(time.Minute)
		if s.opened() != 1 {
			t.Fatal("no stream after it answered")
		}
		was := b.prober.askedEvents
		b.pass(4 * time.Minute)
		if n := b.prober.askedEvents - was; n > 1 {
			t.Errorf("asked %d times more, though nothing changed", n)
		}
		b.prober.publishes(urlA, 3) // at another port
		b.prober.loaded(urlA, &loads{Loads: engine.Loads{Started: 7}})
		b.pass(10 * time.Minute)
		if got := s.last().opts.Endpoint; s.opened() != 3 && s.opened() != 2 || got != "tcp://a:5560" {
			t.Errorf("%d streams, the last at %s", s.opened(), got)
		}
		b.prober.publishes(urlA)
		b.pass(10 * time.Minute)
		if i := w.Info().Ranks[0].KVCache; s.last().isRunning() || i.Feed != feedApproximate || i.NoEvents != whyNoEvents {
			t.Errorf("no events any more: %+v", i)
		}
	})
}

// TestNoEventsWanted shows that with kv_events off engines are not even asked.
func TestNoEventsWanted(t *testing.T) {
	off := settings{config: func(c *config.Config) { c.KV.Events = config.KVEventsOff }}
	inBubble(t, off, func(b *testbed) {
		s := b.fakeStreams()
		b.prober.set(well, urlA)
		b.prober.says(urlA, serves("m"))
		b.prober.publishes(urlA, 0)
		w := b.add(WorkerSpec{URL: urlA, Labels: map[string]string{labelEventsPort: "5557"}})
		b.pass(10 * time.Minute)
		if s.opened()+b.prober.askedEvents != 0 || w.Info().Ranks[0].KVCache.NoEvents != whyEventsOff {
			t.Errorf("%d streams, asked %d times, %+v", s.opened(), b.prober.askedEvents, w.Info().Ranks[0].KVCache)
		}
	})
}

// TestPortsOfEventsByLabel shows that labels which name the ports of events are in force at
// once, and so is that they are taken back.
func TestPortsOfEventsByLabel(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		s := b.fakeStreams()
		b.prober.set(well, urlA)
		b.prober.says(urlA, serves("m"))
		w := b.add(WorkerSpec{URL: urlA})
		b.pass(time.Minute)
		patch := func(p *Patch) {
			t.Helper()
			if _, err := b.Patch(t.Context(), w.id, p); err != nil {
				t.Fatal(err)
			}
			b.pass(0)
		}
		patch(&Patch{Values: WorkerSpec{Labels: map[string]string{labelEventsPort: "7000"}}})
		if s.opened() != 1 || !strings.HasSuffix(s.last().opts.Endpoint, ":7000") {
			t.Fatalf("%d streams", s.opened())
		}
		patch(&Patch{UnsetLabels: []string{labelEventsPort}})
		if s.last().isRunning() {
			t.Error("followed without the label")
		}
	})
}

// TestSourceOfARank shows where the events of a rank are looked for.
func TestSourceOfARank(t *testing.T) {
	at := func(ranks ...int) (k kvEventSources) {
		k.told = true
		for _, n := range ranks {
			k.list = append(k.list, events.Source{Rank: n, Endpoint: fmt.Sprintf("tcp://a:%d", n)})
		}
		return k
	}
	one := kvEventSources{told: true, list: []events.Source{{Rank: 0, Endpoint: "tcp://a:9"}, {Rank: 1, Endpoint: "tcp://a:9"}}}
	type result struct {
		endpoint, replay string
		rank             int
		why              string
	}
	for _, tc := range []struct {
		name   string
		told   kvEventSources
		dp     int // ranks that are scheduled apart; 0: the worker is one
		of     int
		first  int
		engine int // ranks that the engine has
		ports  [2]int
		labels map[string]string
		want   result
	}{
		{name: "one source", told: at(0), want: result{"tcp://a:0", "", events.AnyRank, ""}},
		{name: "one source of another number", told: at(5), want: result{"tcp://a:5", "", events.AnyRank, ""}},
		{name: "by rank", told: at(0, 1, 2), dp: 3, of: 1, engine: 3, want: result{"tcp://a:1", "", events.AnyRank, ""}},
		{name: "by place among all", told: at(4, 5), dp: 2, of: 1, first: 4, engine: 2, want: result{"tcp://a:5", "", events.AnyRank, ""}},
		{name: "by rank though not the first", told: at(0, 1), dp: 2, of: 1, first: 4, engine: 2, want: result{"tcp://a:1", "", events.AnyRank, ""}},
		{name: "one of all", told: one, dp: 2, of: 1, engine: 2, want: result{"tcp://a:9", "", 1, ""}},
		{name: "a rank that publishes nothing", told: at(0), dp: 2, of: 1, engine: 2, want: result{why: "its engine publishes no events of data-parallel rank 1"}},
		{name: "ranks as one", told: at(0, 1), engine: 2, want: result{why: whyRanksTogether}},
		{name: "publishes none", told: at(), ports: [2]int{7000, 0}, want: result{why: whyNoEvents}},
		{name: "cannot be asked", want: result{why: whyNotTold}},
		{name: "does not answer", told: kvEventSources{err: errors.New("boom")}, want: result{why: "its engine does not say where it publishes events: boom"}},
		{name: "the engine knows better", told: at(0), ports: [2]int{7000, 0}, want: result{"tcp://a:0", "", events.AnyRank, ""}},
		{name: "ports", ports: [2]int{7000, 7100}, dp: 2, of: 1, engine: 2, want: result{"tcp://a:7001", "tcp://a:7101", events.AnyRank, ""}},
		{name: "ports without an answer", told: kvEventSources{err: errors.New("boom")}, ports: [2]int{7000, 0}, want: result{"tcp://a:7000", "", events.AnyRank, ""}},
		{name: "labels", told: at(0), labels: map[string]string{labelEventsPort: "8000", labelReplayPort: "8100"}, want: result{"tcp://a:8000", "tcp://a:8100", events.AnyRank, ""}},
		{name: "a bad label", told: at(0), labels: map[string]string{labelEventsPort: "x"}, want: result{"tcp://a:0", "", events.AnyRank, ""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, settings{DPAware: tc.dp > 0, ModelID: "m"}, func(b *testbed) {
				f := serves("m")
				f.DPSize, f.FirstRank = tc.engine, tc.first
				b.prober.set(well, "http://a")
				b.prober.says("http://a", f)
				w := b.add(WorkerSpec{URL: "http://a", Labels: tc.labels})
				b.pass(time.Minute)
				r := w.Ranks()[tc.of]
				tc.told.asked = true
				s, why := r.kvSource(&tc.told, &config.KV{EventsPort: tc.ports[0], ReplayPort: tc.ports[1]})
				if got := (result{s.Endpoint, s.Replay, s.Rank, why}); got != tc.want && (why == "" || why != tc.want.why) {
					t.Errorf("%+v, want %+v", got, tc.want)
				}
			})
		})
	}
}

// TestSilenceAfterAPrompt shows that a stream is told of prompts whose blocks it must tell of,
// and of no others: an engine that does not say what it found in its cache may have found all.
func TestSilenceAfterAPrompt(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		s := b.fakeStreams()
		b.prober.set(well, urlA)
		f := serves("m")
		f.PageSize = 32
		b.prober.says(urlA, f)
		b.prober.publishes(urlA, 0)
		w := b.add(WorkerSpec{URL: urlA})
		b.pass(time.Minute)
		r := w.Ranks()[0]
		for _, step := range []struct {
			prompt, cached int64
			want           int
		}{{1000, 0, 0}, {1000, 990, 0}, {1000, 937, 0}, {1000, 936, 1}, {1000, 0, 2}, {63, 0, 2}} {
			r.NoteComputed(time.Now(), step.prompt, step.cached)
			if got := s.last().expects; got != step.want {
				t.Errorf("%d tokens, %d cached: expected %d times, want %d", step.prompt, step.cached, got, step.want)
			}
		}
	})
}

// TestStreamsInInfoAndLog shows what is told of streams, and that a network which is away
// does not flood the log.
func TestStreamsInInfoAndLog(t *testing.T) {
	var out logBook
	inBubble(t, settings{Log: out.logger()}, func(b *testbed) {
		s := b.fakeStreams()
		var workers []*Worker
		for i := range 50 {
			url := fmt.Sprintf("http://10.0.0.%d", i+1)
			b.prober.set(well, url)
			b.prober.says(url, serves("m"))
			b.prober.publishes(url, 0)
			workers = append(workers, b.add(WorkerSpec{URL: url}))
		}
		b.pass(time.Second)
		kv := func() *KVCacheInfo { return workers[0].Info().Ranks[0].KVCache }
		if i := kv(); i.Feed != feedDegraded || i.Degraded == nil || i.Degraded.Why != "it is not connected" {
			t.Errorf("before it is live: %+v", i)
		}
		b.pass(time.Minute)
		if n := strings.Count(out.String(), "cannot be relied on"); n == 0 {
			t.Error("streams that never became live are not told")
		}
		for _, f := range s.all {
			b.say(f, live1)
		}
		if i := kv(); i.Feed != feedExact || i.Degraded != nil || i.Events.Endpoint != "tcp://a:5557" {
			t.Errorf("live: %+v", i)
		}
		b.pass(time.Minute)
		out.Reset()
		for _, f := range s.all {
			f.seen.LastError = "reset by peer"
			b.say(f, degraded)
		}
		b.pass(5 * time.Second)
		if i := kv(); i.Feed != feedDegraded || i.Degraded.Why != "reset by peer" || i.Degraded.ForSecs != 5 {
			t.Errorf("degraded: %+v, %+v", i, i.Degraded)
		}
		if n := strings.Count(out.String(), "reset by peer"); n != maxLogged {
			t.Errorf("%d lines of 50 streams, want %d", n, maxLogged)
		}
		b.pass(time.Hour)
		if n := strings.Count(out.String(), "reset by peer"); n > 60 {
			t.Errorf("%d lines of 50 streams in an hour", n)
		}
		if workers[0].Status() != StatusReady {
			t.Errorf("status %s of a worker without its events", workers[0].Status())
		}
		for _, f := range s.all {
			b.say(f, live1)
		}
		b.pass(time.Minute)
		out.Reset()
		b.Close()
		if len(out.String()) > 0 || workers[0].Ranks()[0].Exact() != nil {
			t.Errorf("at the end: %q", out.String())
		}
	})
}

// TestBrokenStreamIsALook shows that a worker is checked at once when its stream breaks: its
// engine may have restarted, and what it was sent is wrong then.
func TestBrokenStreamIsALook(t *testing.T) {
	inBubble(t, settings{Health: config.Health{Interval: time.Hour}}, func(b *testbed) {
		s := b.fakeStreams()
		b.prober.set(well, urlA)
		b.prober.says(urlA, serves("m"))
		b.prober.publishes(urlA, 0)
		b.prober.loaded(urlA, &loads{Loads: engine.Loads{Started: 1}})
		w := b.add(WorkerSpec{URL: urlA})
		b.pass(time.Minute)
		b.say(s.last(), live1)
		b.hold(w)
		was := b.prober.count(urlA)
		b.prober.loaded(urlA, &loads{Loads: engine.Loads{Started: 2}})
		b.say(s.last(), degraded)
		b.pass(2 * time.Second)
		if b.prober.count(urlA) == was {
			t.Error("not checked")
		}
	})
}

// TestComingAndGoingStreamInLog shows that a stream which comes and goes all the time is told
// of now and then, and one that stays away at once or soon.
func TestComingAndGoingStreamInLog(t *testing.T) {
	var out logBook
	inBubble(t, settings{Log: out.logger()}, func(b *testbed) {
		s := b.fakeStreams()
		b.prober.set(well, urlA)
		b.prober.says(urlA, serves("m"))
		b.prober.publishes(urlA, 0)
		b.add(WorkerSpec{URL: urlA})
		b.pass(time.Second)
		lines := func(what string) int { return strings.Count(out.String(), what) }
		for range 100 {
			b.say(s.last(), live1)
			b.pass(time.Second)
			b.say(s.last(), degraded)
			b.pass(5 * time.Second)
		}
		if bad, good := lines("cannot be relied on"), lines("are followed"); bad < 5 || bad > 11 || good < bad-1 || good > bad+1 {
			t.Errorf("in ten minutes %d lines that it is degraded, and %d that it is not", bad, good)
		}
		b.say(s.last(), live1)
		b.pass(time.Second)
		out.Reset()
		b.say(s.last(), degraded)
		b.pass(30 * time.Second)
		if n := lines("cannot be relied on"); n != 1 {
			t.Errorf("%d lines about a stream that stays away", n)
		}
	})
}
