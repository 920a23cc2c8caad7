package server

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// scrapers bounds the connections of the metrics port, which requires no key. At the
// bound, a new connection evicts the one that has been idle longest. If all are busy, it
// evicts the one whose scrape has taken longest, if that is more than longScrape (its
// client does not read); otherwise the new connection is closed.
type scrapers struct {
	most int

	mu sync.Mutex
	// guarded by mu
	conns map[net.Conn]*scraper
}

type scraper struct {
	conn  net.Conn
	since time.Time // when it became idle or busy
	busy  bool      // its scrape is being answered
}

// longScrape is longer than a scrape takes if its client reads.
const longScrape = time.Second

type scraperKey struct{}

func newScrapers(most int) *scrapers { return &scrapers{most: most, conns: map[net.Conn]*scraper{}} }

// accepted is http.Server's ConnContext: it registers a connection.
func (p *scrapers) accepted(ctx context.Context, c net.Conn) context.Context {
	s := &scraper{conn: c, since: time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	out := s // the one to close; nil: none
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
		_ = out.conn.Close() // its goroutine gets an error
	}
	return context.WithValue(ctx, scraperKey{}, s)
}

// changed is http.Server's ConnState: it removes closed connections.
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
