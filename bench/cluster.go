package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// The comparison of -cluster: one router and three on one fleet, each by itself and as
// members of one gate.

const (
	clusterSlots   = 4 // requests in prefill on one prefill worker
	clusterClients = 60
	clusterTime    = 20 * time.Millisecond // of one prefill, under the load that queues
)

// clusterSetup is how many routers stand before the fleet, and whether they are one gate.
type clusterSetup struct {
	routers   int
	clustered bool
}

func (c clusterSetup) String() string {
	s := "1 router"
	if c.routers > 1 {
		s = fmt.Sprintf("%d routers", c.routers)
	}
	if c.clustered {
		return s + ", one gate"
	}
	return s + ", alone"
}

var clusterSetups = []clusterSetup{{1, false}, {1, true}, {3, false}, {3, true}}

// clusterLoad is a load of the comparison.
type clusterLoad struct {
	name    string
	clients int
	prefill time.Duration // how long each takes
}

var clusterLoads = []clusterLoad{
	{fmt.Sprintf("more than fits: %d clients, a prefill takes %v", clusterClients, clusterTime), clusterClients, clusterTime},
	{"all fits: 6 clients, engines that take no time", 6, 0},
}

// clusterRow is what one setup showed under one load, in the median of the rounds, but for
// Most: that is of all rounds.
type clusterRow struct {
	setup       clusterSetup
	perSecond   float64
	p50, p99    time.Duration
	cpu         float64 // µs a request, of all routers together
	wrong, most int
	firstErr    error
	limit       int // in prefill on all workers together
}

// compareClusters measures all setups under all loads and writes the tables.
func (p *plan) compareClusters(ctx context.Context, s *spawner, w io.Writer) error {
	redis, err := exec.LookPath("redis-server")
	if err != nil {
		return errors.New("-cluster needs redis-server, which keeps the record of the cluster (Debian's package redis-server)")
	}
	var errs error
	for _, l := range clusterLoads {
		rows := [][]string{{"routers", "goodput /s", "p50 ms", "p99 ms", "CPU µs", "most in prefill", "limit", "wrong"}}
		for _, c := range clusterSetups {
			p.logf("%s: %v", l.name, c)
			r, err := p.measureCluster(ctx, s, redis, c, l)
			if err != nil {
				return err
			}
			if r.wrong > 0 {
				errs = errors.Join(errs, fmt.Errorf("%v: %d wrong answers, the first: %w", c, r.wrong, r.firstErr))
			}
			if (c.routers == 1 || c.clustered) && r.most > r.limit {
				errs = errors.Join(errs, fmt.Errorf("%v: %d requests in prefill at once, the limit is %d", c, r.most, r.limit))
			}
			ms := func(d time.Duration) string { return fmt.Sprintf("%.2f", d.Seconds()*1000) }
			rows = append(rows, []string{c.String(), fmt.Sprintf("%.0f", r.perSecond), ms(r.p50), ms(r.p99), fmt.Sprintf("%.0f", r.cpu),
				strconv.Itoa(r.most), strconv.Itoa(r.limit), strconv.Itoa(r.wrong)})
		}
		table(w, "Several routers, "+l.name, rows)
	}
	return errs
}

// measureCluster starts a fleet and its routers, and loads them all alike.
func (p *plan) measureCluster(ctx context.Context, s *spawner, redis string, c clusterSetup, l clusterLoad) (r clusterRow, err error) {
	f, err := startSim(ctx, s, p.bins[ours], p.otherCPUs, size{prefill: 2, decode: 2}, false)
	if err != nil {
		return r, err
	}
	defer f.proc.stop()
	if err := f.ask(ctx, http.MethodPost, "/sim/workers/all/timing", fmt.Sprintf(`{"prefill_time":%q}`, l.prefill), nil); err != nil {
		return r, fmt.Errorf("cannot set the engines' speed: %w", err)
	}
	o := routerOptions{policy: "least_load", inflight: clusterSlots, logLevel: p.logLevel}
	var addresses []int
	if c.clustered {
		if addresses, err = freePorts(c.routers + 1); err != nil {
			return r, err
		}
		store, err := s.run("redis", p.otherCPUs, nil, redis, "--port", strconv.Itoa(addresses[c.routers]), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
		if err != nil {
			return r, err
		}
		defer store.stop()
	}
	var routers []*router
	for i := range c.routers {
		if o.extra = nil; c.clustered {
			at := net.JoinHostPort("127.0.0.1", strconv.Itoa(addresses[i]))
			o.extra = []string{"--cluster", "redis://127.0.0.1:" + strconv.Itoa(addresses[c.routers]), "--cluster-listen", at, "--cluster-advertise", at,
				"--cluster-lease-secs", "2", "--cluster-fallback", "refuse"}
		}
		x, err := startRouter(ctx, s, ours, p.bins[ours], p.routerCPUs, f, o)
		if err != nil {
			return r, err
		}
		defer x.proc.stop()
		routers = append(routers, x)
	}
	for _, x := range routers { // a member decides nothing before it has joined
		err := x.proc.await(ctx, time.Minute, func(ctx context.Context) error {
			return ask(ctx, http.MethodPost, "http://"+x.addr+"/v1/chat/completions", shape{tokens: 1}.body(""), nil)
		})
		if err != nil {
			return r, err
		}
	}
	if err := f.ask(ctx, http.MethodPost, "/sim/workers/all/reset", "", nil); err != nil {
		return r, err
	}
	return p.loadCluster(ctx, c, l, f, routers)
}

func (p *plan) loadCluster(ctx context.Context, c clusterSetup, l clusterLoad, f *simFleet, routers []*router) (r clusterRow, err error) {
	t := target{name: ours, proc: routers[0].proc, caller: func(i int, s shape, deadline time.Time) caller {
		x := routers[i%len(routers)].addr
		return &routerCaller{addr: x, wire: s.of(i).wire(x, ""), deadline: deadline, answer: answer{want: s.want()}}
	}}
	for _, x := range routers[1:] {
		t.more = append(t.more, x.proc)
	}
	r = clusterRow{setup: c, limit: clusterSlots * len(f.prefill)}
	var rate, cpu, p50, p99 []float64
	for range p.rounds {
		got, err := load{shape: shape{tokens: 1}, clients: l.clients, warm: p.warm, window: p.window}.run(ctx, t)
		if err != nil {
			return r, err
		}
		r.wrong += got.errors
		if r.firstErr == nil {
			r.firstErr = got.firstErr
		}
		rate, cpu = append(rate, got.perSecond()), append(cpu, got.cpuPerRequest())
		p50, p99 = append(p50, float64(quantile(got.total, .5))), append(p99, float64(quantile(got.total, .99)))
	}
	r.perSecond, r.cpu = median(rate), median(cpu)
	r.p50, r.p99 = time.Duration(median(p50)), time.Duration(median(p99))
	r.most, err = f.mostInPrefill(ctx)
	return r, err
}

// mostInPrefill is the most requests that were in prefill at once, on each prefill worker,
// added up.
func (f *simFleet) mostInPrefill(ctx context.Context) (most int, err error) {
	var list struct {
		Workers []struct {
			Role  string `json:"role"`
			Stats struct {
				Peak int `json:"peak_prefilling"`
			} `json:"stats"`
		} `json:"workers"`
	}
	if err := f.ask(ctx, http.MethodGet, "/sim/workers", "", &list); err != nil {
		return 0, fmt.Errorf("cannot ask the engines what they had: %w", err)
	}
	for _, w := range list.Workers {
		if strings.EqualFold(w.Role, "prefill") {
			most += w.Stats.Peak
		}
	}
	return most, nil
}
