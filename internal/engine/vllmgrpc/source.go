package vllmgrpc

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"github.com/sluice-router/sluice/internal/upstream"
)

// source is where the messages of a leg's calls come from. It belongs to one goroutine.
type source interface {
	// next returns the next message and the call that it is of, valid until the next call of
	// next; io.EOF when all calls have ended with status OK.
	next() (*one, []byte, error)
	// ready is how many messages are there without waiting, as far as that is known.
	ready() int
	// wait returns when next need not wait, or earlier.
	wait()
	// close ends all calls. It may be called more than once.
	close()
}

// single is a source of one call.
type single struct {
	s upstream.MessageStream
	o *one
}

func (s *single) next() (*one, []byte, error) {
	raw, err := s.s.Next()
	return s.o, raw, err
}
func (s *single) ready() int { return s.s.Ready() }
func (s *single) wait()      { _ = s.s.Wait() }
func (s *single) close()     { s.s.Close() }

// maxLanes is how many calls of a leg run at the same time. It is no less than
// engine.MaxHandOffs: what was handed over must not wait.
const maxLanes = 64

// fan is a source of several calls, of which maxLanes run at the same time, each with a
// goroutine of its own. The first error ends all.
type fan struct {
	c      *call
	list   []one
	ctx    context.Context
	cancel context.CancelFunc
	lanes  sync.WaitGroup
	begun  atomic.Int64 // calls
	items  chan *lane   // has room for all lanes: each sends one item at a time

	// owned by the goroutine that reads
	last   *lane // whose message was handed on
	queued *lane // taken off items by wait
	ended  int   // calls
	err    error
}

// lane runs one call after the other.
type lane struct {
	o      *one
	raw    []byte
	err    error
	resume chan struct{}
}

func newFan(c *call, list []one) *fan {
	n := min(len(list), maxLanes)
	f := &fan{c: c, list: list, items: make(chan *lane, n)}
	ctx, cancel := context.WithCancel(c.ctx)
	f.ctx, f.cancel = ctx, cancel
	for range n {
		l := &lane{resume: make(chan struct{}, 1)}
		f.lanes.Go(func() { f.run(ctx, l) })
	}
	return f
}

// run makes calls until none is left, one has failed, or the source is closed.
func (f *fan) run(ctx context.Context, l *lane) {
	for {
		k := int(f.begun.Add(1)) - 1
		if k >= len(f.list) || !f.follow(ctx, l, &f.list[k]) {
			return
		}
	}
}

// follow makes one call and hands on what comes. ok is false when the lane is to end.
func (f *fan) follow(ctx context.Context, l *lane, o *one) (ok bool) {
	l.o = o
	s, err := f.c.open(ctx, o)
	if err == nil {
		defer s.Close()
	}
	for {
		if err == nil {
			l.raw, err = s.Next()
		}
		l.err = err
		f.items <- l
		select {
		case <-l.resume:
		case <-ctx.Done():
			return false
		}
		if err != nil {
			return err == io.EOF
		}
	}
}

func (f *fan) next() (*one, []byte, error) {
	for f.err == nil {
		if f.last != nil {
			f.last.resume <- struct{}{}
			f.last = nil
		}
		l := f.queued
		if f.queued = nil; l == nil {
			if l = f.take(); l == nil {
				f.err = upstream.NewCanceled(f.c.ctx, &upstream.Error{Op: upstream.OpBody, Addr: f.c.addr(), Sent: true})
				break
			}
		}
		f.last = l
		switch l.err {
		case nil:
			return l.o, l.raw, nil
		case io.EOF:
			if f.ended++; f.ended == len(f.list) {
				f.err = io.EOF
			}
		default:
			f.err = l.err
		}
	}
	return nil, nil, f.err
}

// take waits for a lane. It is nil when the context has ended and nothing more comes: a lane that
// waits to be resumed then ends without a word.
func (f *fan) take() *lane {
	select {
	case l := <-f.items:
		return l
	case <-f.ctx.Done():
	}
	select {
	case l := <-f.items:
		return l
	default:
		return nil
	}
}

func (f *fan) ready() int {
	if f.queued != nil {
		return 1
	}
	return len(f.items)
}

func (f *fan) wait() {
	if f.err != nil || f.queued != nil {
		return
	}
	if f.last != nil { // it may be the only one that anything comes of
		f.last.resume <- struct{}{}
		f.last = nil
	}
	f.queued = f.take()
}

// close waits for the lanes, which end at once.
func (f *fan) close() {
	f.cancel()
	f.lanes.Wait()
	if f.err == nil {
		f.err = io.ErrClosedPipe
	}
}
