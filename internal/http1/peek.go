package http1

import (
	"errors"
	"os"
	"time"
)

// peekBytes is how many bytes behind a request are read while it is being answered. A
// disconnect behind more than that is noticed at the next write.
const peekBytes = 16 << 10

// peeker notices client disconnects where there is no watcher: from the end of a
// request's body to the end of its answer, a goroutine reads ahead into the buffer.
type peeker struct {
	c *conn
	// on: the handler runs.
	on   bool
	done chan struct{} // closed when the goroutine has ended; nil: there is none
}

// begin is called before the handler.
func (p *peeker) begin() {
	p.on = p.c.raw == nil
	if p.c.x.body.ended() {
		p.bodyEnded()
	}
}

// bodyEnded is called when nothing is left to be read for the handler.
func (p *peeker) bodyEnded() {
	if !p.on || p.done != nil {
		return
	}
	p.c.arm(time.Time{})
	p.done = make(chan struct{})
	go p.run(p.done)
}

// run owns the connection's buffer until it returns.
func (p *peeker) run(done chan struct{}) {
	defer close(done)
	for c := p.c; c.in.Len() < peekBytes; {
		c.in.Room()
		n, err := c.sock.Read(c.in.B[c.in.W:])
		c.in.Filled(n)
		if err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				c.gone()
			}
			return // the next read returns the error again
		}
	}
}

// end is called after the handler. It returns when the goroutine has ended.
func (p *peeker) end() {
	p.on = false
	if p.done == nil {
		return
	}
	p.c.interrupt()
	<-p.done
	p.done = nil
	p.c.arm(time.Time{})
}
