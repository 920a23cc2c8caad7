package dispatch

import (
	"sync"
	"testing"
)

func TestLatch(t *testing.T) {
	var early, late latch
	if early.isClosed() {
		t.Error("closed before it was")
	}
	ch := early.wait()
	select {
	case <-ch:
		t.Error("let somebody through before it was closed")
	default:
	}
	early.close()
	late.close()
	<-ch
	<-early.wait()
	<-late.wait()
	if !early.isClosed() || !late.isClosed() {
		t.Error("open after it was closed")
	}
}

func TestLatchUnderContention(t *testing.T) {
	for range 500 {
		var l latch
		written := false
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if !l.isClosed() {
					<-l.wait()
				}
				if !written {
					t.Error("what was done before it was closed is not seen")
				}
			})
		}
		written = true
		l.close()
		wg.Wait()
	}
}
