package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/cluster/store"
)

// Bed is what a store is tested on.
type Bed struct {
	// Open opens the store of a cluster at an address, HOST:PORT: that of Faults, or of
	// a proxy in front of it. Whoever opens one closes it.
	Open func(t testing.TB, address, cluster string) store.Store
	// Address is where the coordinator listens, "" for one in this process.
	Address string
	// Faults is nil for a coordinator that has none.
	Faults Faults
	// ReadsFirst says that a write asks the coordinator twice, first without effect. Then
	// the answer that matters cannot be lost from outside.
	ReadsFirst bool
}

// Faults are what happens to a coordinator. A Server has them.
type Faults interface {
	Kill()
	Start()
	Freeze()
	Thaw()
	// Wipe makes it lose all that it keeps.
	Wipe()
	// Backup and Restore take it back in time.
	Backup() string
	Restore(backup string)
}

// Run runs the tests that every store passes.
func Run(t *testing.T, b *Bed) {
	for _, c := range []struct {
		name string
		test func(*testing.T, *Bed)
	}{
		{"AMissingRecordIsNoError", missing},
		{"OneOfManyCreates", createOnce},
		{"WhatWasWrittenIsRead", readYourWrites},
		{"AnotherRevisionIsAConflict", conflict},
		{"ARecordThatIsTooLargeIsRefused", tooLarge},
		{"OneWriterWinsEachRevision", oneWinner},
		{"ClustersHaveRecordsOfTheirOwn", ownRecords},
		{"ACallEndsWithItsContext", endedContext},
		{"ACallAfterCloseFails", closed},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, b) })
	}
	if b.Address != "" {
		t.Run("ALostAnswerIsNoConflict", func(t *testing.T) { lostAnswers(t, b) })
		t.Run("OneLostAnswerIsMadeUpFor", func(t *testing.T) { oneLostAnswer(t, b) })
		t.Run("AConnectionThatWasCutIsReplaced", func(t *testing.T) { cutWhileIdle(t, b) })
		t.Run("SilenceEndsWithinTheLimit", func(t *testing.T) { silence(t, b) })
		t.Run("CloseEndsACall", func(t *testing.T) { closeEndsCall(t, b) })
	}
	if b.Faults != nil {
		t.Run("KilledAndBack", func(t *testing.T) { killed(t, b) })
		t.Run("FrozenAndBack", func(t *testing.T) { frozen(t, b) })
		t.Run("Wiped", func(t *testing.T) { wiped(t, b) })
		t.Run("BackInTime", func(t *testing.T) { restored(t, b) })
	}
}

var clusters atomic.Int64

// open opens a store of a new cluster. The returned function opens more of the same.
func open(t *testing.T, b *Bed) (s store.Store, more func(address string) store.Store) {
	t.Helper()
	cluster := fmt.Sprintf("test-%d", clusters.Add(1))
	more = func(address string) store.Store {
		s := b.Open(t, address, cluster)
		t.Cleanup(func() { s.Close() })
		return s
	}
	return more(b.Address), more
}

// write writes what must succeed.
func write(t *testing.T, s store.Store, value, revision string) string {
	t.Helper()
	r, err := s.Write(t.Context(), []byte(value), revision)
	if err != nil {
		t.Fatalf("cannot write %.20q over %q: %v", value, revision, err)
	}
	if !store.IsRevision(r) || r == revision {
		t.Fatalf("the revision after %q is %q", revision, r)
	}
	return r
}

// read checks what is kept.
func read(t *testing.T, s store.Store, value, revision string) {
	t.Helper()
	r, err := s.Read(t.Context())
	if err != nil {
		t.Fatalf("cannot read: %v", err)
	}
	if string(r.Value) != value || r.Revision != revision {
		t.Fatalf("read %.40q at %q, want %.40q at %q", r.Value, r.Revision, value, revision)
	}
}

// refuse checks that a write fails in a certain way.
func refuse(t *testing.T, s store.Store, value, revision string, want error) {
	t.Helper()
	if r, err := s.Write(t.Context(), []byte(value), revision); !errors.Is(err, want) || r != "" {
		t.Fatalf("a write over %q: %q, %v, want %v", revision, r, err, want)
	}
}

func missing(t *testing.T, b *Bed) {
	s, _ := open(t, b)
	read(t, s, "", "")
	refuse(t, s, "x", store.NewRevision(), store.ErrConflict)
	read(t, s, "", "")
}

func createOnce(t *testing.T, b *Bed) {
	first, more := open(t, b)
	stores := []store.Store{first}
	for range 5 {
		stores = append(stores, more(b.Address))
	}
	var created atomic.Int32
	var all sync.WaitGroup
	for i, s := range stores {
		all.Go(func() {
			switch _, err := s.Write(t.Context(), fmt.Append(nil, i), ""); {
			case err == nil:
				created.Add(1)
			case !errors.Is(err, store.ErrConflict):
				t.Errorf("a second create: %v", err)
			}
		})
	}
	all.Wait()
	if n := created.Load(); n != 1 {
		t.Errorf("%d of %d created the record", n, len(stores))
	}
}

func readYourWrites(t *testing.T, b *Bed) {
	s, more := open(t, b)
	other := more(b.Address)
	revision := ""
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	for _, value := range []string{"one", "", string(every), strings.Repeat("\xff", store.MaxValue), "\n\nlast\n"} {
		revision = write(t, s, value, revision)
		read(t, s, value, revision)
		read(t, other, value, revision)
	}
}

func conflict(t *testing.T, b *Bed) {
	s, more := open(t, b)
	other := more(b.Address)
	first := write(t, s, "first", "")
	second := write(t, other, "second", first)
	refuse(t, s, "third", first, store.ErrConflict)
	refuse(t, s, "third", "", store.ErrConflict)
	refuse(t, s, "third", store.NewRevision(), store.ErrConflict)
	// What begins as the right revision, or is none, is another.
	refuse(t, s, "third", second[:31], store.ErrConflict)
	refuse(t, s, "third", second+"0", store.ErrConflict)
	refuse(t, s, "third", "12", store.ErrConflict)
	read(t, s, "second", second)
}

func tooLarge(t *testing.T, b *Bed) {
	s, _ := open(t, b)
	first := write(t, s, "first", "")
	refuse(t, s, strings.Repeat("x", store.MaxValue+1), first, store.ErrRefused)
	read(t, s, "first", first)
}

// oneWinner has writers count in the record. None of the numbers is lost or given twice.
func oneWinner(t *testing.T, b *Bed) {
	const writers, each = 4, 8
	first, more := open(t, b)
	write(t, first, "0", "")
	var mu sync.Mutex
	wrote := map[string]int{}
	var all sync.WaitGroup
	for w := range writers {
		s := first // two share one
		if w > 1 {
			s = more(b.Address)
		}
		all.Go(func() {
			for won := 0; won < each; {
				r, err := s.Read(t.Context())
				if err != nil {
					t.Errorf("cannot read: %v", err)
					return
				}
				n, err := strconv.Atoi(string(r.Value))
				if err != nil {
					t.Errorf("read %q", r.Value)
					return
				}
				next := strconv.Itoa(n + 1)
				switch _, err := s.Write(t.Context(), []byte(next), r.Revision); {
				case err == nil:
					won++
					mu.Lock()
					wrote[next]++
					mu.Unlock()
				case !errors.Is(err, store.ErrConflict):
					t.Errorf("cannot write: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	r, err := first.Read(t.Context())
	if want := fmt.Sprint(writers * each); err != nil || string(r.Value) != want {
		t.Errorf("after %s writes the record says %q (%v)", want, r.Value, err)
	}
	for n, times := range wrote {
		if times != 1 {
			t.Errorf("%s was written %d times", n, times)
		}
	}
}

func ownRecords(t *testing.T, b *Bed) {
	a, _ := open(t, b)
	c, _ := open(t, b)
	first := write(t, a, "a", "")
	read(t, c, "", "")
	second := write(t, c, "c", "")
	read(t, a, "a", first)
	read(t, c, "c", second)
}

func endedContext(t *testing.T, b *Bed) {
	s, _ := open(t, b)
	first := write(t, s, "first", "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Read(ctx); !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("a read: %v", err)
	}
	if _, err := s.Write(ctx, []byte("second"), first); !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("a write: %v", err)
	}
	read(t, s, "first", first)
}

func closed(t *testing.T, b *Bed) {
	s, more := open(t, b)
	first := write(t, s, "first", "")
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("cannot close: %v", err)
		}
	}
	if _, err := s.Read(t.Context()); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a read: %v", err)
	}
	if _, err := s.Write(t.Context(), []byte("second"), first); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a write: %v", err)
	}
	read(t, more(b.Address), "first", first)
}

// lostAnswers cuts connections when the server has said something. Whether the write has
// happened by then is not known; the store never says that it lost to another.
func lostAnswers(t *testing.T, b *Bed) {
	direct, more := open(t, b)
	p := StartProxy(t, b.Address)
	s := more(p.Address)
	revision := write(t, s, "0", "")
	happened := 0
	for i := 1; i <= 20 && happened < 3; i++ {
		p.Set(CutAnswers)
		value := fmt.Sprint(i)
		_, err := s.Write(t.Context(), []byte(value), revision)
		if !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("a write whose answer was lost: %v", err)
		}
		p.Set(Pass)
		r, err := s.Read(t.Context())
		if err != nil {
			t.Fatalf("cannot read afterwards: %v", err)
		}
		if r.Revision == revision {
			continue // it got lost on the way there
		}
		happened++
		if string(r.Value) != value {
			t.Fatalf("%q was written, %q is read", value, r.Value)
		}
		refuse(t, s, "late", revision, store.ErrConflict)
		revision = r.Revision
		read(t, direct, value, revision)
	}
	if happened == 0 && !b.ReadsFirst {
		t.Error("no write happened whose answer was lost")
	}
}

// oneLostAnswer cuts a connection once. A store that tries again within the call finds what
// its first try wrote, and says so.
func oneLostAnswer(t *testing.T, b *Bed) {
	direct, more := open(t, b)
	p := StartProxy(t, b.Address)
	s := more(p.Address)
	revision := write(t, s, "0", "")
	for i := range 10 {
		value := fmt.Sprint(i)
		p.Set(CutOneAnswer)
		wrote, err := s.Write(t.Context(), []byte(value), revision)
		p.Set(Pass)
		switch {
		case err == nil:
			read(t, direct, value, wrote)
		case !b.ReadsFirst:
			t.Fatalf("a write one of whose answers was lost: %v", err)
		case !errors.Is(err, store.ErrUnavailable):
			t.Fatalf("a write one of whose answers was lost is told as %v", err)
		}
		r, err := s.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		revision = r.Revision
	}
}

func cutWhileIdle(t *testing.T, b *Bed) {
	_, more := open(t, b)
	p := StartProxy(t, b.Address)
	s := more(p.Address)
	revision := write(t, s, "0", "")
	for i := range 3 {
		p.Cut()
		eventually(t, "a read on a new connection", func() error {
			_, err := s.Read(t.Context())
			return err
		})
		p.Cut()
		eventually(t, "a write on a new connection", func() error {
			value := fmt.Sprint(i)
			r, err := s.Write(t.Context(), []byte(value), revision)
			if err == nil {
				revision = r
				read(t, s, value, revision)
			}
			return err
		})
	}
}

// slack is what a busy machine may add to a limit.
const slack = 20 * time.Second

// bounded checks that a call ends with ErrUnavailable.
func bounded(t *testing.T, what string, call func() error) {
	t.Helper()
	began := time.Now()
	err := call()
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("%s: %v", what, err)
	}
	if took := time.Since(began); took > store.CallLimit+slack {
		t.Errorf("%s took %s", what, took)
	}
}

// callsAreBounded checks a read of one store and a write of another, at the same time. It
// returns the value that was written: it may have been.
func callsAreBounded(t *testing.T, reader, writer store.Store, revision string) (value string) {
	t.Helper()
	value = "unknown"
	var both sync.WaitGroup
	both.Go(func() {
		bounded(t, "a read", func() error {
			_, err := reader.Read(t.Context())
			return err
		})
	})
	both.Go(func() {
		bounded(t, "a write", func() error {
			_, err := writer.Write(t.Context(), []byte(value), revision)
			return err
		})
	})
	both.Wait()
	return value
}

// silence has a server that takes connections and says nothing, to stores with a
// connection and to some without.
func silence(t *testing.T, b *Bed) {
	direct, more := open(t, b)
	p := StartProxy(t, b.Address)
	connected, another, other := more(p.Address), more(p.Address), more(p.Address)
	revision := write(t, connected, "first", "")
	read(t, another, "first", revision)
	p.Set(Swallow)
	var both sync.WaitGroup
	both.Go(func() { callsAreBounded(t, connected, another, revision) })
	both.Go(func() { callsAreBounded(t, other, more(p.Address), revision) })
	both.Wait()
	read(t, direct, "first", revision)
	p.Set(Pass)
	eventually(t, "reads afterwards", func() error {
		_, err := connected.Read(t.Context())
		_, err2 := other.Read(t.Context())
		return errors.Join(err, err2)
	})
}

func closeEndsCall(t *testing.T, b *Bed) {
	_, more := open(t, b)
	p := StartProxy(t, b.Address)
	s := more(p.Address)
	write(t, s, "first", "")
	p.Set(Swallow)
	ended := make(chan error, 1)
	go func() {
		_, err := s.Read(context.Background())
		ended <- err
	}()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("the call: %v", err)
	}
}

func killed(t *testing.T, b *Bed) {
	s, more := open(t, b)
	other := more(b.Address)
	revision := write(t, s, "first", "")
	b.Faults.Kill()
	callsAreBounded(t, s, other, revision)
	callsAreBounded(t, other, s, revision)
	b.Faults.Start()
	// The first calls succeed: a lease is not long.
	read(t, s, "first", revision)
	read(t, s, "second", write(t, other, "second", revision))
}

func frozen(t *testing.T, b *Bed) {
	s, more := open(t, b)
	other := more(b.Address)
	revision := write(t, s, "first", "")
	read(t, other, "first", revision)
	b.Faults.Freeze()
	value := callsAreBounded(t, other, s, revision)
	b.Faults.Thaw()
	var r store.Record
	eventually(t, "a read afterwards", func() (err error) {
		r, err = s.Read(t.Context())
		return err
	})
	if first := string(r.Value) == "first" && r.Revision == revision; !first && string(r.Value) != value {
		t.Fatalf("read %q at %q", r.Value, r.Revision)
	}
	// A write that was under way may come in between, once.
	eventually(t, "a write afterwards", func() error {
		r, err := s.Read(t.Context())
		if err == nil {
			_, err = s.Write(t.Context(), []byte("second"), r.Revision)
		}
		return err
	})
}

func wiped(t *testing.T, b *Bed) {
	s, _ := open(t, b)
	revision := write(t, s, "first", "")
	b.Faults.Wipe()
	eventually(t, "a read afterwards", func() error {
		r, err := s.Read(t.Context())
		if err == nil && r.Revision != "" {
			t.Fatalf("a store that lost everything has %q at %q", r.Value, r.Revision)
		}
		return err
	})
	refuse(t, s, "second", revision, store.ErrConflict)
	read(t, s, "third", write(t, s, "third", ""))
}

// restored takes the coordinator back, and has it count up to where it was: revisions
// from then are not the same again.
func restored(t *testing.T, b *Bed) {
	s, _ := open(t, b)
	kept := write(t, s, "kept", "")
	backup := b.Faults.Backup()
	eventually(t, "a read after the backup", func() error {
		_, err := s.Read(t.Context())
		return err
	})
	later, revision := []string{}, kept
	for i := range 10 {
		revision = write(t, s, fmt.Sprint("lost ", i), revision)
		later = append(later, revision)
	}
	b.Faults.Restore(backup)
	eventually(t, "a read afterwards", func() error {
		_, err := s.Read(t.Context())
		return err
	})
	read(t, s, "kept", kept)
	revision = kept
	for i := range 12 {
		for _, old := range later {
			refuse(t, s, "wrong", old, store.ErrConflict)
		}
		revision = write(t, s, fmt.Sprint("new ", i), revision)
	}
	read(t, s, "new 11", revision)
}

// eventually waits until what another process has to do is done.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// Foreign checks that a store leaves alone what put has put in the place of its record.
func Foreign(t *testing.T, s store.Store, put func(junk []byte), get func() []byte) {
	t.Helper()
	for _, junk := range [][]byte{[]byte("someone else's"), {}, bytes.Repeat([]byte("x"), 200<<10)} {
		put(junk)
		if _, err := s.Read(t.Context()); !errors.Is(err, store.ErrForeign) {
			t.Errorf("a read of %.20q: %v", junk, err)
		}
		for _, revision := range []string{"", store.NewRevision()} {
			if _, err := s.Write(t.Context(), []byte("mine"), revision); !errors.Is(err, store.ErrForeign) && !errors.Is(err, store.ErrConflict) {
				t.Errorf("a write over %.20q: %v", junk, err)
			}
		}
		if !bytes.Equal(get(), junk) {
			t.Errorf("%.20q was overwritten", junk)
		}
	}
}
