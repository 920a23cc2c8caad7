package server

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// scrapers bounds the connections of the port for metrics, which asks for no key:
// beyond the bound the one is closed that has waited longest without a scrape under
// way, or, if all have one, the one whose scrape takes longest, as its client does not
// read, or the new one if none takes long.
type scrapers struct {
	most int

	mu sync.Mutex
	// guarded by mu
	conns map[net.Conn]*scraper
}

type scraper struct {
	conn  net.Conn
	since time.Time // of the wait
	busy  bool      // its scrape is being answered
}

// longScrape is how long a scrape takes only whose client does not read.
const longScrape = time.Second

type scraperKey struct{}

func newScrapers(most int) *scrapers { return &scrapers{most: most, conns: map[net.Conn]*scraper{}} }

// accepted is http.Server's ConnContext: it takes a connection in.
func (p *scrapers) accepted(ctx context.Context, c net.Conn) context.Context {
	s := &scraper{conn: c, since: time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	out := s // of all
	if len(p.conns) < p.most {
		out = nil
	} else {
		long := s.since.Add(-longScrape)
		for _, other := range p.conns {
			if other.busy && other.since.After(long) {
				continue
			}
			if out == s || out.busy && !other.busy || out.busy == other.busy && other.since.Before(out.since) {
				out = other
			}
		}
	}
	p.conns[c] = s
	if out != nil {
		delete(p.conns, out.conn)
		_ = out.conn.Close() // its goroutine finds out
	}
	return context.WithValue(ctx, scraperKey{}, s)
}

// changed is http.Server's ConnState: it forgets connections that ended.
func (p *scrapers) changed(c net.Conn, state http.ConnState) {
	if state == http.StateClosed || state == http.StateHijacked {
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
	}
}

// busy marks connections while their scrape is answered.
func (p *scrapers) busy(next http.Handler) http.Handler {
	set := func(s *scraper, busy bool) {
		p.mu.Lock()
		s.busy, s.since = busy, time.Now()
		p.mu.Unlock()
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := r.Context().Value(scraperKey{}).(*scraper)
		set(s, true)
		defer set(s, false)
		next.ServeHTTP(w, r)
	})
}
