package demo

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

// Member is a running router of a cluster.
type Member struct {
	*Router
	// View is what it knows of the cluster.
	View func() View
	// Kill ends it as the death of its process would: without a word to anybody.
	Kill func()
}

// View is what a member knows of its cluster.
type View struct {
	Keeper    string // the name of the member that decides, "" if none does
	Answering int    // members that answer the keeper
}

const (
	// slotsEach is how many slots of the prefill worker there are for each router.
	slotsEach = 2
	// clientsEach is how many clients send requests, for each slot.
	clientsEach = 3
	// calmPrefills is the time before the keeper is killed, and after each change, in
	// lengths of a prefill.
	calmPrefills = 5
	// changeWithin is how long a change may take before the demo is wrong.
	changeWithin = 30 * time.Second
	// reportEvery is the time between two lines of the table.
	reportEvery = 500 * time.Millisecond
)

// memberName is the name of a router on the screen.
func memberName(i int) string { return fmt.Sprintf("router %d", i+1) }

// routersRun is the demo of several routers under way.
type routersRun struct {
	o       Options
	fleet   *sim.Fleet
	slots   int
	start   time.Time
	options RouterOptions

	mu sync.Mutex
	// guarded by mu
	members  []*Member // nil: it is dead
	sent     int
	answered int
	again    int // were sent again, because their router was killed
	longest  time.Duration
	problems []string
}

// RunRouters shows several routers in front of one simulated fleet, kills the one that
// decides, and returns an error if the limit did not hold or a request was not answered.
func RunRouters(ctx context.Context, o Options) error {
	if o.PrefillTime == 0 {
		o.PrefillTime = 500 * time.Millisecond
	}
	n := o.Routers
	r := &routersRun{o: o, slots: slotsEach * n, members: make([]*Member, n)}
	o.print("", fmt.Sprintf("%d routers in front of one simulated prefill worker, on which %d requests may be in prefill at once. %d clients keep sending, to each router in turn. With a limit of its own each, the routers would let in all of them.", n, r.slots, r.clients()))
	workers := sim.WorkerOptions{Model: model, HealthDelay: -1, Timing: sim.Timing{PrefillTime: o.PrefillTime}}
	fleet, err := sim.Start(sim.Options{Prefill: 1, Decode: 1, Worker: workers})
	if err != nil {
		return fmt.Errorf("cannot start the simulated fleet: %w", err)
	}
	defer fleet.Close()
	r.fleet = fleet
	r.options = RouterOptions{
		PrefillURL: fleet.Prefill(0).URL(), BootstrapPort: fleet.Prefill(0).BootstrapPort(), DecodeURL: fleet.Decode(0).URL(),
		Slots: r.slots, QueueSize: 10 * r.clients(), QueueTimeout: time.Minute,
	}
	defer r.stop()
	for i := range n {
		if err := r.startMember(ctx, i); err != nil {
			return err
		}
	}
	if _, err := r.await(ctx, "the routers to find each other", func(v View) bool { return v.Keeper != "" && v.Answering == n }); err != nil {
		return err
	}
	if err := r.play(ctx); err != nil {
		return err
	}
	return r.verdict()
}

func (r *routersRun) clients() int { return clientsEach * r.slots }

func (r *routersRun) calm() time.Duration { return calmPrefills * r.o.PrefillTime }

func (r *routersRun) startMember(ctx context.Context, i int) error {
	m, err := r.o.StartMember(ctx, i, r.options)
	if err != nil {
		return fmt.Errorf("cannot start %s: %w", memberName(i), err)
	}
	r.mu.Lock()
	r.members[i] = m
	r.mu.Unlock()
	return nil
}

func (r *routersRun) stop() {
	for _, m := range r.members {
		if m != nil {
			m.Stop()
		}
	}
}

// play sends requests all the time, and kills and restarts the keeper meanwhile.
func (r *routersRun) play(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.start = time.Now()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: r.clients()}}
	defer client.CloseIdleConnections()
	var clients, reports sync.WaitGroup
	done := make(chan struct{})
	for c := range r.clients() {
		clients.Go(func() {
			for k := c; ; k++ {
				select {
				case <-done:
					return
				default:
				}
				if !r.request(ctx, client, k) {
					return
				}
			}
		})
	}
	reported := make(chan struct{})
	reports.Go(func() { r.report(reported) })
	err := r.killKeeper(ctx)
	if err != nil {
		cancel()
	}
	close(done)
	clients.Wait()
	close(reported)
	reports.Wait()
	return err
}

// killKeeper is the story: calm, the keeper is killed, another takes over, the dead one
// comes back.
func (r *routersRun) killKeeper(ctx context.Context) error {
	if err := pause(ctx, r.calm()); err != nil {
		return err
	}
	was, view := r.keeper()
	if was < 0 {
		return fmt.Errorf("no router decides, before anything was done: %+v", view)
	}
	r.mu.Lock()
	m := r.members[was]
	r.members[was] = nil
	r.mu.Unlock()
	r.say(memberName(was) + " decides for all. It is killed.")
	killed := time.Now()
	m.Kill()
	next, err := r.await(ctx, "another router to decide", func(v View) bool { return v.Keeper != "" && v.Keeper != memberName(was) })
	if err != nil {
		return err
	}
	r.say(fmt.Sprintf("%s decides now, after %s. What %s had stays booked.", next.Keeper, time.Since(killed).Round(100*time.Millisecond), memberName(was)))
	if err := pause(ctx, r.calm()); err != nil {
		return err
	}
	if err := r.startMember(ctx, was); err != nil {
		return err
	}
	if _, err := r.await(ctx, "the restarted router to join", func(v View) bool { return v.Answering == len(r.members) }); err != nil {
		return err
	}
	r.say(memberName(was) + " was started again and has joined. What it had before is free.")
	return pause(ctx, r.calm())
}

// keeper is the number of the member that decides, as the living ones know; -1: none.
func (r *routersRun) keeper() (number int, v View) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.members {
		if m == nil {
			continue
		}
		v = m.View()
		for i := range r.members {
			if v.Keeper == memberName(i) {
				return i, v
			}
		}
	}
	return -1, v
}

// await waits until all living members see what is asked for.
func (r *routersRun) await(ctx context.Context, what string, ok func(View) bool) (v View, err error) {
	ctx, cancel := context.WithTimeout(ctx, changeWithin)
	defer cancel()
	for {
		all := true
		r.mu.Lock()
		for _, m := range r.members {
			if m != nil {
				v = m.View()
				all = all && ok(v)
			}
		}
		r.mu.Unlock()
		if all {
			return v, nil
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return v, fmt.Errorf("waited for %s: %w (seen last: %+v)", what, err, v)
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// request sends one request, again to the next router where one was killed, as a load
// balancer would. It returns false when the demo is stopped.
func (r *routersRun) request(ctx context.Context, client *http.Client, k int) bool {
	begun := time.Now()
	r.mu.Lock()
	r.sent++
	r.mu.Unlock()
	for broken := 0; ; broken++ {
		r.mu.Lock()
		m := r.members[(k+broken)%len(r.members)]
		r.mu.Unlock()
		if m == nil {
			continue // the balancer knows; there is always another
		}
		a := post(ctx, client, m.URL, shortBody)
		if ctx.Err() != nil {
			return false
		}
		if a.err != nil && broken < 2*len(r.members) {
			r.mu.Lock()
			r.again++
			r.mu.Unlock()
			continue
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.longest = max(r.longest, time.Since(begun))
		if a.err != nil || a.status != http.StatusOK {
			if len(r.problems) < 5 {
				r.problems = append(r.problems, fmt.Sprintf("a request was not answered: status %d %s %v", a.status, a.code, a.err))
			}
			return pause(ctx, r.o.PrefillTime) == nil
		}
		r.answered++
		return true
	}
}

func (r *routersRun) say(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.o.print(indent, fmt.Sprintf("%5.1fs  %s", time.Since(r.start).Seconds(), text))
}

// report prints a line now and then.
func (r *routersRun) report(done <-chan struct{}) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		_, v := r.keeper()
		keeper := v.Keeper
		if keeper == "" {
			keeper = "nobody"
		}
		in := r.fleet.Prefill(0).Stats().Inflight
		r.mu.Lock()
		line := fmt.Sprintf("%5.1fs  decides: %-9s  in prefill %d of %d  under way %d  answered %d",
			time.Since(r.start).Seconds(), keeper, in, r.slots, r.sent-r.answered-len(r.problems), r.answered)
		_, _ = fmt.Fprintln(r.o.Out, indent+clip(line, r.o.width()-1-len(indent)))
		r.mu.Unlock()
	}
}

// verdict checks the results and prints them.
func (r *routersRun) verdict() error {
	most := r.fleet.Prefill(0).Stats().PeakPrefilling
	for _, v := range r.fleet.Violations() {
		r.problems = append(r.problems, fmt.Sprintf("an engine was misused: %+v", v))
	}
	if most != r.slots {
		r.problems = append(r.problems, fmt.Sprintf("%d requests were in prefill at once, must be %d", most, r.slots))
	}
	if r.answered != r.sent {
		r.problems = append(r.problems, fmt.Sprintf("%d requests were sent and %d answered", r.sent, r.answered))
	}
	if r.again == 0 {
		r.problems = append(r.problems, "no request was under way at the router that was killed")
	}
	_, _ = fmt.Fprintln(r.o.Out)
	r.o.print(indent, fmt.Sprintf("The worker counted at most %d requests in prefill at once, of %d. %d requests were sent and %d answered; %d of them broke off with their router and were sent again. The longest took %s.",
		most, r.slots, r.sent, r.answered, r.again, r.longest.Round(10*time.Millisecond)))
	for _, p := range r.problems {
		r.o.print(indent, "WRONG: "+p)
	}
	if n := len(r.problems); n > 0 {
		return fmt.Errorf("%d results of the demo are wrong", n)
	}
	r.o.print("", "All results are as they must be.")
	return nil
}
