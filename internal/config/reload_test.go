package config

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-router/sluice/admission"
)

// story is a reloader over files that the test changes, and what it applied.
type story struct {
	*Reloader
	t *testing.T

	mu sync.Mutex // Run reads while the test writes
	// guarded by mu
	files   files
	applied []Change
	refuse  error
}

func (s *story) read(name string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files.read(name)
}

// write gives a file contents, and takes it away without any.
func (s *story) write(name string, contents ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.files, name)
	for _, c := range contents {
		s.files[name] = c
	}
}

func newStory(t *testing.T, args string, f files) *story {
	t.Helper()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags := AddFlags(fs)
	if err := fs.Parse(ExpandArgs(words(args))); err != nil {
		t.Fatal(err)
	}
	cfg, warnings, err := LoadFlags(flags, nil, f.read)
	if err != nil {
		t.Fatal(err)
	}
	s := &story{t: t, files: f}
	s.Reloader = NewReloader(flags, nil, cfg, warnings, ReloadOptions{
		ReadFile: s.read,
		Apply: func(c Change) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.refuse != nil {
				return s.refuse
			}
			s.applied = append(s.applied, c)
			return nil
		},
	})
	return s
}

// is checks what is in force: the generation, how many changes were applied, and
// the quantum of the first class.
func (s *story) is(generation, applied int, quantum int64) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	got := fmt.Sprint(s.Status().Generation, len(s.applied), s.Current().Classes.Root.Classes[0].Quantum)
	if want := fmt.Sprint(generation, applied, quantum); got != want {
		s.t.Errorf("generation, changes, quantum = %s, want %s (last error: %v)", got, want, s.Status().Err)
	}
}

func quanta(q string) string { return strings.ReplaceAll(minimal, "quantum: 10", "quantum: "+q) }

func TestReloadOnDemand(t *testing.T) {
	s := newStory(t, "--router-policy-config c --config s", files{"c": minimal, "s": "server: {port: 1}\nadmission: {active_decode_blocks_threshold: 0.9}\n"})
	s.is(1, 0, 10)

	// Nothing changed: nothing is applied.
	if c, err := s.Reload(); err != nil || c.Any() {
		t.Fatalf("%+v, %v", c, err)
	}
	s.is(1, 0, 10)

	s.write("c", quanta("20"))
	c, err := s.Reload()
	if err != nil || !slices.Equal(c.Changed, []string{"classes"}) || c.Old.Classes.Root.Classes[0].Quantum != 10 {
		t.Fatalf("%+v, %v", c, err)
	}
	s.is(2, 1, 20)

	// A mistake changes nothing and is shown until the next good reload.
	s.write("c", quanta("0"))
	if _, err := s.Reload(); err == nil || s.Status().Err == nil {
		t.Fatal("a quantum of 0 was taken")
	}
	want := `c:6: policy_classes[0].quantum: "0": must be from 1 to 1099511627776 tokens
c:7: policy_classes[1].quantum: "0": must be from 1 to 1099511627776 tokens`
	if got := s.Status().Err.Error(); got != want || s.Status().Trigger != "request" {
		t.Errorf("shown: %s", got)
	}
	s.is(2, 1, 20)

	// Classes may change; elsewhere a restart is needed, and told.
	s.write("c", quanta("30"))
	s.write("s", "server: {port: 2}\nlog: {log_level: debug}\nadmission: {active_decode_blocks_threshold: 0.8}\n")
	c, err = s.Reload()
	if err != nil || !slices.Equal(c.Changed, []string{"admission.active_decode_blocks_threshold", "classes"}) {
		t.Fatalf("%+v, %v", c, err)
	}
	s.is(3, 2, 30)
	if got, want := fmt.Sprint(s.Status().Warnings), "[s:1: server.port: has changed; a restart is needed for that s:2: log.log_level: has changed; a restart is needed for that]"; got != want || s.Status().Err != nil {
		t.Errorf("warnings: %s", got)
	}
	if cur := s.Current(); cur.Server.Port != 1 || *cur.Admission.ActiveDecodeBlocks != 0.8 || cur.Origin("admission.active_decode_blocks_threshold").Line != 3 {
		t.Errorf("in force: %+v", cur.Server)
	}

	// What the gate refuses is not in force either.
	s.write("c", quanta("40"))
	s.refuse = errors.New("no")
	if _, err := s.Reload(); fmt.Sprint(err) != "cannot put the configuration in force: no" {
		t.Error(err)
	}
	s.is(3, 2, 30)
	s.refuse = nil
	if _, err := s.Reload(); err != nil {
		t.Error(err)
	}
	s.is(4, 3, 40)
}

func TestReloadOfLimitsAndOfAnotherClassFile(t *testing.T) {
	s := newStory(t, pd+"--config s", files{"s": "admission: {prefill_max_inflight_requests_per_worker: 2}\n", "c": minimal})
	s.write("s", "admission: {prefill_max_inflight_requests_per_worker: 3, prefill_queue_size: 7, router_policy_config: c}\n")
	c, err := s.Reload()
	if err != nil || !slices.Equal(c.Changed, []string{"admission.prefill_max_inflight_requests_per_worker", "admission.prefill_queue_size", "admission.router_policy_config", "classes"}) {
		t.Fatalf("%+v, %v", c, err)
	}
	if a := s.Current().Admission; a.PrefillMaxInflight != 3 || a.PrefillQueueSize != 7 {
		t.Errorf("in force: %+v", a)
	}
	// The new class file is watched from now on.
	s.write("c", quanta("20"))
	s.look()
	s.look()
	s.is(3, 2, 20)
	// And classes can go.
	s.write("s", "admission: {prefill_max_inflight_requests_per_worker: 3}\n")
	if c, err := s.Reload(); err != nil || !slices.Contains(c.Changed, "classes") || s.Current().Classes != nil {
		t.Errorf("%+v, %v", c, err)
	}
}

// New limits are judged beside the old settings that stay.
func TestReloadThatNeedsARestartFirst(t *testing.T) {
	s := newStory(t, "--config s", files{"s": "log: {log_json: true}\n"})
	s.write("s", "fleet: {pd_disaggregation: true}\nadmission: {prefill_max_inflight_requests_per_worker: 2}\n")
	_, err := s.Reload()
	want := `s:2: admission.prefill_max_inflight_requests_per_worker: "2": needs fleet.pd_disaggregation: true; it bounds requests in prefill, and without disaggregation no worker has a prefill of its own (settings that need a restart are as they were at the start)`
	if fmt.Sprint(err) != want {
		t.Errorf("got %v", err)
	}
	if s.Current().Admission.Enabled() || s.Status().Generation != 1 {
		t.Error("it is in force")
	}
}

// A change is taken when it has settled, once, and a mistake is told once.
func TestReloadWhenFilesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStory(t, "--router-policy-config c", files{"c": minimal})
		ctx, cancel := context.WithCancel(t.Context())
		hangup := make(chan os.Signal)
		done := make(chan struct{})
		go func() { defer close(done); s.Run(ctx, hangup) }()
		// ticks lets n looks happen, and stands half way to the next.
		ticks := func(n int) { time.Sleep(time.Duration(n) * DefaultReloadInterval); synctest.Wait() }
		time.Sleep(DefaultReloadInterval / 2)

		ticks(3)
		s.is(1, 0, 10)
		if !s.Status().Tried.IsZero() {
			t.Error("reloaded without a change")
		}
		s.write("c", "") // being written
		ticks(1)
		s.is(1, 0, 10)
		s.write("c", quanta("20"))
		ticks(1)
		s.is(1, 0, 10)
		ticks(1)
		s.is(2, 1, 20)
		if s.Status().Trigger != "file" {
			t.Errorf("trigger %s", s.Status().Trigger)
		}
		ticks(5)
		s.is(2, 1, 20)

		// The file goes away for one look, as when a volume is swapped.
		old := quanta("20")
		s.write("c")
		ticks(1)
		s.write("c", old)
		ticks(3)
		if s.Status().Err != nil {
			t.Error(s.Status().Err)
		}

		// It goes for good: the last good configuration stays.
		s.write("c")
		ticks(2)
		tried := s.Status().Tried
		ticks(5)
		if got := fmt.Sprint(s.Status().Err); got != "c: cannot read the class file: open c: file does not exist" || !s.Status().Tried.Equal(tried) {
			t.Errorf("%s, tried again: %v", got, !s.Status().Tried.Equal(tried))
		}
		s.is(2, 1, 20)

		// The same contents come back: the error is over.
		s.write("c", old)
		ticks(2)
		if s.Status().Err != nil {
			t.Error(s.Status().Err)
		}
		s.is(2, 1, 20)

		// A signal does not wait.
		s.write("c", quanta("30"))
		hangup <- syscall.SIGHUP
		synctest.Wait()
		s.is(3, 2, 30)
		if s.Status().Trigger != "signal" {
			t.Errorf("trigger %s", s.Status().Trigger)
		}
		ticks(3)
		s.is(3, 2, 30)
		cancel()
		<-done
	})
}

// A pipe (--config <(command)) has nothing to say the second time: taking that
// for an empty file would take all classes out of force.
func TestReloadDoesNotReadPipesAgain(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags := AddFlags(fs)
	if err := fs.Parse([]string{"--router-policy-config=" + pipe}); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := LoadFlags(flags, nil, files{pipe: minimal}.read)
	if err != nil {
		t.Fatal(err)
	}
	r := NewReloader(flags, nil, cfg, nil, ReloadOptions{Apply: func(Change) error { t.Error("applied"); return nil }})
	r.look()
	r.look()
	if !r.Status().Tried.IsZero() {
		t.Error("a change was seen")
	}
	_, err = r.Reload()
	if want := pipe + ": cannot read the class file: " + pipe + " is not a regular file, so it cannot be read again"; fmt.Sprint(err) != want {
		t.Errorf("got %v", err)
	}
	if r.Current().Classes.Root.Classes[0] != (admission.Class{Name: "fa", Family: "f", Bucket: "a", Order: admission.FCFS, Quantum: 10}) {
		t.Error("the classes are gone")
	}
}

func TestReloadReadsRegularFiles(t *testing.T) {
	name := filepath.Join(t.TempDir(), "c.yaml")
	write := func(text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(minimal)
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags := AddFlags(fs)
	if err := fs.Parse([]string{"--router-policy-config=" + name}); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := LoadFlags(flags, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := NewReloader(flags, nil, cfg, nil, ReloadOptions{Apply: func(Change) error { return nil }})
	write(quanta("20"))
	r.look()
	r.look()
	if q := r.Current().Classes.Root.Classes[0].Quantum; q != 20 {
		t.Errorf("quantum %d, %v", q, r.Status().Err)
	}
}

// Run returns when there is nothing to watch and nobody to wait for.
func TestReloaderRunEnds(t *testing.T) {
	s := newStory(t, "", files{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Run(ctx, nil)
}

func TestReloadOfWorkers(t *testing.T) {
	list := func(urls ...string) string {
		text := "workers:\n"
		for _, u := range urls {
			text += "  - url: " + u + "\n"
		}
		return text
	}
	s := newStory(t, "--config c.yaml", files{"c.yaml": list("http://a:1", "http://b:1")})
	s.write("c.yaml", list("http://b:1", "http://c:1"))
	c, err := s.Reload()
	if err != nil || !slices.Equal(c.Changed, []string{"workers"}) || len(c.New.Workers) != 2 || c.New.Workers[1].URL != "http://c:1" || len(c.Restart) != 0 {
		t.Errorf("changed %q, restart %q, workers %v, %v", c.Changed, c.Restart, c.New.Workers, err)
	}
	for _, wrong := range []string{
		list("http://b:1", "http://b:1"),
		list("ftp://b:1"),
		list("http://b:1") + "    worker_type: prefill\n",
		// The mode is that of the start.
		"fleet: {pd_disaggregation: true}\n" + list("http://b:1") + "    worker_type: prefill\n",
	} {
		s.write("c.yaml", wrong)
		if _, err := s.Reload(); err == nil || !strings.Contains(err.Error(), "workers[") {
			t.Errorf("error %v for:\n%s", err, wrong)
		}
		if n := len(s.Current().Workers); n != 2 {
			t.Errorf("%d workers are in force after a wrong list", n)
		}
	}
}

// The model name of the fleet needs a restart, so the workers that have none of their own
// keep the old one and are not changed by it.
func TestReloadOfTheModelNameLeavesWorkersAlone(t *testing.T) {
	s := newStory(t, "--config c.yaml", files{"c.yaml": "fleet: {model_id: old}\nworkers: [{url: 'http://a:1'}]\n"})
	s.write("c.yaml", "fleet: {model_id: new}\nworkers: [{url: 'http://a:1'}]\n")
	c, err := s.Reload()
	if err != nil || len(c.Changed) != 0 || len(c.Restart) != 1 {
		t.Errorf("changed %q, restart %q, %v", c.Changed, c.Restart, err)
	}
}

func TestReloadWhenAWorkersKeyFileChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStory(t, "--config c.yaml", files{"c.yaml": "workers: [{url: 'http://a:1', api_key_file: k}]\n", "k": "one"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.Run(ctx, nil)
		}()
		time.Sleep(3 * DefaultReloadInterval)
		s.write("k", "two")
		time.Sleep(3 * DefaultReloadInterval)
		if key := s.Current().Workers[0].APIKey.Reveal(); key != "two" {
			t.Errorf("the key is %q", key)
		}
		cancel()
		<-done
	})
}
