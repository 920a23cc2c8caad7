package vllmgrpc

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/upstream"
)

// oneMessage is a channel whose streams have one message, and then none.
type oneMessage struct{ upstream.Channel }

func (oneMessage) Stream(ctx context.Context, _ string, _ []byte, _ upstream.CallOptions) (upstream.MessageStream, error) {
	return &oneMessageStream{ctx: ctx}, nil
}

type oneMessageStream struct {
	ctx context.Context
	had bool
}

func (s *oneMessageStream) Next() ([]byte, error) {
	if !s.had {
		s.had = true
		return []byte("x"), nil
	}
	<-s.ctx.Done()
	return nil, s.ctx.Err()
}
func (s *oneMessageStream) Ready() int  { return 0 }
func (s *oneMessageStream) Wait() error { return nil }
func (s *oneMessageStream) Close()      {}

// A client that leaves while what came of all calls is still to be read ends the reading too,
// which once waited for calls that had ended without a word.
func TestSeveralCallsWhoseReaderIsSlowEndWithTheContext(t *testing.T) {
	ep, err := upstream.NewEndpoint(upstream.Config{URL: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, waits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			r := request(func(r *engine.Request) { streamed(r); several(r) })
			f := newFan(&call{ctx: ctx, to: ep, req: r, channel: oneMessage{}}, make([]one, 3))
			for range 3 {
				if _, _, err := f.next(); err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // the others wait to be resumed
				if waits {
					break
				}
			}
			cancel()
			synctest.Wait()
			if waits {
				f.wait()
			}
			for err = nil; err == nil; {
				_, _, err = f.next()
			}
			var e *upstream.Error
			if !errors.Is(err, context.Canceled) || errors.As(err, &e) && e.Kind != upstream.KindCanceled {
				t.Errorf("the error is %v", err)
			}
			f.close()
		})
	}
}
