package dispatch

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

func TestLegContextIsAContext(t *testing.T) {
	c := &legContext{}
	var _ context.Context = c
	calls := 0
	c.AfterFunc(func() { calls++ })
	stop := c.AfterFunc(func() { t.Error("stopped, and called all the same") })
	c.AfterFunc(func() { calls++ })
	c.AfterFunc(func() { calls++ })
	if !stop() || stop() {
		t.Error("the first stop must succeed, the second not")
	}
	child, cancel := context.WithTimeout(c, time.Hour)
	defer cancel()
	first, second := errors.New("first"), errors.New("second")
	if c.Err() != nil {
		t.Error("ended before it was")
	}
	done := c.Done()
	c.end(first)
	c.end(second)
	<-done
	<-c.Done()
	<-child.Done()
	if !errors.Is(c.Err(), context.Canceled) || !errors.Is(c.ended(), first) || calls != 3 {
		t.Errorf("err %v, cause %v, %d calls", c.Err(), c.ended(), calls)
	}
	late := make(chan struct{})
	if c.AfterFunc(func() { close(late) })() {
		t.Error("a function that comes late was stopped")
	}
	<-late
}

// listener counts how often it is told.
type listener struct{ told int }

func (l *listener) ContextEnded() { l.told++ }

func TestLegContextTellsListeners(t *testing.T) {
	c := &legContext{}
	ls := make([]listener, 5)
	for i := range ls[:4] {
		c.Notify(&ls[i])
	}
	if !c.Forget(&ls[1]) || c.Forget(&ls[1]) || !c.Forget(&ls[3]) {
		t.Error("one that waits is forgotten, once")
	}
	c.end(errPeerFailed)
	c.Notify(&ls[4])
	if c.Forget(&ls[0]) || c.Forget(&ls[4]) {
		t.Error("one that was told cannot be forgotten")
	}
	for i, want := range []int{1, 0, 1, 0, 1} {
		if ls[i].told != want {
			t.Errorf("listener %d was told %d times", i, ls[i].told)
		}
	}
}

// Package context registers a child with the child's lock held; a leg that had
// ended called back at once, into that lock, and the request hung for good.
func TestLegContextThatEndedTakesChildren(t *testing.T) {
	c := &legContext{}
	c.end(errPeerFailed)
	child, cancel := context.WithTimeout(c, time.Hour)
	defer cancel()
	<-child.Done()
	if !errors.Is(child.Err(), context.Canceled) {
		t.Errorf("the child ended with %v", child.Err())
	}
}

func TestLegContextUnderContention(t *testing.T) {
	for range 200 {
		c := &legContext{}
		var wg sync.WaitGroup
		called, stopped := make(chan bool, 1), make(chan bool, 1)
		stop := c.AfterFunc(func() { called <- true })
		wg.Go(func() { c.end(context.Canceled) })
		wg.Go(func() { stopped <- stop() })
		wg.Wait()
		if s := <-stopped; s == (len(called) == 1) {
			t.Fatalf("stopped %t, called %d times", s, len(called))
		}
	}
}
