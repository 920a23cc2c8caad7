package textmodel

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// ErrStoreFull is the error of Get when the models in use leave no room for another.
var ErrStoreFull = errors.New("the memory for tokenizers is used up")

// Store keeps one copy of each model in use within a bound of memory: by its digest, or for a bundle of the operator's by its path. It is safe for concurrent use.
type Store struct {
	maxBytes int64

	mu     sync.Mutex
	bytes  int64 // of models that are loaded
	models map[string]*entry
}

// entry is a model that is used or being loaded.
type entry struct {
	users  int           // guarded by Store.mu
	loaded chan struct{} // closed when model and err are there
	cancel context.CancelFunc
	model  *Model
	err    error
}

// NewStore makes a store that holds models of at most maxBytes.
func NewStore(maxBytes int64) *Store {
	return &Store{maxBytes: maxBytes, models: map[string]*entry{}}
}

// StoreStats is what a store holds.
type StoreStats struct {
	Models   int // loaded or being loaded
	Bytes    int64
	MaxBytes int64
}

// Stats tells what the store holds.
func (s *Store) Stats() StoreStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return StoreStats{Models: len(s.models), Bytes: s.bytes, MaxBytes: s.maxBytes}
}

// Get gives the model of a key, and loads it if it is not there: once, however many ask at the same time. Whoever gets a model must call release when it is no
// longer used; release may be called more than once. A load that fails is tried again by the next Get. The load is cancelled when nobody waits for it any more.
func (s *Store) Get(ctx context.Context, key string, load func(ctx context.Context) (*Model, error)) (m *Model, release func(), err error) {
	s.mu.Lock()
	e := s.models[key]
	if e == nil {
		e = &entry{loaded: make(chan struct{})}
		var loading context.Context
		loading, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
		s.models[key] = e
		go s.load(loading, e, key, load)
	}
	e.users++
	s.mu.Unlock()

	release = sync.OnceFunc(func() { s.release(key, e) })
	select {
	case <-e.loaded:
	case <-ctx.Done():
		release()
		return nil, nil, context.Cause(ctx)
	}
	if e.err != nil {
		release()
		return nil, nil, e.err
	}
	return e.model, release, nil
}

func (s *Store) load(ctx context.Context, e *entry, key string, load func(ctx context.Context) (*Model, error)) {
	defer e.cancel()
	model, err := load(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(e.loaded)
	if err == nil && s.bytes+model.MemoryBytes() > s.maxBytes {
		err = fmt.Errorf("%w: %d of %d bytes are used, and this model takes %d", ErrStoreFull, s.bytes, s.maxBytes, model.MemoryBytes())
	}
	if err != nil {
		e.err = err
		s.forget(key, e)
		return
	}
	e.model = model
	if e.users > 0 {
		s.bytes += model.MemoryBytes()
	}
}

func (s *Store) release(key string, e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.users--; e.users > 0 {
		return
	}
	select {
	case <-e.loaded:
		if e.model != nil {
			s.bytes -= e.model.MemoryBytes()
		}
	default:
		e.cancel()
	}
	s.forget(key, e)
}

// forget takes an entry out, unless another has come in its place.
func (s *Store) forget(key string, e *entry) {
	if s.models[key] == e {
		delete(s.models, key)
	}
}
