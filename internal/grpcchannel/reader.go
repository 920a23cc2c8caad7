package grpcchannel

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/sluice-router/sluice/internal/rawmessage"
)

const (
	// A stream gets a reader when fastMessages messages in a row have come each within
	// fastGap of the one before.
	fastMessages = 4
	fastGap      = time.Millisecond
	// readAhead is how many messages a reader takes before they are asked for, and
	// readAheadBytes how many bytes of them, the last one not counted. What comes beyond is
	// held back by flow control.
	readAhead      = 32
	readAheadBytes = 64 << 10
)

// reader receives the messages of a fast stream on a goroutine of its own, so that those that
// came together are known as such, and the caller can pass them on in one piece: grpc-go
// itself cannot be asked whether a message is there. With 16 streams as fast as they can be
// that halves the work of a token. A slow stream has no use for it and is spared the memory.
type reader struct {
	// immutable
	cs   grpc.ClientStream
	done <-chan struct{} // of the call's context
	wake chan struct{}   // of one: there is a message or an error, and the caller waits
	room chan struct{}   // of one: the reader may go on

	mu sync.Mutex
	// guarded by mu
	queue   [readAhead]mem.BufferSlice
	at, n   int // the messages are queue[at], …, n of them
	bytes   int // in the queue
	err     error
	waiting bool // the caller
	full    bool // the reader waits
}

func startReader(ctx context.Context, cs grpc.ClientStream) *reader {
	r := &reader{cs: cs, done: ctx.Done(), wake: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	go r.run()
	return r
}

// run ends when the call has ended.
func (r *reader) run() {
	var m rawmessage.Message
	for {
		err := r.cs.RecvMsg(&m)
		r.mu.Lock()
		if err != nil {
			r.err = err
		} else {
			r.queue[(r.at+r.n)%readAhead] = m.Data
			r.n++
			r.bytes += m.Data.Len()
			r.full = r.n == readAhead || r.bytes >= readAheadBytes
		}
		wake, full := r.waiting, r.full
		r.waiting = false
		r.mu.Unlock()
		if wake {
			r.wake <- struct{}{}
		}
		if err != nil {
			return
		}
		if full {
			select {
			case <-r.room:
			case <-r.done:
				// RecvMsg tells why, and that grpc-go has seen it.
			}
		}
	}
}

// next waits for a message or the end.
func (r *reader) next() (mem.BufferSlice, error) {
	r.mu.Lock()
	for r.n == 0 && r.err == nil {
		r.waiting = true
		r.mu.Unlock()
		<-r.wake // the end of the call's context ends RecvMsg
		r.mu.Lock()
	}
	if r.n == 0 {
		defer r.mu.Unlock()
		return nil, r.err
	}
	m := r.queue[r.at]
	r.queue[r.at] = nil
	r.at = (r.at + 1) % readAhead
	r.n--
	r.bytes -= m.Len()
	// Not at once, or the two would take turns message by message.
	room := r.full && r.n <= readAhead/2 && r.bytes <= readAheadBytes/2
	if room {
		r.full = false
	}
	r.mu.Unlock()
	if room {
		r.room <- struct{}{}
	}
	return m, nil
}

func (r *reader) ready() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n
}
