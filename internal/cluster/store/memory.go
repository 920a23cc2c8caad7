package store

import (
	"bytes"
	"context"
	"errors"
	"sync"
)

// Memory is a coordinator in this process, for tests. All its stores keep one record. The
// zero value is ready to use.
type Memory struct {
	mu     sync.Mutex
	record Record // guarded by mu
	down   bool   // guarded by mu
	loses  bool   // guarded by mu
}

// Open returns a store of it.
func (m *Memory) Open() Store { return &memoryStore{of: m, closed: make(chan struct{})} }

// SetDown makes all calls fail with ErrUnavailable, without effect.
func (m *Memory) SetDown(down bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = down
}

// LoseAnswers makes all calls fail with ErrUnavailable after they had their effect.
func (m *Memory) LoseAnswers(lose bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.loses = lose
}

// Record returns what is kept.
func (m *Memory) Record() Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.record.clone()
}

// Restore sets what is kept, as from a backup. Record{} is nothing.
func (m *Memory) Restore(r Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.record = r.clone()
}

func (r Record) clone() Record {
	return Record{Value: bytes.Clone(r.Value), Revision: r.Revision}
}

type memoryStore struct {
	of     *Memory
	close  sync.Once
	closed chan struct{}
}

// Read implements Store.
func (s *memoryStore) Read(ctx context.Context) (Record, error) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if err := s.answers(ctx); err != nil {
		return Record{}, err
	}
	if s.of.loses {
		return Record{}, errLost
	}
	return s.of.record.clone(), nil
}

// Write implements Store.
func (s *memoryStore) Write(ctx context.Context, value []byte, revision string) (string, error) {
	if err := CheckWrite(value, revision); err != nil {
		return "", err
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if err := s.answers(ctx); err != nil {
		return "", err
	}
	conflict := s.of.record.Revision != revision
	if !conflict {
		s.of.record = Record{Value: bytes.Clone(value), Revision: NewRevision()}
	}
	switch {
	case s.of.loses:
		return "", errLost
	case conflict:
		return "", ErrConflict
	}
	return s.of.record.Revision, nil
}

var (
	errLost = Unavailable(errors.New("the answer was lost"))
	errDown = Unavailable(errors.New("it is down"))
)

// answers needs of.mu.
func (s *memoryStore) answers(ctx context.Context) error {
	select {
	case <-s.closed:
		return errClosed
	default:
	}
	if err := ctx.Err(); err != nil {
		return Unavailable(err)
	}
	if s.of.down {
		return errDown
	}
	return nil
}

// Close implements Store.
func (s *memoryStore) Close() error {
	s.close.Do(func() { close(s.closed) })
	return nil
}

// String implements Store.
func (s *memoryStore) String() string { return "memory" }
