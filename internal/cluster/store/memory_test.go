package store_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-router/sluice/internal/cluster/store"
	"github.com/sluice-router/sluice/internal/cluster/store/storetest"
)

func TestMemory(t *testing.T) {
	var mu sync.Mutex
	clusters := map[string]*store.Memory{}
	storetest.Run(t, &storetest.Bed{Open: func(_ testing.TB, _, cluster string) store.Store {
		mu.Lock()
		defer mu.Unlock()
		if clusters[cluster] == nil {
			clusters[cluster] = &store.Memory{}
		}
		return clusters[cluster].Open()
	}})
}

// A write whose answer is lost has happened; what is read afterwards tells.
func TestMemoryLosesAnswers(t *testing.T) {
	var m store.Memory
	s := m.Open()
	defer s.Close()
	m.LoseAnswers(true)
	if _, err := s.Write(t.Context(), []byte("one"), ""); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("a lost answer: %v", err)
	}
	m.LoseAnswers(false)
	r, err := s.Read(t.Context())
	if err != nil || string(r.Value) != "one" || !store.IsRevision(r.Revision) {
		t.Fatalf("read %+v, %v", r, err)
	}
	m.SetDown(true)
	if _, err := s.Write(t.Context(), []byte("two"), r.Revision); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("a store that is down: %v", err)
	}
	m.SetDown(false)
	if again, err := s.Read(t.Context()); err != nil || again.Revision != r.Revision {
		t.Fatalf("a store that is down wrote: %+v, %v", again, err)
	}
}

func TestNamesOfClusters(t *testing.T) {
	for name, good := range map[string]bool{
		"sluice": true, "a": true, "gate-2": true, strings.Repeat("x", 63): true,
		"": false, "Sluice": false, "-a": false, "a-": false, "a.b": false, "a/b": false, "a_b": false, "ä": false,
		strings.Repeat("x", 64): false, "a\n": false,
	} {
		if err := store.CheckName(name); (err == nil) != good {
			t.Errorf("CheckName(%q) = %v", name, err)
		}
	}
}
