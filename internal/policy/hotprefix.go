package policy

import "github.com/sluice-router/sluice/admission"

// HotPrefix tells that more than half of the requests of a pool begin alike, so that
// prefix_hash cannot spread them by their keys.
type HotPrefix struct {
	Model string
	Role  admission.Role
	// Requests of the last Of had the key.
	Requests, Of int
}

// keyWindow is how many requests are looked at for a key that more than half of them have.
const keyWindow = 512

// keyCount finds a key that more than half of the requests of a pool have, and reports it
// once. In one window of requests the key is found that would have the majority if one has;
// in the next it is counted.
type keyCount struct {
	model  string
	role   admission.Role
	report chan<- HotPrefix // nil: to nobody

	key      uint64
	votes    int // of key, less those of others
	n        int // requests in this window
	counting bool
	told     bool
}

func (c *keyCount) count(key uint64) {
	if c.told || c.report == nil {
		return
	}
	c.n++
	switch {
	case c.counting:
		c.votes += b2i(key == c.key)
	case c.votes == 0:
		c.key, c.votes = key, 1
	case key == c.key:
		c.votes++
	default:
		c.votes--
	}
	if c.n < keyWindow {
		return
	}
	if c.counting && 2*c.votes > c.n {
		select {
		case c.report <- HotPrefix{Model: c.model, Role: c.role, Requests: c.votes, Of: c.n}:
			c.told = true
		default: // the reader is behind; the next window tells
		}
	}
	c.n, c.votes, c.counting = 0, 0, !c.counting
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
