package textmodel

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
)

func TestModelIsLoadedOnceForAll(t *testing.T) {
	m := modelOf(t, nil)
	synctest.Test(t, func(t *testing.T) {
		s := NewStore(1 << 30)
		loads := 0
		proceed := make(chan struct{})
		var wg sync.WaitGroup
		releases := make([]func(), 10)
		for i := range releases {
			wg.Go(func() {
				got, release, err := s.Get(context.Background(), "k", func(context.Context) (*Model, error) {
					loads++
					<-proceed
					return m, nil
				})
				if err != nil || got != m {
					t.Errorf("got %v, %v", got, err)
				}
				releases[i] = release
			})
		}
		synctest.Wait()
		close(proceed)
		wg.Wait()
		if loads != 1 {
			t.Errorf("%d loads", loads)
		}
		if got := s.Stats(); got != (StoreStats{Models: 1, Bytes: m.MemoryBytes(), MaxBytes: 1 << 30}) {
			t.Errorf("in use: %+v", got)
		}
		for _, release := range releases {
			release()
			release() // again does nothing
		}
		if got := s.Stats(); got.Models != 0 || got.Bytes != 0 {
			t.Errorf("at the end: %+v", got)
		}
	})
}

func TestFailedLoadIsTriedAgain(t *testing.T) {
	s := NewStore(1 << 30)
	m := modelOf(t, nil)
	broken := errors.New("broken")
	if _, _, err := s.Get(context.Background(), "k", func(context.Context) (*Model, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	got, release, err := s.Get(context.Background(), "k", func(context.Context) (*Model, error) { return m, nil })
	if err != nil || got != m {
		t.Fatalf("got %v, %v", got, err)
	}
	release()
}

func TestMemoryOfModelsIsBounded(t *testing.T) {
	m := modelOf(t, nil)
	load := func(context.Context) (*Model, error) { return m, nil }
	s := NewStore(m.MemoryBytes() * 3 / 2)
	_, release, err := s.Get(context.Background(), "a", load)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Get(context.Background(), "b", load); !errors.Is(err, ErrStoreFull) {
		t.Errorf("a second model: %v", err)
	}
	release()
	_, release, err = s.Get(context.Background(), "b", load)
	if err != nil {
		t.Errorf("after the release: %v", err)
	}
	release()
}

// A load that nobody waits for is cancelled, and one that comes meanwhile loads anew.
func TestLoadEndsWithThoseWhoWait(t *testing.T) {
	m := modelOf(t, nil)
	synctest.Test(t, func(t *testing.T) {
		s := NewStore(1 << 30)
		ctx, cancel := context.WithCancel(context.Background())
		cancelled := false
		slow := func(loading context.Context) (*Model, error) {
			<-loading.Done()
			cancelled = true
			return nil, loading.Err()
		}
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _, err = s.Get(ctx, "k", slow)
		}()
		synctest.Wait()
		cancel()
		<-done
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the one who waited: %v", err)
		}
		got, release, err := s.Get(context.Background(), "k", func(context.Context) (*Model, error) { return m, nil })
		if err != nil || got != m {
			t.Fatalf("the next: %v, %v", got, err)
		}
		synctest.Wait()
		if !cancelled {
			t.Error("the load goes on")
		}
		release()
		if got := s.Stats(); got.Models != 0 || got.Bytes != 0 {
			t.Errorf("at the end: %+v", got)
		}
	})
}

// A load that ignores its cancellation leaves nothing behind.
func TestLateLoadIsDropped(t *testing.T) {
	m := modelOf(t, nil)
	synctest.Test(t, func(t *testing.T) {
		s := NewStore(1 << 30)
		ctx, cancel := context.WithCancel(context.Background())
		proceed := make(chan struct{})
		go func() {
			_, _, _ = s.Get(ctx, "k", func(context.Context) (*Model, error) {
				<-proceed
				return m, nil
			})
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(proceed)
		synctest.Wait()
		if got := s.Stats(); got.Models != 0 || got.Bytes != 0 {
			t.Errorf("at the end: %+v", got)
		}
	})
}
